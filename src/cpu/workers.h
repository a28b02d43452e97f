// The parallel loop of CPU work.
#pragma once

#include <cstdint>

#include "headwater/plan.h"

namespace headwater::cpu {

// CPUs that this process may use: its affinity mask, not the machine's count. At least 1.
[[nodiscard]] int32_t available_workers();

// Calls body(arg, task) for every task in [0, tasks) and returns when all are done. Each call stands under a ScopedFloatEnv (FTZ/DAZ
// and rounding mode cleared, then restored), whatever thread it runs on. hook.run == nullptr: OpenMP, or std::thread where the build
// has no OpenMP; one task runs on the calling thread.
void parallel_for(const ParallelFor& hook, int32_t tasks, void (*body)(void* arg, int32_t task), void* arg);

}  // namespace headwater::cpu
