// Faults that users of other libraries met, where validation, lengths and merging decide: each named after what it protects.
// The numbers are those of the project's list of reported faults.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "headwater/headwater.h"

namespace headwater {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> normal(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(n);
  for (float& x : values) x = distribution(random);
  return values;
}

// float32 queries and keys, one ragged or paged causal source, against the oracle.
struct Case {
  int32_t heads = 2;
  int32_t kv_heads = 1;
  int32_t dim = 16;
  std::vector<int32_t> qo_indptr{0, 1};
  std::vector<int32_t> kv_indptr{0, 4};
  std::vector<float> q, k, v, out, lse;
  Source source;
  Problem p;

  void build(Rule rule = Rule::causal()) {
    const auto rows = static_cast<size_t>(qo_indptr.back());
    const auto entries = static_cast<size_t>(kv_indptr.back());
    const auto width = static_cast<size_t>(dim);
    q = normal(rows * static_cast<size_t>(heads) * width, 1);
    k = normal(entries * static_cast<size_t>(kv_heads) * width, 2);
    v = normal(entries * static_cast<size_t>(kv_heads) * width, 3);
    out.assign(q.size(), -77.0F);
    lse.assign(rows * static_cast<size_t>(heads), -77.0F);
    KvTensor key;
    key.data = k.data();
    key.format = Format::kF32;
    key.width = dim;
    KvTensor value = key;
    value.data = v.data();
    source = Source::separate_kv(key, value, kv_heads, {.num_pages = static_cast<int64_t>(entries), .kv_indptr = kv_indptr.data()}, rule);
    p.q = {q.data(), Type::kF32, static_cast<int64_t>(rows), heads, dim};
    p.requests = static_cast<int64_t>(qo_indptr.size()) - 1;
    p.qo_indptr = qo_indptr.data();
    p.sources = std::span<const Source>(&source, 1);
    p.sm_scale = 1.0F / std::sqrt(static_cast<float>(dim));
    p.out.data = out.data();
    p.out.type = Type::kF32;
    p.lse.data = lse.data();
  }
  // Runs, and compares with the oracle.
  void expect_exact() {
    const Status status = attend(p);
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<double> expected(out.size());
    std::vector<double> expected_lse(lse.size());
    ReferenceResult result;
    result.out = expected.data();
    result.lse = expected_lse.data();
    ASSERT_TRUE(reference_attention(p, result).ok());
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 2e-5) << i;
    for (size_t i = 0; i < lse.size(); ++i) {
      if (std::isinf(expected_lse[i])) {
        ASSERT_EQ(lse[i], -kInf) << i;
      } else {
        ASSERT_NEAR(lse[i], expected_lse[i], 2e-5) << i;
      }
    }
  }
  [[nodiscard]] bool untouched() const {
    return out == std::vector<float>(out.size(), -77.0F) && lse == std::vector<float>(lse.size(), -77.0F);
  }
};

TEST(ReportedFaults, A03_AnEmptyRowHasNoWeight) {
  Case c;
  c.qo_indptr = {0, 1, 2};
  c.kv_indptr = {0, 7, 7};
  c.build();
  c.expect_exact();
  for (size_t i = 32; i < 64; ++i) EXPECT_EQ(c.out[i], 0.0F);
  EXPECT_EQ(c.lse[2], -kInf);
  // and merged with a real state it changes nothing
  State a{c.out.data(), Type::kF32, kDense, kDense, {c.lse.data()}};
  State b{c.out.data() + 32, Type::kF32, kDense, kDense, {c.lse.data() + 2}};
  std::vector<float> merged(32);
  std::vector<float> merged_lse(2);
  ASSERT_TRUE(merge_states({1, 2, 16}, a, b, {merged.data(), Type::kF32, kDense, kDense, {merged_lse.data()}}).ok());
  EXPECT_EQ(std::memcmp(merged.data(), c.out.data(), 32 * sizeof(float)), 0);
  EXPECT_EQ(merged_lse[1], c.lse[1]);
}

TEST(ReportedFaults, A10_PrefixAndSuffixMergeToTheFlatAnswer) {
  Case c;
  c.kv_indptr = {0, 3136};
  c.build(Rule::full());
  c.expect_exact();
  const std::vector<float> flat = c.out;
  const std::vector<float> flat_lse = c.lse;
  std::array<std::vector<float>, 2> outs;
  std::array<std::vector<float>, 2> lses;
  for (size_t part = 0; part < 2; ++part) {
    c.kv_indptr = part == 0 ? std::vector<int32_t>{0, 3072} : std::vector<int32_t>{3072, 3136};
    c.source.addressing.kv_indptr = c.kv_indptr.data();
    ASSERT_TRUE(attend(c.p).ok());
    outs[part] = c.out;
    lses[part] = c.lse;
  }
  State a{outs[0].data(), Type::kF32, kDense, kDense, {lses[0].data()}};
  State b{outs[1].data(), Type::kF32, kDense, kDense, {lses[1].data()}};
  ASSERT_TRUE(merge_states({1, 2, 16}, a, b, a).ok());
  for (size_t i = 0; i < flat.size(); ++i) EXPECT_NEAR(outs[0][i], flat[i], 1e-6);
  for (size_t i = 0; i < flat_lse.size(); ++i) EXPECT_NEAR(lses[0][i], flat_lse[i], 1e-5);
}

TEST(ReportedFaults, A23_AWindowThatWasNotPlannedIsRefused) {
  Case c;
  c.kv_indptr = {0, 300};
  c.build();
  const Result<Plan> plan = make_plan(*Bounds::of(c.p));
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  std::vector<std::byte> memory(plan->schedule_bytes() + plan->scratch_bytes() + 768);
  void* at = memory.data();
  size_t space = memory.size();
  Buffer schedule{std::align(256, plan->schedule_bytes(), at, space), plan->schedule_bytes()};
  at = static_cast<std::byte*>(at) + plan->schedule_bytes();
  space -= plan->schedule_bytes();
  Buffer scratch{std::align(256, plan->scratch_bytes(), at, space), plan->scratch_bytes()};
  ASSERT_TRUE(plan->schedule(Lengths::of(c.p), schedule).ok());
  c.source.rule = Rule::window(4);
  const Status status = plan->run(c.p, schedule, scratch);
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_NE(status.message().find("kv[0].rule = window"), std::string::npos) << status.message();
  EXPECT_TRUE(c.untouched());
  // B16: a buffer that is too small says what is needed
  c.source.rule = Rule::causal();
  Buffer small = schedule;
  small.bytes = 16;
  const Status too_small = plan->run(c.p, small, scratch);
  EXPECT_EQ(too_small.code(), StatusCode::kBuffer);
  EXPECT_NE(too_small.message().find(std::to_string(plan->schedule_bytes())), std::string::npos) << too_small.message();
  EXPECT_TRUE(c.untouched());
  EXPECT_TRUE(plan->run(c.p, schedule, scratch).ok());
}

TEST(ReportedFaults, A35_InterleavedKeysAndValuesUseTheGivenStrides) {
  Case c;
  c.kv_heads = 2;
  c.kv_indptr = {0, 24};
  c.build();
  c.expect_exact();
  const std::vector<float> expected = c.out;
  constexpr size_t kPages = 6, kPage = 4, kDim = 16;  // (pages, 2, page, heads, d)
  std::vector<float> cache(kPages * 2 * kPage * 2 * kDim, std::numeric_limits<float>::quiet_NaN());
  const size_t half = kPage * 2 * kDim;
  for (size_t j = 0; j < 24; ++j) {
    std::memcpy(&cache[(j / kPage) * 2 * half + (j % kPage) * 2 * kDim], &c.k[j * 2 * kDim], 2 * kDim * sizeof(float));
    std::memcpy(&cache[(j / kPage) * 2 * half + half + (j % kPage) * 2 * kDim], &c.v[j * 2 * kDim], 2 * kDim * sizeof(float));
  }
  std::vector<int32_t> table{0, 1, 2, 3, 4, 5};
  std::vector<int32_t> lens{24};
  c.source.addressing = {.kind = AddressingKind::kBlockTable,
                         .page_size = kPage,
                         .num_pages = kPages,
                         .block_table = table.data(),
                         .max_pages = 6,
                         .seq_lens = lens.data()};
  c.source.k.data = cache.data();
  c.source.v.data = cache.data() + half;
  c.source.k.page_stride_bytes = c.source.v.page_stride_bytes = 2 * half * sizeof(float);
  c.expect_exact();
  EXPECT_EQ(c.out, expected);
}

// The same rows with heads outside pages, P = heads = 4: nothing can be guessed from sizes.
TEST(ReportedFaults, A40_HeadFirstCachesAreWhatTheStridesSay) {
  Case c;
  c.heads = 4;
  c.kv_heads = 4;
  c.kv_indptr = {0, 12};
  c.build();
  c.expect_exact();
  const std::vector<float> expected = c.out;
  std::vector<float> k(c.k.size());
  std::vector<float> v(c.v.size());
  for (size_t j = 0; j < 12; ++j) {
    for (size_t h = 0; h < 4; ++h) {
      const size_t to = (((j / 4) * 4 + h) * 4 + j % 4) * 16;
      std::memcpy(&k[to], &c.k[(j * 4 + h) * 16], 16 * sizeof(float));
      std::memcpy(&v[to], &c.v[(j * 4 + h) * 16], 16 * sizeof(float));
    }
  }
  std::vector<int32_t> table{0, 1, 2};
  std::vector<int32_t> lens{12};
  c.source.addressing = {.kind = AddressingKind::kBlockTable,
                         .page_size = 4,
                         .num_pages = 3,
                         .block_table = table.data(),
                         .max_pages = 3,
                         .seq_lens = lens.data()};
  for (KvTensor* t : {&c.source.k, &c.source.v}) {
    t->data = t == &c.source.k ? k.data() : v.data();
    t->row_stride_bytes = 64;
    t->head_stride_bytes = 4 * 64;
  }
  c.expect_exact();
  EXPECT_EQ(c.out, expected);
}

TEST(ReportedFaults, A38_OneRuleForTheShapeOfAScale) {
  Case c;
  c.kv_heads = 2;
  c.build();
  std::vector<uint8_t> codes(4 * 2 * 16, 0x38);  // e4m3 1.0
  std::vector<float> scales{0.25F, 0.5F, 1.0F, 2.0F};
  c.source.k.scale = Scale::constant(0.5F);
  EXPECT_EQ(attend(c.p).message(), "kv[0].k.scale.count = 1: records of f32 take no scale, leave 0");
  EXPECT_TRUE(c.untouched());
  c.source.k.format = c.source.v.format = Format::kE4m3;
  c.source.k.data = c.source.v.data = codes.data();
  for (const int32_t count : {0, 1, 2}) {
    c.source.k.scale = count == 0 ? Scale{} : Scale::array(scales.data(), count);
    c.source.v.scale = count == 0 ? Scale{} : Scale::array(scales.data() + 2, count);  // V never falls back to K's
    c.expect_exact();
  }
  EXPECT_NEAR(c.out[0], 1.0, 1e-6);
  EXPECT_NEAR(c.out[16], 2.0, 1e-6);  // head 1: v_scale 2
  std::fill(c.out.begin(), c.out.end(), -77.0F);
  std::fill(c.lse.begin(), c.lse.end(), -77.0F);
  for (const int32_t count : {3, 4, -1}) {
    c.source.v.scale = Scale::array(scales.data(), count);
    EXPECT_EQ(attend(c.p).message(), "kv[0].v.scale.count = " + std::to_string(count) + ": must be 1 or the number of KV heads, 2");
    EXPECT_TRUE(c.untouched());
  }
}

TEST(ReportedFaults, A46_ASparePageIsNotAttended) {
  Case c;
  c.kv_indptr = {0, 48};
  c.build();
  std::vector<int32_t> pages{0, 1, 2};
  std::vector<int32_t> page_indptr{0, 3};
  std::vector<int32_t> last{16};
  std::vector<int32_t> lens{32};
  Addressing& a = c.source.addressing;
  a = {.kind = AddressingKind::kPageList,
       .page_size = 16,
       .num_pages = 3,
       .kv_indptr = page_indptr.data(),
       .kv_indices = pages.data(),
       .num_indices = 3,
       .seq_lens = lens.data(),
       .kv_last_page_len = last.data()};
  EXPECT_EQ(attend(c.p).message(), "kv[0].kv_last_page_len[0] = 16: makes 48 entries, but seq_lens[0] = 32");
  EXPECT_TRUE(c.untouched());
  a.kv_last_page_len = nullptr;  // explicit lengths: the spare page is left alone, whatever its id
  pages[2] = 2147480000;
  c.expect_exact();
  const std::vector<float> expected = c.out;
  c.kv_indptr = {0, 32};
  a = {.num_pages = 48, .kv_indptr = c.kv_indptr.data()};
  c.expect_exact();
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(c.out[i], expected[i], 1e-6);
}

TEST(ReportedFaults, B06_AnyRatioOfHeads) {
  for (const int32_t group : {5, 6, 7, 9, 12, 16, 64}) {
    Case c;
    c.heads = 2 * group;
    c.kv_heads = 2;
    c.qo_indptr = {0, 3};
    c.kv_indptr = {0, 9};
    c.build();
    c.expect_exact();
  }
  Case c;
  c.heads = 7;
  c.kv_heads = 1;
  c.build();
  c.source.heads = 2;
  c.k.resize(c.k.size() * 2);
  c.v.resize(c.v.size() * 2);
  c.source.k.data = c.k.data();
  c.source.v.data = c.v.data();
  EXPECT_EQ(attend(c.p).message(), "kv[0].heads = 2: must divide q.heads = 7");
}

TEST(ReportedFaults, B14_AProblemOnAnotherDeviceThanThePlanIsRefused) {
  Case c;
  c.build();
  const Result<Plan> plan = make_plan(*Bounds::of(c.p));
  ASSERT_TRUE(plan.ok());
  c.p.device = {DeviceKind::kCuda, 1};
  const Status status = plan->run(c.p, {}, {});
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_EQ(status.message(), "device = cuda:1: planned for cpu:0");
  EXPECT_TRUE(c.untouched());
}

TEST(ReportedFaults, B25_AnUncommonShapeRunsOrIsRefusedOnTheHost) {
  Case c;
  c.heads = 16;
  c.kv_heads = 8;
  c.dim = 8;
  c.qo_indptr = {0, 1024};
  c.kv_indptr = {0, 1024};
  c.build(Rule::window(7));
  c.expect_exact();
  c.p.q.width = 577;
  const Status status = attend(c.p);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), "q.width = 577: the largest supported is 576");
}

}  // namespace
}  // namespace headwater
