// Accuracy of the vector exp2 and tanh over floats of every exponent.
#include "tests/cpu/exp2_probe.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "src/cpu/select.h"

namespace headwater::cpu {

#define HEADWATER_CPU_KERNEL(isa) \
  namespace isa {                 \
  extern const MathProbe probe;   \
  extern const Kernel kernel;     \
  }
#include "src/cpu/kernels.inc"
#undef HEADWATER_CPU_KERNEL

namespace {

struct Row {
  const Kernel* kernel;
  const MathProbe* probe;
};

std::vector<Row> rows() {
  std::vector<Row> all;
#define HEADWATER_CPU_KERNEL(isa) \
  if (isa::kernel.supported()) all.push_back({&isa::kernel, &isa::probe});
#include "src/cpu/kernels.inc"
#undef HEADWATER_CPU_KERNEL
  return all;
}

// Every `step`-th float from 0 down to -largest, in steps of bit patterns.
std::vector<float> negative_floats(float largest, uint32_t step) {
  std::vector<float> x;
  for (uint32_t bits = 0x80000000U; bits <= std::bit_cast<uint32_t>(-largest); bits += step) x.push_back(std::bit_cast<float>(bits));
  while (x.size() % 16 != 0) x.push_back(-1.0F);
  return x;
}

TEST(CpuExp2, RelativeError) {
  for (const Row& row : rows()) {
    const std::vector<float> x = negative_floats(126.0F, 977);
    std::vector<float> y(x.size());
    row.probe->exp2(x.data(), y.data(), static_cast<int>(x.size()));
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp2(static_cast<double>(x[i]));
      worst = std::max(worst, std::abs(y[i] - want) / want);
    }
    EXPECT_LE(worst, 1.3e-7) << row.kernel->isa;
    EXPECT_GE(worst, 1e-8) << "an exact answer everywhere means that nothing was measured";
  }
}

TEST(CpuExp2, Specials) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {0.0F, -0.0F, -1.0F,  -126.0F, -127.0F, -200.0F, -1e30F, -kInf, kNan, std::bit_cast<float>(0xffff0000U),
                                1.0F, 20.5F, 126.0F, -149.0F, -126.6F, 3.0F};
  for (const Row& row : rows()) {
    std::vector<float> y(x.size());
    row.probe->exp2(x.data(), y.data(), 16);
    EXPECT_EQ(y[0], 1.0F);
    EXPECT_EQ(y[1], 1.0F);
    EXPECT_EQ(y[2], 0.5F);
    EXPECT_EQ(y[3], std::ldexp(1.0F, -126));
    for (const size_t i : {4, 5, 6, 7, 13}) EXPECT_EQ(std::bit_cast<uint32_t>(y[i]), 0U) << row.kernel->isa << " " << x[i];
    EXPECT_TRUE(std::isnan(y[8]) && std::isnan(y[9])) << row.kernel->isa;
    EXPECT_EQ(y[10], 2.0F);
    EXPECT_NEAR(y[11] / std::exp2(20.5), 1.0, 2e-7);
    EXPECT_EQ(y[12], std::ldexp(1.0F, 126));
    EXPECT_LE(y[14], std::ldexp(1.0F, -126));
    EXPECT_EQ(y[15], 8.0F);
  }
}

TEST(CpuTanh, RelativeErrorAndSpecials) {
  for (const Row& row : rows()) {
    std::vector<float> x = negative_floats(100.0F, 4999);
    const size_t half = x.size();
    for (size_t i = 0; i < half; ++i) x.push_back(-x[i]);
    std::vector<float> y(x.size());
    row.probe->tanh(x.data(), y.data(), static_cast<int>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::tanh(static_cast<double>(x[i]));
      ASSERT_LE(std::abs(y[i] - want), 2.5e-7 * std::abs(want) + 1e-45) << row.kernel->isa << " " << x[i];
    }
    const std::vector<float> special = {std::numeric_limits<float>::infinity(),
                                        -std::numeric_limits<float>::infinity(),
                                        std::numeric_limits<float>::quiet_NaN(),
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0};
    row.probe->tanh(special.data(), y.data(), 16);
    EXPECT_EQ(y[0], 1.0F);
    EXPECT_EQ(y[1], -1.0F);
    EXPECT_TRUE(std::isnan(y[2]));
  }
}

}  // namespace
}  // namespace headwater::cpu
