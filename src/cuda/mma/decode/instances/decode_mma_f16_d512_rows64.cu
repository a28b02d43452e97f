#include "src/cuda/mma/decode/kernel.h"
#include "src/cuda/mma/decode/launcher.cuh"

namespace headwater::cuda {

const Kernel decode_mma_f16_d512_rows64 = decode::Launcher<decode::Wide512, __half>::kernel(
    "decode_mma_f16_d512_rows64", "f16, e4m3, e5m2 caches; widths to 576/512; more than 16 rows a KV head");

}  // namespace headwater::cuda
