// Does a plan cover a problem?
#pragma once

#include "headwater/plan.h"
#include "src/core/resolved.h"

namespace headwater::cpu {

// kInvalid naming the first field that the plan was not made for: "kv[0].window_left = 4: planned for -1". Alignment is no promise that CPU
// kernels need: they take any address.
[[nodiscard]] Status check_bounds(const Bounds& bounds, const ResolvedProblem& problem);

}  // namespace headwater::cpu
