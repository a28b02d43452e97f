// The exponent of a power-of-two block scale, from the bits of the block's largest magnitude: exact, integers only.
#pragma once

#include "headwater/format.h"
#include "src/formats/bits.h"

namespace headwater::formats {

// The largest value of a block element: (1 + max_mantissa / 2^23) * 2^emax.
struct BlockElement {
  int32_t emax;
  uint32_t max_mantissa;
  uint32_t half_ulp;  // half a unit of the element's mantissa, in float32 mantissa bits
};
inline constexpr BlockElement kE2m1Block{2, 0x400000U, 0x200000U};  // 6
inline constexpr BlockElement kE4m3Block{8, 0x600000U, 0x080000U};  // 448

// Smallest magnitude that a block's maximum is taken for (DeepSeek's reference): 6 x 2^-126 for e2m1, 1e-4 for e4m3.
inline constexpr uint32_t kE2m1AmaxFloor = 0x01c00000U;
inline constexpr uint32_t kE4m3AmaxFloor = 0x38d1b717U;

// amax: float32 bits, finite and not negative. Result in [-127, 127].
HEADWATER_HD constexpr int32_t block_exponent(uint32_t amax, BlockElement element, BlockScaleRule rule) {
  if (amax == 0) return -127;
  int32_t exponent = static_cast<int32_t>(amax >> 23) - 127;
  uint32_t mantissa = amax & 0x7fffffU;
  if (exponent == -127) {
    exponent = -126;
    while ((mantissa & 0x800000U) == 0) {
      mantissa <<= 1;
      --exponent;
    }
    mantissa &= 0x7fffffU;
  }
  if (rule == BlockScaleRule::kRoundUp) exponent += mantissa > element.max_mantissa ? 1 : 0;
  if (rule == BlockScaleRule::kEven) exponent += mantissa + element.half_ulp >= 0x800000U ? 1 : 0;
  exponent -= element.emax;
  return exponent < -127 ? -127 : exponent > 127 ? 127 : exponent;
}

}  // namespace headwater::formats
