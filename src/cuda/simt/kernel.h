// attention_cuda_simt: float32 FMA, every problem. For f32 queries or caches, views that copies of 4 bytes cannot read, and as the
// fallback of everything else.
#pragma once

#include "src/cuda/kernel.h"

namespace headwater::cuda {

extern const Kernel attention_cuda_simt;

}  // namespace headwater::cuda
