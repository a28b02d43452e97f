// ring_slots against a ring buffer that is really written.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "headwater/headwater.h"

namespace headwater {
namespace {

TEST(RingSlots, HoldExactlyThePositionsOfTheWindow) {
  for (const int32_t capacity : {1, 2, 5, 8}) {
    std::vector<int64_t> ring(static_cast<size_t>(capacity), -1);  // position held by each slot
    for (int64_t t = 0; t < 40; ++t) {
      ring[static_cast<size_t>(t % capacity)] = t;
      for (int32_t window_left = -1; window_left < 10; ++window_left) {
        const int64_t wanted = window_left < 0 ? capacity : std::min<int64_t>(capacity, window_left + 1);
        const int64_t first = std::max<int64_t>(0, t - wanted + 1);
        std::vector<int32_t> indices(12, 99);
        const int32_t base = 1000;
        ASSERT_EQ(ring_slots(t, window_left, capacity, base, indices.data(), 12), t - first + 1);
        for (int64_t i = 0; i < 12; ++i) {
          const int32_t slot = indices[static_cast<size_t>(i)];
          if (first + i > t) {
            ASSERT_EQ(slot, -1);
          } else {
            ASSERT_EQ(ring[static_cast<size_t>(slot - base)], first + i) << "t " << t << " window_left " << window_left;
          }
        }
      }
    }
  }
}

TEST(RingSlots, AroundTheWindowOfAModel) {  // A22: W = 128 keys, the query's own among them: window_left = 127, capacity 128
  constexpr int32_t kWindow = 128;
  std::vector<int32_t> indices(kWindow);
  const auto live = [&](int64_t tokens) { return ring_slots(tokens - 1, kWindow - 1, kWindow, 0, indices.data(), kWindow); };
  EXPECT_EQ(live(kWindow - 1), kWindow - 1);
  EXPECT_EQ(indices[0], 0);
  EXPECT_EQ(indices[kWindow - 1], -1);
  EXPECT_EQ(live(kWindow), kWindow);
  EXPECT_EQ(indices[0], 0);
  EXPECT_EQ(indices[kWindow - 1], kWindow - 1);
  EXPECT_EQ(live(kWindow + 1), kWindow);  // position 0 has been overwritten by 128
  EXPECT_EQ(indices[0], 1);
  EXPECT_EQ(indices[kWindow - 1], 0);
  EXPECT_EQ(live(kWindow + 2), kWindow);
  EXPECT_EQ(indices[0], 2);
  EXPECT_EQ(indices[kWindow - 1], 1);
}

TEST(RingSlots, EdgesWithoutAnythingLive) {
  std::vector<int32_t> indices(3, 7);
  EXPECT_EQ(ring_slots(-1, 3, 4, 0, indices.data(), 3), 0);
  EXPECT_EQ(indices, std::vector<int32_t>(3, -1));
  EXPECT_EQ(ring_slots(5, 3, 0, 0, indices.data(), 3), 0);
  EXPECT_EQ(ring_slots(5, 3, 4, 0, nullptr, 0), 4);  // asks how many
}

TEST(RingSlots, AShortListKeepsTheNewest) {
  std::vector<int32_t> indices(2);
  EXPECT_EQ(ring_slots(9, -1, 4, 0, indices.data(), 2), 4);
  EXPECT_EQ(indices, (std::vector<int32_t>{0, 1}));  // positions 8 and 9
}

TEST(RingSlots, PositionsBeyond32Bits) {
  std::vector<int32_t> indices(3);
  const int64_t t = (int64_t{1} << 40) + 1;
  EXPECT_EQ(ring_slots(t, 2, 128, 10, indices.data(), 3), 3);
  EXPECT_EQ(indices, (std::vector<int32_t>{10 + 127, 10 + 0, 10 + 1}));
}

}  // namespace
}  // namespace headwater
