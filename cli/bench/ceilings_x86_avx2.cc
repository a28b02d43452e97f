#define HEADWATER_VECTOR_BYTES 32
#include "cli/bench/ceilings_isa-inl.h"

namespace headwater::cli {
namespace {
bool supported() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
}  // namespace

extern const CeilingKernel kCeilingKernel_x86_avx2;
const CeilingKernel kCeilingKernel_x86_avx2{"avx2", &supported, &multiply_add, &read, &exponentials};
}  // namespace headwater::cli
