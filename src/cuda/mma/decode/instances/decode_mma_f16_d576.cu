#include "src/cuda/mma/decode/kernel.h"
#include "src/cuda/mma/decode/launcher.cuh"

namespace headwater::cuda {

const Kernel decode_mma_f16_d576 =
    decode::Launcher<decode::Narrow576, __half>::kernel("decode_mma_f16_d576", "f16, e4m3, e5m2 caches; widths to 576");

}  // namespace headwater::cuda
