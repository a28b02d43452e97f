// ScopedFloatEnv clears what a host application set, and puts it back.
#include "src/core/float_env.h"

#include <gtest/gtest.h>

#include "tests/support/hostile_float_env.h"

namespace headwater {
namespace {

__attribute__((noinline)) void multiply(const float& a, const float& b, float* product) { *product = a * b; }

TEST(ScopedFloatEnv, KeepsSubnormalsAndRestores) {
  const float a = 0x1p-126F;
  const float half = 0.5F;
  const float subnormal = 0x1p-140F;
  const float big = 0x1p+100F;
  float product = 1.0F;
  const HostileFloatEnv hostile(true);
  const HostileFloatEnv::Word before = HostileFloatEnv::read();
  multiply(a, half, &product);
  const bool flushed_result = product == 0.0F;
  multiply(subnormal, big, &product);
  const bool flushed_operand = product == 0.0F;
  float kept_result = 0.0F;
  float kept_operand = 0.0F;
  float rounded = 0.0F;
  {
    const ScopedFloatEnv env;
    multiply(a, half, &kept_result);
    multiply(subnormal, big, &kept_operand);
    multiply(0x1.000002p+0F, 0x1.8p+0F, &rounded);
  }
  EXPECT_EQ(HostileFloatEnv::read() & HostileFloatEnv::kHostile, before & HostileFloatEnv::kHostile);
  EXPECT_TRUE(flushed_result);
  EXPECT_TRUE(flushed_operand);
  const ScopedFloatEnv env;  // comparisons below must see subnormals
  EXPECT_EQ(kept_result, 0x1p-127F);
  EXPECT_EQ(kept_operand, 0x1p-40F);
  EXPECT_EQ(rounded, 0x1.800004p+0F);
}

TEST(ScopedFloatEnv, RestoresExceptionFlags) {
  const HostileFloatEnv::Word before = HostileFloatEnv::read();
  {
    const ScopedFloatEnv env;
    float product = 0.0F;
    multiply(3e38F, 3e38F, &product);
    EXPECT_GT(product, 3e38F);
  }
  EXPECT_EQ(HostileFloatEnv::read(), before);
}

}  // namespace
}  // namespace headwater
