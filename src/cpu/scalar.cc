#define HEADWATER_CPU_ISA scalar
#include "src/cpu/select.h"
#include "src/cpu/tile_attention-inl.h"

#if HWY_STATIC_TARGET != HWY_SCALAR
#error "cmake/isa_flags.cmake gives this file the flags of another target"
#endif

namespace headwater::cpu::scalar {

extern const Kernel kernel;
const Kernel kernel = {"panel_cpu_scalar", "scalar", "src/cpu/scalar.cc", &machine_has_scalar, &run_items};

}  // namespace headwater::cpu::scalar
