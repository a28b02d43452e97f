// The CPU backend's entry points.
#pragma once

#include "src/plan/impl.h"

namespace headwater::cpu {

[[nodiscard]] const BackendEntry& cpu_backend();

}  // namespace headwater::cpu
