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

#define HEADWATER_INLINED __attribute__((always_inline))  // of a lambda: accumulators must not get an address

template <int kValue>
struct Index {
  constexpr operator int() const { return kValue; }  // NOLINT(google-explicit-constructor): as std::integral_constant, which is weak
};

template <int kCount, int kBegin = 0, class Func>
HWY_INLINE void for_each_index(Func func) {
  if constexpr (kBegin < kCount) {
    func(Index<kBegin>());
    for_each_index<kCount, kBegin + 1>(func);
  }
}

// Rows of bf16 or f16 that a microkernel converts between its multiply-adds. The few loads, shifts and stores fit beside them: 11 % of a
// tile of 16 rows become 3 %. The longer conversions of e4m3 and e2m1 gained nothing: they need the shuffle units more than the slots.
struct NoConversion {};
template <Type kType>
struct Conversion {
  const SegmentRow* rows = nullptr;
  int count = 0;
};

template <class Func>
HWY_INLINE void convert_between(NoConversion /*none*/, int /*count*/, const Func& /*multiply_add*/, int* /*k*/) {}

// kPace steps of 16 columns in two k.
template <Type kType, class Func>
HWY_INLINE void convert_between(const Conversion<kType>& conversion, int count, const Func& multiply_add, int* k) {
  constexpr int kPace = (kBlockRows<16> + 7) / 8;  // d / 16 steps a row, d k a block of rows, three quarters of them at most
  int at = 0;
  for (const SegmentRow* row = conversion.rows; row != conversion.rows + conversion.count; ++row) {
    int step = 0;
    for (; step + kPace <= row->steps && at + 2 <= count; at += 2) {
      multiply_add(at);
      for_each_index<kPace>([&](auto i) HEADWATER_INLINED { convert_row_step<kType, 0>(*row, step + i); });
      multiply_add(at + 1);
      step += kPace;
    }
    for (; step < row->steps; ++step) convert_row_step<kType, 0>(*row, step);
  }
  *k = at;
}

// a(r, k) = a[r * stride + k], or a[k * stride + r] with kRowsAdjacent. b [count][kWidth], c [kRows][kWidth]. Sums start from zero and c
// is added last: chains of additions stay short, and an entry of weight 0 changes no bit.
// Every index of acc is a constant: compilers then keep it in registers from the first zero to the last store. Loops left it on the stack
// outside of the k loop, 36 stores and loads a call (values of 48 entries: 1.17 of the multiply-adds' time, now 1.11).
template <int kRows, int kWidth, bool kRowsAdjacent, class Extra = NoConversion>
void microkernel(const float* HWY_RESTRICT a, int64_t stride, const float* HWY_RESTRICT b, int count, bool accumulate,
                 float* HWY_RESTRICT c, const Extra& extra = Extra()) {
  using Group = LaneGroup<kWidth>;
  constexpr int kVectors = Group::kVectors;
  constexpr int kN = Group::kN;
  const typename Group::D d;
  typename Group::V acc[kRows * kVectors];
  for_each_index<kRows * kVectors>([&](auto i) HEADWATER_INLINED { acc[i] = hn::Zero(d); });
  const auto multiply_add = [&](int k) HEADWATER_INLINED {
    typename Group::V bk[kVectors];
    for_each_index<kVectors>([&](auto v) HEADWATER_INLINED { bk[v] = hn::Load(d, b + int64_t{k} * kWidth + v * kN); });
    const float* const ak = kRowsAdjacent ? a + k * stride : a + k;
    for_each_index<kRows>([&](auto r) HEADWATER_INLINED {
      const auto x = hn::Set(d, kRowsAdjacent ? ak[r] : ak[r * stride]);
      for_each_index<kVectors>([&](auto v) HEADWATER_INLINED { acc[r * kVectors + v] = hn::MulAdd(x, bk[v], acc[r * kVectors + v]); });
    });
  };
  int k = 0;
  convert_between(extra, count, multiply_add, &k);
  for (; k < count; ++k) multiply_add(k);
  if (accumulate) for_each_index<kRows * kVectors>([&](auto i) HEADWATER_INLINED { acc[i] = hn::Add(hn::Load(d, c + i * kN), acc[i]); });
  for_each_index<kRows * kVectors>([&](auto i) HEADWATER_INLINED { hn::Store(acc[i], d, c + i * kN); });
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

// The bits of panel_scores for a whole tile whose keys are still records of one segment: each block of entries is multiplied while the next
// one is converted.
template <Type kType>
void converting_scores_of(const TileRecords& records, int count, float* k, int row_floats, const float* q, float* s,
                          TilePrefetcher* prefetcher) {
  constexpr int kRows = kBlockRows<16>;
  const int d_qk = records.layout->width;
  const int parts = (d_qk + kMaxDepth - 1) / kMaxDepth;
  const formats::Segment& segment = records.layout->segments[0];
  int blocks = (count + kRows - 1) / kRows;
  int begin = 0;
  int end = (count + blocks - 1) / blocks;
  convert_records(records, 0, end, k, row_floats);
  SegmentRow rows[kRows];
  while (begin < count) {
    const int next = --blocks > 0 ? (count - end + blocks - 1) / blocks : 0;  // rows of the next block
    const bool together = end - begin == kRows;
    for (int i = 0; together && i < next; ++i) {
      (void)make_segment_row<kType>(records, segment, 31, end + i, k + int64_t{end + i} * row_floats, &rows[i]);
    }
    if (!together && next > 0) convert_records(records, end, end + next, k + int64_t{end} * row_floats, row_floats);
    for (int part = 0, from = 0; part < parts; ++part) {
      const int to = static_cast<int>(int64_t{d_qk} * (part + 1) / parts);
      const float* const a = k + int64_t{begin} * row_floats + from;
      float* const c = s + int64_t{begin} * 16;
      prefetcher->step();
      if (together) {
        const int first = next * part / parts;
        const Conversion<kType> conversion{rows + first, next * (part + 1) / parts - first};
        microkernel<kRows, 16, false>(a, row_floats, q + int64_t{from} * 16, to - from, part > 0, c, conversion);
      } else {
        microkernel_of<kRows, 16, false>(end - begin, a, row_floats, q + int64_t{from} * 16, to - from, part > 0, c);
      }
      from = to;
    }
    begin = end;
    end += next;
  }
}

// False, and nothing done, where a microkernel cannot convert these records.
bool converting_scores(const TileRecords& records, int count, float* k, int row_floats, const float* q, float* s,
                       TilePrefetcher* prefetcher) {
  const formats::RecordLayout& layout = *records.layout;
  const formats::Segment& segment = layout.segments[0];
  const BlockFactors factors = segment_factors(records, segment);
  if (layout.num_segments > 1 || layout.width % kStep != 0 || factors.scaled || factors.has_global) return false;
  if (segment.element == Type::kBf16) {
    converting_scores_of<Type::kBf16>(records, count, k, row_floats, q, s, prefetcher);
  } else if (segment.element == Type::kF16) {
    converting_scores_of<Type::kF16>(records, count, k, row_floats, q, s, prefetcher);
  } else {
    return false;
  }
  return true;
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
  const int count = ranges.end - ranges.begin;
  bool scored = false;
  if (tile->keys_pending) {
    scored =
        kWidth == 16 && count == tile->tile->count &&
        converting_scores(tile->tile->k, count, w.k, tile->k_row_floats, w.q + int64_t{panel_row} * problem.d_qk, w.s, tile->prefetcher);
    if (!scored) convert_records(tile->tile->k, 0, tile->tile->count, w.k, tile->k_row_floats);
    tile->keys_pending = false;
  }
  if (count <= 0) return;
  const float* const q = w.q + int64_t{panel_row} * problem.d_qk;
  float* const o = w.o + int64_t{panel_row} * problem.d_v;
  const int64_t skip = ranges.begin;
  if (!scored) panel_scores<kWidth>(tile->k + skip * tile->k_row_floats, tile->k_row_floats, count, q, problem.d_qk, w.s, tile->prefetcher);
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
