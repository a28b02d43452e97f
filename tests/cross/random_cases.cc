// random_cases CASES SEED ISA: `headwater check` where the command line's libraries are not at hand.
#include <cstdio>
#include <cstdlib>

#include "cli/check/runner.h"

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: random_cases CASES SEED ISA\n");
    return 2;
  }
  headwater::conformance::CheckOptions options;
  options.cases = std::atoll(argv[1]);
  options.seed = std::strtoull(argv[2], nullptr, 10);
  options.isa = argv[3];
  const headwater::conformance::Report report = headwater::conformance::run_cases(options);
  if (!report.error.empty()) std::fprintf(stderr, "error: %s\n", report.error.c_str());
  for (const auto& failure : report.failures) {
    std::printf("FAILED case %lld: %s\n  %s\n", static_cast<long long>(failure.index), failure.message.c_str(),
                failure.description.c_str());
  }
  std::printf("%lld cases of seed %s on %s: %lld failed, %lld refused; largest error %.2f of what is allowed\n",
              static_cast<long long>(report.coverage.cases()), argv[2], argv[3], static_cast<long long>(report.failed),
              static_cast<long long>(report.refused), report.worst);
  return report.ok() ? 0 : 1;
}
