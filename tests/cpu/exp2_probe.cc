// Compiled once per ISA with its flags and -DHEADWATER_CPU_ISA=<isa>.
#include "tests/cpu/exp2_probe.h"

#include "src/cpu/exp2-inl.h"

namespace headwater::cpu::HEADWATER_CPU_ISA {
namespace {

void exp2_array(const float* x, float* y, int count) {
  const DF d;
  for (int i = 0; i < count; i += kLanes) hn::StoreU(exp2_of(d, hn::LoadU(d, x + i)), d, y + i);
}

void tanh_array(const float* x, float* y, int count) {
  const DF d;
  for (int i = 0; i < count; i += kLanes) hn::StoreU(tanh_of(d, hn::LoadU(d, x + i)), d, y + i);
}

}  // namespace

extern const MathProbe probe;
const MathProbe probe = {&exp2_array, &tanh_array};

}  // namespace headwater::cpu::HEADWATER_CPU_ISA
