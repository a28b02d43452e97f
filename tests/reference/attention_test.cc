// The oracle against hand-worked cases, its own precedence table, and the faults that others reported (ids of the shared list).
#include "src/reference/attention.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace headwater {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

KvTensor f32(const std::vector<float>& values, int32_t width) {
  KvTensor tensor;
  tensor.data = values.data();
  tensor.format = Format::kF32;
  tensor.width = width;
  return tensor;
}

// A float32 problem over one ragged source, K and V apart, that owns its memory.
struct Small {
  int32_t heads = 1, kv_heads = 1, d = 1, d_v = 1;
  std::vector<int32_t> qo = {0, 1}, kv = {0, 0};
  std::vector<float> q, k, v, sinks;
  Rule rule = Rule::full();
  float sm_scale = 1.0F;
  Source source;
  std::vector<double> out, lse, spread, term;
  std::vector<int64_t> visible;

  Problem problem() {
    source.k = f32(k, d);
    source.v = f32(v, d_v);
    source.heads = kv_heads;
    source.addressing.num_pages = kv.back();
    source.addressing.kv_indptr = kv.data();
    source.rule = rule;
    Problem p;
    p.q = {q.data(), Type::kF32, qo.back(), heads, d};
    p.requests = static_cast<int64_t>(qo.size()) - 1;
    p.qo_indptr = qo.data();
    p.sources = {&source, 1};
    p.sinks = sinks.empty() ? nullptr : sinks.data();
    p.sm_scale = sm_scale;
    unused_out.resize(static_cast<size_t>(qo.back()) * static_cast<size_t>(heads) * static_cast<size_t>(d_v), -7.0F);
    p.out = {unused_out.data(), Type::kF32};
    return p;
  }
  Status run(const Problem& p) {
    const auto rows = static_cast<size_t>(qo.back() * heads);
    out.assign(rows * static_cast<size_t>(d_v), -1.0);
    lse.assign(rows, -1.0);
    spread.assign(rows, -1.0);
    term.assign(rows, -1.0);
    visible.assign(rows, -1);
    return reference_attention(p, {out.data(), lse.data(), spread.data(), term.data(), visible.data()});
  }
  void run() {
    const Status status = run(problem());
    ASSERT_TRUE(status.ok()) << status.message();
    for (const float x : unused_out) ASSERT_EQ(x, -7.0F) << "the problem's own output was written";
  }
  std::vector<float> unused_out;
};

TEST(Oracle, TwoKeysByHand) {
  Small s;
  s.d = 2;
  s.d_v = 1;
  s.kv = {0, 2};
  s.q = {1.0F, 2.0F};
  s.k = {1.0F, 0.0F, 0.0F, 1.0F};  // z = 0.5 * {1, 2}
  s.v = {10.0F, 20.0F};
  s.sm_scale = 0.5F;
  s.run();
  const double a = std::exp(0.5);
  const double b = std::exp(1.0);
  EXPECT_NEAR(s.lse[0], std::log(a + b), 1e-14);
  EXPECT_NEAR(s.out[0], (10 * a + 20 * b) / (a + b), 1e-13);
  EXPECT_NEAR(s.spread[0], std::sqrt(std::pow(10 * a, 2) + std::pow(20 * b, 2)) / (a + b), 1e-13);
  EXPECT_NEAR(s.term[0], 1.0, 1e-14);
  EXPECT_EQ(s.visible[0], 2);
}

TEST(Oracle, SoftcapAndZeroScale) {
  Small s;
  s.kv = {0, 2};
  s.q = {1.0F};
  s.k = {100.0F, 0.0F};
  s.v = {1.0F, 0.0F};
  Problem p = s.problem();
  p.logits_soft_cap = 2.0F;
  ASSERT_TRUE(s.run(p).ok());
  EXPECT_NEAR(s.out[0], std::exp(2 * std::tanh(50.0)) / (std::exp(2 * std::tanh(50.0)) + 1), 1e-14);
  p.sm_scale = 0.0F;  // honoured: all scores equal
  ASSERT_TRUE(s.run(p).ok());
  EXPECT_NEAR(s.out[0], 0.5, 1e-15);
  EXPECT_NEAR(s.lse[0], std::log(2.0), 1e-15);
}

TEST(Oracle, A06_SinkTakesItsShareOnce) {
  Small s;
  s.kv = {0, 4};
  s.q = {0.0F};
  s.k = {1, 2, 3, 4};
  s.v = {1, 1, 1, 1};
  s.sinks = {2.0F};
  s.run();
  EXPECT_NEAR(s.out[0], 0.351, 5e-4);
  EXPECT_NEAR(s.out[0], 4.0 / (4.0 + std::exp(2.0)), 1e-15);
  EXPECT_NEAR(s.lse[0], std::log(4.0), 1e-15);  // the sink left out
}

TEST(Oracle, A08_EachHeadItsOwnSink) {
  Small s;
  s.heads = 8;
  s.kv_heads = 2;
  s.qo = {0, 3};
  s.kv = {0, 4};
  s.q.assign(24, 0.0F);
  s.k.assign(8, 1.0F);
  s.v.assign(8, 1.0F);
  s.sinks = {0, 1, 2, 3, 4, 5, 6, 7};
  s.run();
  for (size_t t = 0; t < 3; ++t) {
    for (size_t h = 0; h < 8; ++h) EXPECT_NEAR(s.out[t * 8 + h], 4.0 / (4.0 + std::exp(static_cast<double>(h))), 1e-14);
  }
}

TEST(Oracle, A09_SinkExtremes) {
  for (const double sink : {-30.0, 0.0, 30.0, -kInf, kInf}) {
    Small s;
    s.kv = {0, 4};
    s.q = {1.0F};
    s.k = {0.5F, -1, 2, 0};
    s.v = {1, 2, 3, 4};
    s.sinks = {static_cast<float>(sink)};
    s.run();
    double sum = std::exp(sink);
    double weighted = 0;
    for (size_t j = 0; j < 4; ++j) {
      sum += std::exp(double{s.k[j]});
      weighted += std::exp(double{s.k[j]}) * double{s.v[j]};
    }
    EXPECT_NEAR(s.out[0], sink == kInf ? 0.0 : weighted / sum, 1e-14) << sink;
  }
}

TEST(Oracle, A19_A28_CausalIsBottomRight) {
  Small s;
  s.rule = Rule::causal();
  s.qo = {0, 5};
  s.kv = {0, 2};
  s.q.assign(5, 1.0F);
  s.k = {0.0F, 0.0F};
  s.v = {2.0F, 4.0F};
  s.run();
  for (size_t t = 0; t < 3; ++t) {
    EXPECT_EQ(s.out[t], 0.0);
    EXPECT_EQ(s.lse[t], -kInf);
  }
  EXPECT_DOUBLE_EQ(s.out[3], 2.0);
  EXPECT_DOUBLE_EQ(s.out[4], 3.0);
  s.qo = {0, 2};
  s.kv = {0, 5};
  s.k.assign(5, 0.0F);
  s.v = {1, 2, 3, 4, 5};
  s.run();
  EXPECT_EQ(s.visible[0], 4);
  EXPECT_EQ(s.visible[1], 5);
}

TEST(Oracle, A21_WindowLeftIsKeysBeforeTheQuery) {
  Small s;
  s.kv = {0, 10};
  s.q = {1.0F};
  s.k.assign(10, 0.0F);
  for (int i = 0; i < 10; ++i) s.v.push_back(static_cast<float>(1 << i));
  s.rule = Rule::window(3);  // a model's window 4: keys 6, 7, 8, 9
  s.run();
  EXPECT_EQ(s.visible[0], 4);
  EXPECT_DOUBLE_EQ(s.out[0], (64 + 128 + 256 + 512) / 4.0);
}

TEST(Oracle, A29_A30_EmptyRequests) {
  Small s;
  s.qo = {0, 1, 2, 3};
  s.kv = {0, 0, 5, 5};
  s.q.assign(3, 1.0F);
  s.k.assign(5, 0.0F);
  s.v.assign(5, 3.0F);
  s.run();
  EXPECT_EQ(s.out[0], 0.0);
  EXPECT_DOUBLE_EQ(s.out[1], 3.0);
  EXPECT_EQ(s.out[2], 0.0);
  EXPECT_EQ(s.lse[0], -kInf);
  EXPECT_EQ(s.lse[2], -kInf);
}

TEST(Oracle, B21_ContextParallelRanksMergeToTheWhole) {
  constexpr int kLength = 25;
  constexpr int kQueries = 8;
  Small whole;
  whole.rule = Rule::causal();
  whole.qo = {0, kQueries};
  whole.kv = {0, kLength};
  for (int i = 0; i < kQueries; ++i) whole.q.push_back(0.3F * static_cast<float>(i) - 1);
  for (int j = 0; j < kLength; ++j) {
    whole.k.push_back(std::sin(static_cast<float>(j)));
    whole.v.push_back(static_cast<float>(j));
  }
  whole.run();
  std::vector<double> weight(kQueries, 0.0);
  std::vector<double> sum(kQueries, 0.0);
  for (int rank = 0; rank < 4; ++rank) {
    Small part;
    part.rule = Rule::causal();
    part.qo = whole.qo;
    part.q = whole.q;
    for (int j = rank; j < kLength; j += 4) {
      part.k.push_back(whole.k[static_cast<size_t>(j)]);
      part.v.push_back(whole.v[static_cast<size_t>(j)]);
    }
    part.kv = {0, static_cast<int32_t>(part.k.size())};
    const int32_t first = rank;
    const int32_t stride = 4;
    const int32_t context = kLength;
    part.source.first_position = &first;
    part.source.position_stride = &stride;
    Problem p = part.problem();
    p.context_lens = &context;
    ASSERT_TRUE(part.run(p).ok());
    for (size_t i = 0; i < kQueries; ++i) {
      weight[i] += std::exp(part.lse[i]);
      sum[i] += std::exp(part.lse[i]) * part.out[i];
    }
  }
  for (size_t i = 0; i < kQueries; ++i) {
    EXPECT_NEAR(whole.lse[i], std::log(weight[i]), 1e-12);
    EXPECT_NEAR(whole.out[i], sum[i] / weight[i], 1e-12);
  }
}

TEST(Oracle, B27_LargeNegativeScoresAreScores) {
  Small s;
  s.kv = {0, 2};
  s.q = {1.0F};
  s.k = {-1e5F, -1e5F};
  s.v = {1.0F, 2.0F};
  s.run();
  EXPECT_DOUBLE_EQ(s.out[0], 1.5);
  EXPECT_NEAR(s.lse[0], -1e5 + std::log(2.0), 1e-9);
}

// Rule 1: empty row > NaN or +inf z > NaN sink > +inf sink > non-finite V.
TEST(Oracle, PrecedenceOfWhatIsNotFinite) {
  struct Line {
    std::vector<double> z;
    std::vector<float> v;
    double sink;
    double out;
    double lse;
  };
  const float v_inf = std::numeric_limits<float>::infinity();
  const std::vector<Line> lines = {
      {{}, {}, kNan, 0, -kInf},                      // empty row before a NaN sink
      {{}, {}, kInf, 0, -kInf},                      //
      {{-kInf}, {v_inf}, kNan, 0, -kInf},            // a z of -inf is as if invisible, its V unused
      {{-kInf, 0}, {v_inf, 2}, -kInf, 2, 0},         //
      {{kNan, 0}, {1, 2}, kInf, kNan, kNan},         // NaN z before any sink
      {{kInf, 0}, {1, 2}, kInf, kNan, kNan},         // +inf z too
      {{kNan, -kInf}, {1, 2}, -kInf, kNan, kNan},    //
      {{0, 0}, {1, 3}, kNan, kNan, std::log(2.0)},   // a NaN sink spares the lse
      {{0, 0}, {v_inf, 3}, kInf, 0, std::log(2.0)},  // a +inf sink gives 0 whatever V
      {{0, 0}, {v_inf, 3}, 0, kInf, std::log(2.0)},  // last: V
      {{0, 0}, {v_inf, -v_inf}, -kInf, kNan, std::log(2.0)},
  };
  for (size_t i = 0; i < lines.size(); ++i) {
    const Line& line = lines[i];
    const reference::Row row = reference::softmax_row(line.z, line.v, 1, line.sink);
    const auto same = [](double a, double b) { return std::isnan(b) ? std::isnan(a) : a == b || std::fabs(a - b) < 1e-14; };
    EXPECT_TRUE(same(row.out[0], line.out)) << "line " << i << ": out " << row.out[0];
    EXPECT_TRUE(same(row.lse, line.lse)) << "line " << i << ": lse " << row.lse;
  }
}

TEST(Oracle, GatheredListsSkipAndRepeat) {
  Small s;
  s.kv = {0, 4};
  s.q = {0.0F};
  s.k.assign(4, 0.0F);
  s.v = {1, 10, 100, 1000};
  const std::vector<int32_t> list = {-1, 1, 1, 4, std::numeric_limits<int32_t>::max(), 3, 0, 2};
  const int32_t live = 6;
  s.rule = Rule::gathered(list.data(), 8, &live);
  s.run();
  EXPECT_EQ(s.visible[0], 3);  // 1 twice, 3 once; 0 and 2 stand behind topk_lens
  EXPECT_DOUBLE_EQ(s.out[0], (10 + 10 + 1000) / 3.0);
}

TEST(Oracle, E4m3QueriesWithScalesAndTail) {
  // 0x38 = 1.0, 0x40 = 2.0, 0xb8 = -1.0, 0x01 = 2^-9.
  const std::vector<uint8_t> q = {0x38, 0x40, 0x01, 0x38};  // two heads, width 2
  const std::vector<uint8_t> tail = {0xb8, 0x40};           // two heads, width 1
  const std::vector<float> scale = {0.5F, 4.0F};
  const std::vector<float> k = {1, 2, 4};
  const std::vector<float> v = {1};
  const std::vector<int32_t> qo = {0, 1};
  Source source = Source::separate_kv(f32(k, 3), f32(v, 1), 1, {}, Rule::full());
  source.addressing.num_pages = 1;
  source.addressing.kv_indptr = qo.data();
  Problem p;
  p.q = {q.data(), Type::kE4m3, 1, 2, 2};
  p.q_tail = {tail.data(), 1};
  p.q_scale = {scale.data(), true};
  p.requests = 1;
  p.qo_indptr = qo.data();
  p.sources = {&source, 1};
  p.sm_scale = 1.0F;
  std::vector<float> unused(2);
  p.out = {unused.data(), Type::kF32};
  std::vector<double> lse(2);
  const Status status = reference_attention(p, {.lse = lse.data()});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_DOUBLE_EQ(lse[0], 0.5 * (1 + 4 - 4));
  EXPECT_DOUBLE_EQ(lse[1], 4.0 * (1.0 / 512 + 2 + 8));
}

TEST(Oracle, CallersFlushToZeroDoesNotReachIt) {
#if defined(__SSE2__)
  Small s;
  s.kv = {0, 1};
  s.q = {1e30F};
  s.k = {1e-40F};  // subnormal
  s.v = {1e-40F};
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040U);  // FTZ and DAZ
  s.run();
  const unsigned during = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(during & 0x8040U, 0x8040U) << "the caller's mode was not restored";
  EXPECT_NEAR(s.lse[0], double{1e-40F} * 1e30, 1e-16);
  EXPECT_GT(s.out[0], 0.0);
#else
  GTEST_SKIP() << "no FTZ/DAZ control here";
#endif
}

TEST(Oracle, RefusesWhatValidateRefuses) {
  Small s;
  s.kv = {0, 1};
  s.q = {1};
  s.k = {1};
  s.v = {1};
  Problem p = s.problem();
  p.device.kind = DeviceKind::kCuda;
  EXPECT_EQ(s.run(p).code(), StatusCode::kInvalid);
  p = s.problem();
  p.sm_scale = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(s.run(p).code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace headwater
