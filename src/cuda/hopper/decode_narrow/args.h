// Parameters of a decode_narrow kernel.
#pragma once

#include "src/cuda/common/args.h"

namespace headwater::cuda::narrow {

struct NarrowArgs {
  KernelArgs base;
  int32_t grouped = 0;    // groups of entries are contiguous in the cache
  int32_t q_vectors = 0;  // queries are 16-bit and every 8 columns of a row can be read at once
};

}  // namespace headwater::cuda::narrow
