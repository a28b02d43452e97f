// The products of the few-row form: at most kFewRows rows, 4 at a time, against a piece of a tile. Scores are dot products with d in lanes;
// values have d in lanes and weights broadcast. Records are read as they are stored and converted in registers, or from float32 scratch.
// Scores and weights stand as [count][4 or 8], rows in lanes, so that the softmax is the panels'. Compiled per ISA.
#pragma once

#include <utility>

#include "src/cpu/softmax-inl.h"

namespace headwater::cpu::HEADWATER_CPU_ISA {
namespace {

constexpr int kGroupRows = 4;

template <int kValue>
struct Index {
  static constexpr int value = kValue;
};

// f(Index<0>()), ..., f(Index<kCount - 1>()): indices that are constants before the optimiser starts, which keeps arrays of vectors in
// registers where it does not see through loops.
template <int kCount, class Func>
HWY_INLINE void unrolled(Func f) {
  [&]<int... kIndices>(std::integer_sequence<int, kIndices...>) __attribute__((always_inline)) { (f(Index<kIndices>()), ...); }
  (std::make_integer_sequence<int, kCount>());
}

// How the columns of Q and O stand in memory: a vector of 32-bit words holds two bf16 columns a lane, and it is cheapest to take the even
// columns of 2 kLanes first, then the odd ones (a shift and a mask, no widening shuffle).
enum class ColumnOrder : uint8_t { kNatural, kEvenOdd };
constexpr int kPair = 2 * kLanes;

template <Type kType>
constexpr ColumnOrder kOrderOf = kType == Type::kBf16 && kLanes > 1 ? ColumnOrder::kEvenOdd : ColumnOrder::kNatural;

// A vector that several instructions use is loaded once: as a memory operand of each it would take a load port every time.
HWY_INLINE void keep_in_register([[maybe_unused]] VF& v) {
#if HWY_TARGET == HWY_AVX2
  asm("" : "+x"(v.raw));
#endif
}

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

#if HWY_TARGET != HWY_SCALAR
// Adds the 128-bit blocks of a vector.
template <class V>
HWY_INLINE void store_block_sum(V v, float* sums) {
  const hn::DFromV<V> d;
  if constexpr (hn::MaxLanes(d) > 4) {
    const hn::Half<decltype(d)> half;
    store_block_sum(hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), sums);
  } else {
    hn::StoreU(v, d, sums);
  }
}
#endif

// Sums of four vectors, one in each of 4 floats. 3 shuffles, 6 blends, 3 additions, and 2 operations for each halving of the vector.
HWY_INLINE void store_sums(VF a, VF b, VF c, VF e, float* sums) {
#if HWY_TARGET == HWY_SCALAR
  sums[0] = hn::GetLane(a);
  sums[1] = hn::GetLane(b);
  sums[2] = hn::GetLane(c);
  sums[3] = hn::GetLane(e);
#else
  const DF d;
  const VF ab = hn::Add(hn::OddEven(b, a), hn::Shuffle2301(hn::OddEven(a, b)));
  const VF ce = hn::Add(hn::OddEven(e, c), hn::Shuffle2301(hn::OddEven(c, e)));
  const hn::RepartitionToWide<DF> d64;
  const auto ab64 = hn::BitCast(d64, ab);
  const auto ce64 = hn::BitCast(d64, ce);
  const VF straight = hn::BitCast(d, hn::OddEven(ce64, ab64));
  const VF crossed = hn::Shuffle1032(hn::BitCast(d, hn::OddEven(ab64, ce64)));
  store_block_sum(hn::Add(straight, crossed), sums);
#endif
}

// Longest run of columns in one chain of additions. With one lane and no FMA a chain of 576 would lose more than the contract allows.
constexpr int kMaxRun = kLanes == 1 ? 48 : kMaxWidth;

// Some records of one head, as the products read them.
struct Records {
  const std::byte* const* row = nullptr;
  int64_t offset = 0;  // of the head's record from row[i]
};

struct ScoreArgs {
  Records k;
  int d_qk = 0;
  int row_floats = 0;
  int stride = 0;  // of s: 4 or 8
};

// Columns of half kHalf of a pair: sums[t][r] += q[r] k[t].
template <Type kType, int kHalf, int kRows, int kTokens>
HWY_INLINE void multiply_half(const std::byte* const (&k)[kTokens], int64_t k_at, const float* const (&q)[kRows], int64_t q_at,
                              VF (&sums)[kTokens][kGroupRows]) {
  VF kv[kTokens];
  unrolled<kTokens>([&](auto t) { kv[t.value] = load_half<kType, kHalf>(k[t.value] + k_at); });
  unrolled<kRows>([&](auto r) {
    VF qv = hn::Load(DF(), q[r.value] + q_at);
    if constexpr (kTokens > 1) keep_in_register(qv);
    unrolled<kTokens>([&](auto t) { sums[t.value][r.value] = hn::MulAdd(qv, kv[t.value], sums[t.value][r.value]); });
  });
}

// Four scores for each of kTokens records from `token` on. q [kRows][row_floats] in kOrderOf<kType>; rows past kRows score 0.
template <Type kType, int kRows, int kTokens>
void dot_tokens(const ScoreArgs& args, int token, const float* HWY_RESTRICT q, float* HWY_RESTRICT s) {
  const DF d;
  const std::byte* k[kTokens];
  const float* rows[kRows];
  unrolled<kRows>([&](auto r) { rows[r.value] = q + r.value * args.row_floats; });
  unrolled<kTokens>([&](auto t) { k[t.value] = args.k.row[token + t.value] + args.k.offset; });
  VF acc[kTokens][kGroupRows];
  unrolled<kTokens>([&](auto t) { unrolled<kGroupRows>([&](auto r) { acc[t.value][r.value] = hn::Zero(d); }); });
  const int d_qk = args.d_qk;
  if constexpr (kLanes > 1) {
    int c = 0;
    for (; c + kPair <= d_qk; c += kPair) {
      const int64_t at = element_bytes<kType>(c);
      multiply_half<kType, 0, kRows, kTokens>(k, at, rows, c, acc);
      multiply_half<kType, 1, kRows, kTokens>(k, at, rows, c + kLanes, acc);
    }
    if constexpr (kOrderOf<kType> == ColumnOrder::kNatural) {
      for (; c < d_qk; c += kLanes) multiply_half<kType, 0, kRows, kTokens>(k, element_bytes<kType>(c), rows, c, acc);
    }
  } else {
    for (int begin = 0; begin < d_qk; begin += kMaxRun) {
      VF run[kTokens][kGroupRows];
      unrolled<kTokens>([&](auto t) { unrolled<kGroupRows>([&](auto r) { run[t.value][r.value] = hn::Zero(d); }); });
      const int end = kMaxRun < d_qk - begin ? begin + kMaxRun : d_qk;
      for (int c = begin; c < end; ++c) multiply_half<kType, 0, kRows, kTokens>(k, element_bytes<kType>(c), rows, c, run);
      unrolled<kTokens>([&](auto t) {
        unrolled<kRows>([&](auto r) { acc[t.value][r.value] = hn::Add(acc[t.value][r.value], run[t.value][r.value]); });
      });
    }
  }
  unrolled<kTokens>([&](auto t) {
    VF(&sums)[kGroupRows] = acc[t.value];
    store_sums(sums[0], sums[1], sums[2], sums[3], s + t.value * args.stride);
  });
}

// Records that share one load of Q: 8 sums, as many as two multiply-adds a cycle with a latency of 4 need.
template <int kRows>
constexpr int kGroupTokens = 8 / kRows;

struct ValueArgs {
  Records v;
  int count = 0;
  int row_floats = 0;
  int stride = 0;  // of p: 4 or 8
};

// o [kRows][row_floats] += P^T V in columns [column, + kVectors * kLanes), in kOrderOf<kType>; kVectors is 1 or even. Each sum starts from
// zero.
template <Type kType, int kRows, int kVectors>
HWY_INLINE void add_values(const ValueArgs& args, int column, const float* HWY_RESTRICT p, float* HWY_RESTRICT o) {
  const DF d;
  VF acc[kRows][kVectors];
  unrolled<kRows>([&](auto r) { unrolled<kVectors>([&](auto i) { acc[r.value][i.value] = hn::Zero(d); }); });
  const int64_t offset = args.v.offset + element_bytes<kType>(column);
  const std::byte* const* const row = args.v.row;
  const int stride = args.stride;
  const int count = args.count;
  for (int t = 0; t < count; ++t, p += stride) {
    const std::byte* const from = row[t] + offset;
    VF x[kVectors];
    unrolled<kVectors>([&](auto i) {
      constexpr int kFirst = i.value / 2 * 2;
      x[i.value] = load_half<kType, i.value % 2>(from + element_bytes<kType>(kFirst * kLanes));
    });
    unrolled<kRows>([&](auto r) {
      const VF weight = hn::Set(d, p[r.value]);
      unrolled<kVectors>([&](auto i) { acc[r.value][i.value] = hn::MulAdd(weight, x[i.value], acc[r.value][i.value]); });
    });
  }
  unrolled<kRows>([&](auto r) {
    unrolled<kVectors>([&](auto i) {
      float* const at = o + r.value * args.row_floats + column + i.value * kLanes;
      hn::Store(hn::Add(hn::Load(d, at), acc[r.value][i.value]), d, at);
    });
  });
}

// Columns [begin, end), which count whole vectors.
template <Type kType, int kRows>
void group_values(const ValueArgs& args, int begin, int end, const float* p, float* o) {
  constexpr int kVectors = 8 / kRows;
  int c = begin;
  for (; c + kVectors * kLanes <= end; c += kVectors * kLanes) add_values<kType, kRows, kVectors>(args, c, p, o);
  if constexpr (kVectors > 2) {
    for (; c + kPair <= end; c += kPair) add_values<kType, kRows, 2>(args, c, p, o);
  }
  if constexpr (kOrderOf<kType> == ColumnOrder::kNatural) {
    for (; c < end; c += kLanes) add_values<kType, kRows, 1>(args, c, p, o);
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
