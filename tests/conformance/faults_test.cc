// Faults that users of other attention libraries reported, where they apply and no test of a rule or recipe covers them. Each test is
// named after the fault's id in the shared list and says what it protects.
#include <cmath>
#include <limits>

#include "cli/check/runner.h"
#include "cli/check/tolerance.h"
#include "tests/conformance/simple.h"

namespace headwater::conformance {
namespace {

TEST(Faults, A11_A13_LseDoesNotDependOnSplitsOrLayout) {
  // G = 2, three requests, distinct scores; one worker (no split), many (split), ragged and paged, every lse layout.
  std::vector<float> expected;
  for (const int32_t page_size : {0, 16}) {
    for (const int32_t workers : {1, 2, 7}) {
      Simple s;
      s.heads = 4;
      s.q_lens = {1, 1, 1};
      s.q = [](int64_t row, int32_t h, int32_t c) {
        return static_cast<float>(row + 1) * 0.1F + static_cast<float>(h) * 0.3F + static_cast<float>(c) * 0.01F;
      };
      SimpleSource kv;
      kv.heads = 2;
      kv.kv_lens = {900, 30, 700};
      kv.page_size = page_size;
      kv.k = [](int64_t b, int64_t j, int32_t h, int32_t c) { return std::sin(static_cast<float>(b + j * 3 + h * 7 + c)); };
      kv.v = kv.k;
      s.add(kv);
      PlanOptions options;
      options.workers = workers;
      s.expect_oracle("splits", options);
      s.attend_ok(options);
      std::vector<float> lse(s.lse_values().begin(), s.lse_values().end() - 1);
      std::vector<float> transposed(12, kNanF);  // [h, b]
      s.problem().lse = {transposed.data(), 1, 3, kDense};
      s.attend_ok(options);
      for (int64_t b = 0; b < 3; ++b) {
        for (int32_t h = 0; h < 4; ++h) EXPECT_EQ(transposed[static_cast<size_t>(h * 3 + b)], lse[static_cast<size_t>(b * 4 + h)]);
      }
      if (expected.empty()) expected = lse;
      for (size_t i = 0; i < lse.size(); ++i) EXPECT_NEAR(lse[i], expected[i], 1e-4);
    }
  }
}

TEST(Faults, A21_A22_WindowEdges) {
  // Only the key at distance `back` from the query matters: seen at w = back, not at w = back - 1; decode equals prefill's last row.
  constexpr int32_t kWindow = 40;
  for (const int32_t length : {kWindow - 1, kWindow, kWindow + 1, kWindow + 2, 3 * kWindow}) {
    for (const int32_t back : {0, 1, kWindow - 1, kWindow, kWindow + 1}) {
      if (back >= length) continue;
      float last_row[2] = {};
      for (const bool prefill : {false, true}) {
        Simple s;
        s.d_qk = 4;
        s.q_lens = {prefill ? length : 1};
        s.sm_scale = 1.0F;
        s.q = [](int64_t, int32_t, int32_t) { return 1.0F; };
        SimpleSource kv;
        kv.kv_lens = {length};
        kv.rule = Rule::window(kWindow);
        kv.k = [=](int64_t, int64_t j, int32_t, int32_t) { return j == length - 1 - back ? 8.0F : 0.0F; };
        kv.v = [=](int64_t, int64_t j, int32_t, int32_t) { return j == length - 1 - back ? 1.0F : 0.0F; };
        s.add(kv);
        s.expect_oracle("window edge");
        last_row[prefill ? 1 : 0] = s.out(s.rows() - 1, 0, 0);
      }
      EXPECT_NEAR(last_row[0], back <= kWindow ? 1.0 : 0.0, 1e-5) << "length " << length << ", back " << back;
      EXPECT_NEAR(last_row[1], last_row[0], 1e-6);
    }
  }
}

TEST(Faults, A27_DraftTokensAreCausalAmongThemselves) {
  Simple s;
  s.heads = 2;
  s.q_lens = {3, 3};
  s.q = [](int64_t, int32_t, int32_t) { return 0.0F; };
  SimpleSource kv;
  kv.kv_lens = {9, 5};
  kv.page_size = 4;
  kv.rule = Rule::causal();
  s.add(kv);
  s.expect_oracle("three drafts");
  for (int64_t i = 0; i < 3; ++i) {  // token i sees Tk - Tq + i + 1 keys
    EXPECT_NEAR(s.lse(i, 1), std::log(7.0 + static_cast<double>(i)), 1e-5);
    EXPECT_NEAR(s.lse(3 + i, 1), std::log(3.0 + static_cast<double>(i)), 1e-5);
  }
}

TEST(Faults, A28_CausalIsBottomRight) {
  struct Shape {
    int32_t q_len, kv_len;
  };
  for (const Shape shape : {Shape{1, 5}, Shape{2, 5}, Shape{5, 2}}) {
    Simple s;
    s.q_lens = {shape.q_len};
    s.q = [](int64_t, int32_t, int32_t) { return 0.0F; };
    SimpleSource kv;
    kv.kv_lens = {shape.kv_len};
    kv.rule = Rule::causal();
    s.add(kv);
    s.expect_oracle("causal");
    for (int32_t i = 0; i < shape.q_len; ++i) {
      const int32_t seen = std::max(shape.kv_len - shape.q_len + i + 1, 0);
      EXPECT_NEAR(std::exp(s.lse(i, 0)), seen, 1e-4);
    }
  }
}

TEST(Faults, A46_LengthsThatDisagreeAreRefused) {
  // P = 16 and 32 entries, but the list carries a spare third page.
  Simple s;
  SimpleSource kv;
  kv.kv_lens = {48};
  kv.page_size = 16;
  s.add(kv);
  const std::vector<int32_t> indptr = {0, 3};
  const std::vector<int32_t> pages = {2, 1, 0};
  const std::vector<int32_t> lens = {32};
  std::vector<int32_t> last = {16};
  Addressing& a = s.source().addressing;
  a.kind = AddressingKind::kPageList;
  a.block_table = nullptr;
  a.kv_indptr = indptr.data();
  a.kv_indices = pages.data();
  a.num_indices = 3;
  a.seq_lens = lens.data();
  a.kv_last_page_len = nullptr;
  s.expect_oracle("explicit length: the spare page is nobody's");
  const float right = s.lse(0, 0);
  a.kv_last_page_len = last.data();
  s.clear_outputs();
  const Status status = attend(s.problem());
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_NE(status.message().find("kv_last_page_len"), std::string::npos) << status.message();
  EXPECT_EQ(s.lse(0, 0), -777.0F) << "outputs were touched";
  a.seq_lens = nullptr;  // lengths derived: 48 entries are what that means
  s.expect_oracle("derived length");
  EXPECT_NE(s.lse(0, 0), right);
}

TEST(Faults, B06_B08_AnyRatioOfHeads) {
  for (const int32_t group : {1, 2, 4, 5, 6, 7, 8, 9, 12, 16, 32, 64, 128}) {
    for (const int32_t q_len : {1, 3}) {
      for (const bool mla : {false, true}) {
        Simple s;
        s.heads = mla ? group : 2 * group;
        s.d_qk = mla ? 576 : 32;
        s.d_v = mla ? 512 : 32;
        s.q_lens = {q_len};
        SimpleSource kv;
        kv.heads = mla ? 1 : 2;
        kv.kv_lens = {20};
        kv.shared = mla;
        kv.k_format = mla ? Format::kE4m3 : Format::kBf16;
        kv.v_format = Format::kF16;
        kv.rule = Rule::causal();
        if (mla) kv.k_scale = Scale::constant(0.02F);
        s.add(kv);
        s.expect_oracle("G = " + std::to_string(group) + (mla ? ", MLA" : ""));
      }
    }
  }
  Simple s;  // Hq % Hk != 0
  s.heads = 4;
  SimpleSource kv;
  kv.heads = 2;
  kv.kv_lens = {3};
  s.add(kv);
  s.source().heads = 3;
  const Status status = attend(s.problem());
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_NE(status.message().find("heads"), std::string::npos) << status.message();
}

TEST(Faults, B09_AnyHeadSize) {
  for (const int32_t d : {1, 2, 3, 8, 15, 17, 40, 64, 72, 80, 96, 111, 128, 160, 192, 255, 256, 257, 512, 575, 576}) {
    for (const int32_t heads : {1, 7}) {
      Simple s;
      s.heads = heads;
      s.d_qk = d;
      s.d_v = (d + 1) / 2;
      s.q_lens = {2};
      SimpleSource kv;
      kv.kv_lens = {67};
      kv.k_format = Format::kBf16;
      kv.v_format = Format::kBf16;
      s.add(kv);
      s.expect_oracle("d = " + std::to_string(d));
    }
  }
  Simple s;
  SimpleSource kv;
  kv.kv_lens = {1};
  s.add(kv);
  s.problem().q.width = 577;
  s.source().k.width = 577;
  const Status status = attend(s.problem());
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("576"), std::string::npos) << "names the limit: " << status.message();
}

TEST(Faults, B11_B12_ProductsOfCausalRaggedSplitAndDrafts) {
  for (const int32_t length : {1, 63, 64, 65, 128, 129, 1000}) {
    for (const int32_t q_len : {1, 2, 64}) {
      for (const bool causal : {false, true}) {
        for (const bool invariant : {false, true}) {
          Simple s;
          s.heads = 2;
          s.q_lens = {q_len, 1, 2};
          SimpleSource kv;
          kv.kv_lens = {length, 5, length};
          kv.rule = causal ? Rule::causal() : Rule::full();
          s.add(kv);
          PlanOptions options;
          options.workers = 5;
          options.batch_invariant = invariant;
          s.expect_oracle("length " + std::to_string(length), options);
        }
      }
    }
  }
}

TEST(Faults, B25_ManyTokensOfTwoHeadsPerGroup) {
  Simple s;
  s.heads = 16;
  s.d_qk = 16;
  s.d_v = 16;
  s.q_lens = {256};
  SimpleSource kv;
  kv.heads = 8;
  kv.kv_lens = {256};
  kv.rule = Rule::causal();
  s.add(kv);
  s.expect_oracle("256 tokens, 16 over 8 heads");
}

TEST(Faults, B26_SplitsComeFromTrueLengths) {
  // A table for 131,072 entries of which 50 are live: everything beyond is NaN or unmapped garbage, and the result is that of 50.
  Simple s;
  s.heads = 2;
  SimpleSource kv;
  kv.kv_lens = {50};
  kv.page_size = 16;
  s.add(kv);
  Addressing& a = s.source().addressing;
  std::vector<int32_t> table(8192, 2147480000);
  std::copy_n(a.block_table, 4, table.begin());
  a.block_table = table.data();
  a.max_pages = 8192;
  s.expect_oracle("capacity far above the length");
  const Result<Explanation> plan = explain(s.problem());
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->split_blocks, 0);
}

TEST(Faults, B26_LongRowsLoseNoKey) {
  // One key of 20,000 carries the whole answer, wherever it stands.
  constexpr int32_t kLength = 20000;
  for (const int32_t key : {0, 1, 4095, 4096, 9999, 10000, 19998, 19999}) {
    Simple s;
    s.d_qk = 1;
    s.d_v = 1;
    s.sm_scale = 1.0F;
    s.q = [](int64_t, int32_t, int32_t) { return 1.0F; };
    SimpleSource kv;
    kv.kv_lens = {kLength};
    kv.k = [=](int64_t, int64_t j, int32_t, int32_t) { return j == key ? 40.0F : 0.0F; };
    kv.v = [=](int64_t, int64_t j, int32_t, int32_t) { return j == key ? 1.0F : -1.0F; };
    s.add(kv);
    PlanOptions options;
    options.workers = 6;
    s.expect_oracle("key " + std::to_string(key), options);
    EXPECT_NEAR(s.out(0, 0, 0), 1.0, 1e-6);
  }
}

}  // namespace
}  // namespace headwater::conformance
