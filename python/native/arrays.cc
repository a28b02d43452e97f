#include "python/native/arrays.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "headwater/c_api.h"
#include "python/native/unpack.h"
#include "src/core/c_boundary.h"
#include "src/formats/record.h"

namespace {

using headwater::Bounds;
using headwater::Plan;
using headwater::Result;
using headwater::Status;
using headwater::python::Unpacked;

#define TRY(expression)                                                        \
  do {                                                                         \
    if (Status try_status = (expression); !try_status.ok()) return try_status; \
  } while (false)

std::string& last_error() {
  thread_local std::string message;
  return message;
}

template <class Body>
int32_t guarded(const Body& body) {
  return headwater::run_without_throwing(body, &last_error());
}

// Bounds as integers. A plan is found again by them, so nothing but integers crosses a dispatcher, a compiled graph or a process.
constexpr size_t kBoundsHeader = 16;
constexpr size_t kBoundsSource = 15;

std::vector<int64_t> pack_bounds(const Bounds& b, const headwater::PlanOptions& options) {
  std::vector<int64_t> v{1,
                         static_cast<int64_t>(b.device.kind),
                         b.device.index,
                         b.max_requests,
                         b.max_total_q,
                         b.max_q_len,
                         static_cast<int64_t>(b.q_type),
                         static_cast<int64_t>(b.out_type),
                         b.heads,
                         b.d_qk,
                         b.d_v,
                         b.softcap ? 1 : 0,
                         b.q_alignment,
                         options.batch_invariant ? 1 : 0,
                         options.checked ? 1 : 0,
                         static_cast<int64_t>(b.sources.size())};
  for (const headwater::SourceBounds& s : b.sources) {
    const int64_t fields[kBoundsSource] = {static_cast<int64_t>(s.k_format),
                                           static_cast<int64_t>(s.v_format),
                                           s.shared ? 1 : 0,
                                           s.heads,
                                           static_cast<int64_t>(s.addressing),
                                           s.page_size,
                                           static_cast<int64_t>(s.rule),
                                           s.window_left,
                                           s.ratio,
                                           s.topk,
                                           static_cast<int64_t>(s.index_type),
                                           static_cast<int64_t>(s.index_space),
                                           s.max_len,
                                           s.max_total_len,
                                           s.alignment};
    v.insert(v.end(), fields, fields + kBoundsSource);
  }
  return v;
}

Status unpack_bounds(const int64_t* v, int32_t count, Bounds* b, headwater::PlanOptions* options) {
  const auto size = static_cast<size_t>(count);
  const bool known = size >= kBoundsHeader && v[0] == 1 && v[15] >= 0 && v[15] <= headwater::kMaxSources &&
                     size == kBoundsHeader + static_cast<size_t>(v[15]) * kBoundsSource;
  bool small = known;
  for (size_t i = 0; known && i < size; ++i) {
    const bool wide = i == 3 || i == 4 ||
                      (i >= kBoundsHeader && ((i - kBoundsHeader) % kBoundsSource == 12 || (i - kBoundsHeader) % kBoundsSource == 13));
    small = small && (wide || (v[i] >= -1 && v[i] <= INT32_MAX));
  }
  for (size_t s = 0; small && s < static_cast<size_t>(v[15]); ++s) {
    const int64_t* f = v + kBoundsHeader + s * kBoundsSource;
    small = f[0] >= 0 && f[0] < headwater::kNumFormats && f[1] >= 0 && f[1] < headwater::kNumFormats && f[4] >= 0 && f[4] <= 3 &&
            f[6] >= 0 && f[6] <= 4;
  }
  if (!small)
    return headwater::python::wrong("bounds", std::to_string(count) + " integers", "not such that this version of headwater wrote");
  const auto narrow = [&](size_t i) { return static_cast<int32_t>(v[i]); };
  b->device = {static_cast<headwater::DeviceKind>(v[1]), narrow(2)};
  b->max_requests = v[3];
  b->max_total_q = v[4];
  b->max_q_len = narrow(5);
  b->q_type = static_cast<headwater::Type>(v[6]);
  b->out_type = static_cast<headwater::Type>(v[7]);
  b->heads = narrow(8);
  b->d_qk = narrow(9);
  b->d_v = narrow(10);
  b->softcap = v[11] != 0;
  b->q_alignment = narrow(12);
  options->batch_invariant = v[13] != 0;
  options->checked = v[14] != 0;
  for (size_t s = 0; s < static_cast<size_t>(v[15]); ++s) {
    const int64_t* f = v + kBoundsHeader + s * kBoundsSource;
    headwater::SourceBounds to;
    to.k_format = static_cast<headwater::Format>(f[0]);
    to.v_format = static_cast<headwater::Format>(f[1]);
    to.shared = f[2] != 0;
    to.heads = static_cast<int32_t>(f[3]);
    to.addressing = static_cast<headwater::AddressingKind>(f[4]);
    to.page_size = static_cast<int32_t>(f[5]);
    to.rule = static_cast<headwater::RuleKind>(f[6]);
    to.window_left = static_cast<int32_t>(f[7]);
    to.ratio = static_cast<int32_t>(f[8]);
    to.topk = static_cast<int32_t>(f[9]);
    to.index_type = static_cast<headwater::Type>(f[10]);
    to.index_space = static_cast<headwater::IndexSpace>(f[11]);
    to.max_len = f[12];
    to.max_total_len = f[13];
    to.alignment = static_cast<int32_t>(f[14]);
    b->sources.push_back(to);
  }
  return {};
}

// Plans by their bounds. A plan owns little host memory; past kMaxPlans all are dropped and made again as they are met.
constexpr size_t kMaxPlans = 256;

Status find_plan(const int64_t* bounds, int32_t count, const headwater_pool* pool, std::shared_ptr<const Plan>* found) {
  static std::mutex mutex;
  static std::unordered_map<std::string, std::shared_ptr<const Plan>> plans;
  std::string key(reinterpret_cast<const char*>(bounds), static_cast<size_t>(count) * sizeof(int64_t));
  const headwater_pool none{};
  const headwater_pool& loop = pool != nullptr ? *pool : none;
  key.append(reinterpret_cast<const char*>(&loop.workers), sizeof loop.workers);
  const auto address = reinterpret_cast<uintptr_t>(loop.parallel_for);
  key.append(reinterpret_cast<const char*>(&address), sizeof address);
  for (const char* variable : {"HEADWATER_FORCE_KERNEL", "HEADWATER_FORCE_ISA"}) {
    const char* value = std::getenv(variable);
    key += '/';
    key += value != nullptr ? value : "";
  }
  {
    const std::lock_guard lock(mutex);
    if (const auto it = plans.find(key); it != plans.end()) {
      *found = it->second;
      return {};
    }
  }
  Bounds b;
  headwater::PlanOptions options;
  TRY(unpack_bounds(bounds, count, &b, &options));
  options.workers = loop.workers;
  options.parallel_for = {loop.parallel_for, loop.context};
  Result<Plan> made = headwater::make_plan(b, options);
  if (!made.ok()) return made.status();
  const std::lock_guard lock(mutex);
  if (plans.size() >= kMaxPlans) plans.clear();
  *found = plans[key] = std::make_shared<const Plan>(std::move(*made));
  return {};
}

// Host buffers at any address: the library wants 256-byte alignment, frameworks give 64. A copy in and out where they differ.
class HostBuffer {
 public:
  static constexpr size_t kAlignment = 256;
  HostBuffer(headwater_bytes given, bool host, bool keep) : given_(given), keep_(keep) {
    buffer_ = {given.data, given.size};
    if (!host || given.data == nullptr || reinterpret_cast<uintptr_t>(given.data) % kAlignment == 0) return;
    owned_.reset(static_cast<std::byte*>(::operator new (given.size, std::align_val_t{kAlignment})));
    if (keep_) std::memcpy(owned_.get(), given.data, given.size);
    buffer_.data = owned_.get();
  }
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  ~HostBuffer() {
    if (owned_ && keep_) std::memcpy(given_.data, owned_.get(), given_.size);
  }
  [[nodiscard]] headwater::Buffer get() const { return buffer_; }

 private:
  struct Release {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{kAlignment}); }
  };
  headwater_bytes given_;
  bool keep_;
  headwater::Buffer buffer_;
  std::unique_ptr<std::byte, Release> owned_;
};

void write_line(const std::string& text, char* line, int32_t size) {
  if (size > 0) std::snprintf(line, static_cast<size_t>(size), "%s", text.c_str());
}

Status to_state(const char* name, const headwater_array& out, const headwater_array& lse, const headwater_array& like,
                headwater::State* s) {
  using headwater::python::wrong;
  const std::string field(name);
  TRY(headwater::python::check_array(field, out, like, 3, 3));
  TRY(headwater::python::check_array(field + ".lse", lse, like, 2, 2));
  if (out.type >= HEADWATER_TYPE_U8)
    return wrong(field + ".dtype", headwater::python::array_type_name(out.type), "must be float32, bfloat16 or float16");
  if (lse.type != HEADWATER_F32) return wrong(field + ".lse.dtype", headwater::python::array_type_name(lse.type), "must be float32");
  for (int i = 0; i < 3; ++i) {
    if (out.shape[i] != like.shape[i] || (i < 2 && lse.shape[i] != like.shape[i])) {
      return wrong(field + ".shape", headwater::python::shape_text(out) + " with lse " + headwater::python::shape_text(lse),
                   "must be that of a, " + headwater::python::shape_text(like) + ", lse its first two axes");
    }
  }
  s->out = out.data;
  s->type = static_cast<headwater::Type>(out.type);
  s->out_token_stride_bytes = out.strides[0] * headwater::python::type_bytes(out.type);
  s->out_head_stride_bytes = out.strides[1] * headwater::python::type_bytes(out.type);
  s->lse = {static_cast<float*>(lse.data), lse.strides[0], lse.strides[1], headwater::kDense};
  return {};
}

Status cpu_only(const headwater_array& a, const char* what) {
  if (a.device_kind == HEADWATER_CPU) return {};
  return headwater::unsupported(std::string(what) + ": tensors on cuda:" + std::to_string(a.device_index) +
                                ", but this operation runs on the CPU only");
}

}  // namespace

const char* headwater_arrays_error(void) { return last_error().c_str(); }

int32_t headwater_arrays_bounds(const headwater_call* call, int64_t* bounds, int32_t* count) {
  return guarded([&]() -> Status {
    Unpacked u;
    TRY(headwater::python::unpack(*call, &u));
    const Result<Bounds> b = Bounds::of(u.problem);
    if (!b.ok()) return b.status();
    const std::vector<int64_t> packed = pack_bounds(*b, u.options);
    if (static_cast<size_t>(*count) < packed.size())
      return headwater::invalid("bounds: room for " + std::to_string(*count) + " integers only");
    std::memcpy(bounds, packed.data(), packed.size() * sizeof(int64_t));
    *count = static_cast<int32_t>(packed.size());
    return {};
  });
}

int32_t headwater_arrays_plan_bytes(const int64_t* bounds, int32_t count, const headwater_pool* pool, int64_t* schedule_bytes,
                                    int64_t* scratch_bytes) {
  return guarded([&]() -> Status {
    std::shared_ptr<const Plan> plan;
    TRY(find_plan(bounds, count, pool, &plan));
    *schedule_bytes = static_cast<int64_t>(plan->schedule_bytes());
    *scratch_bytes = static_cast<int64_t>(plan->scratch_bytes());
    return {};
  });
}

int32_t headwater_arrays_kernel(const int64_t* bounds, int32_t count, const headwater_pool* pool, char* name, int32_t size) {
  return guarded([&]() -> Status {
    std::shared_ptr<const Plan> plan;
    TRY(find_plan(bounds, count, pool, &plan));
    write_line(plan->kernel(), name, size);
    return {};
  });
}

int32_t headwater_arrays_schedule(const headwater_call* call, const int64_t* bounds, int32_t count, const headwater_pool* pool,
                                  headwater_bytes schedule, void* stream) {
  return guarded([&]() -> Status {
    std::shared_ptr<const Plan> plan;
    TRY(find_plan(bounds, count, pool, &plan));
    Unpacked u;
    TRY(headwater::python::unpack(*call, &u));
    const HostBuffer buffer(schedule, call->q->device_kind == HEADWATER_CPU, true);
    return plan->schedule(headwater::Lengths::of(u.problem), buffer.get(), stream);
  });
}

int32_t headwater_arrays_run(const headwater_call* call, const int64_t* bounds, int32_t count, const headwater_pool* pool,
                             headwater_bytes schedule, headwater_bytes scratch, void* stream) {
  return guarded([&]() -> Status {
    std::shared_ptr<const Plan> plan;
    TRY(find_plan(bounds, count, pool, &plan));
    Unpacked u;
    TRY(headwater::python::unpack(*call, &u));
    const bool host = call->q->device_kind == HEADWATER_CPU;
    const HostBuffer schedule_buffer(schedule, host, true);
    const HostBuffer scratch_buffer(scratch, host, false);
    return plan->run(u.problem, schedule_buffer.get(), scratch_buffer.get(), stream);
  });
}

int32_t headwater_arrays_check(const int64_t* bounds, int32_t count, const headwater_pool* pool, headwater_bytes schedule, void* stream) {
  return guarded([&]() -> Status {
    std::shared_ptr<const Plan> plan;
    TRY(find_plan(bounds, count, pool, &plan));
    const HostBuffer buffer(schedule, plan->bounds().device.kind == headwater::DeviceKind::kCpu, true);
    return plan->check(buffer.get(), stream);
  });
}

int32_t headwater_arrays_merge(const headwater_array* a, const headwater_array* lse_a, const headwater_array* b,
                               const headwater_array* lse_b, const headwater_array* out, const headwater_array* lse_out) {
  return guarded([&]() -> Status {
    TRY(cpu_only(*a, "merge_states"));
    headwater::State sa;
    headwater::State sb;
    headwater::State sr;
    TRY(to_state("a", *a, *lse_a, *a, &sa));
    TRY(to_state("b", *b, *lse_b, *a, &sb));
    TRY(to_state("out", *out, *lse_out, *a, &sr));
    headwater::StateShape shape;
    shape.tokens = a->shape[0];
    shape.heads = static_cast<int32_t>(a->shape[1]);
    shape.width = static_cast<int32_t>(a->shape[2]);
    return headwater::merge_states(shape, sa, sb, sr);
  });
}

int32_t headwater_arrays_append(const headwater_array* tensors, int32_t num_tensors, const int64_t* source, int32_t source_size,
                                const double* numbers, const headwater_array* k, const headwater_array* k_tail, const headwater_array* v,
                                const headwater_array* slots, int32_t block_scale_rule) {
  return guarded([&]() -> Status {
    using headwater::python::wrong;
    TRY(cpu_only(*k, "append"));
    headwater::Source cache;
    TRY(headwater::python::unpack_source({{tensors, static_cast<size_t>(num_tensors)}, k}, {source, static_cast<size_t>(source_size)},
                                         numbers, "cache", &cache));
    headwater::AppendRows rows;
    const auto take = [&](const char* name, const headwater_array* a, int64_t width, const void** data, int64_t* row,
                          int64_t* head) -> Status {
      TRY(headwater::python::check_array(name, *a, *k, 3, 3));
      if (a->type != k->type) return wrong(std::string(name) + ".dtype", headwater::python::array_type_name(a->type), "must be that of k");
      if (a->shape[0] != k->shape[0] || a->shape[1] != cache.heads || a->shape[2] != width) {
        return wrong(std::string(name) + ".shape", headwater::python::shape_text(*a),
                     "must be [" + std::to_string(k->shape[0]) + ", " + std::to_string(cache.heads) + ", " + std::to_string(width) + "]");
      }
      *data = a->data;
      *row = a->strides[0] * headwater::python::type_bytes(a->type);
      *head = a->strides[1] * headwater::python::type_bytes(a->type);
      return {};
    };
    if (k->ndim != 3) return wrong("k.dim()", std::to_string(k->ndim), "must be 3");
    const int64_t tail = k_tail != nullptr && k_tail->ndim == 3 ? k_tail->shape[2] : 0;
    TRY(take("k", k, cache.k.width - tail, &rows.k, &rows.k_row_stride_bytes, &rows.k_head_stride_bytes));
    if (k_tail != nullptr) TRY(take("k_tail", k_tail, tail, &rows.k_tail, &rows.k_tail_row_stride_bytes, &rows.k_tail_head_stride_bytes));
    rows.k_tail_width = static_cast<int32_t>(tail);
    if (v != nullptr) TRY(take("v", v, cache.d_v(), &rows.v, &rows.v_row_stride_bytes, &rows.v_head_stride_bytes));
    if (k->type >= HEADWATER_TYPE_U8)
      return wrong("k.dtype", headwater::python::array_type_name(k->type), "must be bfloat16, float16 or float32");
    rows.type = static_cast<headwater::Type>(k->type);
    rows.count = k->shape[0];
    TRY(headwater::python::check_array("slots", *slots, *k, 1, 1));
    if (slots->type != HEADWATER_I64 && slots->type != HEADWATER_I32)
      return wrong("slots.dtype", headwater::python::array_type_name(slots->type), "must be int64 or int32");
    if (slots->shape[0] != rows.count)
      return wrong("slots.shape[0]", std::to_string(slots->shape[0]), "must be the " + std::to_string(rows.count) + " rows of k");
    std::vector<int64_t> wide(static_cast<size_t>(rows.count));
    for (int64_t i = 0; i < rows.count; ++i) {
      const int64_t at = i * slots->strides[0];
      wide[static_cast<size_t>(i)] =
          slots->type == HEADWATER_I64 ? static_cast<const int64_t*>(slots->data)[at] : static_cast<const int32_t*>(slots->data)[at];
    }
    return headwater::append(cache, rows, wide.data(), static_cast<headwater::BlockScaleRule>(block_scale_rule));
  });
}

int32_t headwater_arrays_gather(const headwater_array* tensors, int32_t num_tensors, const int64_t* source, int32_t source_size,
                                const double* numbers, const headwater_array* slots, const headwater_array* k_out,
                                const headwater_array* v_out) {
  return guarded([&]() -> Status {
    using headwater::python::wrong;
    TRY(cpu_only(*slots, "gather"));
    headwater::Source cache;
    TRY(headwater::python::unpack_source({{tensors, static_cast<size_t>(num_tensors)}, slots}, {source, static_cast<size_t>(source_size)},
                                         numbers, "cache", &cache));
    TRY(headwater::python::check_array("slots", *slots, *slots, 1, 1));
    if (slots->type != HEADWATER_I64) return wrong("slots.dtype", headwater::python::array_type_name(slots->type), "must be int64");
    if (slots->shape[0] > 1 && slots->strides[0] != 1) return wrong("slots.stride(0)", std::to_string(slots->strides[0]), "must be 1");
    const auto check_out = [&](const char* name, const headwater_array* a, int64_t width) -> Status {
      TRY(headwater::python::check_array(name, *a, *slots, 3, 3));
      const bool packed = a->strides[1] == width && a->strides[0] == width * cache.heads;
      if (a->type != HEADWATER_F32 || a->shape[0] != slots->shape[0] || a->shape[1] != cache.heads || a->shape[2] != width ||
          (a->shape[0] > 0 && !packed)) {
        return wrong(std::string(name) + ".shape", headwater::python::shape_text(*a),
                     "must be a packed float32 [" + std::to_string(slots->shape[0]) + ", " + std::to_string(cache.heads) + ", " +
                         std::to_string(width) + "]");
      }
      return {};
    };
    TRY(check_out("k_out", k_out, cache.k.width));
    TRY(check_out("v_out", v_out, cache.d_v()));
    return headwater::gather(cache, static_cast<const int64_t*>(slots->data), slots->shape[0], static_cast<float*>(k_out->data),
                             static_cast<float*>(v_out->data));
  });
}

int32_t headwater_arrays_backend(int32_t index, char* line, int32_t size) {
  const std::vector<headwater::BackendInfo> infos = headwater::backends();
  if (index < 0 || static_cast<size_t>(index) >= infos.size()) return 0;
  const headwater::BackendInfo& info = infos[static_cast<size_t>(index)];
  write_line(info.name + "\t" + (info.built ? "1" : "0") + "\t" + (info.usable ? "1" : "0") + "\t" + info.detail, line, size);
  return 1;
}

int32_t headwater_arrays_format(int32_t index, char* line, int32_t size) {
  const auto formats = headwater::all_formats();
  if (index < 0 || static_cast<size_t>(index) >= formats.size()) return 0;
  const headwater::FormatInfo& f = formats[static_cast<size_t>(index)];
  write_line(std::string(f.name) + " " + std::to_string(f.fixed_width) + " " + std::to_string(f.takes_scale) + " " +
                 std::to_string(f.scales_apart) + " " + std::to_string(f.planar),
             line, size);
  return 1;
}

int64_t headwater_arrays_record_bytes(int32_t format, int32_t width, int64_t* apart_bytes) {
  *apart_bytes = 0;
  if (format < 0 || format >= headwater::kNumFormats || width < 1 || width > headwater::kMaxWidth) return -1;
  const auto f = static_cast<headwater::Format>(format);
  const int32_t fixed = headwater::format_info(f).fixed_width;
  if (fixed > 0 && fixed != width) return -1;
  *apart_bytes = headwater::formats::resolve(f, width).apart_bytes;
  return headwater::record_row_bytes(f, width);
}
