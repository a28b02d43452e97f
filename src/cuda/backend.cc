#include "src/cuda/backend.h"

#include <algorithm>
#include <string>

#include "src/core/check.h"
#include "src/cuda/device.h"
#include "src/cuda/merge/kernel.h"
#include "src/cuda/schedule/kernel.h"
#include "src/cuda/select.h"
#include "src/plan/covers.h"
#include "src/plan/schedule-inl.h"

namespace headwater::cuda {
namespace {

constexpr size_t kBufferAlignment = 256;

Status check_buffer(const char* name, const Buffer& buffer, size_t needed) {
  if (needed == 0) return {};
  if (buffer.data == nullptr) return {StatusCode::kBuffer, std::string(name) + ".data = null: must be given"};
  if (buffer.bytes < needed) {
    return {StatusCode::kBuffer,
            std::string(name) + ".bytes = " + std::to_string(buffer.bytes) + ": the plan needs " + std::to_string(needed)};
  }
  if (reinterpret_cast<uintptr_t>(buffer.data) % kBufferAlignment != 0) {
    return {StatusCode::kBuffer, std::string(name) + ".data = " + check::text(buffer.data) + ": must be 256-byte aligned"};
  }
  return {};
}

class CudaPlan final : public PlanImpl {
 public:
  CudaPlan(const Bounds& bounds, const PlanOptions& options, const DeviceCaps& caps, const Kernel* kernel)
      : bounds_(bounds), options_(options), caps_(caps), kernel_(kernel) {
    const Choice choice{caps_, bounds_, options.batch_invariant, head_block_of(bounds), options.checked};
    launch_ = kernel->shape(choice);
    plan::KernelTraits traits = kernel->traits(choice);
    const int32_t rows = std::max(traits.max_rows, choice.head_block);  // of the largest row block, before tokens are known
    const auto pieces = [&](int32_t r) { return (r + launch_.rows - 1) / launch_.rows; };
    // Thread blocks that are resident at once; the pieces of a row block share them.
    const int32_t sms = options.workers > 0 ? options.workers : caps_.sm_count;
    traits.default_workers = std::max(1, sms * launch_.blocks_per_sm / pieces(rows));
    PlanOptions planned = options;
    planned.workers = 0;
    shape_ = plan::make_shape(bounds, traits, planned);
    launch_.row_blocks = pieces(shape_.tokens_per_block * shape_.head_block);
    fingerprint_ = plan::fingerprint(shape_);
    partial_bytes_ = plan::partial_bytes(shape_, bounds.d_v);
  }

  [[nodiscard]] Status prepare() const {
    if (Status status = plan::check_shape(shape_); !status.ok()) return status;
    const DeviceGuard guard(bounds_.device.index);
    HEADWATER_TRY(guard.status());
    HEADWATER_TRY(to_status(kernel_->warm(), kernel_->name));
    HEADWATER_TRY(to_status(warm_merge(), "merge_cuda"));
    return to_status(warm_schedule(caps_.smem_per_block), "schedule_cuda");
  }

  [[nodiscard]] const Bounds& bounds() const override { return bounds_; }
  [[nodiscard]] std::string kernel() const override { return kernel_->name; }
  [[nodiscard]] size_t schedule_bytes() const override { return plan::schedule_bytes(shape_); }
  [[nodiscard]] size_t scratch_bytes() const override {
    return redo_at() + static_cast<size_t>(shape_.max_items) * static_cast<size_t>(launch_.row_blocks);
  }

  [[nodiscard]] Status schedule(const Lengths& lengths, Buffer schedule_buf, Stream stream) const override {
    HEADWATER_TRY(check_buffer("schedule_buf", schedule_buf, schedule_bytes()));
    HEADWATER_TRY(check_lengths(lengths));
    const DeviceGuard guard(bounds_.device.index);
    HEADWATER_TRY(guard.status());
    ScheduleArgs args;
    args.shape = shape_;
    args.view = plan::view_schedule(shape_, schedule_buf.data);
    args.lengths = lengths;
    args.fingerprint = fingerprint_;
    return to_status(launch_schedule(args, caps_.smem_per_block, static_cast<cudaStream_t>(stream)), "schedule_cuda");
  }

  [[nodiscard]] Status run(const Problem& problem, Buffer schedule_buf, Buffer scratch_buf, Stream stream) const override {
    KernelArgs args;
    HEADWATER_TRY(validate(problem, &args.problem));
    HEADWATER_TRY(plan::check_covers(bounds_, problem, args.problem));
    if (problem.requests == 0) return {};
    HEADWATER_TRY(check_buffer("schedule_buf", schedule_buf, schedule_bytes()));
    HEADWATER_TRY(check_buffer("scratch_buf", scratch_buf, scratch_bytes()));
    const DeviceGuard guard(bounds_.device.index);
    HEADWATER_TRY(guard.status());
    args.shape = shape_;
    args.view = plan::view_schedule(shape_, schedule_buf.data);
    args.partials = static_cast<std::byte*>(scratch_buf.data);
    args.redo = static_cast<unsigned char*>(scratch_buf.data) + redo_at();
    args.partial_stride = static_cast<int64_t>(partial_bytes_);
    args.partial_rows = shape_.tokens_per_block * shape_.head_block;
    args.checked = options_.checked ? 1 : 0;
    args.fingerprint = fingerprint_;
    args.launch = launch_;
    const auto on = static_cast<cudaStream_t>(stream);
    HEADWATER_TRY(to_status(kernel_->launch(args, on), kernel_->name));
    return to_status(launch_merge(args, caps_.sm_count, caps_.major >= 9, on), "merge_cuda");
  }

  [[nodiscard]] Status check(Buffer schedule_buf, Stream stream) const override {
    HEADWATER_TRY(check_buffer("schedule_buf", schedule_buf, schedule_bytes()));
    const DeviceGuard guard(bounds_.device.index);
    HEADWATER_TRY(guard.status());
    const auto on = static_cast<cudaStream_t>(stream);
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    HEADWATER_TRY(to_status(cudaStreamIsCapturing(on, &capturing), "cudaStreamIsCapturing"));
    if (capturing != cudaStreamCaptureStatusNone) return invalid("stream: is being captured, and check synchronises");
    plan::ScheduleHeader header;
    HEADWATER_TRY(to_status(cudaMemcpyAsync(&header, schedule_buf.data, sizeof(header), cudaMemcpyDefault, on), "check"));
    HEADWATER_TRY(to_status(cudaStreamSynchronize(on), "check"));
    if (header.fingerprint != fingerprint_) return {StatusCode::kBuffer, "schedule_buf: holds no schedule of this plan"};
    if (header.error == 0) return {};
    auto* word = static_cast<char*>(schedule_buf.data) + offsetof(plan::ScheduleHeader, error);
    const int32_t none = 0;
    HEADWATER_TRY(to_status(cudaMemcpyAsync(word, &none, sizeof(none), cudaMemcpyDefault, on), "check"));
    HEADWATER_TRY(to_status(cudaStreamSynchronize(on), "check"));
    if ((header.error & plan::kOverBounds) != 0) {
      return {StatusCode::kStale, "schedule: lengths outside the plan's bounds; the rows of its runs are NaN"};
    }
    if ((header.error & plan::kBadTable) != 0) {
      return {StatusCode::kStale, "run: a table entry or index of a live entry is outside its cache"};
    }
    return {StatusCode::kStale, "run: a request's lengths are not the scheduled ones; its rows are NaN"};
  }

  void describe(Buffer schedule_buf, Explanation* explanation) const override {
    explanation->plan.push_back("tile " + std::to_string(shape_.tile_entries) + " entries, " + std::to_string(launch_.stages) +
                                " in flight");
    explanation->plan.push_back(std::to_string(shape_.tokens_per_block * shape_.head_block) + " rows a block in " +
                                std::to_string(launch_.row_blocks) + " pieces");
    explanation->plan.push_back(std::to_string(shape_.workers) + " workers, " + std::to_string(launch_.blocks_per_sm) + " an SM");
    explanation->plan.push_back("shared memory " + std::to_string(launch_.smem_bytes) + " bytes a block");
    if (schedule_buf.data == nullptr) return;
    const DeviceGuard guard(bounds_.device.index);
    plan::ScheduleHeader header;
    if (cudaMemcpy(&header, schedule_buf.data, sizeof(header), cudaMemcpyDefault) != cudaSuccess) return;
    explanation->items = header.num_items;
    explanation->split_blocks = header.num_merges;
  }

 private:
  [[nodiscard]] size_t redo_at() const { return static_cast<size_t>(shape_.max_partials) * partial_bytes_; }

  // Lengths stand on the device: only pointers and counts can be checked.
  [[nodiscard]] Status check_lengths(const Lengths& lengths) const {
    if (lengths.requests < 0 || lengths.requests > shape_.max_requests) {
      return check::bad("requests", lengths.requests, "must be 0 to the plan's max_requests = " + check::text(shape_.max_requests));
    }
    if (lengths.num_sources != shape_.num_sources) {
      return check::bad("num_sources", lengths.num_sources, "the plan has " + check::text(shape_.num_sources));
    }
    if (lengths.requests == 0) return {};
    HEADWATER_TRY(check::check_array({}, "qo_indptr", lengths.qo_indptr, true, "requests is above 0"));
    const bool needs = shape_.needs_context && shape_.context_source < 0;
    HEADWATER_TRY(check::check_array({}, "context_lens", lengths.context_lens, needs, "no single source gives the context length"));
    for (int32_t s = 0; s < shape_.num_sources; ++s) {
      const plan::SourceRules& rules = shape_.sources[s];
      const SourceLengths& source = lengths.sources[s];
      if (rules.rule == RuleKind::kGathered && rules.index_space == IndexSpace::kSlot) continue;
      const bool ragged = rules.addressing == AddressingKind::kRagged;
      const bool last_page = rules.addressing == AddressingKind::kPageList && source.kv_last_page_len != nullptr;
      const bool by_indptr = ragged || (last_page && source.seq_lens == nullptr);
      HEADWATER_TRY(check::check_array({s}, "kv_indptr", source.kv_indptr, by_indptr, "it gives the lengths"));
      HEADWATER_TRY(check::check_array({s}, "seq_lens", source.seq_lens, !by_indptr, "it gives the lengths"));
    }
    return {};
  }

  Bounds bounds_;
  PlanOptions options_;
  DeviceCaps caps_;
  const Kernel* kernel_;
  plan::PlanShape shape_;
  LaunchShape launch_;
  uint64_t fingerprint_ = 0;
  size_t partial_bytes_ = 0;
};

BackendInfo info() {
  BackendInfo info;
  info.name = "cuda";
  info.built = true;
  const Result<int32_t> count = device_count();
  if (!count.ok() || *count == 0) {
    info.detail = "no device: " + (count.ok() ? std::string("none found") : count.status().message());
    return info;
  }
  const Result<DeviceCaps> caps = device_caps(0);
  if (!caps.ok()) {
    info.detail = caps.status().message();
    return info;
  }
  info.usable = caps->major >= 8;
  info.detail = std::to_string(*count) + " device(s), compute capability " + std::to_string(caps->major) + "." +
                std::to_string(caps->minor) + ", " + std::to_string(caps->sm_count) + " SMs";
  if (!info.usable) info.detail += ": needs 8.0 or newer";
  return info;
}

std::vector<KernelInfo> kernels() {
  const bool usable = info().usable;
  int32_t count = 0;
  const Kernel* const* list = kernel_list(&count);
  std::vector<KernelInfo> infos;
  for (int32_t i = 0; i < count; ++i) infos.push_back({list[i]->name, "cuda", list[i]->file, list[i]->accepts, usable});
  return infos;
}

std::vector<KernelVerdict> select(const Bounds& bounds, const PlanOptions& options) {
  const Result<DeviceCaps> caps = device_caps(bounds.device.index);
  if (caps.ok()) return verdicts(*caps, bounds, options);
  std::vector<KernelVerdict> list = verdicts(DeviceCaps{}, bounds, options);
  for (KernelVerdict& verdict : list) {
    verdict.accepted = false;
    verdict.reason = caps.status().message();
  }
  return list;
}

Result<Plan> make_plan(const Bounds& bounds, const PlanOptions& options) {
  const Result<DeviceCaps> caps = device_caps(bounds.device.index);
  if (!caps.ok()) return caps.status();
  const Kernel* kernel = kernel_by_name(options.kernel);
  if (kernel == nullptr) return invalid("options.kernel = " + options.kernel + ": no such kernel of the cuda backend");
  auto plan = std::make_shared<CudaPlan>(bounds, options, *caps, kernel);
  if (Status status = plan->prepare(); !status.ok()) return status;
  return Plan(std::move(plan));
}

void* allocate(const Device& device, size_t bytes) {
  const DeviceGuard guard(device.index);
  void* data = nullptr;
  return guard.status().ok() && cudaMalloc(&data, bytes) == cudaSuccess ? data : nullptr;
}

void release(const Device& device, void* data) {
  const DeviceGuard guard(device.index);
  (void)cudaFree(data);
}

}  // namespace

const BackendEntry& cuda_backend() {
  static const BackendEntry entry{"cuda", info, kernels, select, make_plan, allocate, release};
  return entry;
}

}  // namespace headwater::cuda
