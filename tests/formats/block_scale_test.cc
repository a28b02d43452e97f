// The three rules for a power-of-two block scale.
#include "src/formats/block_scale.h"

#include <gtest/gtest.h>

#include <cmath>

#include "src/formats/bf16.h"

namespace headwater::formats {
namespace {

int32_t exponent_of(float amax, BlockElement element, BlockScaleRule rule) { return block_exponent(float_bits(amax), element, rule); }

TEST(BlockScale, WorkedNumbersOfE2m1) {
  struct Row {
    float amax;
    int32_t floor, even, round_up;
  };
  for (const Row& row :
       {Row{3.9F, -1, 0, 0}, {4.0F, 0, 0, 0}, {4.9F, 0, 0, 0}, {6.0F, 0, 0, 0}, {6.1F, 0, 0, 1}, {7.0F, 0, 1, 1}, {7.9F, 0, 1, 1}}) {
    EXPECT_EQ(exponent_of(row.amax, kE2m1Block, BlockScaleRule::kFloor), row.floor) << row.amax;
    EXPECT_EQ(exponent_of(row.amax, kE2m1Block, BlockScaleRule::kEven), row.even) << row.amax;
    EXPECT_EQ(exponent_of(row.amax, kE2m1Block, BlockScaleRule::kRoundUp), row.round_up) << row.amax;
  }
}

TEST(BlockScale, WorkedNumbersOfE4m3) {
  EXPECT_EQ(exponent_of(448.0F, kE4m3Block, BlockScaleRule::kRoundUp), 0);
  EXPECT_EQ(exponent_of(448.1F, kE4m3Block, BlockScaleRule::kRoundUp), 1);
  EXPECT_EQ(exponent_of(479.9F, kE4m3Block, BlockScaleRule::kEven), 0);
  EXPECT_EQ(exponent_of(480.0F, kE4m3Block, BlockScaleRule::kEven), 0);
  EXPECT_EQ(exponent_of(496.0F, kE4m3Block, BlockScaleRule::kEven), 1);
  EXPECT_EQ(exponent_of(511.0F, kE4m3Block, BlockScaleRule::kFloor), 0);
  EXPECT_EQ(exponent_of(1e-4F, kE4m3Block, BlockScaleRule::kRoundUp), -22);
  EXPECT_EQ(kE4m3AmaxFloor, float_bits(1e-4F));
  EXPECT_EQ(kE2m1AmaxFloor, float_bits(6.0F * 0x1p-126F));
}

TEST(BlockScale, ExtremesAreClamped) {
  for (const BlockScaleRule rule : {BlockScaleRule::kRoundUp, BlockScaleRule::kEven, BlockScaleRule::kFloor}) {
    EXPECT_EQ(block_exponent(0, kE2m1Block, rule), -127);
    EXPECT_EQ(block_exponent(1, kE2m1Block, rule), -127);
    EXPECT_EQ(block_exponent(1, kE4m3Block, rule), -127);
  }
  EXPECT_EQ(block_exponent(kF32Max, kE2m1Block, BlockScaleRule::kFloor), 125);
  EXPECT_EQ(block_exponent(kF32Max, kE2m1Block, BlockScaleRule::kRoundUp), 126);
  EXPECT_EQ(block_exponent(kF32Max, kE4m3Block, BlockScaleRule::kRoundUp), 120);
}

// DeepSeek's reference multiplies by the rounded reciprocal of the element's largest value and looks at the bits of the product. For every
// bfloat16 maximum that is the same exponent; the exact form differs only for float32 maxima within an ulp or two above the boundary.
TEST(BlockScale, RoundUpAgreesWithTheReciprocalForm) {
  for (const bool fp4 : {false, true}) {
    const float reciprocal = fp4 ? 1.0F / 6.0F : 1.0F / 448.0F;
    for (uint32_t code = 0x0180; code < 0x7f80; ++code) {
      const float amax = decode_bf16(static_cast<uint16_t>(code));
      const uint32_t product = float_bits(amax * reciprocal);
      if (product < 0x00800000U) continue;
      const int32_t expected = static_cast<int32_t>(product >> 23) - 127 + ((product & 0x7fffffU) != 0 ? 1 : 0);
      EXPECT_EQ(exponent_of(amax, fp4 ? kE2m1Block : kE4m3Block, BlockScaleRule::kRoundUp), expected) << amax;
    }
  }
}

// Round-up never saturates and never wastes more than one step.
TEST(BlockScale, RoundUpIsTheSmallestPowerThatFits) {
  for (uint32_t bits = 0x04000000U; bits < kF32Max; bits += 0x000fffefU) {
    const double amax = bits_float(bits);
    for (const bool fp4 : {false, true}) {
      const double largest = fp4 ? 6.0 : 448.0;
      const int32_t e = block_exponent(bits, fp4 ? kE2m1Block : kE4m3Block, BlockScaleRule::kRoundUp);
      EXPECT_LE(amax, std::ldexp(largest, e));
      EXPECT_GT(amax, std::ldexp(largest, e - 1));
    }
  }
}

}  // namespace
}  // namespace headwater::formats
