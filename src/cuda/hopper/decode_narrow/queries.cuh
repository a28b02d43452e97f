// Query rows to shared memory as 16-bit operands, and each row's score factor and visible entries: once an item.
#pragma once

#include "src/cuda/hopper/decode_narrow/args.h"
#include "src/cuda/hopper/decode_narrow/config.h"
#include "src/cuda/hopper/decode_narrow/shared.cuh"
#include "src/cuda/mma/common/queries.cuh"

namespace headwater::cuda::narrow {

// Columns [c, c + 8), one load where rows allow it.
template <class T>
static __device__ __noinline__ uint4 slow_query_chunk(const ResolvedProblem& p, RowPlace place, int32_t c) {
  uint4 v;
  v.x = query_operand<T>(p, place, c);
  v.y = query_operand<T>(p, place, c + 2);
  v.z = query_operand<T>(p, place, c + 4);
  v.w = query_operand<T>(p, place, c + 6);
  return v;
}

template <class T>
__device__ inline uint4 query_chunk(const NarrowArgs& args, const RowPlace& place, int32_t c) {
  const ResolvedProblem& p = args.base.problem;
  if (!place.live) return make_uint4(0, 0, 0, 0);
  if (args.q_vectors == 0) return slow_query_chunk<T>(p, place, c);
  const std::byte* at = c < p.q_width
                            ? p.q + place.row * p.q_row_stride + place.head * p.q_head_stride + 2 * c
                            : p.q_tail + place.row * p.q_tail_row_stride + place.head * p.q_tail_head_stride + 2 * (c - p.q_width);
  return *reinterpret_cast<const uint4*>(at);
}

// Row r by one warp. False: the row spans more than f16 holds, and its item is computed in float32.
template <class C, class T>
__device__ inline bool load_query_row(const NarrowArgs& args, const RowPlace& place, int32_t r, unsigned char* queries, Shared<C>& s) {
  const ResolvedProblem& p = args.base.problem;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  constexpr int kChunks = C::kDqk / 8;
  constexpr int kRounds = (kChunks + 31) / 32;
  uint4 v[kRounds];
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    v[i] = make_uint4(0, 0, 0, 0);
    if (lane + 32 * i < kChunks) v[i] = query_chunk<T>(args, place, 8 * (lane + 32 * i));
  }
  int32_t shift = 0;
  bool fits = true;
  const bool scaled = C::kOneByte && p.q_type == Type::kBf16;  // bf16 values as f16 operands
  if (scaled) {
    uint32_t large = 0;
    uint32_t small = 0x7f800000U;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      note_magnitudes(v[i].x, large, small);
      note_magnitudes(v[i].y, large, small);
      note_magnitudes(v[i].z, large, small);
      note_magnitudes(v[i].w, large, small);
    }
    large = __reduce_max_sync(0xffffffffU, large);
    small = __reduce_min_sync(0xffffffffU, small);
    shift = query_shift(large, small, &fits);
    const float factor = ldexpf(1.0F, shift);
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      v[i].x = scaled_half(v[i].x, factor);
      v[i].y = scaled_half(v[i].y, factor);
      v[i].z = scaled_half(v[i].z, factor);
      v[i].w = scaled_half(v[i].w, factor);
    }
  }
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int32_t chunk = lane + 32 * i;
    if (chunk >= kChunks) continue;
    unsigned char* const to = queries + r * C::Queries::kPitch;
    if constexpr (C::kOneByte) {  // in the order in which a lane meets the bytes of an entry
      *reinterpret_cast<uint2*>(to + C::Queries::one_byte_offset(chunk, 0)) = make_uint2(v[i].x, v[i].z);
      *reinterpret_cast<uint2*>(to + C::Queries::one_byte_offset(chunk, 1)) = make_uint2(v[i].y, v[i].w);
    } else {
      *reinterpret_cast<uint4*>(to + 16 * chunk) = v[i];
    }
  }
  if (lane == 0) s.row_factor[r] = score_factor(p, place, shift);
  return fits;
}

}  // namespace headwater::cuda::narrow
