// Rows of kernels.inc. bf16 or f16: what the operands are; d: largest width; rows64: row blocks of more than 16 rows;
// warps16: 512 threads and tiles of 64 entries, where shared memory allows.
#pragma once

#include "src/cuda/kernel.h"

namespace headwater::cuda {

extern const Kernel decode_mma_f16_d512_rows64;
extern const Kernel decode_mma_bf16_d512_rows64;
extern const Kernel decode_mma_f16_d256;
extern const Kernel decode_mma_bf16_d256;
extern const Kernel decode_mma_f16_d576_warps16;
extern const Kernel decode_mma_bf16_d576_warps16;
extern const Kernel decode_mma_f16_d576;
extern const Kernel decode_mma_bf16_d576;

}  // namespace headwater::cuda
