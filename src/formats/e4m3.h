// OCP e4m3fn: bias 7, largest 448, no infinity, NaN = 0x7f and 0xff.
#pragma once

#include "src/formats/bits.h"

namespace headwater::formats {

HEADWATER_HD constexpr float decode_e4m3(uint8_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80U) << 24;
  const uint32_t code = bits & 0x7fU;
  return bits_float(sign | (code == 0x7fU ? kF32Nan : widen_magnitude<3, 7>(code)));
}

// RNE; overflow and infinities -> +-448; NaN -> 0x7f.
HEADWATER_HD constexpr uint8_t encode_e4m3(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > kF32Inf) return 0x7fU;
  const uint32_t code = magnitude == kF32Inf ? 0x7eU : narrow_magnitude<3, 7>(magnitude);
  return static_cast<uint8_t>(((bits >> 24) & 0x80U) | (code > 0x7eU ? 0x7eU : code));
}

}  // namespace headwater::formats
