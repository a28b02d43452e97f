// Barriers in shared memory and copies that complete on them: one inline function per instruction, sm_90.
#pragma once

#include <cstdint>

namespace headwater::cuda::hopper {

__device__ inline void init_barrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After the last init_barrier, before the block's own barrier: the copy engine sees the barriers too.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void arrive(uint32_t barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}
__device__ inline void arrive_expecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}" ::"r"(barrier), "r"(bytes) : "memory");
}
// Arrives once all earlier cp.async of this thread have landed; counts as one of the barrier's arrivals.
__device__ inline void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ inline bool try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
// Until the phase of this parity is complete.
__device__ inline void wait_barrier(uint32_t barrier, uint32_t parity) {
  while (!try_wait(barrier, parity)) {
  }
}

// A contiguous copy by the copy engine: addresses and bytes are multiples of 16.
__device__ inline void copy_bulk(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
               "r"(barrier)
               : "memory");
}
// This thread's ordinary writes to shared memory come before later writes of the copy engine.
__device__ inline void fence_copy_engine() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// `threads` of the block meet; id 1 to 15.
template <int kId, int kThreads>
__device__ inline void meet() {
  asm volatile("bar.sync %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}

// The same, and whether any of them says so.
template <int kId, int kThreads>
__device__ inline bool meet_any(bool say) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred p, q;\n"
      "setp.ne.u32 q, %1, 0;\n"
      "barrier.cta.red.or.pred p, %2, %3, q;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(any)
      : "r"(say ? 1U : 0U), "n"(kId), "n"(kThreads)
      : "memory");
  return any != 0;
}

}  // namespace headwater::cuda::hopper
