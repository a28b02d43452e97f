// merge_states and finalize against the definition in float64, and the rules for rows that are empty or not finite.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "headwater/headwater.h"
#include "src/formats/bf16.h"
#include "src/formats/f16.h"

namespace headwater {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A dense state that owns its memory.
struct Owned {
  Type type = Type::kF32;
  std::vector<std::byte> out;
  std::vector<float> lse;

  Owned(Type t, int64_t rows, int32_t width, float fill_out, float fill_lse)
      : type(t), out(static_cast<size_t>(rows * width * (type_bits(t) / 8))), lse(static_cast<size_t>(rows), fill_lse) {
    for (int64_t i = 0; i < rows * width; ++i) set(i, fill_out);
  }
  void set(int64_t i, float x) {
    if (type == Type::kF32) {
      std::memcpy(&out[static_cast<size_t>(4 * i)], &x, 4);
    } else {
      const uint16_t bits = type == Type::kF16 ? formats::encode_f16(x) : formats::encode_bf16(x);
      std::memcpy(&out[static_cast<size_t>(2 * i)], &bits, 2);
    }
  }
  [[nodiscard]] float get(int64_t i) const {
    float x = 0.0F;
    if (type == Type::kF32) {
      std::memcpy(&x, &out[static_cast<size_t>(4 * i)], 4);
      return x;
    }
    uint16_t bits = 0;
    std::memcpy(&bits, &out[static_cast<size_t>(2 * i)], 2);
    return type == Type::kF16 ? formats::decode_f16(bits) : formats::decode_bf16(bits);
  }
  State state() {
    State s;
    s.out = out.data();
    s.type = type;
    s.lse.data = lse.data();
    return s;
  }
};

double epsilon(Type type) { return type == Type::kF32 ? 0x1p-23 : type == Type::kF16 ? 0x1p-10 : 0x1p-7; }

TEST(Merge, EqualsOneSoftmaxInFloat64ForEveryTypePair) {
  constexpr int64_t kTokens = 5;
  constexpr int32_t kHeads = 3;
  constexpr int32_t kWidth = 33;
  const StateShape shape{kTokens, kHeads, kWidth};
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> lse(-300.0F, 300.0F);  // |lse| far above 100
  for (const Type type_a : {Type::kF32, Type::kF16, Type::kBf16}) {
    for (const Type type_b : {Type::kF32, Type::kF16, Type::kBf16}) {
      for (const Type type_r : {Type::kF32, Type::kF16, Type::kBf16}) {
        Owned a(type_a, kTokens * kHeads, kWidth, 0.0F, 0.0F);
        Owned b(type_b, kTokens * kHeads, kWidth, 0.0F, 0.0F);
        Owned r(type_r, kTokens * kHeads, kWidth, kNan, kNan);
        for (int64_t row = 0; row < kTokens * kHeads; ++row) {
          a.lse[static_cast<size_t>(row)] = lse(random);
          b.lse[static_cast<size_t>(row)] = a.lse[static_cast<size_t>(row)] + 3.0F * normal(random);
          for (int64_t i = 0; i < kWidth; ++i) {
            a.set(row * kWidth + i, normal(random));
            b.set(row * kWidth + i, normal(random));
          }
        }
        const Status status = merge_states(shape, a.state(), b.state(), r.state());
        ASSERT_TRUE(status.ok()) << status.message();
        for (int64_t row = 0; row < kTokens * kHeads; ++row) {
          const auto la = static_cast<long double>(a.lse[static_cast<size_t>(row)]);
          const auto lb = static_cast<long double>(b.lse[static_cast<size_t>(row)]);
          const long double share = 1.0L / (1.0L + std::exp(lb - la));
          const auto expected_lse = static_cast<double>(la - std::log(share));
          EXPECT_NEAR(r.lse[static_cast<size_t>(row)], expected_lse, std::abs(expected_lse) * 0x1p-23);
          for (int64_t i = 0; i < kWidth; ++i) {
            const auto expected = static_cast<double>(share * static_cast<long double>(a.get(row * kWidth + i)) +
                                                      (1.0L - share) * static_cast<long double>(b.get(row * kWidth + i)));
            EXPECT_NEAR(r.get(row * kWidth + i), expected, 0.51 * epsilon(type_r) * std::abs(expected) + 1e-7);
          }
        }
      }
    }
  }
}

TEST(Merge, TwoEmptyStatesAreEmptyAndThenTakeTheRealOneBitForBit) {  // A01
  const StateShape shape{1, 1, 64};
  Owned a(Type::kF32, 1, 64, kNan, -kInf);  // its out is not read
  Owned b(Type::kF32, 1, 64, kNan, -kInf);
  Owned r(Type::kF32, 1, 64, kNan, kNan);
  for (int splits = 0; splits < 3; ++splits)
    ASSERT_TRUE(merge_states(shape, a.state(), splits == 0 ? b.state() : r.state(), r.state()).ok());
  EXPECT_EQ(r.lse[0], -kInf);
  for (int64_t i = 0; i < 64; ++i) {
    EXPECT_EQ(r.get(i), 0.0F);
    EXPECT_FALSE(std::signbit(r.get(i)));
  }
  Owned real(Type::kF32, 1, 64, 0.0F, -123.456F);
  for (int64_t i = 0; i < 64; ++i) real.set(i, 1.0F / static_cast<float>(3 + i));
  ASSERT_TRUE(merge_states(shape, r.state(), real.state(), r.state()).ok());
  EXPECT_EQ(r.out, real.out);
  EXPECT_EQ(r.lse, real.lse);
}

TEST(Merge, AbsentSideIsNotReadOnEitherSide) {
  const StateShape shape{1, 1, 4};
  for (const bool absent_first : {true, false}) {
    Owned absent(Type::kBf16, 1, 4, kNan, -kInf);
    Owned real(Type::kBf16, 1, 4, 0.3F, 5.0F);
    Owned r(Type::kBf16, 1, 4, kNan, kNan);
    ASSERT_TRUE(
        merge_states(shape, absent_first ? absent.state() : real.state(), absent_first ? real.state() : absent.state(), r.state()).ok());
    EXPECT_EQ(r.out, real.out);
    EXPECT_EQ(r.lse[0], 5.0F);
  }
}

TEST(Merge, InfinityAndNanFailLoudly) {  // A04
  const StateShape shape{1, 1, 4};
  for (const float bad : {kInf, kNan}) {
    for (const float other : {0.0F, -kInf, kInf}) {
      for (const bool first : {true, false}) {
        Owned a(Type::kF32, 1, 4, 1.0F, first ? bad : other);
        Owned b(Type::kF32, 1, 4, 1.0F, first ? other : bad);
        Owned r(Type::kF32, 1, 4, 0.0F, 0.0F);
        ASSERT_TRUE(merge_states(shape, a.state(), b.state(), r.state()).ok());
        EXPECT_TRUE(std::isnan(r.lse[0]));
        EXPECT_TRUE(std::isnan(r.get(3)));
      }
    }
  }
}

TEST(Merge, ScoresBelowMinusOneHundredThousandAreScores) {
  const StateShape shape{1, 1, 1};
  Owned a(Type::kF32, 1, 1, 1.0F, -1.0e5F);
  Owned b(Type::kF32, 1, 1, 3.0F, -1.0e5F);
  ASSERT_TRUE(merge_states(shape, a.state(), b.state(), a.state()).ok());
  EXPECT_EQ(a.get(0), 2.0F);
  EXPECT_FLOAT_EQ(a.lse[0], -1.0e5F + std::log(2.0F));
}

TEST(Merge, NaturalLogarithm) {  // A10: 3072 + 64 keys of score 0
  const StateShape shape{1, 1, 1};
  Owned prefix(Type::kF32, 1, 1, 0.0F, std::log(3072.0F));
  Owned suffix(Type::kF32, 1, 1, 1.0F, std::log(64.0F));
  Owned r(Type::kF32, 1, 1, kNan, kNan);
  ASSERT_TRUE(merge_states(shape, prefix.state(), suffix.state(), r.state()).ok());
  EXPECT_NEAR(r.get(0), 64.0 / 3136.0, 1e-6);  // 2.04 %
  EXPECT_NEAR(r.lse[0], std::log(3136.0), 1e-5);
}

TEST(Merge, SameBitsInEitherOrder) {
  const StateShape shape{1, 1, 8};
  Owned a(Type::kF32, 1, 8, 0.3F, 1.7F);
  Owned b(Type::kF32, 1, 8, -0.7F, 0.2F);
  Owned ab(Type::kF32, 1, 8, 0.0F, 0.0F);
  Owned ba(Type::kF32, 1, 8, 0.0F, 0.0F);
  ASSERT_TRUE(merge_states(shape, a.state(), b.state(), ab.state()).ok());
  ASSERT_TRUE(merge_states(shape, b.state(), a.state(), ba.state()).ok());
  EXPECT_EQ(ab.out, ba.out);
  EXPECT_EQ(ab.lse, ba.lse);
}

// Three requests of 2, 0 and 1 tokens and one row of padding, 2 heads, in every lse layout that engines hold.
TEST(Merge, EveryLseLayout) {
  const std::array<int32_t, 4> indptr{0, 2, 2, 3};
  const StateShape shape{4, 2, 1, indptr.data(), 3};
  const auto value = [](int64_t token, int64_t head) { return static_cast<float>(10 * token + head); };
  struct Layout {
    int64_t token, head, request;
    size_t size;
  };
  const Layout layouts[] = {{kDense, kDense, kDense, 8}, {1, 4, kDense, 8}, {1, 2, 4, 12}};  // [t, h], [h, t], [b, h, q]
  const auto at = [&](const Layout& l, int64_t request, int64_t in_request, int64_t token, int64_t head) {
    if (l.token == kDense) return static_cast<size_t>(token * 2 + head);
    if (l.request == kDense) return static_cast<size_t>(token + head * 4);
    return static_cast<size_t>(request * 4 + in_request + head * 2);
  };
  const int64_t rows[3][3] = {{0, 0, 0}, {0, 1, 1}, {2, 0, 2}};  // request, token in request, token
  for (const Layout& la : layouts) {
    for (const Layout& lr : layouts) {
      Owned a(Type::kF32, 8, 1, 1.0F, 0.0F);
      Owned b(Type::kF32, 8, 1, 3.0F, 0.0F);
      Owned r(Type::kF32, 8, 1, -9.0F, 0.0F);
      a.lse.assign(la.size, kNan);
      r.lse.assign(lr.size, -9.0F);
      for (const auto& row : rows) {
        for (int64_t h = 0; h < 2; ++h) {
          a.lse[at(la, row[0], row[1], row[2], h)] = value(row[2], h);
          b.lse[static_cast<size_t>(row[2] * 2 + h)] = value(row[2], h);
        }
      }
      State sa = a.state();
      sa.lse.token_stride = la.token;
      sa.lse.head_stride = la.head;
      sa.lse.request_stride = la.request;
      State sr = r.state();
      sr.lse.token_stride = lr.token;
      sr.lse.head_stride = lr.head;
      sr.lse.request_stride = lr.request;
      const Status status = merge_states(shape, sa, b.state(), sr);
      ASSERT_TRUE(status.ok()) << status.message();
      size_t written = 0;
      for (const auto& row : rows) {
        for (int64_t h = 0; h < 2; ++h, ++written) {
          EXPECT_FLOAT_EQ(r.lse[at(lr, row[0], row[1], row[2], h)], value(row[2], h) + std::log(2.0F));
          EXPECT_EQ(r.get(row[2] * 2 + h), 2.0F);
        }
      }
      EXPECT_EQ(r.get(6), -9.0F);  // padding
      EXPECT_EQ(static_cast<size_t>(std::count(r.lse.begin(), r.lse.end(), -9.0F)), lr.size - written);
    }
  }
}

TEST(Merge, StridedRowsAndGuards) {
  const StateShape shape{2, 2, 2};
  std::array<float, 24> memory{};
  memory.fill(-7.0F);
  Owned a(Type::kF32, 4, 2, 1.0F, 0.0F);
  Owned b(Type::kF32, 4, 2, 3.0F, 0.0F);
  State r;
  r.out = memory.data() + 2;
  r.out_token_stride_bytes = 12;  // heads outermost, room between tokens
  r.out_head_stride_bytes = 40;
  const Status status = merge_states(shape, a.state(), b.state(), r);  // no lse wanted
  ASSERT_TRUE(status.ok()) << status.message();
  for (size_t i = 0; i < memory.size(); ++i) {
    const bool inside = i == 2 || i == 3 || i == 5 || i == 6 || i == 12 || i == 13 || i == 15 || i == 16;
    EXPECT_EQ(memory[i], inside ? 2.0F : -7.0F) << i;
  }
}

TEST(Finalize, TheSinkEntersOnce) {  // A09
  const StateShape shape{1, 5, 1};
  const std::array<float, 5> sinks{-30.0F, 0.0F, 30.0F, -kInf, kInf};
  Owned s(Type::kF32, 5, 1, 0.5F, std::log(4.0F));  // four keys of score 0
  Owned r(Type::kF32, 5, 1, kNan, kNan);
  ASSERT_TRUE(finalize(shape, s.state(), sinks.data(), r.state()).ok());
  EXPECT_EQ(r.lse, s.lse);  // the sink left out
  EXPECT_NEAR(r.get(0), 0.5 * 4.0 / (4.0 + std::exp(-30.0)), 1e-7);
  EXPECT_NEAR(r.get(1), 0.4, 1e-7);
  EXPECT_NEAR(r.get(2), 0.5 * 4.0 / (4.0 + std::exp(30.0)), 1e-18);
  EXPECT_EQ(r.get(3), 0.5F);
  EXPECT_EQ(r.get(4), 0.0F);
}

TEST(Finalize, A06SinkOfTwo) {
  const StateShape shape{1, 1, 1};
  const float sink = 2.0F;
  Owned s(Type::kF32, 1, 1, 1.0F, std::log(4.0F));
  ASSERT_TRUE(finalize(shape, s.state(), &sink, s.state()).ok());
  EXPECT_NEAR(s.get(0), 0.351, 5e-4);
}

TEST(Finalize, PrecedenceOfEmptyRowsNanScoresAndSinks) {  // rule 1
  const StateShape shape{1, 1, 2};
  const auto run = [&](float value, float lse, float sink) {
    Owned s(Type::kBf16, 1, 2, value, lse);
    const Status status = finalize(shape, s.state(), &sink, s.state());
    EXPECT_TRUE(status.ok()) << status.message();
    return std::pair{s.get(1), s.lse[0]};
  };
  for (const float sink : {0.0F, kNan, kInf, -kInf}) {
    EXPECT_EQ(run(kNan, -kInf, sink), (std::pair{0.0F, -kInf})) << sink;  // an empty row, whatever the sink
    EXPECT_TRUE(std::isnan(run(1.0F, kNan, sink).first)) << sink;
    EXPECT_TRUE(std::isnan(run(1.0F, kNan, sink).second)) << sink;
    EXPECT_TRUE(std::isnan(run(1.0F, kInf, sink).first)) << sink;
    EXPECT_TRUE(std::isnan(run(1.0F, kInf, sink).second)) << sink;
  }
  EXPECT_TRUE(std::isnan(run(1.0F, 2.0F, kNan).first));
  EXPECT_EQ(run(1.0F, 2.0F, kNan).second, 2.0F);
  EXPECT_EQ(run(kNan, 2.0F, kInf).first, 0.0F);  // whatever V
  EXPECT_EQ(run(kInf, 2.0F, -kInf).first, kInf);
  EXPECT_TRUE(std::isnan(run(kNan, 2.0F, 0.0F).first));
}

TEST(Finalize, NoSinksCopies) {
  const StateShape shape{1, 1, 2};
  Owned s(Type::kF16, 1, 2, 0.25F, -4.0F);
  Owned r(Type::kF32, 1, 2, kNan, kNan);
  ASSERT_TRUE(finalize(shape, s.state(), nullptr, r.state()).ok());
  EXPECT_EQ(r.get(0), 0.25F);
  EXPECT_EQ(r.lse[0], -4.0F);
}

struct StateBreak {
  const char* message;
  void (*apply)(StateShape& shape, State& a, State& b, State& result);
};
TEST(Merge, RefusalsNameTheFieldAndLeaveTheResultAlone) {
  static const std::array<int32_t, 3> offsets{0, 2, 1};
  const StateBreak breaks[] = {
      {"shape.tokens = -1: must be at least 0", [](StateShape& s, State&, State&, State&) { s.tokens = -1; }},
      {"shape.heads = 0: must be at least 1", [](StateShape& s, State&, State&, State&) { s.heads = 0; }},
      {"shape.width = 0: must be at least 1", [](StateShape& s, State&, State&, State&) { s.width = 0; }},
      {"shape.requests = -1: must be at least 0", [](StateShape& s, State&, State&, State&) { s.requests = -1; }},
      {"shape.indptr = null: must be given: shape.requests is above 0", [](StateShape& s, State&, State&, State&) { s.requests = 1; }},
      {"shape.indptr[2] = 1: must not be below the offset before it, 2",
       [](StateShape& s, State&, State&, State&) {
         s.indptr = offsets.data();
         s.requests = 2;
       }},
      {"shape.indptr[1] = 2: must be at most shape.tokens = 1",
       [](StateShape& s, State&, State&, State&) {
         s.indptr = offsets.data();
         s.requests = 1;
         s.tokens = 1;
       }},
      {"shape.indptr = null: a.lse.request_stride needs it", [](StateShape&, State& a, State&, State&) { a.lse.request_stride = 8; }},
      {"a.type = e4m3: must be f32, bf16 or f16", [](StateShape&, State& a, State&, State&) { a.type = Type::kE4m3; }},
      {"a.out = null: must be given: it is read", [](StateShape&, State& a, State&, State&) { a.out = nullptr; }},
      {"b.lse.data = null: must be given: it holds the weights", [](StateShape&, State&, State& b, State&) { b.lse.data = nullptr; }},
      {"result.out = null: must be given: it receives the result", [](StateShape&, State&, State&, State& r) { r.out = nullptr; }},
      {"result.out_token_stride_bytes = 0: elements of an output must not overlap; at least 16 needed",
       [](StateShape&, State&, State&, State& r) { r.out_token_stride_bytes = 0; }},
      {"b.out_head_stride_bytes = 18: must be a multiple of 4",
       [](StateShape&, State&, State& b, State&) { b.out_head_stride_bytes = 18; }},
      {"a.out_token_stride_bytes = 9223372036854775804: times 2 entries spans more than 2^58",
       [](StateShape&, State& a, State&, State&) { a.out_token_stride_bytes = std::numeric_limits<int64_t>::max() - 3; }},
      {"result.lse.head_stride = 0: elements of an output must not overlap; at least 1 needed",
       [](StateShape&, State&, State&, State& r) {
         r.lse.head_stride = 0;
         r.lse.token_stride = 2;
       }},
  };
  for (const StateBreak& b : breaks) {
    StateShape shape{2, 2, 4};
    Owned oa(Type::kF32, 4, 4, 1.0F, 0.0F);
    Owned ob(Type::kF32, 4, 4, 1.0F, 0.0F);
    Owned orr(Type::kF32, 4, 4, -5.0F, -6.0F);
    State sa = oa.state();
    State sb = ob.state();
    State sr = orr.state();
    b.apply(shape, sa, sb, sr);
    const Status status = merge_states(shape, sa, sb, sr);
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_EQ(status.message(), b.message);
    EXPECT_EQ(orr.lse, std::vector<float>(4, -6.0F));
    EXPECT_EQ(orr.get(0), -5.0F);
  }
  StateShape shape{2, 2, 4};
  Owned a(Type::kF32, 4, 4, 1.0F, 0.0F);
  State narrow = a.state();
  narrow.type = Type::kBf16;
  EXPECT_EQ(merge_states(shape, a.state(), a.state(), narrow).message().find("result.out = 0x"), 0U);
  EXPECT_EQ(finalize(shape, a.state(), reinterpret_cast<const float*>(a.out.data() + 1), a.state()).message().find("sinks = 0x"), 0U);
}

}  // namespace
}  // namespace headwater
