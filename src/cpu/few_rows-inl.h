// The products of the few-row form: at most kFewRows rows against a piece of a tile. Scores: 12 entries at a time, their float32 values
// broadcast, 8 rows in lanes, or 4 rows with their even and odd columns; no horizontal sum but that of a pair. Values: d in lanes, weights
// broadcast, 16-bit records converted in registers. Scores and weights stand as [count][4 or 8], so that the softmax is the panels'.
// Compiled per ISA.
#pragma once

#include <utility>

#include "src/cpu/softmax-inl.h"

namespace headwater::cpu::HEADWATER_CPU_ISA {
namespace {

constexpr int kGroupRows = 4;

template <int kIndex>
struct Constant {
  static constexpr int kValue = kIndex;
};

// f(Constant<0>()), ..., f(Constant<kCount - 1>()): indices that are constants before the optimiser starts, which keeps arrays of vectors
// in registers where it does not see through loops.
template <int kCount, class Func>
HWY_INLINE void unrolled(Func f) {
  [&]<int... kIndices>(std::integer_sequence<int, kIndices...>) __attribute__((always_inline)) { (f(Constant<kIndices>()), ...); }
  (std::make_integer_sequence<int, kCount>());
}

// How the columns of O stand in memory: a vector of 32-bit words holds two bf16 columns a lane, and it is cheapest to take the even
// columns of 2 kLanes first, then the odd ones (a shift and a mask, no widening shuffle).
enum class ColumnOrder : uint8_t { kNatural, kEvenOdd };
constexpr int kPair = 2 * kLanes;

template <Type kType>
constexpr ColumnOrder kOrderOf = kType == Type::kBf16&& kLanes > 1 ? ColumnOrder::kEvenOdd : ColumnOrder::kNatural;

// Half kHalf of the kPair columns at p, in the type's order.
template <Type kType, int kHalf>
HWY_INLINE VF load_half(const std::byte* p) {
  if constexpr (kOrderOf<kType> == ColumnOrder::kEvenOdd) {
    const hn::Repartition<uint32_t, DF> d32;
    const auto both = load_bytes(d32, p);
    return hn::BitCast(DF(), hn::ShiftLeft<16>(kHalf == 0 ? both : hn::ShiftRight<16>(both)));  // no mask: a register less
  } else {
    return Element<kType>::load(p + element_bytes<kType>(kHalf * kLanes));
  }
}

// Cache lines to fetch, one in each step of a product's loop: a burst of them would fill the queues that the loop's own loads need.
struct Lines {
  const std::byte* const* at = nullptr;
  int count = 0;
};

HWY_INLINE void fetch_line(const std::byte* line) { __builtin_prefetch(line, 0, 2); }  // to L2: a piece is larger than L1

// Some records of one head, as the products read them.
struct Records {
  const std::byte* const* row = nullptr;
  int64_t offset = 0;  // of the head's record from row[i]
};

// Entries whose scores are summed in registers together: 12 accumulators of 8 lanes, a vector of Q and a broadcast.
constexpr int kScoreBlock = 12;
// Most columns in one chain of additions: bounds its rounding (shorter without FMA, which rounds once a step). Even.
constexpr int kMaxRun = kLanes == 1 ? 48 : 192;

struct ScoreArgs {
  const float* k = nullptr;  // [count][k_row_floats]
  int k_row_floats = 0;
  int d_qk = 0;
  // 8 rows: [d_qk][8]. 4 rows: [d_qk / 2, rounded up][4][2]; K then has a column of zeros behind an odd d_qk.
  const float* q = nullptr;
};

// Two neighbouring floats in every pair of lanes.
template <class D>
HWY_INLINE hn::Vec<D> broadcast_pair(D d, const float* p) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(d, *p);  // not used: one lane holds no pair
#else
  const hn::Repartition<double, D> d64;
  return hn::BitCast(d, hn::Set(d64, read_as<double>(reinterpret_cast<const std::byte*>(p))));
#endif
}

// c [kCount][8] = or += the products of entries [first, first + kCount) in columns [begin, end): scores of 8 rows, or of 4 rows in pairs of
// lanes that remain to be added. 13 loads for 12 multiply-adds: bound by loads at 92 % of peak on AVX2.
template <int kCount, bool kPairs>
void score_block(const ScoreArgs& args, int first, int begin, int end, float* HWY_RESTRICT c, Lines lines) {
  using Group = LaneGroup<8>;
  constexpr int kVectors = Group::kVectors;
  constexpr int kN = Group::kN;
  constexpr int kStepColumns = kPairs ? 2 : 1;
  const typename Group::D d;
  typename Group::V acc[kCount][kVectors];
  unrolled<kCount>([&](auto t) { unrolled<kVectors>([&](auto v) { acc[t.kValue][v.kValue] = hn::Zero(d); }); });
  const float* const k = args.k + int64_t{first} * args.k_row_floats;
  const int64_t stride = args.k_row_floats;
  const float* HWY_RESTRICT q = args.q + int64_t{begin} * (8 / kStepColumns);
  const auto step = [&](int64_t column) __attribute__((always_inline)) {
    typename Group::V row[kVectors];
    unrolled<kVectors>([&](auto v) { row[v.kValue] = hn::Load(d, q + v.kValue * kN); });
    unrolled<kCount>([&](auto t) {
      const float* const at = k + t.kValue * stride + column;
      if constexpr (kPairs && kN == 1) {
        unrolled<kVectors>(
            [&](auto v) { acc[t.kValue][v.kValue] = hn::MulAdd(hn::Set(d, at[v.kValue % 2]), row[v.kValue], acc[t.kValue][v.kValue]); });
      } else {
        const auto x = kPairs ? broadcast_pair(d, at) : hn::Set(d, *at);
        unrolled<kVectors>([&](auto v) { acc[t.kValue][v.kValue] = hn::MulAdd(x, row[v.kValue], acc[t.kValue][v.kValue]); });
      }
    });
    q += 8;
  };
  int64_t column = begin;
  for (int i = 0; i < lines.count && column < end; ++i, column += kStepColumns) {
    fetch_line(lines.at[i]);
    step(column);
  }
  for (; column < end; column += kStepColumns) step(column);
  unrolled<kCount>([&](auto t) {
    unrolled<kVectors>([&](auto v) {
      float* const at = c + t.kValue * 8 + v.kValue * kN;
      hn::Store(begin > 0 ? hn::Add(hn::Load(d, at), acc[t.kValue][v.kValue]) : acc[t.kValue][v.kValue], d, at);
    });
  });
}

template <int kCount, bool kPairs>
HWY_INLINE void score_block_of(int count, const ScoreArgs& args, int first, int begin, int end, float* c, Lines lines) {
  if constexpr (kCount > 1) {
    if (count < kCount) return score_block_of<kCount - 1, kPairs>(count, args, first, begin, end, c, lines);
  }
  score_block<kCount, kPairs>(args, first, begin, end, c, lines);
}

// sums [count] of pairs [count][2]; both may be touched up to the next multiple of kLanes.
HWY_INLINE void sum_pairs(const float* HWY_RESTRICT pairs, int count, float* HWY_RESTRICT sums) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < count; ++i) sums[i] = pairs[2 * i] + pairs[2 * i + 1];
#else
  const DF d;
  for (int i = 0; i < count; i += kLanes) {
    const VF low = hn::LoadU(d, pairs + 2 * i);
    const VF high = hn::LoadU(d, pairs + 2 * i + kLanes);
    hn::StoreU(hn::Add(hn::ConcatEven(d, high, low), hn::ConcatOdd(d, high, low)), d, sums + i);
  }
#endif
}

// Scores of entries [first, first + count), count <= kScoreBlock: s [count][8], or with kPairs s [count][4] by way of pairs
// [kScoreBlock][8].
template <bool kPairs>
void block_scores(const ScoreArgs& args, int first, int count, float* pairs, float* s, Lines lines) {
  const int parts = (args.d_qk + kMaxRun - 1) / kMaxRun;
  const int length = ((args.d_qk + parts - 1) / parts + 1) / 2 * 2;
  float* const c = kPairs ? pairs : s;
  for (int begin = 0; begin < args.d_qk; begin += length) {
    score_block_of<kScoreBlock, kPairs>(count, args, first, begin, begin + length < args.d_qk ? begin + length : args.d_qk, c, lines);
    lines.count = 0;  // all in the first part
  }
  if constexpr (kPairs) sum_pairs(pairs, 4 * count, s);
}

struct ValueArgs {
  Records v;
  int count = 0;
  int row_floats = 0;
  int stride = 0;  // of p: 4 or 8
  Lines lines;     // fetched in the first columns of a call
};

// Lines for each of `calls` calls of add_values.
HWY_INLINE int value_lines_of_call(const ValueArgs& args, int calls) { return calls == 0 ? 0 : (args.lines.count + calls - 1) / calls; }

// o [kRows][row_floats] += P^T V in columns [column, + kVectors * kLanes), in kOrderOf<kType>; kVectors is 1 or even. Each sum starts from
// zero.
template <Type kType, int kRows, int kVectors>
HWY_INLINE void add_values(const ValueArgs& args, int column, Lines lines, const float* HWY_RESTRICT p, float* HWY_RESTRICT o) {
  const DF d;
  VF acc[kRows][kVectors];
  unrolled<kRows>([&](auto r) { unrolled<kVectors>([&](auto i) { acc[r.kValue][i.kValue] = hn::Zero(d); }); });
  const int64_t offset = args.v.offset + element_bytes<kType>(column);
  const std::byte* const* const row = args.v.row;
  const int stride = args.stride;
  const int count = args.count;
  const auto step = [&](int t) __attribute__((always_inline)) {
    const std::byte* const from = row[t] + offset;
    VF x[kVectors];
    unrolled<kVectors>([&](auto i) {
      constexpr int kFirst = i.kValue / 2 * 2;
      x[i.kValue] = load_half<kType, i.kValue % 2>(from + element_bytes<kType>(kFirst * kLanes));
    });
    unrolled<kRows>([&](auto r) {
      const VF weight = hn::Set(d, p[r.kValue]);
      unrolled<kVectors>([&](auto i) { acc[r.kValue][i.kValue] = hn::MulAdd(weight, x[i.kValue], acc[r.kValue][i.kValue]); });
    });
    p += stride;
  };
  int t = 0;
  for (int i = 0; i < lines.count && t + 2 <= count; ++i, t += 2) {
    fetch_line(lines.at[i]);
    step(t);
    step(t + 1);
  }
  for (; t < count; ++t) step(t);
  unrolled<kRows>([&](auto r) {
    unrolled<kVectors>([&](auto i) {
      float* const at = o + r.kValue * args.row_floats + column + i.kValue * kLanes;
      hn::Store(hn::Add(hn::Load(d, at), acc[r.kValue][i.kValue]), d, at);
    });
  });
}

// All columns: d_v rounded up to whole vectors.
template <Type kType, int kRows>
void group_values(const ValueArgs& args, int end, const float* p, float* o) {
  constexpr int kVectors = 8 / kRows;
  Lines lines = args.lines;
  const int share = value_lines_of_call(args, end / (kVectors * kLanes));
  int c = 0;
  for (; c + kVectors * kLanes <= end; c += kVectors * kLanes) {
    const int n = lines.count < share ? lines.count : share;
    add_values<kType, kRows, kVectors>(args, c, {lines.at, n}, p, o);
    lines.at += n;
    lines.count -= n;
  }
  if constexpr (kVectors > 2) {
    for (; c + kPair <= end; c += kPair) add_values<kType, kRows, 2>(args, c, {}, p, o);
  }
  if constexpr (kOrderOf<kType> == ColumnOrder::kNatural) {
    for (; c < end; c += kLanes) add_values<kType, kRows, 1>(args, c, {}, p, o);
  }
}

HWY_INLINE int column_place(ColumnOrder order, int column) {
  if (order == ColumnOrder::kNatural) return column;
  const int in_pair = column % kPair;
  return column - in_pair + (in_pair % 2) * kLanes + in_pair / 2;
}

// The same bits as group_values where that is finite; entries that a row does not see are left out one by one. o is in `order`.
void exact_group_values(const TileScratch& tile, int begin, int count, int rows, int d_v, const float* p, int p_stride, float* o,
                        int row_floats, ColumnOrder order) {
  for (int r = 0; r < rows; ++r) {
    for (int d = 0; d < d_v; ++d) {
      float sum = 0.0F;
      for (int t = 0; t < count; ++t) {
        const float weight = p[t * p_stride + r];
        if (!is_unseen(weight)) sum = mul_add_one(weight, tile.v[int64_t{begin + t} * tile.v_row_floats + d], sum);
      }
      o[r * row_floats + column_place(order, d)] += sum;
    }
  }
}

}  // namespace
}  // namespace headwater::cpu::HEADWATER_CPU_ISA
