// OCP e5m2: bias 15, largest finite 57344, IEEE infinities and NaN; the upper half of a binary16.
#pragma once

#include "src/formats/bits.h"
#include "src/formats/f16.h"

namespace headwater::formats {

HEADWATER_HD constexpr float decode_e5m2(uint8_t bits) { return decode_f16(static_cast<uint16_t>(static_cast<uint32_t>(bits) << 8)); }

// RNE; overflow and infinities -> +-57344, as for e4m3 (quantising never makes an infinity); NaN -> 0x7e.
HEADWATER_HD constexpr uint8_t encode_e5m2(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > kF32Inf) return 0x7eU;
  const uint32_t code = magnitude == kF32Inf ? 0x7bU : narrow_magnitude<2, 15>(magnitude);
  return static_cast<uint8_t>(((bits >> 24) & 0x80U) | (code > 0x7bU ? 0x7bU : code));
}

}  // namespace headwater::formats
