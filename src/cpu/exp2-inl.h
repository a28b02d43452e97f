// 2^x and tanh on vectors. Compiled per ISA.
#pragma once

#include "src/cpu/vector-inl.h"

namespace headwater::cpu::HEADWATER_CPU_ISA {
namespace {

// max(low, x) that lets a NaN x through.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V clamp_below(D /*d*/, V low, V x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
  return hn::Max(low, x);  // MAXPS returns its second operand if either is a NaN
#else
  return hn::IfThenElse(hn::Lt(x, low), low, x);  // Arm: Highway's Max is FMAXNM, which drops the NaN
#endif
}

// 2^x for x <= 127, relative error 1.2e-7 (tests/cpu/exp2_test.cc); 0 below -126.5, 2^0 = 1 exactly, NaN to NaN. A NaN must have nine low
// mantissa bits of 0, as every NaN here has (Element<kF32>): they would be added to the exponent.
// Degree 6: with the constant term held at 1, degree 5 is 4 times worse. 13 operations.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_of(D d, V x) {
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, 12582912.0F);  // 1.5 x 2^23: the sum's low mantissa bits are the rounded integer
  x = clamp_below(d, hn::Set(d, -127.0F), x);
  const V shifted = hn::Add(x, magic);
  const V f = hn::Sub(x, hn::Sub(shifted, magic));  // [-0.5, 0.5]
  V p = hn::Set(d, 0.00015594677824992687F);
  p = hn::MulAdd(p, f, hn::Set(d, 0.0013406643411144614F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.009617692790925503F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.055503103882074356F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.24022652208805084F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.6931472420692444F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0F));
  return hn::BitCast(d, hn::Add(hn::BitCast(du, p), hn::ShiftLeft<23>(hn::BitCast(du, shifted))));
}

// tanh, relative error 2e-7: an odd polynomial below 0.625 (where 1 - 2 / (e^2x + 1) would cancel), that formula above.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh_of(D d, V x) {
  const V a = hn::Abs(x);
  const V x2 = hn::Mul(x, x);
  V p = hn::Set(d, -5.70498872745E-3F);
  p = hn::MulAdd(p, x2, hn::Set(d, 2.06390887954E-2F));
  p = hn::MulAdd(p, x2, hn::Set(d, -5.37397155531E-2F));
  p = hn::MulAdd(p, x2, hn::Set(d, 1.33314422036E-1F));
  p = hn::MulAdd(p, x2, hn::Set(d, -3.33332819422E-1F));
  const V near_zero = hn::MulAdd(hn::Mul(p, x2), x, x);
  const V clamped = hn::IfThenElse(hn::Gt(a, hn::Set(d, 16.0F)), hn::Set(d, 16.0F), a);
  const V e = exp2_of(d, hn::Mul(clamped, hn::Set(d, 2.0F * 1.44269504F)));
  const V one = hn::Set(d, 1.0F);
  const V far = hn::CopySign(hn::Sub(one, hn::Div(hn::Set(d, 2.0F), hn::Add(e, one))), x);
  const V t = hn::IfThenElse(hn::Lt(a, hn::Set(d, 0.625F)), near_zero, far);
  return hn::IfThenElse(hn::IsNaN(x), x, t);
}

}  // namespace
}  // namespace headwater::cpu::HEADWATER_CPU_ISA
