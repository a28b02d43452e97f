// OCP e2m1 (fp4): 0 .5 1 1.5 2 3 4 6 and their negatives. No infinity, no NaN. Packed two per byte, the even column in the low nibble.
#pragma once

#include "src/formats/bits.h"

namespace headwater::formats {

// Only the low four bits are read.
HEADWATER_HD constexpr float decode_e2m1(uint8_t bits) {
  return bits_float((static_cast<uint32_t>(bits & 8U) << 28) | widen_magnitude<1, 1>(bits & 7U));
}

// RNE; overflow and infinities -> +-6; NaN -> 0: the block scale must carry it.
HEADWATER_HD constexpr uint8_t encode_e2m1(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > kF32Inf) return 0;
  const uint32_t code = magnitude == kF32Inf ? 7U : narrow_magnitude<1, 1>(magnitude);
  return static_cast<uint8_t>(((bits >> 28) & 8U) | (code > 7U ? 7U : code));
}

}  // namespace headwater::formats
