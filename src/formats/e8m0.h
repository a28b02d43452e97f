// OCP e8m0 scale: 2^(byte - 127) for byte 0..254, 255 = NaN. No sign, no zero.
#pragma once

#include "src/formats/bits.h"

namespace headwater::formats {

// Byte 0 is 2^-127, a float32 subnormal.
HEADWATER_HD constexpr float decode_e8m0(uint8_t bits) {
  return bits_float(bits == 255U ? kF32Nan : bits == 0U ? 0x00400000U : static_cast<uint32_t>(bits) << 23);
}

// Exponent -> byte, clamped to [-127, 127].
HEADWATER_HD constexpr uint8_t e8m0_from_exponent(int32_t exponent) {
  return static_cast<uint8_t>(exponent < -127 ? 0 : exponent > 127 ? 254 : exponent + 127);
}

// Nearest power of two (halfway, 1.5 x 2^e: upwards), kept in 2^-127 .. 2^127; zero -> 2^-127; NaN, infinities, negatives -> 255.
HEADWATER_HD constexpr uint8_t encode_e8m0(float x) {
  const uint32_t bits = float_bits(x);
  if (bits == 0x80000000U) return 0;
  if (bits >= kF32Inf) return 255;
  uint32_t byte = bits >> 23;
  const uint32_t mantissa = bits & 0x7fffffU;
  // Below 2^-126 the leading bit is explicit: 2^-127 is mantissa 0x400000, halfway to 2^-126 is 0x600000.
  if (byte == 0) return mantissa >= 0x600000U ? 1 : 0;
  if (mantissa >= 0x400000U) ++byte;
  return static_cast<uint8_t>(byte > 254U ? 254U : byte);
}

}  // namespace headwater::formats
