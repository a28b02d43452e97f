// schedule_cuda: the planner's own steps (plan/balance.h) in one thread block, from lengths in device memory. Graph-safe.
#pragma once

#include <cuda_runtime_api.h>

#include "headwater/plan.h"
#include "src/plan/schedule.h"

namespace headwater::cuda {

struct ScheduleArgs {
  plan::PlanShape shape;
  plan::ScheduleView view;
  Lengths lengths;
  uint64_t fingerprint = 0;
  int32_t on_chip = 0;  // the arrays that the planner searches fit in shared memory
};

cudaError_t launch_schedule(ScheduleArgs args, int32_t smem_per_block, cudaStream_t stream);
cudaError_t warm_schedule(int32_t smem_per_block);

}  // namespace headwater::cuda
