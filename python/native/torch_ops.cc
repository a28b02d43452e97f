// torch.ops.headwater: tensors to arrays, torch's allocator, thread pool, device and stream. LibTorch's stable ABI only (2.11), no
// libpython: one binary serves every newer torch. All checks and all work are behind arrays.h.
#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "headwater/c_api.h"
#include "python/native/arrays.h"

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kAlignment = 256;

int32_t type_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Float:
      return HEADWATER_F32;
    case ScalarType::Half:
      return HEADWATER_F16;
    case ScalarType::BFloat16:
      return HEADWATER_BF16;
    case ScalarType::Float8_e4m3fn:
      return HEADWATER_E4M3;
    case ScalarType::Float8_e5m2:
      return HEADWATER_E5M2;
    case ScalarType::Float8_e8m0fnu:
      return HEADWATER_E8M0;
    case ScalarType::Float4_e2m1fn_x2:
      return HEADWATER_E2M1;
    case ScalarType::Char:
      return HEADWATER_I8;
    case ScalarType::Int:
      return HEADWATER_I32;
    case ScalarType::Long:
      return HEADWATER_I64;
    case ScalarType::Byte:
      return HEADWATER_TYPE_U8;
    default:
      return HEADWATER_TYPE_OTHER;
  }
}

ScalarType torch_type(int64_t type) {
  switch (type) {
    case HEADWATER_F32:
      return ScalarType::Float;
    case HEADWATER_F16:
      return ScalarType::Half;
    case HEADWATER_BF16:
      return ScalarType::BFloat16;
    default:
      throw std::runtime_error("headwater: out.dtype = " + std::to_string(type) + ": must be bfloat16, float16 or float32");
  }
}

headwater_array array_of(const Tensor& t) {
  headwater_array a{};
  if (!t.is_cpu() && !t.is_cuda()) throw std::runtime_error("headwater: tensors must be on cpu or cuda");
  a.data = t.data_ptr();
  a.type = type_of(t);
  a.ndim = static_cast<int32_t>(t.dim());
  if (a.ndim <= HEADWATER_MAX_DIMS) {
    const auto sizes = t.sizes();
    const auto strides = t.strides();
    for (int32_t i = 0; i < a.ndim; ++i) {
      a.shape[i] = sizes[static_cast<size_t>(i)];
      a.strides[i] = strides[static_cast<size_t>(i)];
    }
  }
  a.device_kind = t.is_cuda() ? HEADWATER_CUDA : HEADWATER_CPU;
  a.device_index = t.is_cuda() ? t.get_device_index() : 0;
  return a;
}

std::vector<headwater_array> arrays_of(const std::vector<Tensor>& tensors) {
  std::vector<headwater_array> arrays;
  arrays.reserve(tensors.size());
  for (const Tensor& t : tensors) arrays.push_back(array_of(t));
  return arrays;
}

void check(int32_t status) {
  if (status == HEADWATER_OK) return;
  std::string message = std::string("headwater: ") + headwater_arrays_error();
  if (status == HEADWATER_UNSUPPORTED && message.find("not built") != std::string::npos) {
    message += "; for CUDA tensors build where nvcc is found: pip install . --config-settings=cmake.define.HEADWATER_CUDA=ON";
  }
  throw std::runtime_error(message);
}

// at::parallel_for as the library's loop.
void torch_parallel_for_tasks(void* /*context*/, int32_t tasks, void (*body)(void* arg, int32_t task), void* arg) {
  torch::stable::parallel_for(0, tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) body(arg, static_cast<int32_t>(task));
  });
}

// The CUDA parts of torch live in a library of their own, which a CPU-only torch lacks: found among the loaded ones, never linked.
void* current_cuda_stream(int32_t device_index) {
  using Getter = AOTITorchError (*)(int32_t, void**);
  static const auto kGetter = [] {
    void* library = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    return library == nullptr ? nullptr : reinterpret_cast<Getter>(dlsym(library, "aoti_torch_get_current_cuda_stream"));
  }();
  if (kGetter == nullptr) throw std::runtime_error("headwater: tensors on cuda, but this torch has no CUDA libraries loaded");
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(kGetter(device_index, &stream));
  return stream;
}

// Device, stream and pool of one call.
class Context {
 public:
  explicit Context(const Tensor& q) {
    if (q.is_cuda()) {
      guard_.emplace(q.get_device_index());
      stream_ = current_cuda_stream(q.get_device_index());
    } else {
      pool_.parallel_for = &torch_parallel_for_tasks;
      pool_.workers = std::max(1, static_cast<int32_t>(torch::stable::get_num_threads()));
    }
  }
  [[nodiscard]] const headwater_pool* pool() const { return pool_.parallel_for != nullptr ? &pool_ : nullptr; }
  [[nodiscard]] void* stream() const { return stream_; }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
  headwater_pool pool_{};
  void* stream_ = nullptr;
};

// The arrays of a call, alive while it runs.
struct Call {
  Call(const Tensor& q_tensor, const std::vector<Tensor>& tensor_list, const std::vector<int64_t>& descriptor,
       const std::vector<double>& numbers, const Tensor* out_tensor, const Tensor* lse_tensor)
      : q(array_of(q_tensor)), tensors(arrays_of(tensor_list)) {
    if (out_tensor != nullptr) out = array_of(*out_tensor);
    if (lse_tensor != nullptr) lse = array_of(*lse_tensor);
    call.q = &q;
    call.tensors = tensors.data();
    call.num_tensors = static_cast<int32_t>(tensors.size());
    call.descriptor = descriptor.data();
    call.descriptor_size = static_cast<int32_t>(descriptor.size());
    call.numbers = numbers.data();
    call.numbers_size = static_cast<int32_t>(numbers.size());
    call.out = out_tensor != nullptr ? &out : nullptr;
    call.lse = lse_tensor != nullptr ? &lse : nullptr;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  headwater_array q;
  headwater_array out{};
  headwater_array lse{};
  std::vector<headwater_array> tensors;
  headwater_call call{};
};

Tensor empty_like_of(const Tensor& like, const std::vector<int64_t>& size, ScalarType type) {
  return torch::stable::new_empty(like, size, type);
}

headwater_bytes bytes_of(const Tensor& t) {
  if (t.scalar_type() != ScalarType::Byte || !t.is_contiguous())
    throw std::runtime_error("headwater: schedule and scratch must be contiguous uint8");
  return {t.data_ptr(), static_cast<size_t>(t.numel())};
}

// A buffer whose data start at a multiple of kAlignment, from torch's allocator.
struct AlignedBuffer {
  AlignedBuffer(const Tensor& like, int64_t size) : tensor(empty_like_of(like, {size + kAlignment}, ScalarType::Byte)) {
    const auto address = reinterpret_cast<uintptr_t>(tensor.data_ptr());
    bytes = {reinterpret_cast<void*>((address + kAlignment - 1) / kAlignment * kAlignment), static_cast<size_t>(size)};
  }
  Tensor tensor;
  headwater_bytes bytes{};
};

void attend_into(const Tensor& q, const std::vector<Tensor>& tensors, const std::vector<int64_t>& descriptor,
                 const std::vector<double>& numbers, const Tensor& out, const Tensor* lse) {
  const Context context(q);
  const Call call(q, tensors, descriptor, numbers, &out, lse);
  int64_t bounds[512];
  int32_t count = 512;
  check(headwater_arrays_bounds(&call.call, bounds, &count));
  if (call.q.shape[0] == 0 || bounds[3] == 0) return;  // no rows, or no requests: nothing to plan for
  int64_t schedule_bytes = 0;
  int64_t scratch_bytes = 0;
  check(headwater_arrays_plan_bytes(bounds, count, context.pool(), &schedule_bytes, &scratch_bytes));
  const AlignedBuffer schedule(q, schedule_bytes);
  const AlignedBuffer scratch(q, scratch_bytes);
  check(headwater_arrays_schedule(&call.call, bounds, count, context.pool(), schedule.bytes, context.stream()));
  check(headwater_arrays_run(&call.call, bounds, count, context.pool(), schedule.bytes, scratch.bytes, context.stream()));
}

// Width of the output: the value width of shared storage, or V's columns, told by the native side's own rules.
int64_t value_width(const std::vector<Tensor>& tensors, const std::vector<int64_t>& d) {
  constexpr size_t kHeader = 9;
  if (d.size() < kHeader + 13) throw std::runtime_error("headwater: descriptor too short");
  if (d[kHeader + 4] != 0) return d[kHeader + 5];  // kShared, kValueWidth
  if (d[kHeader + 3] > 0) return d[kHeader + 3];   // kVWidth
  const int64_t v = d[kHeader + 9];                // kV
  if (v < 0 || v >= static_cast<int64_t>(tensors.size())) throw std::runtime_error("headwater: kv[0].v = None: must be given");
  const Tensor& t = tensors[static_cast<size_t>(v)];
  return t.dim() > 0 ? t.size(t.dim() - 1) : 0;
}

std::tuple<Tensor, Tensor> attend(Tensor q, std::vector<Tensor> tensors, std::vector<int64_t> descriptor, std::vector<double> numbers,
                                  bool return_lse) {
  if (q.dim() != 3) throw std::runtime_error("headwater: q.dim() = " + std::to_string(q.dim()) + ": must be 3");
  if (descriptor.size() < 3) throw std::runtime_error("headwater: descriptor too short");
  Tensor out = empty_like_of(q, {q.size(0), q.size(1), value_width(tensors, descriptor)}, torch_type(descriptor[2]));
  Tensor lse = empty_like_of(q, {return_lse ? q.size(0) : 0, q.size(1)}, ScalarType::Float);
  attend_into(q, tensors, descriptor, numbers, out, return_lse ? &lse : nullptr);
  return {out, lse};
}

void attend_out(Tensor q, std::vector<Tensor> tensors, std::vector<int64_t> descriptor, std::vector<double> numbers, Tensor out,
                std::optional<Tensor> lse) {
  attend_into(q, tensors, descriptor, numbers, out, lse ? &*lse : nullptr);
}

void schedule(Tensor q, std::vector<Tensor> tensors, std::vector<int64_t> descriptor, std::vector<double> numbers,
              std::vector<int64_t> bounds, Tensor buffer) {
  const Context context(q);
  const Call call(q, tensors, descriptor, numbers, nullptr, nullptr);
  check(headwater_arrays_schedule(&call.call, bounds.data(), static_cast<int32_t>(bounds.size()), context.pool(), bytes_of(buffer),
                                  context.stream()));
}

void run(Tensor q, std::vector<Tensor> tensors, std::vector<int64_t> descriptor, std::vector<double> numbers, std::vector<int64_t> bounds,
         Tensor schedule_buffer, Tensor scratch, Tensor out, std::optional<Tensor> lse) {
  const Context context(q);
  const Call call(q, tensors, descriptor, numbers, &out, lse ? &*lse : nullptr);
  check(headwater_arrays_run(&call.call, bounds.data(), static_cast<int32_t>(bounds.size()), context.pool(), bytes_of(schedule_buffer),
                             bytes_of(scratch), context.stream()));
}

void check_schedule(std::vector<int64_t> bounds, Tensor buffer) {
  const Context context(buffer);
  check(headwater_arrays_check(bounds.data(), static_cast<int32_t>(bounds.size()), context.pool(), bytes_of(buffer), context.stream()));
}

void merge_out(Tensor a, Tensor lse_a, Tensor b, Tensor lse_b, Tensor out, Tensor lse) {
  const headwater_array arrays[] = {array_of(a), array_of(lse_a), array_of(b), array_of(lse_b), array_of(out), array_of(lse)};
  check(headwater_arrays_merge(&arrays[0], &arrays[1], &arrays[2], &arrays[3], &arrays[4], &arrays[5]));
}

std::tuple<Tensor, Tensor> merge(Tensor a, Tensor lse_a, Tensor b, Tensor lse_b) {
  const auto shape = a.sizes();
  if (shape.size() != 3) throw std::runtime_error("headwater: a.dim() = " + std::to_string(shape.size()) + ": must be 3");
  Tensor out = empty_like_of(a, {shape[0], shape[1], shape[2]}, a.scalar_type());
  Tensor lse = empty_like_of(a, {shape[0], shape[1]}, ScalarType::Float);
  merge_out(a, lse_a, b, lse_b, out, lse);
  return {out, lse};
}

void append(std::vector<Tensor> tensors, std::vector<int64_t> source, std::vector<double> numbers, Tensor k, std::optional<Tensor> k_tail,
            std::optional<Tensor> v, Tensor slots, int64_t block_scale_rule) {
  const std::vector<headwater_array> arrays = arrays_of(tensors);
  const headwater_array rows = array_of(k);
  const headwater_array tail = k_tail ? array_of(*k_tail) : headwater_array{};
  const headwater_array values = v ? array_of(*v) : headwater_array{};
  const headwater_array where = array_of(slots);
  if (numbers.size() != 2) throw std::runtime_error("headwater: numbers must be k_scale and v_scale");
  check(headwater_arrays_append(arrays.data(), static_cast<int32_t>(arrays.size()), source.data(), static_cast<int32_t>(source.size()),
                                numbers.data(), &rows, k_tail ? &tail : nullptr, v ? &values : nullptr, &where,
                                static_cast<int32_t>(block_scale_rule)));
}

void gather_out(std::vector<Tensor> tensors, std::vector<int64_t> source, std::vector<double> numbers, Tensor slots, Tensor k, Tensor v) {
  const std::vector<headwater_array> arrays = arrays_of(tensors);
  const headwater_array where = array_of(slots);
  const headwater_array k_array = array_of(k);
  const headwater_array v_array = array_of(v);
  if (numbers.size() != 2) throw std::runtime_error("headwater: numbers must be k_scale and v_scale");
  check(headwater_arrays_gather(arrays.data(), static_cast<int32_t>(arrays.size()), source.data(), static_cast<int32_t>(source.size()),
                                numbers.data(), &where, &k_array, &v_array));
}

}  // namespace

STABLE_TORCH_LIBRARY(headwater, m) {
  m.def("attend(Tensor q, Tensor[] tensors, int[] descriptor, float[] numbers, bool return_lse) -> (Tensor, Tensor)");
  m.def("attend.out(Tensor q, Tensor[] tensors, int[] descriptor, float[] numbers, *, Tensor(a!) out, Tensor(b!)? lse) -> ()");
  m.def("schedule(Tensor q, Tensor[] tensors, int[] descriptor, float[] numbers, int[] bounds, Tensor(a!) schedule) -> ()");
  m.def(
      "run(Tensor q, Tensor[] tensors, int[] descriptor, float[] numbers, int[] bounds, Tensor(a!) schedule, Tensor(b!) scratch, "
      "Tensor(c!) out, Tensor(d!)? lse) -> ()");
  m.def("check(int[] bounds, Tensor(a!) schedule) -> ()");
  m.def("merge_states(Tensor a, Tensor lse_a, Tensor b, Tensor lse_b) -> (Tensor, Tensor)");
  m.def("merge_states.out(Tensor a, Tensor lse_a, Tensor b, Tensor lse_b, *, Tensor(a!) out, Tensor(b!) lse) -> ()");
  m.def(
      "append(Tensor(a!)[] tensors, int[] source, float[] numbers, Tensor k, Tensor? k_tail, Tensor? v, Tensor slots, "
      "int block_scale_rule) -> ()");
  m.def("gather.out(Tensor[] tensors, int[] source, float[] numbers, Tensor slots, *, Tensor(a!) k, Tensor(b!) v) -> ()");
}

#define HEADWATER_IMPL(m)                            \
  m.impl("attend", TORCH_BOX(&attend));              \
  m.impl("attend.out", TORCH_BOX(&attend_out));      \
  m.impl("schedule", TORCH_BOX(&schedule));          \
  m.impl("run", TORCH_BOX(&run));                    \
  m.impl("check", TORCH_BOX(&check_schedule));       \
  m.impl("merge_states", TORCH_BOX(&merge));         \
  m.impl("merge_states.out", TORCH_BOX(&merge_out)); \
  m.impl("append", TORCH_BOX(&append));              \
  m.impl("gather.out", TORCH_BOX(&gather_out))

STABLE_TORCH_LIBRARY_IMPL(headwater, CPU, m) { HEADWATER_IMPL(m); }
STABLE_TORCH_LIBRARY_IMPL(headwater, CUDA, m) { HEADWATER_IMPL(m); }
