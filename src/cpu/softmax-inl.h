// Scores [count][kWidth] of one group of rows -> probabilities, and the running state of the rows. Rows stand in lanes, so that maximum,
// sum and masks are vertical. Compiled per ISA.
#pragma once

#include "src/cpu/dequant-inl.h"
#include "src/cpu/exp2-inl.h"
#include "src/cpu/prefetch-inl.h"

namespace headwater::cpu::HEADWATER_CPU_ISA {
namespace {

template <int kWidth>
struct LaneGroup {
  using D = hn::CappedTag<float, kWidth>;
  using V = hn::Vec<D>;
  static constexpr int kN = kLanes < kWidth ? kLanes : kWidth;
  static constexpr int kVectors = kWidth / kN;
};

// What one pass over an item's tiles works with.
struct PassContext {
  RowPass pass;
  Workspace* workspace = nullptr;
  float softcap = 0.0F;  // natural units, as the scores then are; 0: scores arrive in log2 units
};

// A tile whose rows are float32, and what is known of it.
struct TileScratch {
  const Tile* tile = nullptr;
  const float* k = nullptr;  // [count][k_row_floats]
  const float* v = nullptr;
  int k_row_floats = 0;
  int v_row_floats = 0;
  bool keys_pending = false;             // k is still to be converted, by the first panel
  int nonfinite = -1;                    // not looked yet
  TilePrefetcher* prefetcher = nullptr;  // of the tile after this one
};

// Looked up only when a row does not see all of its panel's entries.
bool has_nonfinite_values(TileScratch* tile, int d_v) {
  if (tile->nonfinite >= 0) return tile->nonfinite != 0;
  const DF df;
  const hn::RebindToUnsigned<DF> du;
  const auto exponent = hn::Set(du, 0x7f800000U);  // all ones in infinities and NaN
  auto found = hn::Zero(du);
  bool found_one = false;
  for (int t = 0; t < tile->tile->count; ++t) {
    const float* const row = tile->v + int64_t{t} * tile->v_row_floats;
    int d = 0;
    for (; d + kLanes <= d_v; d += kLanes) {
      const auto bits = hn::BitCast(du, hn::Load(df, row + d));
      found = hn::Or(found, hn::VecFromMask(du, hn::Eq(hn::And(bits, exponent), exponent)));
    }
    for (; d < d_v; ++d) found_one = found_one || row[d] * 0.0F != 0.0F;
  }
  tile->nonfinite = found_one || !hn::AllFalse(du, hn::Ne(found, hn::Zero(du))) ? 1 : 0;
  return tile->nonfinite != 0;
}

// Entries [begin, end) of a tile that some row of a lane group sees, and each lane's own, counted from begin.
template <int kWidth>
struct LaneRanges {
  int begin = 0;
  int end = 0;
  bool masked = false;  // some lane sees less
  alignas(64) float lane_begin[kWidth];
  alignas(64) float lane_end[kWidth];
};

// Lanes past the last row see all: they stay finite where the data are, and nobody reads them.
template <int kWidth>
void find_lane_ranges(const RowPass& pass, const Tile& tile, int row, LaneRanges<kWidth>* ranges) {
  const int head_block = pass.args->shape->head_block;
  const int rows = pass.row_end - row < kWidth ? pass.row_end - row : kWidth;
  const int first_token = row / head_block;
  const int last_token = (row + rows - 1) / head_block;
  ranges->begin = tile.count;
  ranges->end = 0;
  for (int t = first_token - pass.token_begin; t <= last_token - pass.token_begin; ++t) {
    if (tile.begin[t] >= tile.end[t]) continue;
    if (tile.begin[t] < ranges->begin) ranges->begin = tile.begin[t];
    if (tile.end[t] > ranges->end) ranges->end = tile.end[t];
  }
  ranges->masked = false;
  if (ranges->begin >= ranges->end || first_token == last_token) return;
  for (int t = first_token - pass.token_begin; t <= last_token - pass.token_begin; ++t) {
    ranges->masked = ranges->masked || tile.begin[t] > ranges->begin || tile.end[t] < ranges->end;
  }
  if (!ranges->masked) return;
  int token = first_token - pass.token_begin;
  int head = row - first_token * head_block;
  for (int lane = 0; lane < kWidth; ++lane) {
    const bool real = lane < rows;
    ranges->lane_begin[lane] = real ? static_cast<float>(tile.begin[token] - ranges->begin) : 0.0F;
    ranges->lane_end[lane] = static_cast<float>((real ? tile.end[token] : ranges->end) - ranges->begin);
    if (++head == head_block && lane + 1 < rows) {
      head = 0;
      ++token;
    }
  }
}

// The weight of an entry that a row does not see (masked, or z = -inf): -0, which adds nothing and can be told from an underflow.
HWY_INLINE bool is_unseen(float weight) { return __builtin_bit_cast(uint32_t, weight) == 0x80000000U; }

HWY_INLINE float mul_add_one(float a, float b, float c) {
#if HWY_TARGET == HWY_SCALAR
  return a * b + c;  // as Highway's scalar MulAdd
#else
  return __builtin_fmaf(a, b, c);
#endif
}

struct SoftmaxResult {
  bool grew = false;    // some maximum grew: alpha is to be multiplied into O
  bool unseen = false;  // some real row does not see some entry
};

// Soft cap and masks in place; returns the maximum and, in *low, the minimum of each lane. A NaN score may be missed by both: it reaches
// the sum through exp2.
template <int kWidth>
HWY_INLINE hn::Vec<typename LaneGroup<kWidth>::D> prepare_scores(float softcap, const LaneRanges<kWidth>& ranges, int count, int vector,
                                                                 float* s, hn::Vec<typename LaneGroup<kWidth>::D>* low) {
  using Group = LaneGroup<kWidth>;
  using V = typename Group::V;
  const typename Group::D d;
  const V ninf = hn::Set(d, -__builtin_inff());
  V high = ninf;
  *low = hn::Set(d, __builtin_inff());
  float* at = s + vector * Group::kN;
  if (softcap == 0.0F && !ranges.masked) {
    for (int t = 0; t < count; ++t, at += kWidth) {
      const V z = hn::Load(d, at);
      high = hn::Max(z, high);
      *low = hn::Min(z, *low);
    }
    return high;
  }
  const V inverse_cap = hn::Set(d, 1.0F / softcap);
  const V cap_log2 = hn::Set(d, softcap * 1.44269504088896341F);
  const V begin = ranges.masked ? hn::Load(d, ranges.lane_begin + vector * Group::kN) : ninf;
  const V end = ranges.masked ? hn::Load(d, ranges.lane_end + vector * Group::kN) : hn::Set(d, __builtin_inff());
  for (int t = 0; t < count; ++t, at += kWidth) {
    V z = hn::Load(d, at);
    if (softcap != 0.0F) z = hn::Mul(cap_log2, tanh_of(d, hn::Mul(z, inverse_cap)));
    const V index = hn::Set(d, static_cast<float>(t));
    z = hn::IfThenElse(hn::And(hn::Ge(index, begin), hn::Lt(index, end)), z, ninf);
    hn::Store(z, d, at);
    high = hn::Max(z, high);
    *low = hn::Min(z, *low);
  }
  return high;
}

// s [count][kWidth] becomes P; m, l [kWidth] are updated; alpha [kWidth] is written when `grew`.
template <int kWidth>
SoftmaxResult softmax(float softcap, const LaneRanges<kWidth>& ranges, int count, float* s, float* m, float* l, float* alpha) {
  using Group = LaneGroup<kWidth>;
  using V = typename Group::V;
  const typename Group::D d;
  const V ninf = hn::Set(d, -__builtin_inff());
  SoftmaxResult result;
  V m_old[Group::kVectors];
  V m_new[Group::kVectors];
  for (int v = 0; v < Group::kVectors; ++v) {
    V low;
    const V high = prepare_scores<kWidth>(softcap, ranges, count, v, s, &low);
    m_old[v] = hn::Load(d, m + v * Group::kN);
    m_new[v] = hn::Max(high, m_old[v]);
    result.grew = result.grew || !hn::AllFalse(d, hn::Gt(m_new[v], m_old[v]));
    result.unseen = result.unseen || !hn::AllFalse(d, hn::Eq(low, ninf));
    hn::Store(m_new[v], d, m + v * Group::kN);
  }
  for (int v = 0; v < Group::kVectors; ++v) {
    const V reference = hn::IfThenElse(hn::Eq(m_new[v], ninf), hn::Zero(d), m_new[v]);
    V sum = hn::Zero(d);
    float* at = s + v * Group::kN;
    if (result.unseen) {
      for (int t = 0; t < count; ++t, at += kWidth) {
        const V z = hn::Load(d, at);
        const V p = hn::IfThenElse(hn::Eq(z, ninf), hn::Set(d, -0.0F), exp2_of(d, hn::Sub(z, reference)));
        hn::Store(p, d, at);
        sum = hn::Add(sum, p);
      }
    } else {
      for (int t = 0; t < count; ++t, at += kWidth) {
        const V p = exp2_of(d, hn::Sub(hn::Load(d, at), reference));
        hn::Store(p, d, at);
        sum = hn::Add(sum, p);
      }
    }
    V l_new = hn::Load(d, l + v * Group::kN);
    if (result.grew) {
      const V a = exp2_of(d, hn::Sub(m_old[v], reference));
      hn::Store(a, d, alpha + v * Group::kN);
      l_new = hn::Mul(l_new, a);
    }
    hn::Store(hn::Add(l_new, sum), d, l + v * Group::kN);
  }
  return result;
}

}  // namespace
}  // namespace headwater::cpu::HEADWATER_CPU_ISA
