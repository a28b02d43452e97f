// The CUDA runtime's manners: what a device can do, the current device restored, errors as Status.
#pragma once

#include <cuda_runtime_api.h>

#include "headwater/status.h"
#include "src/cuda/kernel.h"

namespace headwater::cuda {

[[nodiscard]] Status to_status(cudaError_t error, const char* what);

// Devices that the runtime sees, or why none.
[[nodiscard]] Result<int32_t> device_count();
// Queried once per device and process.
[[nodiscard]] Result<DeviceCaps> device_caps(int32_t index);

// Makes `index` current for a scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int32_t index);
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();
  [[nodiscard]] Status status() const { return to_status(error_, "cudaSetDevice"); }

 private:
  int previous_ = -1;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace headwater::cuda
