#define HEADWATER_VECTOR_BYTES 32
#include "cli/bench/ceilings_isa-inl.h"

namespace headwater::cli {
extern const CeilingKernel kCeilingKernel_x86_avx2;
const CeilingKernel kCeilingKernel_x86_avx2{"avx2", [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); },
                                            &multiply_add, &read};
}  // namespace headwater::cli
