#include "src/core/describe.h"

#include <gtest/gtest.h>

#include "tests/core/valid_problem.h"

namespace headwater {
namespace {

TEST(Describe, OneLine) {
  test::PlanarProblem v;
  ResolvedProblem resolved;
  ASSERT_TRUE(validate(v.p, &resolved).ok());
  EXPECT_EQ(describe_line(v.p, resolved),
            "1 request, 2 query rows x 2 heads, d 512/512, kv[0] fp8_ds_584 shared, paged 2, window_left 127, 2 entries");
}

TEST(Describe, EverySourceInItsOwnLine) {
  test::ValidProblem v;
  ResolvedProblem resolved;
  ASSERT_TRUE(validate(v.p, &resolved).ok());
  EXPECT_EQ(
      describe(v.p, resolved),
      "3 requests, 6 query rows x 4 heads of e4m3, d 64/32 (queries in two parts, 48 + 16), sm_scale 0.125, soft cap 30, sinks by head\n"
      "kv[0] K bf16, V f16, 2 KV heads, ragged, causal, 9 entries (longest 5), 2 query heads to a KV head\n"
      "kv[1] e4m3, 2 KV heads, paged 4, window_left 3, 13 entries (longest 9), 2 query heads to a KV head, k_scale by head, v_scale\n"
      "kv[2] K mxfp4, V int8, page list 4, full, 9 entries (longest 7), 4 query heads to a KV head\n"
      "kv[3] bf16 shared, pool of pages 2, gathered top 3, 9 listed (longest 3), 4 query heads to a KV head\n"
      "kv[4] e4m3 shared, paged 2, gathered top 2 by position, 10 listed (longest 2), 4 query heads to a KV head, k_scale\n"
      "kv[5] f32, 4 KV heads, ragged, compressed 4:1, 3 entries (longest 2), 1 query head to a KV head, first_position given, "
      "position_stride given\n"
      "out bf16, lse");
}

TEST(Describe, NoLengthsOfADeviceProblem) {
  test::PlanarProblem v;
  v.p.device = {DeviceKind::kCuda, 0};
  ResolvedProblem resolved;
  ASSERT_TRUE(validate(v.p, &resolved).ok());
  EXPECT_EQ(describe_line(v.p, resolved),
            "1 request, 2 query rows x 2 heads, d 512/512, kv[0] fp8_ds_584 shared, paged 2, window_left 127");
}

TEST(Describe, ShortCounts) {
  EXPECT_EQ(short_count(0), "0");
  EXPECT_EQ(short_count(999), "999");
  EXPECT_EQ(short_count(1000), "1.0k");
  EXPECT_EQ(short_count(3149), "3.1k");
  EXPECT_EQ(short_count(65536), "66k");
  EXPECT_EQ(short_count(999'600), "1.0M");
  EXPECT_EQ(short_count(int64_t{1} << 62), "4.6E");
}

}  // namespace
}  // namespace headwater
