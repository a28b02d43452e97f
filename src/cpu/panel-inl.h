// The panel form: 8 or 16 rows (token x head) stand in vector lanes and both products are the same microkernel,
//     C[r][lane] += sum_k a(r, k) * B[k][lane],   a broadcast from memory, C in registers.
// Scores: r = tokens of the tile, k = d, B = Q^T. Values: r = d, k = tokens, B = P. No shuffle, no transpose, no horizontal sum.
// Compiled per ISA. docs/deep-dives/cpu.md counts the cycles.
#pragma once

#include "src/cpu/softmax-inl.h"

namespace headwater::cpu::HEADWATER_CPU_ISA {
namespace {

// Rows of C in registers: as many accumulators as leave room for B and one broadcast.
#if HWY_TARGET == HWY_SCALAR
constexpr int kAccumulators = 16;  // registers do not matter: the compiler keeps C in memory
#elif HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2
constexpr int kAccumulators = 12;  // of 16 registers
#else
constexpr int kAccumulators = 24;  // of 32
#endif
template <int kWidth>
constexpr int kBlockRows = kAccumulators / LaneGroup<kWidth>::kVectors;

// a(r, k) = a[r * stride + k], or a[k * stride + r] with kRowsAdjacent. b [count][kWidth], c [kRows][kWidth]. Sums start from zero and c
// is added last: chains of additions stay short, and an entry of weight 0 changes no bit.
template <int kRows, int kWidth, bool kRowsAdjacent>
void microkernel(const float* HWY_RESTRICT a, int64_t stride, const float* HWY_RESTRICT b, int count, bool accumulate,
                 float* HWY_RESTRICT c) {
  using Group = LaneGroup<kWidth>;
  constexpr int kVectors = Group::kVectors;
  constexpr int kN = Group::kN;
  const typename Group::D d;
  typename Group::V acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::Zero(d);
  }
  for (int k = 0; k < count; ++k) {
    typename Group::V bk[kVectors];
    for (int v = 0; v < kVectors; ++v) bk[v] = hn::Load(d, b + int64_t{k} * kWidth + v * kN);
    const float* const ak = kRowsAdjacent ? a + k * stride : a + k;
    for (int r = 0; r < kRows; ++r) {
      const auto x = hn::Set(d, kRowsAdjacent ? ak[r] : ak[r * stride]);
      for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(x, bk[v], acc[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      float* const at = c + r * kWidth + v * kN;
      hn::Store(accumulate ? hn::Add(hn::Load(d, at), acc[r][v]) : acc[r][v], d, at);
    }
  }
}

// One block of `rows` (1..kRows) rows.
template <int kRows, int kWidth, bool kRowsAdjacent>
HWY_INLINE void microkernel_of(int rows, const float* a, int64_t stride, const float* b, int count, bool accumulate, float* c) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return microkernel_of<kRows - 1, kWidth, kRowsAdjacent>(rows, a, stride, b, count, accumulate, c);
  }
  microkernel<kRows, kWidth, kRowsAdjacent>(a, stride, b, count, accumulate, c);
}

// C of any number of rows, in blocks whose sizes differ by at most one: a short last block would wait for its own latency.
template <int kWidth, bool kRowsAdjacent>
void product(int rows, const float* a, int64_t stride, const float* b, int count, bool accumulate, float* c, TilePrefetcher* prefetcher) {
  constexpr int kRows = kBlockRows<kWidth>;
  for (int blocks = (rows + kRows - 1) / kRows, r = 0; blocks > 0; --blocks) {
    const int n = (rows - r + blocks - 1) / blocks;
    prefetcher->step();
    microkernel_of<kRows, kWidth, kRowsAdjacent>(n, kRowsAdjacent ? a + r : a + r * stride, stride, b, count, accumulate, c + r * kWidth);
    r += n;
  }
}

// Longest run of d in one chain of additions: bounds the rounding of long dot products (shorter without FMA, which rounds once a step),
// and keeps the part of Q^T in L1.
#if HWY_TARGET == HWY_SCALAR
constexpr int kMaxDepth = 48;
#else
constexpr int kMaxDepth = 192;
#endif

// Calls of TilePrefetcher::step while one panel goes through a tile.
template <int kWidth>
int panel_steps(int count, int d_qk, int d_v) {
  constexpr int kRows = kBlockRows<kWidth>;
  return (d_qk + kMaxDepth - 1) / kMaxDepth * ((count + kRows - 1) / kRows) + (d_v + kRows - 1) / kRows;
}

template <int kWidth>
void panel_scores(const float* k, int row_floats, int count, const float* q, int d_qk, float* s, TilePrefetcher* prefetcher) {
  const int parts = (d_qk + kMaxDepth - 1) / kMaxDepth;
  int begin = 0;
  for (int i = 0; i < parts; ++i) {
    const int end = static_cast<int>(int64_t{d_qk} * (i + 1) / parts);
    product<kWidth, false>(count, k + begin, row_floats, q + int64_t{begin} * kWidth, end - begin, i > 0, s, prefetcher);
    begin = end;
  }
}

// O^T [d_v][kWidth] += V^T P with the entries that a row does not see left out one by one, since some V is not finite. The same bits as
// Product where the latter's result is finite.
template <int kWidth>
void exact_panel_values(const float* v, int row_floats, int count, const float* p, int d_v, float* o) {
  for (int d = 0; d < d_v; ++d) {
    for (int lane = 0; lane < kWidth; ++lane) {
      float sum = 0.0F;
      for (int t = 0; t < count; ++t) {
        const float weight = p[t * kWidth + lane];
        if (!is_unseen(weight)) sum = mul_add_one(weight, v[int64_t{t} * row_floats + d], sum);
      }
      o[d * kWidth + lane] += sum;
    }
  }
}

// One panel against the converted tile.
template <int kWidth>
void panel_tile(const PassContext& context, TileScratch* tile, int panel_row) {
  using Group = LaneGroup<kWidth>;
  const ResolvedProblem& problem = *context.pass.args->problem;
  Workspace& w = *context.workspace;
  LaneRanges<kWidth> ranges;
  find_lane_ranges(context.pass, *tile->tile, context.pass.row_begin + panel_row, &ranges);
  if (ranges.begin >= ranges.end) return;
  const int count = ranges.end - ranges.begin;
  const float* const q = w.q + int64_t{panel_row} * problem.d_qk;
  float* const o = w.o + int64_t{panel_row} * problem.d_v;
  const int64_t skip = ranges.begin;
  panel_scores<kWidth>(tile->k + skip * tile->k_row_floats, tile->k_row_floats, count, q, problem.d_qk, w.s, tile->prefetcher);
  alignas(64) float alpha[kWidth];
  const SoftmaxResult result = softmax<kWidth>(context.softcap, ranges, count, w.s, w.m + panel_row, w.l + panel_row, alpha);
  if (result.grew) {
    const typename Group::D d;
    for (int i = 0; i < problem.d_v; ++i) {
      for (int v = 0; v < Group::kVectors; ++v) {
        float* const at = o + i * kWidth + v * Group::kN;
        hn::Store(hn::Mul(hn::Load(d, at), hn::Load(d, alpha + v * Group::kN)), d, at);
      }
    }
  }
  const float* const values = tile->v + skip * tile->v_row_floats;
  if (result.unseen && has_nonfinite_values(tile, problem.d_v)) {
    exact_panel_values<kWidth>(values, tile->v_row_floats, count, w.s, problem.d_v, o);
  } else {
    product<kWidth, true>(problem.d_v, values, tile->v_row_floats, w.s, count, true, o, tile->prefetcher);
  }
}

}  // namespace
}  // namespace headwater::cpu::HEADWATER_CPU_ISA
