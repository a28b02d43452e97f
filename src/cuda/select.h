// Which kernel runs: the first row of kernels.inc that accepts.
#pragma once

#include <vector>

#include "src/cuda/kernel.h"

namespace headwater::cuda {

// Query heads that share a KV head in every source.
[[nodiscard]] int32_t head_block_of(const Bounds& bounds);
// In list order.
[[nodiscard]] std::vector<KernelVerdict> verdicts(const DeviceCaps& caps, const Bounds& bounds, const PlanOptions& options);
[[nodiscard]] const Kernel* kernel_by_name(const std::string& name);

}  // namespace headwater::cuda
