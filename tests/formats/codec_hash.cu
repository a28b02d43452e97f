// Compiled with -ftz=true: no codec may depend on it.
#include <cuda_runtime.h>

#include "tests/formats/codec_hash.h"

namespace headwater::formats {
namespace {

__global__ void codec_hash_kernel(uint64_t* hashes) {
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  hashes[index] = codec_hash(index);
}

}  // namespace

bool device_codec_hashes(uint64_t* hashes, uint32_t count) {
  uint64_t* device = nullptr;
  if (cudaMalloc(&device, count * sizeof(uint64_t)) != cudaSuccess) return false;
  codec_hash_kernel<<<count / 256, 256>>>(device);
  const bool ok = cudaMemcpy(hashes, device, count * sizeof(uint64_t), cudaMemcpyDeviceToHost) == cudaSuccess;
  cudaFree(device);
  return ok;
}

}  // namespace headwater::formats
