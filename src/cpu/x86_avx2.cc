#define HEADWATER_CPU_ISA avx2
#include "src/cpu/select.h"
#include "src/cpu/tile_attention-inl.h"

#if HWY_STATIC_TARGET != HWY_AVX2
#error "cmake/isa_flags.cmake gives this file the flags of another target"
#endif

namespace headwater::cpu::avx2 {

extern const Kernel kernel;
const Kernel kernel = {"panel_cpu_avx2", "avx2", "src/cpu/x86_avx2.cc", &machine_has_avx2, &run_items};

}  // namespace headwater::cpu::avx2
