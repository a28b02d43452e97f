#define HEADWATER_CPU_ISA avx2
#include "src/cpu/select.h"
#include "src/cpu/tile_attention-inl.h"

static_assert(HWY_STATIC_TARGET == HWY_AVX2, "cmake/isa_flags.cmake gives this file the flags of another target");

namespace headwater::cpu::avx2 {

extern const Kernel kKernel;
const Kernel kKernel = {"panel_cpu_avx2", "avx2", "src/cpu/x86_avx2.cc", &machine_has_avx2, &RunItem};

}  // namespace headwater::cpu::avx2
