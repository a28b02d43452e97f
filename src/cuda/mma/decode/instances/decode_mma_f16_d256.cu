#include "src/cuda/mma/decode/kernel.h"
#include "src/cuda/mma/decode/launcher.cuh"

namespace headwater::cuda {

const Kernel decode_mma_f16_d256 =
    decode::Launcher<decode::Narrow256, __half>::kernel("decode_mma_f16_d256", "f16, e4m3, e5m2 caches; widths to 256");

}  // namespace headwater::cuda
