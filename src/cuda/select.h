// Which kernel runs: the first row of kernels.inc that accepts.
#pragma once

#include <vector>

#include "src/cuda/kernel.h"

namespace headwater::cuda {

// Query heads that share a KV head in every source.
[[nodiscard]] int32_t head_block_of(const Bounds& bounds);
// In list order. A kernel that other bounds over the same problem would not choose refuses batch_invariant, for that mode promises the
// same bits under any bounds. Types, widths, heads, formats, rules and page sizes are the problem's own, since `run` refuses others; the
// lengths, q_len, softcap and alignment of bounds are not. (Alignment below 4 bytes, which only the float32 kernel takes, counts as
// layout.)
[[nodiscard]] std::vector<KernelVerdict> verdicts(const DeviceCaps& caps, const Bounds& bounds, const PlanOptions& options);
[[nodiscard]] const Kernel* kernel_by_name(const std::string& name);

}  // namespace headwater::cuda
