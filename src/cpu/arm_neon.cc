#define HEADWATER_CPU_ISA neon
#include "src/cpu/select.h"
#include "src/cpu/tile_attention-inl.h"

static_assert(HWY_STATIC_TARGET == HWY_NEON, "cmake/isa_flags.cmake gives this file the flags of another target");

namespace headwater::cpu::neon {

extern const Kernel kKernel;
const Kernel kKernel = {"panel_cpu_neon", "neon", "src/cpu/arm_neon.cc", &machine_has_neon, &RunItem};

}  // namespace headwater::cpu::neon
