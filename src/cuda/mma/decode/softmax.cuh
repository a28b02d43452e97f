// Scores to weights: partial sums joined, scaled, capped and masked; running maximum and sum; P rounded to 16 bit once.
#pragma once

#include "src/cuda/mma/common/queries.cuh"
#include "src/cuda/mma/decode/args.h"
#include "src/cuda/mma/decode/shared.cuh"

namespace headwater::cuda::decode {

template <class P>
struct RowLanes {
  static constexpr int kLanes = P::kThreads / P::kRows;  // threads of a row, in one warp
  static constexpr int kEach = P::kTile / kLanes;        // entries of a thread
  // Entry i of thread `lane`: quads of a row stand side by side.
  __device__ static int32_t entry(int32_t lane, int i) {
    if constexpr (kEach >= 4) return i / 4 * (kLanes * 4) + lane * 4 + i % 4;
    return lane * kEach + i;
  }
};

struct RowState {
  float m = -INFINITY;  // of the visible scores so far, log2 units
  float l = 0.0F;       // this thread's share of sum 2^(z - m + shift)
  float l_used = 0.0F;  // the same over the rounded weights, which is what O is made of
};

struct TileScale {
  float k = 1.0F;                         // k_scale of the source
  float v = 1.0F;                         // v_scale, where it is folded into P
  const unsigned char* k_rows = nullptr;  // one float32 a row, `pitch` bytes apart (int8)
  const unsigned char* v_rows = nullptr;
  int32_t k_pitch = 0;
  int32_t v_pitch = 0;
};

template <class P, class T>
__device__ inline void softmax_tile(const ResolvedProblem& p, const TileDesc& d, const unsigned char* live, const TileScale& scale,
                                    const float* scores, unsigned char* weights, Shared<P>& s, RowState& state) {
  using Lanes = RowLanes<P>;
  constexpr int kPitch = P::kTile + kRowPad;
  const int32_t r = static_cast<int32_t>(threadIdx.x) / Lanes::kLanes;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % Lanes::kLanes;
  const float factor = s.row_factor[r] * scale.k;
  const int32_t low = max(d.low, s.visible_low[r]) - d.begin;
  const int32_t high = min(d.high, s.visible_high[r]) - d.begin;
  float z[Lanes::kEach];
  float top = -INFINITY;
#pragma unroll
  for (int i = 0; i < Lanes::kEach; ++i) {
    const int32_t e = Lanes::entry(lane, i);
    float dot = scores[r * kPitch + e];
#pragma unroll
    for (int w = 1; w < P::kDepthWarps; ++w) dot += scores[(w * P::kRows + r) * kPitch + e];
    if (scale.k_rows != nullptr) dot *= foldable(*reinterpret_cast<const float*>(scale.k_rows + e * scale.k_pitch));
    float value = dot * factor;
    if (p.softcap != 0.0F) value = p.softcap * tanhf(value / p.softcap) * kLog2E;
    z[i] = e >= low && e < high && live[e] != 0 ? value : -INFINITY;
    top = fmaxf(top, z[i]);
  }
#pragma unroll
  for (int o = Lanes::kLanes / 2; o > 0; o /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, o));
  const float m = fmaxf(state.m, top);
  const float reference = m == -INFINITY ? 0.0F : m - kWeightShift<T>;
  const float rescale = state.m == m ? 1.0F : state.m == -INFINITY ? 0.0F : exp2_approx(state.m - m);
  state.l *= rescale;
  state.l_used *= rescale;
  state.m = m;
#pragma unroll
  for (int i = 0; i < Lanes::kEach; i += 2) {
    const int32_t e = Lanes::entry(lane, i);
    const float w0 = exp2_approx(z[i] - reference);
    const float w1 = exp2_approx(z[i + 1] - reference);
    state.l += w0 + w1;
    float v0 = scale.v;
    float v1 = scale.v;
    if (scale.v_rows != nullptr) {
      v0 *= foldable(*reinterpret_cast<const float*>(scale.v_rows + e * scale.v_pitch));
      v1 *= foldable(*reinterpret_cast<const float*>(scale.v_rows + (e + 1) * scale.v_pitch));
    }
    const uint32_t bits = pack<T>(w0 * v0, w1 * v1);
    *reinterpret_cast<uint32_t*>(weights + 2 * (r * kPitch + e)) = bits;
    float2 used = unpack<T>(bits);
    if (v0 != 1.0F || v1 != 1.0F) used = make_float2(v0 != 0.0F ? used.x / v0 : w0, v1 != 0.0F ? used.y / v1 : w1);
    state.l_used += used.x + used.y;
  }
  if (lane == 0) s.rescale[r] = rescale;
}

// The row's sum over its threads.
template <class P>
__device__ inline float row_sum(float l) {
#pragma unroll
  for (int o = RowLanes<P>::kLanes / 2; o > 0; o /= 2) l += __shfl_xor_sync(0xffffffffU, l, o);
  return l;
}

}  // namespace headwater::cuda::decode
