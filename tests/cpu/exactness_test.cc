// The traps of semantics.md: what non-finite numbers, empty rows and sinks may and may not touch. Every ISA, both forms.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "headwater/headwater.h"
#include "tests/cpu/support.h"

namespace headwater::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// One request, one KV head, float32 everywhere, causal: all arrays in the open.
struct Plain {
  Plain(int32_t q_len_in, int32_t heads_in, int32_t kv_len_in, int32_t d_in = 32)
      : q_len(q_len_in), heads(heads_in), kv_len(kv_len_in), d(d_in) {
    q.resize(static_cast<size_t>(q_len * heads * d));
    k.resize(static_cast<size_t>(kv_len * d));
    v.resize(k.size());
    out.resize(q.size());
    lse.resize(static_cast<size_t>(q_len * heads));
    for (size_t i = 0; i < q.size(); ++i) q[i] = 0.1F + 0.01F * static_cast<float>(i * 7 % 13);
    for (size_t i = 0; i < k.size(); ++i) k[i] = -0.5F + 0.1F * static_cast<float>(i * 5 % 11);
    for (size_t i = 0; i < v.size(); ++i) v[i] = -0.3F + 0.1F * static_cast<float>(i * 3 % 17);
  }

  void run(const std::string& isa, int32_t workers = 1, Rule rule = Rule::causal()) {
    const int32_t qo_indptr[] = {0, q_len};
    const int32_t kv_indptr[] = {0, kv_len};
    KvTensor k_tensor;
    k_tensor.data = k.data();
    k_tensor.format = Format::kF32;
    k_tensor.width = d;
    KvTensor v_tensor = k_tensor;
    v_tensor.data = v.data();
    Addressing ragged;
    ragged.num_pages = kv_len;
    ragged.kv_indptr = kv_indptr;
    const Source sources[] = {Source::separate_kv(k_tensor, v_tensor, 1, ragged, rule)};
    Problem p;
    p.q = {q.data(), Type::kF32, q_len, heads, d};
    p.qo_indptr = qo_indptr;
    p.requests = 1;
    p.sources = sources;
    p.sm_scale = 1.0F;
    p.sinks = sinks.empty() ? nullptr : sinks.data();
    p.out = {out.data(), Type::kF32};
    p.lse.data = lse.data();
    PlanOptions options;
    options.isa = isa;
    options.workers = workers;
    const Status status = attend(p, options);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  [[nodiscard]] std::vector<float> rows(int32_t token) const {
    const auto n = static_cast<ptrdiff_t>(heads * d);
    return {out.begin() + token * n, out.begin() + (token + 1) * n};
  }
  [[nodiscard]] bool row_is(int32_t row, float value) const {
    for (int32_t i = 0; i < d; ++i) {
      const float x = out[static_cast<size_t>(row * d + i)];
      if (std::isnan(value) ? !std::isnan(x) : x != value) return false;
    }
    return true;
  }

  int32_t q_len, heads, kv_len, d;
  std::vector<float> q, k, v, out, lse, sinks;
};

struct Form {
  std::string isa;
  int32_t heads;  // 2: few rows of one token, and panels of several tokens; 16: panels
};

class CpuExactness : public testing::TestWithParam<Form> {};

std::vector<float> poison() {
  return {kNan, kInf, -kInf, std::bit_cast<float>(0x7fc00001U), std::bit_cast<float>(0x7f800001U), std::bit_cast<float>(0xffffffffU)};
}

// V of an entry that only the last token sees: the other tokens keep their bits.
TEST_P(CpuExactness, UnseenValuesChangeNoBit) {
  for (const int32_t q_len : {2, 3, 9}) {
    for (const int32_t kv_len : {q_len, 60, 200}) {
      Plain clean(q_len, GetParam().heads, kv_len);
      clean.run(GetParam().isa);
      for (const float bad : poison()) {
        Plain dirty(q_len, GetParam().heads, kv_len);
        for (int32_t i = 0; i < dirty.d; ++i) dirty.v[static_cast<size_t>((kv_len - 1) * dirty.d + i)] = bad;
        dirty.run(GetParam().isa);
        for (int32_t t = 0; t < q_len - 1; ++t) EXPECT_EQ(dirty.rows(t), clean.rows(t)) << "token " << t << " of " << q_len;
        for (const float x : dirty.rows(q_len - 1)) EXPECT_FALSE(std::isfinite(x));
      }
    }
  }
}

TEST_P(CpuExactness, UnseenKeysChangeNoBit) {
  Plain clean(3, GetParam().heads, 130);
  clean.run(GetParam().isa);
  for (const float bad : poison()) {
    Plain dirty(3, GetParam().heads, 130);
    for (int32_t i = 0; i < dirty.d; ++i) dirty.k[static_cast<size_t>(129 * dirty.d + i)] = bad;
    dirty.run(GetParam().isa);
    EXPECT_EQ(dirty.rows(0), clean.rows(0));
    EXPECT_EQ(dirty.rows(1), clean.rows(1));
  }
}

// z = -inf is as if the entry were not there, V and all.
TEST_P(CpuExactness, MinusInfinityScoreIsInvisible) {
  Plain p(1, GetParam().heads, 70);
  for (const size_t j : {size_t{0}, size_t{33}, size_t{69}}) {
    p.k[j * static_cast<size_t>(p.d)] = -kInf;
    for (int32_t i = 0; i < p.d; ++i) p.v[j * static_cast<size_t>(p.d) + static_cast<size_t>(i)] = kNan;
  }
  p.run(GetParam().isa);
  for (const float x : p.out) EXPECT_TRUE(std::isfinite(x));
  for (const float x : p.lse) EXPECT_TRUE(std::isfinite(x));
}

TEST_P(CpuExactness, AllMinusInfinityIsAnEmptyRow) {
  Plain p(1, GetParam().heads, 70);
  p.sinks.assign(static_cast<size_t>(p.heads), 1.0F);
  p.sinks[0] = kNan;
  for (int32_t j = 0; j < 70; ++j) p.k[static_cast<size_t>(j * p.d)] = -kInf;
  p.run(GetParam().isa);
  for (const float x : p.out) EXPECT_EQ(x, 0.0F);
  for (const float x : p.lse) EXPECT_EQ(x, -kInf);
}

TEST_P(CpuExactness, EmptyRowsBeforeTheFirstKey) {
  Plain p(9, GetParam().heads, 4);
  p.run(GetParam().isa);
  for (int32_t row = 0; row < 5 * p.heads; ++row) {
    EXPECT_TRUE(p.row_is(row, 0.0F));
    EXPECT_EQ(p.lse[static_cast<size_t>(row)], -kInf);
  }
  for (int32_t row = 5 * p.heads; row < 9 * p.heads; ++row) EXPECT_TRUE(std::isfinite(p.lse[static_cast<size_t>(row)]));
}

// One NaN or +inf score among many, wherever it stands and however far below the maximum: out and lse are NaN, and with workers splitting
// the row it survives the merge.
TEST_P(CpuExactness, NanAndPlusInfinityScores) {
  for (const float bad : {kNan, kInf, std::bit_cast<float>(0x7fc00001U), std::bit_cast<float>(0xff800001U)}) {
    for (const int32_t at : {0, 47, 1000, 2999}) {
      for (const int32_t workers : {1, 2}) {
        Plain p(1, GetParam().heads, 3000);
        for (int32_t j = 0; j < 3000; ++j) p.k[static_cast<size_t>(j * p.d)] = j < 1500 ? -1e5F : 1e5F;
        p.k[static_cast<size_t>(at * p.d)] = bad;
        p.run(GetParam().isa, workers);
        for (int32_t row = 0; row < p.heads; ++row) {
          EXPECT_TRUE(p.row_is(row, kNan)) << "key " << at << " workers " << workers;
          EXPECT_TRUE(std::isnan(p.lse[static_cast<size_t>(row)]));
        }
      }
    }
  }
  Plain only(1, GetParam().heads, 1);
  only.k[3] = kNan;
  only.run(GetParam().isa);
  EXPECT_TRUE(only.row_is(0, kNan));
  EXPECT_TRUE(std::isnan(only.lse[0]));
}

TEST_P(CpuExactness, NanQueryStaysInItsRow) {
  Plain clean(2, GetParam().heads, 50);
  clean.run(GetParam().isa);
  Plain p(2, GetParam().heads, 50);
  p.q[5] = std::bit_cast<float>(0x7fc00001U);
  p.run(GetParam().isa);
  EXPECT_TRUE(p.row_is(0, kNan));
  EXPECT_EQ(p.rows(1), clean.rows(1));
}

TEST_P(CpuExactness, SinkPrecedence) {
  Plain p(1, GetParam().heads, 40);
  p.sinks.assign(static_cast<size_t>(p.heads), -kInf);
  p.run(GetParam().isa);
  const std::vector<float> none = p.out;
  p.sinks.assign(static_cast<size_t>(p.heads), 0.5F);
  p.sinks[0] = kInf;
  p.sinks[1] = kNan;
  for (int32_t i = 0; i < p.d; ++i) p.v[static_cast<size_t>(7 * p.d + i)] = i == 0 ? kInf : 1.0F;
  p.run(GetParam().isa);
  EXPECT_TRUE(p.row_is(0, 0.0F)) << "+inf sink: 0 whatever V";
  EXPECT_TRUE(p.row_is(1, kNan));
  p.sinks.clear();
  Plain without(1, GetParam().heads, 40);
  without.run(GetParam().isa);
  EXPECT_EQ(without.out, none);
  // A sink far above and far below the scores.
  Plain far(1, GetParam().heads, 40);
  far.sinks.assign(static_cast<size_t>(far.heads), 85.0F);
  far.sinks[1] = -300.0F;
  far.run(GetParam().isa);
  for (int32_t i = 0; i < far.d; ++i) {
    const double want = without.out[static_cast<size_t>(i)] * std::exp(static_cast<double>(without.lse[0]) - 85.0);
    EXPECT_NEAR(far.out[static_cast<size_t>(i)], want, std::abs(want) * 1e-4);
    EXPECT_EQ(far.out[static_cast<size_t>(far.d + i)], without.out[static_cast<size_t>(far.d + i)]);
  }
  EXPECT_EQ(far.lse, without.lse);
}

// Uniform weights over values of 1: what an ignored, doubled or misplaced sink would change.
TEST_P(CpuExactness, SinkOfEveryPackedRow) {
  Plain p(3, GetParam().heads, 6);
  p.k.assign(p.k.size(), 0.0F);
  p.v.assign(p.v.size(), 1.0F);
  for (int32_t h = 0; h < p.heads; ++h) p.sinks.push_back(0.5F * static_cast<float>(h) - 1.0F);
  p.run(GetParam().isa);
  for (int32_t row = 0; row < 3 * p.heads; ++row) {
    const double n = 4 + row / p.heads;
    EXPECT_NEAR(p.out[static_cast<size_t>(row * p.d)], n / (n + std::exp(static_cast<double>(p.sinks[static_cast<size_t>(row % p.heads)]))),
                1e-6);
  }
}

std::vector<Form> forms() {
  std::vector<Form> all;
  for (const std::string& isa : usable_isas()) {
    for (const int32_t heads : {2, 16}) all.push_back({isa, heads});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Isa, CpuExactness, testing::ValuesIn(forms()),
                         [](const auto& info) { return info.param.isa + "_" + std::to_string(info.param.heads) + "_heads"; });

}  // namespace
}  // namespace headwater::cpu
