// A host schedule in words and figures: for explain, tests and the command line.
#pragma once

#include <cstdint>
#include <vector>

#include "headwater/backend.h"
#include "src/plan/schedule.h"

namespace headwater::plan {

// Cost units of every worker's items: tiles * tile_units + block_cost an item.
[[nodiscard]] std::vector<int64_t> worker_loads(const PlanShape& shape, const ScheduleView& view);

// What no worker's load exceeds: ceil(U / W), and at each end of its range less than two of the longest minimal fragments (plus their
// start), since a position moves at most that far to reach a legal cut. U: the line of work, the starts of cut fragments left out.
[[nodiscard]] int64_t load_bound(const PlanShape& shape, const ScheduleView& view);

// Fills items, split_blocks, worker_load, load_bound and timeline, and appends the plan's lines. A null or empty schedule: the plan's lines
// only.
void describe(const PlanShape& shape, const ScheduleView* view, Explanation* explanation);

}  // namespace headwater::plan
