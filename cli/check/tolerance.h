// The contract's "Numbers": is a result the same answer as the oracle's?
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "headwater/headwater.h"

namespace headwater::conformance {

// The oracle's answer with all that the tolerance needs, dense [total_q, heads(, d_v)].
struct Reference {
  std::vector<double> out;
  std::vector<double> lse;
  std::vector<double> spread;
  std::vector<double> score_term;
  std::vector<int64_t> visible;
  Status status;
};
[[nodiscard]] Reference run_reference(const Problem& problem);

struct Judgement {
  std::string fault;   // empty: the same answer
  double worst = 0.0;  // largest error over its allowance
  // Of the whole output, relative to the root sum of squares of the rows' max(|out|, |r|); set when no single row is at fault.
  double error = 0.0;
  double allowed = 0.0;
};
// Compares problem.out and problem.lse, host memory. `rounds_p`: the kernel keeps P in 16 bit.
[[nodiscard]] Judgement judge(const Problem& problem, const Reference& reference, bool rounds_p = false);

}  // namespace headwater::conformance
