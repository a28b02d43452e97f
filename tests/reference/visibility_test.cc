// The closed forms of core/visibility.h, which planner and kernels use, against the oracle's entry by entry test.
#include "src/core/visibility.h"

#include <gtest/gtest.h>

#include <random>

#include "src/reference/attention.h"

namespace headwater {
namespace {

struct Dice {
  std::mt19937 engine{7};
  int32_t roll(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(engine); }
};

TEST(Visibility, IntervalIsExactlyTheVisibleEntries) {
  Dice dice;
  int64_t nothing = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const int32_t kv_len = dice.roll(0, 40);
    const std::array<int32_t, 2> indptr = {0, kv_len};
    const std::array<int32_t, 1> first = {dice.roll(-5, 30)};
    const std::array<int32_t, 1> stride = {dice.roll(1, 5)};
    Source source;
    source.addressing.kv_indptr = indptr.data();
    source.addressing.num_pages = kv_len;
    source.first_position = first.data();
    source.position_stride = stride.data();
    switch (dice.roll(0, 4)) {
      case 0:
        source.rule = Rule::full();
        break;
      case 1:
        source.rule = Rule::causal();
        break;
      case 2:
        source.rule = Rule::window(-1);
        break;
      case 3:
        source.rule = Rule::window(dice.roll(0, 30));
        break;
      default:
        source.rule = Rule::compressed(dice.roll(1, 9));
        break;
    }
    const int64_t t = dice.roll(-6, 120);
    const auto slots = reference::visible_slots(source, 0, 0, t);
    const EntryRange range = visible_range(source.rule.kind, source.rule.window_left, source.rule.ratio, first[0], stride[0], kv_len, t);
    ASSERT_GE(range.begin, 0);
    ASSERT_LE(range.end, kv_len);
    ASSERT_EQ(std::max<int64_t>(range.end - range.begin, 0), static_cast<int64_t>(slots.size())) << "trial " << trial;
    if (!slots.empty()) {
      ASSERT_EQ(range.begin, slots.front());
      ASSERT_EQ(range.end - 1, slots.back());
    }
    nothing += slots.empty() ? 1 : 0;
  }
  EXPECT_GT(nothing, 1000);  // the empty rows were tried too
}

TEST(Visibility, CompressedBlockIsVisibleToTheTokenThatCompletesIt) {
  for (const int32_t ratio : {1, 4, 128}) {
    for (int64_t t = 0; t < 3 * ratio; ++t) {
      EXPECT_EQ(visible_range(RuleKind::kCompressed, -1, ratio, 0, 1, 1000, t).end, (t + 1) / ratio);
    }
  }
}

}  // namespace
}  // namespace headwater
