// Query rows as 16-bit operands. bf16 takes bf16 and e4m3, f16 takes f16 and e4m3 as they are. A bf16 row in f16 is scaled by a power of
// two, undone on the scores; a row that spans more than 2^29 sends its item to the exact path.
#pragma once

#include "src/cuda/mma/common/rows.cuh"

namespace headwater::cuda::mma {

// A scale is folded only where the decoded value cannot overflow; beyond that the row becomes non-finite here and exact later.
__device__ inline float foldable(float scale) { return fabsf(scale) < 0x1p116F ? scale : INFINITY; }

inline constexpr int kLargestExponent = 14;  // of a scaled row's largest element
inline constexpr int kExponentSpan = 29;

// Columns c, c + 1 as float32 values (e4m3 unscaled); zero past d_qk and for rows that do not exist.
__device__ inline float2 query_pair(const ResolvedProblem& p, const RowPlace& r, int32_t c) {
  float2 v = {0.0F, 0.0F};
  if (!r.live || c >= p.d_qk) return v;
  v.x = query_element(p, r.row, r.head, c);
  if (c + 1 < p.d_qk) v.y = query_element(p, r.row, r.head, c + 1);
  return v;
}

template <class T>
__device__ inline uint32_t query_operand(const ResolvedProblem& p, const RowPlace& r, int32_t c) {
  if (p.q_type == Type::kE4m3) {
    const float2 v = query_pair(p, r, c);
    return pack<T>(v.x, v.y);
  }
  return query_pair_bits(p, r, c);  // T's own type, or bf16 to be scaled by scale_queries
}

// bf16 bits -> f16 bits of the value times `factor`, a power of two.
__device__ inline uint32_t scaled_half(uint32_t bf16x2, float factor) {
  const float2 v = bf16x2_to_float2(bf16x2);
  return pack<__half>(v.x * factor, v.y * factor);
}

__device__ inline void note_magnitudes(uint32_t bf16x2, uint32_t& largest, uint32_t& smallest) {
  const uint32_t low = (bf16x2 << 16) & 0x7fffffffU;
  const uint32_t high = bf16x2 & 0x7fff0000U;
  largest = max(largest, max(low, high));
  if (low != 0) smallest = min(smallest, low);
  if (high != 0) smallest = min(smallest, high);
}

// Exponent by which the row is scaled up; *fits is false where some element would lose bits.
__device__ inline int32_t query_shift(uint32_t largest, uint32_t smallest, bool* fits) {
  *fits = true;
  if (largest == 0) return 0;
  const int32_t top = static_cast<int32_t>(largest >> 23) - 127;
  const int32_t bottom = static_cast<int32_t>(smallest >> 23) - 127;
  *fits = top < 128 && top >= -100 && bottom >= top - kExponentSpan;
  const int32_t shift = kLargestExponent - top;
  return shift > 100 ? 100 : shift;
}

// The factor of a row's scores but for k_scale.
__device__ inline float score_factor(const ResolvedProblem& p, const RowPlace& r, int32_t shift) {
  float factor = p.sm_scale * (p.softcap != 0.0F ? 1.0F : kLog2E);
  if (p.q_type == Type::kE4m3 && r.live) factor *= query_scale(p, r.row, r.head);
  return ldexpf(factor, -shift);
}

}  // namespace headwater::cuda::mma
