// batch_invariant: a request's cuts are its own affair.
#include <gtest/gtest.h>

#include "tests/plan/support.h"

namespace headwater::plan {
namespace {

TEST(BatchInvariant, CutsAreTheSameAloneAndInCompany) {
  int32_t compared = 0;
  int32_t split = 0;
  for (uint32_t seed = 0; seed < 500; ++seed) {
    Case c = random_case(seed);
    c.options.batch_invariant = true;
    if (c.batch.requests() < 2) continue;
    const Schedule together(c);
    ASSERT_TRUE(together.status().ok()) << together.status().message();
    for (int64_t r = 0; r < c.batch.requests(); r += 3) {
      Case alone = c;
      alone.batch = Batch();
      alone.batch.append_request(c.batch, r);
      tighten(&alone);
      alone.options.workers = c.options.workers == 1 ? 5 : 1;
      const Schedule single(alone);
      ASSERT_TRUE(single.status().ok()) << single.status().message();
      ASSERT_EQ(single.cuts_of(0), together.cuts_of(r)) << "random_case(" << seed << "), request " << r;

      Case wide = alone;  // the same request under far wider bounds
      wide.bounds.max_requests += 20;
      wide.bounds.max_total_q += 100;
      wide.bounds.max_q_len += 300;
      for (SourceBounds& s : wide.bounds.sources) s.max_len += 100000, s.max_total_len = 0;
      wide.options.workers = 64;
      const Schedule roomy(wide);
      ASSERT_TRUE(roomy.status().ok()) << roomy.status().message();
      ASSERT_EQ(roomy.cuts_of(0), together.cuts_of(r)) << "random_case(" << seed << "), request " << r << ", wide bounds";
      ++compared;
      for (const auto& cut : single.cuts_of(0)) split += cut.back();
    }
  }
  EXPECT_GT(compared, 500);
  EXPECT_GT(split, 1000);  // the comparison is about split requests too
}

TEST(BatchInvariant, CutsAreTheSameWithSixtyThreeOthers) {
  for (const int32_t len : {1, 63, 64, 65, 1000, 8192, 100000}) {
    std::vector<int32_t> lens{len};
    Case alone = decode_case(lens, 16, 1, 2);
    alone.options.batch_invariant = true;
    for (int32_t i = 0; i < 63; ++i) lens.push_back(17 * i * i);
    Case company = decode_case(lens, 16, 1, 132);
    company.options.batch_invariant = true;
    EXPECT_EQ(Schedule(alone).cuts_of(0), Schedule(company).cuts_of(0)) << len;
  }
}

TEST(BatchInvariant, FragmentsAreCappedAndEven) {
  Case c = decode_case({2000000}, 16, 1, 7);
  c.options.batch_invariant = true;
  c.traits.max_splits = 8;
  const Schedule schedule(c);
  ASSERT_TRUE(schedule.status().ok());
  EXPECT_EQ(schedule.items().size(), 8U);
  for (const WorkItem& item : schedule.items()) EXPECT_NEAR(item.tile_end - item.tile_begin, 31250 / 8, 1);
  ASSERT_EQ(schedule.merges().size(), 1U);
  EXPECT_EQ(schedule.merges()[0].contiguous, 1);
}

// Outside of the mode the same request is cut by who shares the machine: the test above could fail.
TEST(BatchInvariant, IsNotTheDefault) {
  const Schedule alone(decode_case({100000}, 16, 1, 7));
  const Schedule company(decode_case({100000, 90000, 1234}, 16, 1, 7));
  EXPECT_NE(alone.cuts_of(0), company.cuts_of(0));
}

}  // namespace
}  // namespace headwater::plan
