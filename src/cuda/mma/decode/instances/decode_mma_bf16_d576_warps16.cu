#include "src/cuda/mma/decode/kernel.h"
#include "src/cuda/mma/decode/launcher.cuh"

namespace headwater::cuda {

const Kernel decode_mma_bf16_d576_warps16 = decode::Launcher<decode::Latent576, __nv_bfloat16>::kernel(
    "decode_mma_bf16_d576_warps16", "every format but f32; bf16 or e4m3 queries; widths to 576; tiles of 64");

}  // namespace headwater::cuda
