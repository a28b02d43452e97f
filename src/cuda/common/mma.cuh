// One inline function per instruction: sm_80 tensor cores, matrix loads and asynchronous copies.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace headwater::cuda {

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void load_matrices(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t address, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

// c[16 x 8] += a[16 x 16] b[16 x 8]. Lane (g = lane / 4, t = lane % 4): a rows g, g + 8, columns 2t, 2t + 8; b column g; c rows g, g + 8,
// columns 2t, 2t + 1.
template <class T>
__device__ inline void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ inline void multiply_add<__half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ inline void multiply_add<__nv_bfloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// `bytes` of the copy come from memory, the rest is zero; 0 reads nothing.
template <int kBytes>
__device__ inline void copy_async(uint32_t to, const void* from, int32_t bytes) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes), "r"(bytes) : "memory");
  }
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// Run-time form: at most `pending` groups (0 to 6) stay in flight.
__device__ inline void wait_copies(int32_t pending) {
  switch (pending) {
    case 0:
      return wait_copies<0>();
    case 1:
      return wait_copies<1>();
    case 2:
      return wait_copies<2>();
    case 3:
      return wait_copies<3>();
    case 4:
      return wait_copies<4>();
    case 5:
      return wait_copies<5>();
    default:
      return wait_copies<6>();
  }
}

// Two e4m3 (low byte first) as f16, exact, NaN kept.
__device__ inline uint32_t e4m3x2_to_half2(uint16_t x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(x));
  return r;
#else
  const uint32_t w = __byte_perm(x, 0, 0x1404);  // each byte at the top of a half
  const uint32_t bits = (w & 0x80008000U) | ((w & 0x7f007f00U) >> 1);
  __half2 h = *reinterpret_cast<const __half2*>(&bits);
  h = __hmul2(h, __float2half2_rn(256.0F));  // 2^(15 - 7): exponents rebiased, subnormals too
  uint32_t r = *reinterpret_cast<const uint32_t*>(&h);
  if ((x & 0x7fU) == 0x7fU) r |= 0x7fffU;
  if ((x & 0x7f00U) == 0x7f00U) r |= 0x7fff0000U;
  return r;
#endif
}

// Two e5m2 as f16: the upper bytes.
__device__ inline uint32_t e5m2x2_to_half2(uint16_t x) { return __byte_perm(x, 0, 0x1404); }

__device__ inline float2 half2_to_float2(uint32_t x) { return __half22float2(*reinterpret_cast<const __half2*>(&x)); }

// Rounds to nearest even; low half first.
template <class T>
__device__ inline uint32_t pack(float low, float high);
template <>
__device__ inline uint32_t pack<__half>(float low, float high) {
  const __half2 h = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&h);
}
template <>
__device__ inline uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&h);
}

// bf16 pair -> float32, exact.
__device__ inline float2 bf16x2_to_float2(uint32_t x) { return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000U)}; }

template <class T>
__device__ inline float2 unpack(uint32_t pair);
template <>
__device__ inline float2 unpack<__half>(uint32_t pair) {
  return half2_to_float2(pair);
}
template <>
__device__ inline float2 unpack<__nv_bfloat16>(uint32_t pair) {
  return bf16x2_to_float2(pair);
}

__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace headwater::cuda
