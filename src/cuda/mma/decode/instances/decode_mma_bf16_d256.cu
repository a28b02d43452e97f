#include "src/cuda/mma/decode/kernel.h"
#include "src/cuda/mma/decode/launcher.cuh"

namespace headwater::cuda {

const Kernel decode_mma_bf16_d256 = decode::Launcher<decode::Narrow256, __nv_bfloat16>::kernel(
    "decode_mma_bf16_d256", "every format but f32; bf16 or e4m3 queries; widths to 256");

}  // namespace headwater::cuda
