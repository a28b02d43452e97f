// The compiler's baseline for this architecture (SSE2 on x86-64: multiply and add apart).
#define HEADWATER_VECTOR_BYTES 16
#include "cli/bench/ceilings_isa-inl.h"

namespace headwater::cli {
namespace {
bool supported() { return true; }
}  // namespace

extern const CeilingKernel kCeilingKernel_scalar;
const CeilingKernel kCeilingKernel_scalar{"baseline", &supported, &multiply_add, &read, &exponentials};
}  // namespace headwater::cli
