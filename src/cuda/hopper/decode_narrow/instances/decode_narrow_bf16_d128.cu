#include "src/cuda/hopper/decode_narrow/kernel.h"
#include "src/cuda/hopper/decode_narrow/launcher.cuh"

namespace headwater::cuda {

const Kernel decode_narrow_bf16_d128 =
    narrow::Launcher<narrow::Config<128, 128, false, false, 64, 6, narrow::Copies::kAsync>, __nv_bfloat16>::kernel(
        "decode_narrow_bf16_d128", "sm_90: bf16 128/128, up to 16 rows");

}  // namespace headwater::cuda
