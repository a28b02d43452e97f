#include "src/cuda/common/exact_item.cuh"
#include "src/cuda/simt/kernel.h"

namespace headwater::cuda {
namespace {

// grid (workers, pieces of 8 rows), 256 threads.
__global__ void __launch_bounds__(kExactThreads, 2) attention_cuda_simt_kernel(const __grid_constant__ KernelArgs args) {
  extern __shared__ __align__(16) unsigned char memory[];
  ExactStorage& storage = *reinterpret_cast<ExactStorage*>(memory);
  if (!schedule_is_ours(args)) return;  // the merge kernel writes NaN
  const int32_t row_begin = static_cast<int32_t>(blockIdx.y) * kExactRows;
  for (int32_t i = args.view.worker_begin[blockIdx.x]; i < args.view.worker_begin[blockIdx.x + 1]; ++i) {
    const plan::WorkItem item = args.view.items[i];
    if (item_holds(args, item)) exact_item(args, item, row_begin, row_begin + kExactRows, storage);
  }
}

std::string refuse(const Choice& choice) {
  return choice.caps.smem_per_block < static_cast<int32_t>(sizeof(ExactStorage)) ? "needs 60 KB of shared memory in a block" : "";
}

LaunchShape shape(const Choice& choice) {
  LaunchShape launch;
  launch.smem_bytes = static_cast<int32_t>(sizeof(ExactStorage));
  launch.blocks_per_sm = choice.caps.smem_per_sm / (launch.smem_bytes + 1024) >= 2 ? 2 : 1;
  launch.rows = kExactRows;
  return launch;
}

plan::KernelTraits traits(const Choice&) {
  plan::KernelTraits t;
  t.tile_entries = 64;
  t.max_rows = 16;
  t.bytes_per_us = 4e3;
  t.flops_per_us = 40e3;
  t.fragment_us = 4.0;
  t.merge_bytes_per_us = 60e3;
  t.max_splits = 64;
  return t;
}

cudaError_t warm() {
  return cudaFuncSetAttribute(attention_cuda_simt_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(ExactStorage));
}

cudaError_t launch(const KernelArgs& args, cudaStream_t stream) {
  const dim3 grid(args.shape.workers, args.launch.row_blocks);
  attention_cuda_simt_kernel<<<grid, kExactThreads, sizeof(ExactStorage), stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

const Kernel attention_cuda_simt = {"attention_cuda_simt",
                                    "src/cuda/simt/attention.cu",
                                    "everything: float32 arithmetic on any format, type, width and stride",
                                    refuse,
                                    shape,
                                    traits,
                                    launch,
                                    warm};

}  // namespace headwater::cuda
