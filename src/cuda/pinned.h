// Page-locked host memory that a CUDA device reads and writes at the host's own address. For tools that judge results on the host and
// whose speed does not matter; every access of a kernel crosses the bus.
#pragma once

#include <cstddef>

namespace headwater::cuda {

// 256-byte aligned, from a pool of this process; null when the driver gives none.
[[nodiscard]] void* allocate_pinned(size_t bytes);
void release_pinned(void* data, size_t bytes);

}  // namespace headwater::cuda
