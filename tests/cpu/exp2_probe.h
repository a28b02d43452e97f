// The vector functions of one ISA as plain functions over arrays (multiples of 16), so that a baseline test can call them.
#pragma once

namespace headwater::cpu {

struct MathProbe {
  void (*exp2)(const float* x, float* y, int count);
  void (*tanh)(const float* x, float* y, int count);
};

}  // namespace headwater::cpu
