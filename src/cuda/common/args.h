// What every attention and merge kernel gets: the resolved problem, the plan's shape and the caller's buffers, by value.
// About 11 KB: above the classic 4 KB, inside the 32,764 bytes that CUDA 12.1 and newer pass to sm_70 and newer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/core/resolved.h"
#include "src/plan/schedule.h"
#include "src/plan/work.h"

namespace headwater::cuda {

// Tuning that the host fixes when it plans: run-time data, so that one instance serves every device and record.
struct LaunchShape {
  int32_t stages = 1;         // tiles in flight
  int32_t stage_bytes = 0;    // raw bytes of a tile, K and V
  int32_t smem_bytes = 0;     // dynamic shared memory of a block
  int32_t blocks_per_sm = 1;  // resident at once
  int32_t row_blocks = 1;     // grid.y: pieces of kRows that a row block is cut into
  int32_t rows = 16;          // query rows of a thread block
};

struct KernelArgs {
  ResolvedProblem problem;
  plan::PlanShape shape;
  plan::ScheduleView view;
  std::byte* partials = nullptr;  // slot 0
  int64_t partial_stride = 0;     // bytes
  unsigned char* redo = nullptr;  // [max_items, grid.y] the block's own notes: this item once more in float32
  int32_t partial_rows = 0;       // tokens_per_block * head_block: where m and l stand in a slot
  int32_t checked = 0;            // verify table entries, count skipped indices
  uint64_t fingerprint = 0;
  LaunchShape launch;
};
static_assert(sizeof(KernelArgs) < 32000);

}  // namespace headwater::cuda
