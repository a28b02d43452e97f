// Checks and times workloads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/bench/ceilings.h"
#include "cli/bench/workload.h"

namespace headwater::cli {

struct Row {
  std::string name;
  std::string origin;
  std::string kernel;
  std::string fault;  // why the shape was not measured: no kernel, or a wrong result
  bool wrong = false;
  int64_t copies = 0;
  int64_t runs = 0;
  double worst_error = 0.0;  // of the rows compared with the oracle, as a share of their allowance
  double min_us = 0.0;
  double median_us = 0.0;
  double spread = 0.0;  // (third - first quartile) / median
  double flops = 0.0;
  double kv_bytes = 0.0;
  double plan_us = 0.0;  // host time, medians
  double schedule_us = 0.0;
  size_t schedule_bytes = 0;
  size_t scratch_bytes = 0;
  // By the ceilings of the whole run.
  double gbps = 0.0;  // at min_us
  double gflops = 0.0;
  double floor_us = 0.0;
  double floor_ratio = 0.0;  // min_us / floor_us
  bool memory_bound = false;
  // Goals of the shape file, and its twin's floor ratio under this one's (0: no twin, or not measured).
  double reach = 0.0;
  double aim = 0.0;
  std::string twin;
  double over_twin = 0.0;
  // The plain baseline (plain.h) and the run with fewer threads: minima, 0 where not timed.
  double plain_us = 0.0;
  double plain_error = 0.0;
  int64_t plain_runs = 0;
  double fewer_threads_us = 0.0;
  int64_t fewer_threads_runs = 0;
};

struct MeasureOptions {
  int32_t threads = 0;
  int32_t fewer_threads = 0;  // also timed with this many; 0: not
  int32_t rounds = 200;       // each times every shape once, short ones several times (at most 16)
  int32_t plain_rounds = 5;   // of them, spread evenly, that time the plain baseline too
  // The KV of a shape's copies together, so that a run finds none of it in a cache. 0: 160 MiB, at least four times the last level.
  int64_t cold_bytes = 0;
  bool huge_pages = true;  // for KV, where the system gives them
  PlanOptions plan;
};

// Interleaved: every round runs every shape, so that drift of the machine meets all alike; the ceilings are sampled between rounds.
[[nodiscard]] std::vector<Row> measure(const std::vector<Shape>& shapes, const MeasureOptions& options, CeilingMeter* meter);

}  // namespace headwater::cli
