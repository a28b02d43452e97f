// Query rows as 16-bit operands. bf16 takes bf16 and e4m3, f16 takes f16 and e4m3 as they are. A bf16 row in f16 is scaled by a power of
// two, undone on the scores; a row that spans more than 2^29 sends its item to the exact path.
#pragma once

#include "src/cuda/common/element.cuh"
#include "src/cuda/common/mma.cuh"
#include "src/cuda/mma/decode/args.h"
#include "src/cuda/mma/decode/shared.cuh"

namespace headwater::cuda::decode {

inline constexpr int kLargestExponent = 14;  // of a scaled row's largest element
inline constexpr int kExponentSpan = 29;

// One row block row of this thread block: its global row and head.
struct RowPlace {
  int64_t row = 0;
  int32_t head = 0;
  int32_t token = 0;  // in the request
  bool live = false;
};

__device__ inline RowPlace row_place(const KernelArgs& a, const TileDesc& d, int32_t row_in_block) {
  RowPlace r;
  const int32_t heads = a.shape.head_block;
  r.live = row_in_block < d.item.token_count * heads;
  const int32_t of = r.live ? row_in_block : 0;
  r.token = d.item.token_begin + of / heads;
  r.row = int64_t{d.q_begin} + r.token;
  r.head = d.item.head_block * heads + of % heads;
  return r;
}

// Columns c, c + 1 as float32 values (e4m3 unscaled); zero past d_qk and for rows that do not exist.
__device__ inline float2 query_pair(const ResolvedProblem& p, const RowPlace& r, int32_t c) {
  float2 v = {0.0F, 0.0F};
  if (!r.live || c >= p.d_qk) return v;
  v.x = query_element(p, r.row, r.head, c);
  if (c + 1 < p.d_qk) v.y = query_element(p, r.row, r.head, c + 1);
  return v;
}

// The same as two 16-bit values of the query's own type: one 4-byte load where the row allows it.
__device__ inline uint32_t query_pair_bits(const ResolvedProblem& p, const RowPlace& r, int32_t c) {
  if (!r.live || c >= p.d_qk) return 0;
  const bool tail = c >= p.q_width;
  const std::byte* at = tail ? p.q_tail + r.row * p.q_tail_row_stride + r.head * p.q_tail_head_stride + 2 * (c - p.q_width)
                             : p.q + r.row * p.q_row_stride + r.head * p.q_head_stride + 2 * c;
  const bool whole = tail ? c + 1 < p.d_qk : c + 1 < p.q_width;
  if (whole && (reinterpret_cast<uintptr_t>(at) & 3U) == 0) return *reinterpret_cast<const uint32_t*>(at);
  uint32_t bits = load_u16(at);
  if (c + 1 < p.d_qk) {
    const std::byte* next = c + 1 == p.q_width ? p.q_tail + r.row * p.q_tail_row_stride + r.head * p.q_tail_head_stride : at + 2;
    bits |= static_cast<uint32_t>(load_u16(next)) << 16;
  }
  return bits;
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

}  // namespace headwater::cuda::decode
