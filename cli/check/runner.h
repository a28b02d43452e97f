// Runs cases on a backend and judges them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/check/coverage.h"
#include "cli/check/problem.h"

namespace headwater::conformance {

struct CheckOptions {
  int64_t cases = 500;
  uint64_t seed = 1;
  int64_t only_case = -1;  // run this one case of the seed
  std::string backend = "cpu";
  std::string isa;                // empty: every ISA of this machine in turn
  std::string kernel;             // empty: the backend chooses
  std::vector<std::string> with;  // features of every case, as the report names them: "rule=causal"
  bool fail_fast = false;         // start no case after one has failed
  int32_t threads = 0;            // cases at a time; 0: as many as this process may use
};

struct CaseResult {
  enum class Verdict { kPassed, kFailed, kRefused };
  int64_t index = 0;
  Verdict verdict = Verdict::kPassed;
  std::string message;  // why it failed or was refused
  std::string description;
  Facts facts;
  double worst = 0.0;  // largest error over its allowance
};

struct Report {
  Coverage coverage;
  std::vector<CaseResult> failures;  // in order of index; at most kMaxFailures are kept
  int64_t failed = 0;
  int64_t refused = 0;
  std::vector<std::string> unlisted_refusals;  // reasons that docs/unsupported.txt does not list
  std::vector<std::string> shortfalls;         // of coverage
  bool enforced = false;                       // shortfalls count as a failure
  double worst = 0.0;
  int64_t worst_case = 0;
  std::vector<std::string> isas;
  std::string error;  // the run could not start: bad options
  [[nodiscard]] bool ok() const { return error.empty() && failed == 0 && unlisted_refusals.empty() && (!enforced || shortfalls.empty()); }
};
inline constexpr size_t kMaxFailures = 20;

// ISA levels of the CPU backend that this machine can run, best first.
[[nodiscard]] std::vector<std::string> usable_isas();
[[nodiscard]] CaseResult run_case(const Spec& spec, const CheckOptions& options, int64_t index, const std::string& isa);
[[nodiscard]] Report run_cases(const CheckOptions& options, const std::function<void(int64_t done)>& progress = {});
// The command line that runs one case again.
[[nodiscard]] std::string reproduction(const CheckOptions& options, const CaseResult& result);
// Does docs/unsupported.txt (as it was when this was built) list the reason?
[[nodiscard]] bool is_listed_refusal(const std::string& message);

}  // namespace headwater::conformance
