#define HEADWATER_CPU_ISA scalar
#include "src/cpu/select.h"
#include "src/cpu/tile_attention-inl.h"

static_assert(HWY_STATIC_TARGET == HWY_SCALAR, "cmake/isa_flags.cmake gives this file the flags of another target");

namespace headwater::cpu::scalar {

extern const Kernel kKernel;
const Kernel kKernel = {"panel_cpu_scalar", "scalar", "src/cpu/scalar.cc", &machine_has_scalar, &RunItem};

}  // namespace headwater::cpu::scalar
