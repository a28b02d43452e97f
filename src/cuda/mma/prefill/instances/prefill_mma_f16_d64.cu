#include "src/cuda/mma/prefill/kernel.cuh"
#include "src/cuda/mma/prefill/kernel.h"

namespace headwater::cuda {

const Kernel prefill_mma_f16_d64 =
    prefill::Launcher<64, __half>::kernel("prefill_mma_f16_d64", "f16 queries and caches, widths to 64, 128 rows a KV head and more");

}  // namespace headwater::cuda
