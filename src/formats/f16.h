// IEEE binary16.
#pragma once

#include "src/formats/bits.h"

namespace headwater::formats {

HEADWATER_HD constexpr float decode_f16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t code = bits & 0x7fffU;
  if (code >= 0x7c00U) return bits_float(sign | (code == 0x7c00U ? kF32Inf : kF32Nan));
  return bits_float(sign | widen_magnitude<10, 15>(code));
}

// RNE; overflow and infinities -> infinity; NaN -> 0x7e00.
HEADWATER_HD constexpr uint16_t encode_f16(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > kF32Inf) return 0x7e00U;
  const uint32_t code = magnitude == kF32Inf ? 0x7c00U : narrow_magnitude<10, 15>(magnitude);
  return static_cast<uint16_t>(((bits >> 16) & 0x8000U) | (code > 0x7c00U ? 0x7c00U : code));
}

}  // namespace headwater::formats
