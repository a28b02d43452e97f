#define HEADWATER_CPU_ISA neon
#include "src/cpu/select.h"
#include "src/cpu/tile_attention-inl.h"

#if HWY_STATIC_TARGET != HWY_NEON
#error "cmake/isa_flags.cmake gives this file the flags of another target"
#endif

namespace headwater::cpu::neon {

extern const Kernel kernel;
const Kernel kernel = {"panel_cpu_neon", "neon", "src/cpu/arm_neon.cc", &machine_has_neon, &run_items};

}  // namespace headwater::cpu::neon
