#define HEADWATER_CPU_ISA avx512
#include "src/cpu/select.h"
#include "src/cpu/tile_attention-inl.h"

#if HWY_STATIC_TARGET != HWY_AVX3
#error "cmake/isa_flags.cmake gives this file the flags of another target"
#endif

namespace headwater::cpu::avx512 {

extern const Kernel kernel;
const Kernel kernel = {"panel_cpu_avx512", "avx512", "src/cpu/x86_avx512.cc", &machine_has_avx512, &run_items};

}  // namespace headwater::cpu::avx512
