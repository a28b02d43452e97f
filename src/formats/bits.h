// Float32 bits and the two conversions that all narrow IEEE-like formats share. No float arithmetic: the same bits on host and device,
// whatever FTZ/DAZ and rounding mode say.
#pragma once

#include <cstdint>

#include "src/core/hd.h"

namespace headwater::formats {

inline constexpr uint32_t kF32Inf = 0x7f800000U;
inline constexpr uint32_t kF32Nan = 0x7fc00000U;
inline constexpr uint32_t kF32Max = 0x7f7fffffU;

HEADWATER_HD constexpr uint32_t float_bits(float x) { return __builtin_bit_cast(uint32_t, x); }
HEADWATER_HD constexpr float bits_float(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// Magnitude code (exponent and mantissa fields, no sign) of a narrow format -> float32 magnitude bits. No special codes.
// A subnormal's mantissa is an integer count of the smallest step: converting it is exact, and the step is subtracted from the exponent.
template <int kMantissa, int kBias>
HEADWATER_HD constexpr uint32_t widen_magnitude(uint32_t code) {
  const uint32_t normal = (code << (23 - kMantissa)) + (static_cast<uint32_t>(127 - kBias) << 23);
  const uint32_t counted = float_bits(static_cast<float>(static_cast<int32_t>(code)));
  const uint32_t subnormal = code == 0 ? 0 : counted - (static_cast<uint32_t>(kBias - 1 + kMantissa) << 23);
  return code < (1U << kMantissa) ? subnormal : normal;
}

// Float32 magnitude bits (finite) -> magnitude code, round to nearest even; the exponent field may run past the format's own, which the
// caller turns into infinity or the largest finite value. Needs kBias <= 15: then float32 subnormals all round to 0.
template <int kMantissa, int kBias>
HEADWATER_HD constexpr uint32_t narrow_magnitude(uint32_t magnitude) {
  static_assert(kBias <= 15);
  constexpr int kDrop = 23 - kMantissa;
  const int32_t exponent = static_cast<int32_t>(magnitude >> 23) - 127 + kBias;
  const uint32_t mantissa = magnitude & 0x7fffffU;
  uint32_t value = (static_cast<uint32_t>(exponent) << 23) | mantissa;
  int drop = kDrop;
  if (exponent < 1) {
    drop = kDrop + 1 - exponent;
    if (drop > 25) return 0;
    value = mantissa | 0x800000U;
  }
  value += (1U << (drop - 1)) - 1U + ((value >> drop) & 1U);
  return value >> drop;
}

}  // namespace headwater::formats
