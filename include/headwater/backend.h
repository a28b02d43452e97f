// What this build and machine can run, and why a problem gets the kernel it gets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "headwater/plan.h"
#include "headwater/problem.h"

namespace headwater {

struct BackendInfo {
  std::string name;  // "cpu", "cuda"
  bool built = false;
  bool usable = false;  // built, and the device is there
  std::string detail;   // "2 threads, avx2", "cuda: not built (nvcc not found at build time)"
};

struct KernelInfo {
  std::string name;  // can be searched in the sources and forced
  std::string backend;
  std::string file;     // where its body lives
  std::string accepts;  // one line
  bool usable = false;  // on this machine
};

// One row of the kernel list and its verdict on a problem.
struct KernelVerdict {
  std::string kernel;
  bool accepted = false;
  std::string reason;  // why it refused
};

// One work item on its worker's time line, by the planner's costs; an equal share of the work is 1.0 long.
struct TimelineItem {
  int32_t worker = 0;
  int64_t request = 0;
  int32_t token_begin = 0;  // in the request
  int32_t token_count = 0;
  int32_t head_block = 0;
  double begin = 0.0;
  double end = 0.0;
  bool cut = false;  // a fragment: its row block is merged from several
};

struct Explanation {
  std::string kernel;  // chosen; empty if all refused
  std::vector<KernelVerdict> verdicts;
  std::vector<std::string> plan;    // "tile 48 entries", "16 rows a block", ...
  int64_t items = 0;                // work items of the schedule (host lengths only)
  int64_t split_blocks = 0;         // row blocks that are cut and merged
  std::vector<double> worker_load;  // cost dealt to each worker, 1.0 = an equal share
  double load_bound = 0.0;          // the planner's stated bound on max(worker_load)
  std::vector<TimelineItem> timeline;
};

[[nodiscard]] std::vector<BackendInfo> backends();
[[nodiscard]] std::vector<KernelInfo> kernels();
[[nodiscard]] Result<Explanation> explain(const Problem& problem, const PlanOptions& options = {});

}  // namespace headwater
