// Does a plan's bounds cover a problem? What every backend's run asks before it touches an output.
#pragma once

#include "headwater/plan.h"
#include "src/core/resolved.h"

namespace headwater::plan {

// Types, widths, heads, formats, rules, addressing and promised alignments; lengths are the schedule's business. `p` is the resolved
// `problem`. kInvalid names the field, its value and what the plan has.
[[nodiscard]] Status check_covers(const Bounds& bounds, const Problem& problem, const ResolvedProblem& p);

}  // namespace headwater::plan
