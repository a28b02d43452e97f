// The kernel list, what this machine runs of it, and the choice.
#pragma once

#include <span>
#include <vector>

#include "headwater/backend.h"
#include "src/cpu/kernel.h"

namespace headwater::cpu {

// Every kernel of this build, best first.
[[nodiscard]] std::span<const Kernel* const> kernels();

// Instructions that the processor has and the operating system saves (CPUID and XCR0).
[[nodiscard]] bool machine_has_avx512();
[[nodiscard]] bool machine_has_avx2();
[[nodiscard]] bool machine_has_neon();
[[nodiscard]] bool machine_has_scalar();

// Verdicts in list order. Forced by options, else by HEADWATER_FORCE_KERNEL and HEADWATER_FORCE_ISA.
[[nodiscard]] std::vector<KernelVerdict> select(const Bounds& bounds, const PlanOptions& options);
// The first that accepts. kUnsupported with every reason if none does.
[[nodiscard]] Result<const Kernel*> choose(const Bounds& bounds, const PlanOptions& options);

}  // namespace headwater::cpu
