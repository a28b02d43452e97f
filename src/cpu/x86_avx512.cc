#define HEADWATER_CPU_ISA avx512
#include "src/cpu/select.h"
#include "src/cpu/tile_attention-inl.h"

static_assert(HWY_STATIC_TARGET == HWY_AVX3, "cmake/isa_flags.cmake gives this file the flags of another target");

namespace headwater::cpu::avx512 {

extern const Kernel kKernel;
const Kernel kKernel = {"panel_cpu_avx512", "avx512", "src/cpu/x86_avx512.cc", &machine_has_avx512, &RunItem};

}  // namespace headwater::cpu::avx512
