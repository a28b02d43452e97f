// The few-row form: at most kFewRows rows, 4 at a time, against a tile. Scores are dot products with d in lanes; values have d in lanes and
// weights broadcast. bf16 and f16 rows are read straight from the cache and converted in registers: too few rows share a conversion to pay
// for a scratch copy. Scores and weights stand as [count][4], rows in lanes, so that the softmax is the panels'. Compiled per ISA.
#pragma once

#include "src/cpu/softmax-inl.h"

namespace headwater::cpu::HEADWATER_CPU_ISA {
namespace {

constexpr int kGroupRows = 4;

#if HWY_TARGET != HWY_SCALAR
// Adds the 128-bit blocks of a vector.
template <class V>
HWY_INLINE void store_block_sum(V v, float* sums) {
  const hn::DFromV<V> d;
  if constexpr (hn::MaxLanes(d) > 4) {
    const hn::Half<decltype(d)> half;
    store_block_sum(hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), sums);
  } else {
    hn::Store(v, d, sums);
  }
}
#endif

// Sums of four vectors, one in each of 4 floats. 9 operations and 3 for each halving of the vector.
HWY_INLINE void store_sums(VF a, VF b, VF c, VF e, float* sums) {
#if HWY_TARGET == HWY_SCALAR
  sums[0] = hn::GetLane(a);
  sums[1] = hn::GetLane(b);
  sums[2] = hn::GetLane(c);
  sums[3] = hn::GetLane(e);
#else
  const DF d;
  const hn::RepartitionToWide<DF> d64;
  const VF ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const VF ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto ab64 = hn::BitCast(d64, ab);
  const auto ce64 = hn::BitCast(d64, ce);
  const VF sum = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, ab64, ce64)), hn::BitCast(d, hn::InterleaveUpper(d64, ab64, ce64)));
  store_block_sum(sum, sums);
#endif
}

// Longest run of columns in one chain of additions. With one lane and no FMA a chain of 576 would lose more than the contract allows.
constexpr int kMaxRun = kLanes == 1 ? 48 : kMaxWidth;

// Four scores for each of kTokens rows of K. q [kRows][row_floats]; rows past kRows score 0.
template <Type kType, int kRows, int kTokens>
HWY_INLINE void dot_tokens(const float* HWY_RESTRICT q, int row_floats, const std::byte* const* k, int d_qk, float* HWY_RESTRICT s) {
  const DF d;
  VF acc[kTokens][kGroupRows];
  for (int t = 0; t < kTokens; ++t) {
    for (int r = 0; r < kGroupRows; ++r) acc[t][r] = hn::Zero(d);
  }
  for (int begin = 0; begin < d_qk; begin += kMaxRun) {
    VF run[kTokens][kRows];
    for (int t = 0; t < kTokens; ++t) {
      for (int r = 0; r < kRows; ++r) run[t][r] = hn::Zero(d);
    }
    const int end = kMaxRun < d_qk - begin ? begin + kMaxRun : d_qk;
    for (int c = begin; c < end; c += kLanes) {
      VF kv[kTokens];
      for (int t = 0; t < kTokens; ++t) kv[t] = Element<kType>::load(k[t] + element_bytes<kType>(c));
      for (int r = 0; r < kRows; ++r) {
        const VF qv = hn::Load(d, q + r * row_floats + c);
        for (int t = 0; t < kTokens; ++t) run[t][r] = hn::MulAdd(qv, kv[t], run[t][r]);
      }
    }
    for (int t = 0; t < kTokens; ++t) {
      for (int r = 0; r < kRows; ++r) acc[t][r] = hn::Add(acc[t][r], run[t][r]);
    }
  }
  for (int t = 0; t < kTokens; ++t) store_sums(acc[t][0], acc[t][1], acc[t][2], acc[t][3], s + t * kGroupRows);
}

// Rows of K that share one load of Q.
template <int kRows>
constexpr int kGroupTokens = 8 / kRows;

template <Type kType, int kRows>
void group_scores(const float* q, int row_floats, const std::byte* const* k, int count, int d_qk, float* s, TilePrefetcher* prefetcher) {
  constexpr int kTokens = kGroupTokens<kRows>;
  int t = 0;
  for (; t + kTokens <= count; t += kTokens) {
    prefetcher->step();
    dot_tokens<kType, kRows, kTokens>(q, row_floats, k + t, d_qk, s + t * kGroupRows);
  }
  for (; t < count; ++t) dot_tokens<kType, kRows, 1>(q, row_floats, k + t, d_qk, s + t * kGroupRows);
}

template <Type kType, int kRows, int kVectors>
HWY_INLINE void add_values(const std::byte* const* v, int column, int count, const float* HWY_RESTRICT p, float* HWY_RESTRICT o,
                           int row_floats) {
  const DF d;
  VF acc[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kVectors; ++i) acc[r][i] = hn::Zero(d);
  }
  for (int t = 0; t < count; ++t) {
    VF x[kVectors];
    for (int i = 0; i < kVectors; ++i) x[i] = Element<kType>::load(v[t] + element_bytes<kType>(column + i * kLanes));
    for (int r = 0; r < kRows; ++r) {
      const VF weight = hn::Set(d, p[t * kGroupRows + r]);
      for (int i = 0; i < kVectors; ++i) acc[r][i] = hn::MulAdd(weight, x[i], acc[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kVectors; ++i) {
      float* const at = o + r * row_floats + column + i * kLanes;
      hn::Store(hn::Add(hn::Load(d, at), acc[r][i]), d, at);
    }
  }
}

// o [kRows][row_floats] += P^T V. d_v counts whole vectors.
template <Type kType, int kRows>
void group_values(const std::byte* const* v, int count, int d_v, const float* p, float* o, int row_floats) {
  constexpr int kVectors = 8 / kRows;
  int c = 0;
  for (; c + kVectors * kLanes <= d_v; c += kVectors * kLanes) add_values<kType, kRows, kVectors>(v, c, count, p, o, row_floats);
  for (; c < d_v; c += kLanes) add_values<kType, kRows, 1>(v, c, count, p, o, row_floats);
}

// The same bits as group_values where that is finite; entries that a row does not see are left out one by one.
template <int kRows>
void exact_group_values(const TileScratch& tile, int begin, int count, int d_v, const float* p, float* o, int row_floats) {
  for (int r = 0; r < kRows; ++r) {
    for (int d = 0; d < d_v; ++d) {
      float sum = 0.0F;
      for (int t = 0; t < count; ++t) {
        const float weight = p[t * kGroupRows + r];
        if (!is_unseen(weight)) sum = mul_add_one(weight, tile.v[int64_t{begin + t} * tile.v_row_floats + d], sum);
      }
      o[r * row_floats + d] += sum;
    }
  }
}

}  // namespace
}  // namespace headwater::cpu::HEADWATER_CPU_ISA
