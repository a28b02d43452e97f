// Decoded values for the columns that do not fill a vector, and for block scales. In a file of their own because the per-ISA objects may
// not instantiate the inline codecs of src/formats: the linker could keep their copies for everyone.
#pragma once

#include <cstdint>

namespace headwater::cpu {

struct DecodeTables {
  float e4m3[256];
  float e5m2[256];
  float e8m0[256];
  float e2m1[16];
};
extern const DecodeTables decode_tables;

[[nodiscard]] float f16_value(uint16_t bits);

}  // namespace headwater::cpu
