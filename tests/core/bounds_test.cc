// Bounds::of, Lengths::of, and every field of bounds broken one at a time.
#include "src/core/bounds.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "tests/core/valid_problem.h"

namespace headwater {
namespace {

using test::PlanarProblem;
using test::ValidProblem;

TEST(Bounds, AreTheTightestOfAProblem) {
  ValidProblem v;
  const Result<Bounds> bounds = Bounds::of(v.p);
  ASSERT_TRUE(bounds.ok()) << bounds.status().message();
  EXPECT_EQ(bounds->max_requests, 3);
  EXPECT_EQ(bounds->max_total_q, 6);
  EXPECT_EQ(bounds->max_q_len, 3);
  EXPECT_EQ(bounds->q_type, Type::kE4m3);
  EXPECT_EQ(bounds->out_type, Type::kBf16);
  EXPECT_EQ(bounds->heads, 4);
  EXPECT_EQ(bounds->d_qk, 64);
  EXPECT_EQ(bounds->d_v, 32);
  EXPECT_TRUE(bounds->softcap);
  ASSERT_EQ(bounds->sources.size(), 6U);
  EXPECT_EQ(bounds->sources[0].k_format, Format::kBf16);
  EXPECT_EQ(bounds->sources[0].v_format, Format::kF16);
  EXPECT_EQ(bounds->sources[0].max_len, 5);
  EXPECT_EQ(bounds->sources[0].max_total_len, 9);
  EXPECT_EQ(bounds->sources[1].addressing, AddressingKind::kBlockTable);
  EXPECT_EQ(bounds->sources[1].page_size, 4);
  EXPECT_EQ(bounds->sources[1].window_left, 3);
  EXPECT_EQ(bounds->sources[1].max_len, 9);
  EXPECT_EQ(bounds->sources[2].max_len, 7);
  EXPECT_EQ(bounds->sources[3].topk, 3);
  EXPECT_EQ(bounds->sources[3].max_len, 3);
  EXPECT_EQ(bounds->sources[3].index_type, Type::kI64);
  EXPECT_TRUE(bounds->sources[3].shared);
  EXPECT_EQ(bounds->sources[3].v_format, Format::kBf16);
  EXPECT_EQ(bounds->sources[4].index_space, IndexSpace::kPosition);
  EXPECT_EQ(bounds->sources[5].ratio, 4);
  EXPECT_EQ(bounds->sources[5].heads, 4);
}

TEST(Bounds, OfAnInvalidProblemSayWhy) {
  ValidProblem v;
  v.sources[2].addressing.page_size = 0;
  EXPECT_EQ(Bounds::of(v.p).status().message(), "kv[2].page_size = 0: must be at least 1");
}

TEST(Bounds, OfADeviceProblemComeFromShapes) {
  ValidProblem v;
  v.p.device = {DeviceKind::kCuda, 0};
  const Result<Bounds> bounds = Bounds::of(v.p);
  ASSERT_TRUE(bounds.ok());
  EXPECT_EQ(bounds->max_q_len, 6);
  EXPECT_EQ(bounds->sources[0].max_len, 10);     // rows of the ragged array
  EXPECT_EQ(bounds->sources[1].max_len, 3 * 4);  // table width x page size
  EXPECT_EQ(bounds->sources[2].max_len, 3 * 4);  // listed pages x page size
  EXPECT_EQ(bounds->sources[2].max_total_len, 12);
  EXPECT_EQ(bounds->sources[3].max_len, 3);
}

TEST(Bounds, AlignmentIsWhatPointersAndStridesShare) {
  PlanarProblem v;
  ASSERT_TRUE(Bounds::of(v.p).ok());
  EXPECT_EQ(Bounds::of(v.p)->q_alignment, 16);
  v.sources[0].k.page_stride_bytes = 1732;  // 4 x 433
  EXPECT_EQ(Bounds::of(v.p)->sources[0].alignment, 4);
  v.sources[0].k.page_stride_bytes = kDense;
  v.sources[0].k.data = v.cache.data() + 1;
  EXPECT_EQ(Bounds::of(v.p)->sources[0].alignment, 1);
  v.p.q.row_stride_bytes = 2 * 1024 + 2;
  EXPECT_EQ(Bounds::of(v.p)->q_alignment, 2);
}

TEST(Lengths, ArePointersOfTheProblemWithoutWhatNobodyReads) {
  ValidProblem v;
  const Lengths lengths = Lengths::of(v.p);
  EXPECT_EQ(lengths.requests, 3);
  EXPECT_EQ(lengths.total_q, 6);
  EXPECT_EQ(lengths.qo_indptr, v.qo_indptr.data());
  EXPECT_EQ(lengths.context_lens, v.context_lens.data());
  EXPECT_EQ(lengths.num_sources, 6);
  EXPECT_EQ(lengths.sources[0].kv_indptr, v.ragged_indptr.data());
  EXPECT_EQ(lengths.sources[1].seq_lens, v.window_lens.data());
  EXPECT_EQ(lengths.sources[2].kv_last_page_len, v.list_last.data());
  EXPECT_EQ(lengths.sources[3].topk_lens, v.topk_lens.data());
  EXPECT_EQ(lengths.sources[4].seq_lens, v.position_lens.data());
  EXPECT_EQ(lengths.sources[5].first_position, v.first_position.data());
  v.sources[4].rule.index_space = IndexSpace::kSlot;  // slots have no length
  EXPECT_EQ(Lengths::of(v.p).sources[4].seq_lens, nullptr);
}

struct Break {
  const char* message;
  void (*apply)(Bounds& b, PlanOptions& o);
  StatusCode code = StatusCode::kInvalid;
};
TEST(Bounds, EveryBrokenFieldIsNamed) {
  const Break breaks[] = {
      {"bounds.device.kind = 5: no such device kind", [](Bounds& b, PlanOptions&) { b.device.kind = static_cast<DeviceKind>(5); }},
      {"bounds.device.index = -1: must be at least 0", [](Bounds& b, PlanOptions&) { b.device.index = -1; }},
      {"bounds.max_requests = -1: must be at least 0", [](Bounds& b, PlanOptions&) { b.max_requests = -1; }},
      {"bounds.max_requests = 2147483647: must be below 2^31 - 1", [](Bounds& b, PlanOptions&) { b.max_requests = 2147483647; }},
      {"bounds.max_total_q = -1: must be at least 0", [](Bounds& b, PlanOptions&) { b.max_total_q = -1; }},
      {"bounds.max_total_q = 2147483648: must be at most 2^31 - 1", [](Bounds& b, PlanOptions&) { b.max_total_q = 2147483648; }},
      {"bounds.max_q_len = -1: must be at least 0", [](Bounds& b, PlanOptions&) { b.max_q_len = -1; }},
      {"bounds.q_type = e5m2: must be bf16, f16, f32 or e4m3", [](Bounds& b, PlanOptions&) { b.q_type = Type::kE5m2; }},
      {"bounds.out_type = e4m3: must be bf16, f16 or f32", [](Bounds& b, PlanOptions&) { b.out_type = Type::kE4m3; }},
      {"bounds.heads = 0: must be at least 1", [](Bounds& b, PlanOptions&) { b.heads = 0; }},
      {"bounds.d_qk = 0: must be at least 1", [](Bounds& b, PlanOptions&) { b.d_qk = 0; }},
      {"bounds.d_qk = 577: the largest supported is 576", [](Bounds& b, PlanOptions&) { b.d_qk = 577; }, StatusCode::kUnsupported},
      {"bounds.d_v = -3: must be at least 1", [](Bounds& b, PlanOptions&) { b.d_v = -3; }},
      {"bounds.d_v = 65: must be at most d_qk where storage is shared", [](Bounds& b, PlanOptions&) { b.d_v = 65; }},
      {"bounds.q_alignment = 12: must be a power of two", [](Bounds& b, PlanOptions&) { b.q_alignment = 12; }},
      {"bounds.sources.size() = 0: must be at least 1", [](Bounds& b, PlanOptions&) { b.sources.clear(); }},
      {"bounds.sources.size() = 17: at most 16 are supported", [](Bounds& b, PlanOptions&) { b.sources.resize(17); },
       StatusCode::kUnsupported},
      {"bounds.sources[1].k_format = Format(99): no such format",
       [](Bounds& b, PlanOptions&) { b.sources[1].k_format = static_cast<Format>(99); }},
      {"bounds.sources[1].v_format = Format(99): no such format",
       [](Bounds& b, PlanOptions&) { b.sources[1].v_format = static_cast<Format>(99); }},
      {"bounds.sources[3].v_format = f16: must be k_format where storage is shared",
       [](Bounds& b, PlanOptions&) { b.sources[3].v_format = Format::kF16; }},
      {"bounds.sources[0].k_format = fp8_ds_656: its records have 576 columns, d_qk = 64",
       [](Bounds& b, PlanOptions&) { b.sources[0].k_format = Format::kFp8Ds656; }},
      {"bounds.sources[0].v_format = fp8_ds_584: its records have 512 columns, d_v = 32",
       [](Bounds& b, PlanOptions&) { b.sources[0].v_format = Format::kFp8Ds584; }},
      {"bounds.sources[0].heads = 0: must be at least 1", [](Bounds& b, PlanOptions&) { b.sources[0].heads = 0; }},
      {"bounds.sources[0].heads = 3: must divide bounds.heads = 4", [](Bounds& b, PlanOptions&) { b.sources[0].heads = 3; }},
      {"bounds.sources[0].addressing = 8: no such addressing",
       [](Bounds& b, PlanOptions&) { b.sources[0].addressing = static_cast<AddressingKind>(8); }},
      {"bounds.sources[0].addressing = pool: has no table: only the gathered rule reads it",
       [](Bounds& b, PlanOptions&) { b.sources[0].addressing = AddressingKind::kPool; }},
      {"bounds.sources[1].page_size = 0: must be at least 1", [](Bounds& b, PlanOptions&) { b.sources[1].page_size = 0; }},
      {"bounds.sources[1].rule = 7: no such rule", [](Bounds& b, PlanOptions&) { b.sources[1].rule = static_cast<RuleKind>(7); }},
      {"bounds.sources[1].window_left = -2: must be at least 0, or -1 for no left edge",
       [](Bounds& b, PlanOptions&) { b.sources[1].window_left = -2; }},
      {"bounds.sources[5].ratio = 0: must be at least 1", [](Bounds& b, PlanOptions&) { b.sources[5].ratio = 0; }},
      {"bounds.sources[3].topk = -1: must be at least 0", [](Bounds& b, PlanOptions&) { b.sources[3].topk = -1; }},
      {"bounds.sources[3].index_type = bf16: must be i32 or i64", [](Bounds& b, PlanOptions&) { b.sources[3].index_type = Type::kBf16; }},
      {"bounds.sources[3].index_space = 4: no such index space",
       [](Bounds& b, PlanOptions&) { b.sources[3].index_space = static_cast<IndexSpace>(4); }},
      {"bounds.sources[0].max_len = -1: must be at least 0", [](Bounds& b, PlanOptions&) { b.sources[0].max_len = -1; }},
      {"bounds.sources[0].max_len = 2147483648: must be at most 2^31 - 1",
       [](Bounds& b, PlanOptions&) { b.sources[0].max_len = 2147483648; }},
      {"bounds.sources[0].max_total_len = -1: must be at least 0", [](Bounds& b, PlanOptions&) { b.sources[0].max_total_len = -1; }},
      {"bounds.sources[0].alignment = 0: must be a power of two", [](Bounds& b, PlanOptions&) { b.sources[0].alignment = 0; }},
      {"options.workers = -1: must be at least 0", [](Bounds&, PlanOptions& o) { o.workers = -1; }},
  };
  ValidProblem v;
  const Result<Bounds> valid = Bounds::of(v.p);
  ASSERT_TRUE(valid.ok());
  EXPECT_TRUE(validate_bounds(*valid, {}).ok());
  for (const Break& b : breaks) {
    Bounds bounds = *valid;
    PlanOptions options;
    b.apply(bounds, options);
    const Status status = validate_bounds(bounds, options);
    EXPECT_EQ(status.code(), b.code) << b.message;
    EXPECT_EQ(status.message(), b.message);
  }
}

}  // namespace
}  // namespace headwater
