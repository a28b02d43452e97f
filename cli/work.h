// How much work a problem is: what its bandwidth and its share of the roofline are judged by.
#pragma once

#include "src/core/resolved.h"

namespace headwater::cli {

struct Work {
  int64_t entries = 0;  // KV entries read, summed over sources and requests (gathered: over queries)
  double kv_bytes = 0;  // their records, all heads
  double io_bytes = 0;  // queries and outputs
  double flops = 0;     // 2 (d_qk + d_v) for each visible (query head, entry) pair
  [[nodiscard]] double bytes() const { return kv_bytes + io_bytes; }
};
[[nodiscard]] Work count_work(const ResolvedProblem& problem);  // lengths are read: CPU problems

// Below this a time says more about starting up than about the machine.
inline constexpr double kJudgedSeconds = 200e-6;
inline constexpr double kJudgedBytes = 1 << 20;
inline constexpr double kJudgedFlops = 20e6;

}  // namespace headwater::cli
