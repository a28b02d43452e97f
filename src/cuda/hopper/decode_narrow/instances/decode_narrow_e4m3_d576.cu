#include "src/cuda/hopper/decode_narrow/kernel.h"
#include "src/cuda/hopper/decode_narrow/launcher.cuh"

namespace headwater::cuda {

const Kernel decode_narrow_e4m3_d576 = narrow::Launcher<narrow::Config<576, 512, true, true, 64, 5, narrow::Copies::kBulk>, __half>::kernel(
    "decode_narrow_e4m3_d576", "sm_90: e4m3 576/512, K = V, up to 16 rows");

}  // namespace headwater::cuda
