// Rows of kernels.inc. kv type, widths, and how tiles are brought: bulk copies, or cp.async.
#pragma once

#include "src/cuda/kernel.h"

namespace headwater::cuda {

extern const Kernel decode_narrow_bf16_d576;
extern const Kernel decode_narrow_bf16_d576_whole;
extern const Kernel decode_narrow_bf16_d576_async;
extern const Kernel decode_narrow_e4m3_d576;
extern const Kernel decode_narrow_e4m3_d576_whole;
extern const Kernel decode_narrow_e4m3_d576_async;
extern const Kernel decode_narrow_bf16_d128_async;
extern const Kernel decode_narrow_bf16_d128;
extern const Kernel decode_narrow_bf16_d128_whole;
extern const Kernel probe_bf16_loads;
extern const Kernel probe_bf16_compute;
extern const Kernel probe_e4m3_loads;
extern const Kernel probe_e4m3_compute;
extern const Kernel probe_d128_loads;
extern const Kernel probe_d128_compute;

}  // namespace headwater::cuda
