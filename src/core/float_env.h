// The floating-point environment of our arithmetic: round to nearest, subnormals kept. A host application may have set FTZ/DAZ
// (-ffast-math start-up code, torch.set_flush_denormal); every CPU entry point and every worker body stands under one of these.
#pragma once

#include <cstdint>

namespace headwater {

// Clears FTZ, DAZ and the rounding mode of the calling thread, and puts the whole control word back at the end of the scope (on x86 that
// includes the exception flags). Costs one read and one write of the control register.
// Hazard: a compiler may move arithmetic on values that it already holds in registers across either end of the scope. Put the
// arithmetic into a function that is not inlined and reads its operands from memory, as the public entry points do.
class ScopedFloatEnv {
 public:
  ScopedFloatEnv() : saved_(read()) {
    if ((saved_ & kClear) != 0) write(saved_ & ~kClear);
  }
  ~ScopedFloatEnv() { write(saved_); }
  ScopedFloatEnv(const ScopedFloatEnv&) = delete;
  ScopedFloatEnv& operator=(const ScopedFloatEnv&) = delete;

 private:
#if defined(__x86_64__) || defined(__i386__)
  using Word = uint32_t;
  static constexpr Word kClear = 0xe040;  // MXCSR: FTZ (15), rounding (14:13), DAZ (6)
  static Word read() {
    Word word = 0;
    asm volatile("stmxcsr %0" : "=m"(word) : : "memory");
    return word;
  }
  static void write(Word word) { asm volatile("ldmxcsr %0" : : "m"(word) : "memory"); }
#elif defined(__aarch64__)
  using Word = uint64_t;
  static constexpr Word kClear = 0x01c80003;  // FPCR: FZ (24), RMode (23:22), FZ16 (19), AH (1), FIZ (0)
  static Word read() {
    Word word = 0;
    asm volatile("mrs %0, fpcr" : "=r"(word) : : "memory");
    return word;
  }
  static void write(Word word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
#error "ScopedFloatEnv: teach it this architecture's floating-point control word"
#endif
  Word saved_;
};

}  // namespace headwater
