// Which entries a query sees, in closed form: every rule but gathered is one interval of entries per query.
// Compiled for host and device. The oracle does not use it: it tests entries one by one.
#pragma once

#include <cstdint>

#include "headwater/problem.h"
#include "src/core/hd.h"

namespace headwater {

struct EntryRange {
  int64_t begin = 0;
  int64_t end = 0;  // half-open; empty when end <= begin
};

HEADWATER_HD int64_t floor_div(int64_t a, int64_t b) {  // b > 0
  int64_t q = a / b;
  return q * b > a ? q - 1 : q;
}

// Entries of a non-gathered source visible to position t, clamped to [0, kv_len).
HEADWATER_HD EntryRange visible_range(RuleKind rule, int32_t window_left, int32_t ratio, int64_t first_position, int64_t position_stride,
                                      int64_t kv_len, int64_t t) {
  int64_t begin = 0;
  int64_t end = kv_len;
  if (rule == RuleKind::kCausal || rule == RuleKind::kWindow) {
    // first + j * stride <= t
    const int64_t last = floor_div(t - first_position, position_stride) + 1;
    end = last < end ? last : end;
    if (rule == RuleKind::kWindow && window_left >= 0) {
      // first + j * stride >= t - window_left  <=>  j >= ceil((t - window_left - first) / stride)
      const int64_t low = floor_div(t - window_left - first_position + position_stride - 1, position_stride);
      begin = low > begin ? low : begin;
      begin = begin > kv_len ? kv_len : begin;  // all entries lie behind the window
    }
  } else if (rule == RuleKind::kCompressed) {
    // first + j * stride + 1 <= floor((t + 1) / ratio)
    const int64_t complete = floor_div(t + 1, ratio);
    const int64_t last = floor_div(complete - 1 - first_position, position_stride) + 1;
    end = last < end ? last : end;
  }
  if (end < begin) end = begin;
  return {begin, end};
}

}  // namespace headwater
