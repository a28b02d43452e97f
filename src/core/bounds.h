// Checks of what the caller of make_plan wrote down.
#pragma once

#include "headwater/plan.h"

namespace headwater {

// Every field of the bounds and options, named as in their structs: "bounds.sources[1].page_size = 0: must be at least 1".
[[nodiscard]] Status validate_bounds(const Bounds& bounds, const PlanOptions& options);

}  // namespace headwater
