// What `headwater run` computes about one problem, and how it is told to people and programs.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/ceilings.h"
#include "cli/machine.h"
#include "cli/work.h"
#include "headwater/headwater.h"

namespace headwater::cli {

struct CheckResult {
  bool passed = false;
  std::string fault;       // the first row that is wrong
  double error = 0.0;      // L2 error of the whole output, relative as the allowance is
  double allowed = 0.0;    // T of the contract
  double worst_row = 0.0;  // largest error of a row or lse over its allowance
};

struct RunReport {
  std::string name;      // "layers.3", ""
  std::string line;      // the problem in a line
  std::string detail;    // and in several
  std::string note;      // the file's own words
  std::string encoding;  // what --kv-format did
  std::string kernel;
  std::vector<KernelVerdict> verdicts;
  std::vector<std::string> plan;
  int32_t workers = 0;
  Work work;
  Timing cold;  // caches flushed before each run
  Timing warm;
  // Of the cold runs; each is absent where there is too little of it to judge. The share is the larger of both, of the machine's best.
  std::optional<double> gbs;
  std::optional<double> gflops;
  std::optional<double> roofline_share;
  bool memory_bound = false;
  Ceilings ceilings;
  std::optional<CheckResult> check;
};

[[nodiscard]] std::string report_text(const std::string& file, const std::vector<RunReport>& reports);
[[nodiscard]] nlohmann::ordered_json report_json(const std::string& file, const std::vector<RunReport>& reports);

}  // namespace headwater::cli
