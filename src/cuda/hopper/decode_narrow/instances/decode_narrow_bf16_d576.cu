#include "src/cuda/hopper/decode_narrow/kernel.h"
#include "src/cuda/hopper/decode_narrow/launcher.cuh"

namespace headwater::cuda {

const Kernel decode_narrow_bf16_d576 =
    narrow::Launcher<narrow::Config<576, 512, true, false, 32, 5, narrow::Copies::kBulk>, __nv_bfloat16>::kernel(
        "decode_narrow_bf16_d576", "sm_90: bf16 576/512, K = V, up to 16 rows");

}  // namespace headwater::cuda
