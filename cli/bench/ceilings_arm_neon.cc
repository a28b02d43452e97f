#define HEADWATER_VECTOR_BYTES 16
#include "cli/bench/ceilings_isa-inl.h"

namespace headwater::cli {
namespace {
bool supported() { return true; }
}  // namespace

extern const CeilingKernel kCeilingKernel_arm_neon;
const CeilingKernel kCeilingKernel_arm_neon{"neon", &supported, &multiply_add, &read, &exponentials};
}  // namespace headwater::cli
