#include "src/cuda/mma/prefill/kernel.cuh"
#include "src/cuda/mma/prefill/kernel.h"

namespace headwater::cuda {

const Kernel prefill_mma_bf16_d128 = prefill::Launcher<128, __nv_bfloat16>::kernel(
    "prefill_mma_bf16_d128", "bf16 queries and caches, widths to 128, 128 rows a KV head and more");

}  // namespace headwater::cuda
