#define HEADWATER_VECTOR_BYTES 64
#include "cli/bench/ceilings_isa-inl.h"

namespace headwater::cli {
namespace {
bool supported() { return __builtin_cpu_supports("avx512f") != 0; }
}  // namespace

extern const CeilingKernel kCeilingKernel_x86_avx512;
const CeilingKernel kCeilingKernel_x86_avx512{"avx512", &supported, &multiply_add, &read, &exponentials};
}  // namespace headwater::cli
