// What a host application may have done to the calling thread: FTZ and DAZ set, and rounding towards zero.
#pragma once

#include <cstdint>

namespace headwater {

class HostileFloatEnv {
 public:
  explicit HostileFloatEnv(bool on) : saved_(read()) {
    if (on) write(saved_ | kHostile);
  }
  ~HostileFloatEnv() { write(saved_); }
  HostileFloatEnv(const HostileFloatEnv&) = delete;
  HostileFloatEnv& operator=(const HostileFloatEnv&) = delete;

#if defined(__x86_64__) || defined(__i386__)
  using Word = uint32_t;
  static constexpr Word kHostile = 0xe040;
  static Word read() {
    Word word = 0;
    asm volatile("stmxcsr %0" : "=m"(word) : : "memory");
    return word & ~Word{0x3f};  // not the exception flags, which any arithmetic raises
  }
  static void write(Word word) { asm volatile("ldmxcsr %0" : : "m"(word) : "memory"); }
#else
  using Word = uint64_t;
  static constexpr Word kHostile = 0x01c80000;
  static Word read() {
    Word word = 0;
    asm volatile("mrs %0, fpcr" : "=r"(word) : : "memory");
    return word;
  }
  static void write(Word word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#endif

 private:
  Word saved_;
};

}  // namespace headwater
