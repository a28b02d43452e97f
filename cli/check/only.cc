// The check without the rest of the command line, quick to rebuild: tools/mutants/run.py. headwater_check_only CASES SEED
#include <cstdio>
#include <cstdlib>

#include "cli/check/runner.h"

int main(int argc, char** argv) {
  headwater::conformance::CheckOptions options;
  if (argc > 1) options.cases = std::atoll(argv[1]);
  if (argc > 2) options.seed = static_cast<uint64_t>(std::atoll(argv[2]));
  options.fail_fast = true;
  const headwater::conformance::Report report = headwater::conformance::run_cases(options);
  for (const auto& failure : report.failures)
    std::printf("FAILED case %lld: %s\n", static_cast<long long>(failure.index), failure.message.c_str());
  for (const auto& refusal : report.unlisted_refusals) std::printf("FAILED refusal: %s\n", refusal.c_str());
  if (!report.error.empty()) std::printf("%s\n", report.error.c_str());
  return report.error.empty() ? (report.failed > 0 || !report.unlisted_refusals.empty() ? 1 : 0) : 2;
}
