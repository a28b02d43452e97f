// Decode of at most 16 query rows on Hopper: copies run in warps of their own, as far ahead as shared memory reaches; eight warps compute.
// One source, K = V or K and V of one width, no softcap, no gathered list: the portable kernels take what this one refuses.
#pragma once

#include "src/cuda/common/launch.cuh"
#include "src/cuda/hopper/decode_narrow/consumer.cuh"
#include "src/cuda/hopper/decode_narrow/producer.cuh"

namespace headwater::cuda::narrow {

// grid (workers), C::kThreads threads.
template <class C, class T>
__global__ void __launch_bounds__(C::kThreads, 1) decode_narrow_kernel(const __grid_constant__ NarrowArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ Shared<C> shared;
  let_next_kernel_start();
  if (!schedule_is_ours(args.base)) return;  // the merge kernel writes NaN
  if (threadIdx.x == 0) {
    constexpr uint32_t kFillers = C::kCopies == Copies::kBulk ? 1 : C::kProducerWarps * 32;
    for (int i = 0; i < C::kStages; ++i) {
      hopper::init_barrier(shared_address(&shared.told[i]), 1);
      hopper::init_barrier(shared_address(&shared.full[i]), kFillers);
      hopper::init_barrier(shared_address(&shared.empty[i]), kConsumerWarps);
    }
    hopper::fence_barrier_init();
    shared.bad = 0;
    shared.any_redo = 0;
  }
  __syncthreads();
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
  if (warp >= kConsumerWarps) {
    Producer<C> producer(args, shared, shared_address(memory), warp - kConsumerWarps);
    producer.run();
    return;
  }
  Consumer<C, T> consumer(args, shared, memory);
  consumer.run();
}

}  // namespace headwater::cuda::narrow
