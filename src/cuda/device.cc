#include "src/cuda/device.h"

#include <array>
#include <mutex>
#include <optional>
#include <string>

namespace headwater::cuda {
namespace {

constexpr int kMaxDevices = 64;

cudaError_t query(int32_t index, DeviceCaps* caps) {
  const std::array<std::pair<cudaDeviceAttr, int32_t*>, 6> wanted{{
      {cudaDevAttrComputeCapabilityMajor, &caps->major},
      {cudaDevAttrComputeCapabilityMinor, &caps->minor},
      {cudaDevAttrMultiProcessorCount, &caps->sm_count},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, &caps->smem_per_block},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, &caps->smem_per_sm},
      {cudaDevAttrMaxRegistersPerMultiprocessor, &caps->regs_per_sm},
  }};
  for (const auto& [attribute, value] : wanted) {
    if (const cudaError_t error = cudaDeviceGetAttribute(value, attribute, index); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

Status to_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return {};
  return {StatusCode::kDevice, std::string(what) + ": " + cudaGetErrorName(error) + ": " + cudaGetErrorString(error)};
}

Result<int32_t> device_count() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // not the next caller's business
    return to_status(error, "cudaGetDeviceCount");
  }
  return count;
}

Result<DeviceCaps> device_caps(int32_t index) {
  static std::mutex mutex;
  static std::array<std::optional<DeviceCaps>, kMaxDevices> known;
  const Result<int32_t> count = device_count();
  if (!count.ok()) return count.status();
  if (index < 0 || index >= *count || index >= kMaxDevices) {
    return invalid("device.index = " + std::to_string(index) + ": this machine has " + std::to_string(*count) + " CUDA devices");
  }
  const std::lock_guard lock(mutex);
  std::optional<DeviceCaps>& slot = known[static_cast<size_t>(index)];
  if (!slot) {
    DeviceCaps caps;
    if (Status status = to_status(query(index, &caps), "cudaDeviceGetAttribute"); !status.ok()) return status;
    slot = caps;
  }
  return *slot;
}

DeviceGuard::DeviceGuard(int32_t index) {
  error_ = cudaGetDevice(&previous_);
  if (error_ == cudaSuccess && previous_ != index) error_ = cudaSetDevice(index);
  if (previous_ == index) previous_ = -1;
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) (void)cudaSetDevice(previous_);
}

}  // namespace headwater::cuda
