// Live slots of a ring buffer, for host and device.
#pragma once

#include <cstdint>

#include "src/core/hd.h"

namespace headwater {

// See ring_slots in headwater.h. Position p lives at slot base + p % capacity; base + capacity must fit in int32.
// The last `capacity` positions are live at most; a list shorter than the live count gets the newest of them.
HEADWATER_HD int32_t write_ring_slots(int64_t t, int32_t window_left, int32_t capacity, int32_t base, int32_t* indices, int32_t count) {
  int64_t live = t < 0 ? 0 : t + 1;
  if (window_left >= 0 && live > int64_t{window_left} + 1) live = int64_t{window_left} + 1;
  if (live > capacity) live = capacity < 0 ? 0 : capacity;
  const int64_t written = live < count ? live : count;
  for (int64_t i = 0; i < written; ++i) indices[i] = static_cast<int32_t>(base + (t - written + 1 + i) % capacity);
  for (int64_t i = written < 0 ? 0 : written; i < count; ++i) indices[i] = -1;
  return static_cast<int32_t>(live);
}

}  // namespace headwater
