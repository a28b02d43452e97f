// The only file that knows all backends.
#include "headwater/headwater.h"

#include <array>
#include <string>

#include "src/cpu/backend.h"
#include "src/dispatch.h"
#ifdef HEADWATER_HAS_CUDA
#include "src/cuda/backend.h"
#endif

namespace headwater {
namespace {

dispatch::Backends all_backends() {
  static const std::array<dispatch::Backend, 2> list{{
      {"cpu", DeviceKind::kCpu, &cpu::cpu_backend(), ""},
#ifdef HEADWATER_HAS_CUDA
      {"cuda", DeviceKind::kCuda, &cuda::cuda_backend(), ""},
#elif defined(HEADWATER_CUDA_OFF)
      {"cuda", DeviceKind::kCuda, nullptr, "not built (HEADWATER_CUDA=OFF at build time)"},
#else
      {"cuda", DeviceKind::kCuda, nullptr, "not built (nvcc not found at build time)"},
#endif
  }};
  return list;
}

std::string device_name(const Device& device) {
  return (device.kind == DeviceKind::kCpu ? "cpu:" : "cuda:") + std::to_string(device.index);
}

}  // namespace

const char* version() { return HEADWATER_VERSION; }

std::vector<BackendInfo> backends() { return dispatch::backends(all_backends()); }
std::vector<KernelInfo> kernels() { return dispatch::kernels(all_backends()); }
Result<Plan> make_plan(const Bounds& bounds, const PlanOptions& options) { return dispatch::make_plan(all_backends(), bounds, options); }
Status warmup(const Bounds& bounds, const PlanOptions& options) { return make_plan(bounds, options).status(); }
Result<Explanation> explain(const Problem& problem, const PlanOptions& options) {
  return dispatch::explain(all_backends(), problem, options);
}
Status attend(const Problem& problem, const PlanOptions& options, Stream stream) {
  return dispatch::attend(all_backends(), problem, options, stream);
}

size_t Plan::schedule_bytes() const { return impl_->schedule_bytes(); }
size_t Plan::scratch_bytes() const { return impl_->scratch_bytes(); }
Status Plan::schedule(const Lengths& lengths, Buffer schedule_buf, Stream stream) const {
  return impl_->schedule(lengths, schedule_buf, stream);
}
Status Plan::run(const Problem& problem, Buffer schedule_buf, Buffer scratch_buf, Stream stream) const {
  const Device& planned = impl_->bounds().device;
  if (problem.device.kind != planned.kind || problem.device.index != planned.index) {
    return invalid("device = " + device_name(problem.device) + ": planned for " + device_name(planned));
  }
  return impl_->run(problem, schedule_buf, scratch_buf, stream);
}
Status Plan::check(Buffer schedule_buf, Stream stream) const { return impl_->check(schedule_buf, stream); }
std::string Plan::kernel() const { return impl_->kernel(); }
const Bounds& Plan::bounds() const { return impl_->bounds(); }

}  // namespace headwater
