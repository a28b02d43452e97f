// Parameters of a decode kernel.
#pragma once

#include "src/cuda/common/args.h"
#include "src/cuda/mma/decode/layout.h"

namespace headwater::cuda::decode {

struct DecodeArgs {
  KernelArgs base;
  Modes modes;
};

}  // namespace headwater::cuda::decode
