// The vector type of an ISA. Compiled per ISA.
#pragma once

#include "hwy/highway.h"

namespace headwater::cpu::HEADWATER_CPU_ISA {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
constexpr int kLanes = HWY_LANES(float) < 16 ? HWY_LANES(float) : 16;

}  // namespace
}  // namespace headwater::cpu::HEADWATER_CPU_ISA
