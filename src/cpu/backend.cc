#include "src/cpu/backend.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "src/core/check.h"
#include "src/cpu/row_block.h"
#include "src/cpu/select.h"
#include "src/cpu/workers.h"
#include "src/plan/covers.h"
#include "src/plan/describe.h"
#include "src/plan/schedule-inl.h"
#include "src/plan/schedule.h"

namespace headwater::cpu {
namespace {

constexpr size_t kBufferAlignment = 256;

// Entries of a tile: a float32 copy of at most 128 KB, so that it stays in a 512 KB L2 beside Q^T and O^T; 96 at most, since beyond that
// the softmax's share stays and prefill loses to causal waste. A function of formats and widths alone: batch_invariant bits depend on it.
int32_t tile_entries(const Bounds& bounds) {
  bool separate = false;
  for (const SourceBounds& source : bounds.sources) separate = separate || !source.shared;
  const int32_t floats = bounds.d_qk + (separate ? bounds.d_v : 0);
  return std::clamp(32768 / std::max(1, floats) / 24 * 24, 48, 96);
}

plan::KernelTraits traits_of(const Kernel& kernel, const Bounds& bounds) {
  plan::KernelTraits traits;
  traits.tile_entries = tile_entries(bounds);
  traits.max_rows = kMaxPassRows;
  traits.default_workers = available_workers();
  traits.bytes_per_us = 11e3;
  traits.flops_per_us = std::strcmp(kernel.isa, "scalar") == 0 ? 2e3 : 80e3;
  traits.fragment_us = 1.0;
  return traits;
}

Status check_buffer(const char* name, Buffer buffer, size_t need) {
  if (need == 0) return {};
  if (buffer.data == nullptr) return check::refuse(StatusCode::kBuffer, name, "null", "needs " + std::to_string(need) + " bytes");
  if (!check::aligned(buffer.data, kBufferAlignment)) {
    return check::refuse(StatusCode::kBuffer, name, check::text(buffer.data),
                         "must be aligned to " + std::to_string(kBufferAlignment) + " bytes");
  }
  if (buffer.bytes < need) {
    return check::refuse(StatusCode::kBuffer, std::string(name) + ".bytes", std::to_string(buffer.bytes),
                         "needs at least " + std::to_string(need));
  }
  return {};
}

// What the tasks of one run share.
struct Run {
  const ResolvedProblem* problem = nullptr;
  const plan::PlanShape* shape = nullptr;
  const plan::ScheduleView* view = nullptr;
  const Kernel* kernel = nullptr;
  std::byte* partials = nullptr;
  int64_t partial_bytes = 0;
  std::byte* workspaces = nullptr;
  int64_t workspace_bytes = 0;
  int32_t first_worker = 0;
  int32_t merge_tasks = 1;
};

// Items from `i` on that differ in their head block only, by 1 from each to the next: they read neighbouring records.
int32_t gang_length(const Run& run, int32_t i, int32_t end) {
  if (run.shape->tokens_per_block * run.shape->head_block > kFewRows) return 1;
  const plan::WorkItem& first = run.view->items[i];
  int32_t n = 1;
  for (; n < kMaxGang && i + n < end; ++n) {
    const plan::WorkItem& item = run.view->items[i + n];
    if (item.request != first.request || item.token_begin != first.token_begin || item.head_block != first.head_block + n ||
        item.tile_begin != first.tile_begin || item.tile_end != first.tile_end) {
      break;
    }
  }
  return n;
}

void run_worker(void* arg, int32_t task) {
  const Run& run = *static_cast<const Run*>(arg);
  const int32_t worker = run.first_worker + task;
  const int32_t end = run.view->worker_begin[worker + 1];
  ItemArgs args[kMaxGang];
  plan::RequestLengths lengths;
  for (int32_t i = run.view->worker_begin[worker]; i < end;) {
    const int32_t n = gang_length(run, i, end);
    plan::load_lengths(*run.shape, *run.view, run.view->items[i].request, &lengths);
    for (int32_t k = 0; k < n; ++k, ++i) {
      args[k] = {run.problem, run.shape, &lengths, run.view->items[i], {}, run.workspaces + worker * run.workspace_bytes};
      if (args[k].item.partial >= 0) {
        args[k].partial = view_partial(run.partials + args[k].item.partial * run.partial_bytes, item_rows(args[k]), run.problem->d_v);
      }
    }
    run.kernel->run_items(args, n);
  }
}

// Every task takes its share of the rows of every merge.
void run_merges(void* arg, int32_t task) {
  const Run& run = *static_cast<const Run*>(arg);
  MergeArgs args;
  plan::RequestLengths lengths;
  args.problem = run.problem;
  args.shape = run.shape;
  args.lengths = &lengths;
  args.partials = run.partials;
  args.partial_stride_bytes = run.partial_bytes;
  for (int32_t i = 0; i < run.view->header->num_merges; ++i) {
    args.merge = run.view->merges[i];
    plan::load_lengths(*run.shape, *run.view, args.merge.request, &lengths);
    const int64_t rows = int64_t{args.merge.token_count} * run.shape->head_block;
    args.row_begin = static_cast<int32_t>(rows * task / run.merge_tasks);
    args.row_end = static_cast<int32_t>(rows * (task + 1) / run.merge_tasks);
    run_merge(args);
  }
}

class CpuPlan final : public PlanImpl {
 public:
  CpuPlan(const Bounds& bounds, const PlanOptions& options, const Kernel* kernel, const plan::PlanShape& shape)
      : bounds_(bounds), parallel_for_(options.parallel_for), kernel_(kernel), shape_(shape) {
    const auto align = [](size_t bytes) { return plan::align_up(bytes, kBufferAlignment); };
    partial_bytes_ = align(plan::partial_bytes(shape_, bounds_.d_v));
    partials_bytes_ = static_cast<size_t>(shape_.max_partials) * partial_bytes_;
    workspace_bytes_ = align(cpu::workspace_bytes(shape_, bounds_.d_qk, bounds_.d_v));
  }

  [[nodiscard]] const Bounds& bounds() const override { return bounds_; }
  [[nodiscard]] std::string kernel() const override { return kernel_->name; }
  [[nodiscard]] size_t schedule_bytes() const override { return plan::schedule_bytes(shape_); }
  [[nodiscard]] size_t scratch_bytes() const override { return partials_bytes_ + static_cast<size_t>(shape_.workers) * workspace_bytes_; }

  [[nodiscard]] Status schedule(const Lengths& lengths, Buffer schedule_buf, Stream /*stream*/) const override {
    HEADWATER_TRY(check_buffer("schedule_buf", schedule_buf, schedule_bytes()));
    return plan::schedule_host(shape_, lengths, schedule_buf.data);
  }

  [[nodiscard]] Status run(const Problem& problem, Buffer schedule_buf, Buffer scratch_buf, Stream /*stream*/) const override {
    ResolvedProblem resolved;
    HEADWATER_TRY(validate(problem, &resolved));
    HEADWATER_TRY(plan::check_covers(bounds_, problem, resolved));
    HEADWATER_TRY(check_buffer("schedule_buf", schedule_buf, schedule_bytes()));
    HEADWATER_TRY(check_buffer("scratch_buf", scratch_buf, scratch_bytes()));
    const plan::ScheduleView view = plan::view_schedule(shape_, schedule_buf.data);
    HEADWATER_TRY(plan::check_scheduled_lengths(shape_, view, resolved));
    execute(resolved, view, static_cast<std::byte*>(scratch_buf.data));
    return {};
  }

  // A host run refuses what a device run could only report: there is never an error word to find.
  [[nodiscard]] Status check(Buffer schedule_buf, Stream /*stream*/) const override {
    HEADWATER_TRY(check_buffer("schedule_buf", schedule_buf, schedule_bytes()));
    const plan::ScheduleView view = plan::view_schedule(shape_, schedule_buf.data);
    if (view.header->magic != plan::kScheduleMagic) return {StatusCode::kBuffer, "schedule_buf: holds no schedule"};
    return {};
  }

  void describe(Buffer schedule_buf, Explanation* explanation) const override {
    const bool few = shape_.tokens_per_block * shape_.head_block <= kFewRows;
    explanation->plan.push_back(std::string("kernel ") + kernel_->name + ", " + (few ? "few-row" : "panel") + " form for full row blocks");
    if (check_buffer("schedule_buf", schedule_buf, schedule_bytes()).ok() && schedule_buf.data != nullptr) {
      const plan::ScheduleView view = plan::view_schedule(shape_, schedule_buf.data);
      plan::describe(shape_, &view, explanation);
    } else {
      plan::describe(shape_, nullptr, explanation);
    }
  }

 private:
  void execute(const ResolvedProblem& problem, const plan::ScheduleView& view, std::byte* scratch) const {
    Run run{&problem,
            &shape_,
            &view,
            kernel_,
            scratch,
            static_cast<int64_t>(partial_bytes_),
            scratch + partials_bytes_,
            static_cast<int64_t>(workspace_bytes_),
            0,
            1};
    // Workers without items are not woken: little work stays on one thread.
    int32_t last = shape_.workers;
    while (run.first_worker < last && view.worker_begin[run.first_worker + 1] == view.worker_begin[run.first_worker]) ++run.first_worker;
    while (last > run.first_worker && view.worker_begin[last] == view.worker_begin[last - 1]) --last;
    parallel_for(parallel_for_, last - run.first_worker, &run_worker, &run);
    if (view.header->num_merges == 0) return;
    constexpr int64_t kFloatsPerTask = 16384;  // below that, waking a thread costs more than its share of the merge
    const int64_t floats = int64_t{view.header->num_merges} * 2 * shape_.tokens_per_block * shape_.head_block * bounds_.d_v;
    run.merge_tasks = static_cast<int32_t>(std::clamp<int64_t>(floats / kFloatsPerTask, 1, shape_.workers));
    parallel_for(parallel_for_, run.merge_tasks, &run_merges, &run);
  }

  Bounds bounds_;
  ParallelFor parallel_for_;
  const Kernel* kernel_;
  plan::PlanShape shape_;
  size_t partial_bytes_ = 0;
  size_t partials_bytes_ = 0;
  size_t workspace_bytes_ = 0;
};

BackendInfo cpu_info() {
  BackendInfo info;
  info.name = "cpu";
  info.built = true;
  info.usable = true;
  const int32_t workers = available_workers();
  info.detail = std::to_string(workers) + (workers == 1 ? " thread" : " threads");
  for (const Kernel* kernel : kernels()) {
    if (kernel->supported()) info.detail += std::string(", ") + kernel->isa;
  }
  return info;
}

std::vector<KernelInfo> cpu_kernels() {
  std::vector<KernelInfo> infos;
  for (const Kernel* kernel : kernels()) {
    KernelInfo info;
    info.name = kernel->name;
    info.backend = "cpu";
    info.file = kernel->file;
    info.accepts = "every problem in CPU memory";
    info.usable = kernel->supported();
    infos.push_back(info);
  }
  return infos;
}

Result<Plan> cpu_make_plan(const Bounds& bounds, const PlanOptions& options) {
  const Result<const Kernel*> kernel = choose(bounds, options);
  if (!kernel.ok()) return kernel.status();
  const plan::PlanShape shape = plan::make_shape(bounds, traits_of(**kernel, bounds), options);
  HEADWATER_TRY(plan::check_shape(shape));
  return Plan(std::make_shared<const CpuPlan>(bounds, options, *kernel, shape));
}

}  // namespace

const BackendEntry& cpu_backend() {
  static const BackendEntry entry{"cpu", &cpu_info, &cpu_kernels, &select, &cpu_make_plan, nullptr, nullptr};
  return entry;
}

}  // namespace headwater::cpu
