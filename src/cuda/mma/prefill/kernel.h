// Rows of kernels.inc: many query rows a KV head, head sizes up to 128, 16-bit caches of the query's own type.
#pragma once

#include "src/cuda/kernel.h"

namespace headwater::cuda {

extern const Kernel prefill_mma_bf16_d128;
extern const Kernel prefill_mma_f16_d128;

}  // namespace headwater::cuda
