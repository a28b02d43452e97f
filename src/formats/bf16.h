// bfloat16: the upper half of a float32.
#pragma once

#include "src/formats/bits.h"

namespace headwater::formats {

HEADWATER_HD constexpr float decode_bf16(uint16_t bits) { return bits_float(static_cast<uint32_t>(bits) << 16); }

// RNE, subnormals kept; overflow and infinities -> infinity; NaN -> 0x7fc0.
HEADWATER_HD constexpr uint16_t encode_bf16(float x) {
  const uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffffU) > kF32Inf) return 0x7fc0U;
  return static_cast<uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace headwater::formats
