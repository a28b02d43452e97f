// Query rows of a row block, and how weights are kept in 16 bit.
#pragma once

#include "src/cuda/common/element.cuh"
#include "src/cuda/common/mma.cuh"
#include "src/cuda/mma/common/cursor.cuh"

namespace headwater::cuda::mma {

// Reference of weights: 2^(z - m + shift). f16 weights stand up to 2^14, so that small ones keep their bits; bf16 has the range.
template <class T>
inline constexpr float kWeightShift = 0.0F;
template <>
inline constexpr float kWeightShift<__half> = 14.0F;

// One row block row of this thread block: its global row and head.
struct RowPlace {
  int64_t row = 0;
  int32_t head = 0;
  int32_t token = 0;  // in the request
  bool live = false;
};

__device__ inline RowPlace row_place(const KernelArgs& a, const OpenItem& open, int32_t row_in_block) {
  RowPlace r;
  const int32_t heads = a.shape.head_block;
  r.live = row_in_block < open.item.token_count * heads;
  const int32_t of = r.live ? row_in_block : 0;
  r.token = open.item.token_begin + of / heads;
  r.row = int64_t{open.q_begin} + r.token;
  r.head = open.item.head_block * heads + of % heads;
  return r;
}

// Columns c, c + 1 of a 16-bit query, bits as they are: one 4-byte load where the row allows it. Zero past d_qk and for rows that do not
// exist.
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

}  // namespace headwater::cuda::mma
