// Lengths against bounds, lengths against the schedule, large counts.
#include <gtest/gtest.h>

#include "tests/plan/support.h"

namespace headwater::plan {
namespace {

void expect_refused(const Case& c, const std::string& message) {
  const Schedule schedule(c);
  EXPECT_EQ(schedule.status().code(), StatusCode::kInvalid);
  EXPECT_NE(schedule.status().message().find(message), std::string::npos) << schedule.status().message();
  EXPECT_EQ(schedule.view().header->magic, 0U);  // no schedule is left behind
  EXPECT_TRUE(schedule.guards_intact());
}

TEST(ScheduleLengths, BeyondTheBoundsAreRefusedByName) {
  const Case good = decode_case({100, 200, 300}, 8, 2, 2);
  ASSERT_TRUE(Schedule(good).status().ok());

  Case c = good;
  c.bounds.max_requests = 2;
  expect_refused(c, "requests = 3: must be 0 to the plan's max_requests = 2");
  c = good;
  c.batch.sources[0].seq_lens[1] = 301;
  expect_refused(c, "kv[0].kv_len[1] = 301: must be at most the plan's max_len = 300");
  c = good;
  c.batch.sources[0].seq_lens[1] = -1;
  expect_refused(c, "kv[0].kv_len[1] = -1: must be at least 0");
  c = good;
  c.batch.sources[0].seq_lens[1] = 250;
  expect_refused(c, "kv[0]: lengths sum to 650: must be at most the plan's max_total_len = 600");
  c = good;
  c.batch.qo_indptr = {0, 1, 3, 3};
  expect_refused(c, "q_len[1] = 2: must be at most the plan's max_q_len = 1");
  c = good;
  c.batch.qo_indptr = {0, 1, 0, 1};
  expect_refused(c, "qo_indptr[2] = 0: must be at least qo_indptr[1] = 1");
  c = good;
  c.batch.sources[0].position_stride = {1, 0, 1};
  expect_refused(c, "kv[0].position_stride[1] = 0: must be at least 1");
}

TEST(ScheduleLengths, ContextIsNeededByPositionalRulesOnly) {
  Case c = decode_case({100, 200}, 8, 2, 2);
  EXPECT_TRUE(Schedule(c).status().ok());
  c.bounds.sources[0].rule = RuleKind::kCausal;
  const Schedule derived(c);
  ASSERT_TRUE(derived.status().ok());
  EXPECT_EQ(derived.view().context_len[1], 200);
  c.bounds.sources[0].rule = RuleKind::kCompressed;
  c.bounds.sources[0].ratio = 4;
  expect_refused(c, "context_lens = null");
  c.batch.context_lens = {400, 800};
  EXPECT_TRUE(Schedule(c).status().ok());
}

TEST(ScheduleLengths, NoRequestsIsAnEmptySchedule) {
  Case c = decode_case({}, 8, 2, 4);
  Schedule schedule(c);
  ASSERT_TRUE(schedule.status().ok()) << schedule.status().message();
  EXPECT_TRUE(schedule.items().empty());
  for (int32_t w = 0; w <= 4; ++w) EXPECT_EQ(schedule.view().worker_begin[w], 0);
}

TEST(ScheduleLengths, SixtyFiveThousandRequestsAndLongOnes) {
  std::vector<int32_t> lens(65536, 3);
  lens[7] = 2147483647;
  lens[65535] = 2147483647;
  const Case c = decode_case(lens, 8, 8, 132);
  const Schedule schedule(c);
  ASSERT_TRUE(schedule.status().ok()) << schedule.status().message();
  EXPECT_TRUE(schedule.guards_intact());
  int64_t tiles = 0;
  for (const WorkItem& item : schedule.items()) tiles += item.tile_end - item.tile_begin;
  EXPECT_EQ(tiles, 8 * (65534 + 2 * int64_t{2147483647LL / 64 + 1}));
  const std::vector<int64_t> loads = worker_loads(schedule.shape(), schedule.view());
  EXPECT_LE(*std::max_element(loads.begin(), loads.end()), load_bound(schedule.shape(), schedule.view()));
}

TEST(ScheduleLengths, SixtyFiveThousandHeads) {
  const Case c = decode_case({5000}, 65536, 65536, 3);
  const Schedule schedule(c);
  ASSERT_TRUE(schedule.status().ok()) << schedule.status().message();
  EXPECT_EQ(schedule.shape().num_head_blocks, 65536);
  EXPECT_GE(schedule.items().size(), 65536U);
}

TEST(ScheduleLengths, CapacitiesBeyondTheCountersAreUnsupported) {
  Case c = decode_case({1}, 65536, 65536, 3);
  c.bounds.max_requests = 65536;
  c.bounds.max_total_q = 65536;
  EXPECT_EQ(check_shape(make_shape(c.bounds, c.traits, c.options)).code(), StatusCode::kUnsupported);
}

// Rule 6: the problem that is run must still have the lengths that were scheduled.
TEST(ScheduleLengths, AnyChangedLengthIsFound) {
  Case c = decode_case({100, 200}, 8, 2, 2);
  c.bounds.sources[0].rule = RuleKind::kCausal;
  SourceBounds gathered;
  gathered.rule = RuleKind::kGathered;
  gathered.addressing = AddressingKind::kPool;
  gathered.topk = 16;
  gathered.heads = 2;
  c.bounds.sources.push_back(gathered);
  c.batch.sources.emplace_back();
  c.batch.sources[1].topk_lens = {5, 16};
  c.batch.sources[1].seq_lens = {0, 0};
  tighten(&c);
  const Schedule schedule(c);
  ASSERT_TRUE(schedule.status().ok()) << schedule.status().message();

  ResolvedProblem p;
  p.requests = 2;
  p.needs_context = true;
  p.context_source = 0;
  p.num_sources = 2;
  std::vector<int32_t> qo = c.batch.qo_indptr;
  std::vector<int32_t> lens = c.batch.sources[0].seq_lens;
  std::vector<int32_t> topk = c.batch.sources[1].topk_lens;
  p.qo_indptr = qo.data();
  p.sources[0].addressing = AddressingKind::kBlockTable;
  p.sources[0].rule = RuleKind::kCausal;
  p.sources[0].seq_lens = lens.data();
  p.sources[1].addressing = AddressingKind::kPool;
  p.sources[1].rule = RuleKind::kGathered;
  p.sources[1].topk = 16;
  p.sources[1].topk_lens = topk.data();
  const auto check = [&] { return check_scheduled_lengths(schedule.shape(), schedule.view(), p); };
  EXPECT_TRUE(check().ok()) << check().message();

  const auto expect_found = [&](const std::string& message) {
    const Status status = check();
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
  };
  lens[1] = 199;
  expect_found("[1] = 199: the schedule was dealt for 200");
  lens[1] = 200;
  topk[0] = 4;
  expect_found("kv[1].topk_lens[0] = 4: the schedule was dealt for 5");
  topk[0] = 5;
  topk[1] = 99;  // clamped to topk: the same list
  EXPECT_TRUE(check().ok());
  topk[1] = 16;
  qo[1] = 2;
  expect_found("qo_indptr[1] = 2: the schedule was dealt for 1");
  qo[1] = 1;
  const std::vector<int32_t> first{0, 1};
  p.sources[0].first_position = first.data();
  expect_found("[1] = 201: the schedule was dealt for 200");
  p.sources[0].first_position = nullptr;
  const std::vector<int32_t> stride{1, 2};
  p.sources[0].position_stride = stride.data();
  expect_found("kv[0].position_stride[1] = 2: the schedule was dealt for 1");
  p.sources[0].position_stride = nullptr;
  const std::vector<int32_t> context{101, 200};
  p.context_lens = context.data();
  expect_found("context_lens[0] = 101: the schedule was dealt for 100");
  p.context_lens = nullptr;
  p.requests = 1;
  expect_found("requests = 1: the schedule was dealt for 2");
}

TEST(ScheduleLengths, AForeignScheduleIsRefused) {
  const Case c = decode_case({100}, 8, 2, 2);
  const Schedule schedule(c);
  Case other = c;
  other.options.workers = 3;
  const PlanShape shape = make_shape(other.bounds, other.traits, other.options);
  EXPECT_EQ(check_scheduled_lengths(shape, schedule.view(), ResolvedProblem()).code(), StatusCode::kBuffer);
}

}  // namespace
}  // namespace headwater::plan
