// Rows of kernels.inc. bf16 or f16: what the operands are; d: largest width; rows64: row blocks of more than 16 rows.
#pragma once

#include "src/cuda/kernel.h"

namespace headwater::cuda {

extern const Kernel decode_mma_f16_d512_rows64;
extern const Kernel decode_mma_bf16_d512_rows64;
extern const Kernel decode_mma_f16_d256;
extern const Kernel decode_mma_bf16_d256;
extern const Kernel decode_mma_f16_d576;
extern const Kernel decode_mma_bf16_d576;

}  // namespace headwater::cuda
