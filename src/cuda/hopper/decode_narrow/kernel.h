// Rows of kernels.inc, by kv type and width of K.
#pragma once

#include "src/cuda/kernel.h"

namespace headwater::cuda {

extern const Kernel decode_narrow_bf16_d576;
extern const Kernel decode_narrow_e4m3_d576;
extern const Kernel decode_narrow_bf16_d128;

}  // namespace headwater::cuda
