#include "src/cuda/mma/decode/kernel.h"
#include "src/cuda/mma/decode/launcher.cuh"

namespace headwater::cuda {

const Kernel decode_mma_bf16_d512_rows64 = decode::Launcher<decode::Wide512, __nv_bfloat16>::kernel(
    "decode_mma_bf16_d512_rows64", "every format but f32; bf16 or e4m3 queries; widths to 576/512; more than 16 rows a KV head");

}  // namespace headwater::cuda
