// Compiled once per ISA with its flags and -DHEADWATER_CPU_ISA=<isa>.
#include "tests/cpu/exp2_probe.h"

#include "src/cpu/exp2-inl.h"

namespace headwater::cpu::HEADWATER_CPU_ISA {
namespace {

void Exp2Array(const float* x, float* y, int count) {
  const DF d;
  for (int i = 0; i < count; i += kLanes) hn::StoreU(Exp2(d, hn::LoadU(d, x + i)), d, y + i);
}

void TanhArray(const float* x, float* y, int count) {
  const DF d;
  for (int i = 0; i < count; i += kLanes) hn::StoreU(Tanh(d, hn::LoadU(d, x + i)), d, y + i);
}

}  // namespace

extern const MathProbe kProbe;
const MathProbe kProbe = {&Exp2Array, &TanhArray};

}  // namespace headwater::cpu::HEADWATER_CPU_ISA
