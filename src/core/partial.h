// The (O, LSE) algebra in float32 and base 2: what kernels leave behind and how two of them join.
// A partial holds O unnormalised (sum_j 2^(z_j - m) v_j), the reference m and the sum l, z in log2 units.
//   absent: m = -inf, l = 0, O not read.
#pragma once

#include <cmath>

#include "src/core/hd.h"

namespace headwater {

inline constexpr float kLog2E = 1.44269504088896340736F;
inline constexpr float kLn2 = 0.69314718055994530942F;

// Factors that bring two partials to a common reference: result m = max, O = O_a * a + O_b * b, l = l_a * a + l_b * b.
// A factor of 0 means "absent: select, do not multiply" (its O may hold anything).
struct MergeFactors {
  float m;
  float a;
  float b;
};

HEADWATER_HD MergeFactors merge_factors(float m_a, float m_b) {
  const float ninf = -INFINITY;
  if (m_a == ninf) return {m_b, 0.0F, m_b == ninf ? 0.0F : 1.0F};
  if (m_b == ninf) return {m_a, 1.0F, 0.0F};
  const float m = (m_a > m_b || m_a != m_a) ? m_a : m_b;  // NaN wins
  return {m, exp2f(m_a - m), exp2f(m_b - m)};
}

}  // namespace headwater
