// The CUDA backend behind the public API.
#pragma once

#include "src/plan/impl.h"

namespace headwater::cuda {

[[nodiscard]] const BackendEntry& cuda_backend();

}  // namespace headwater::cuda
