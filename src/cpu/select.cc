#include "src/cpu/select.h"

#include <cstdlib>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace headwater::cpu {

#define HEADWATER_CPU_KERNEL(isa) \
  namespace isa {                 \
  extern const Kernel kernel;     \
  }
#include "src/cpu/kernels.inc"
#undef HEADWATER_CPU_KERNEL

namespace {

#define HEADWATER_CPU_KERNEL(isa) &isa::kernel,
constexpr const Kernel* kKernels[] = {
#include "src/cpu/kernels.inc"
};
#undef HEADWATER_CPU_KERNEL

#if defined(__x86_64__)
struct Features {
  bool avx2 = false;
  bool avx512 = false;
};

Features read_features() {
  constexpr uint64_t kYmm = 0x6;   // XCR0: XMM and YMM state
  constexpr uint64_t kZmm = 0xe6;  // and opmask, ZMM0-15, ZMM16-31
  Features features;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return features;
  const bool osxsave = (ecx & bit_OSXSAVE) != 0;
  const bool base =
      (ecx & bit_FMA) != 0 && (ecx & bit_F16C) != 0 && (ecx & bit_AVX) != 0 && (ecx & bit_PCLMUL) != 0 && (ecx & bit_AES) != 0;
  if (!osxsave || !base) return features;
  unsigned low = 0;
  unsigned high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  const uint64_t xcr0 = (uint64_t{high} << 32) | low;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return features;
  features.avx2 = (xcr0 & kYmm) == kYmm && (ebx & bit_AVX2) != 0 && (ebx & bit_BMI) != 0 && (ebx & bit_BMI2) != 0;
  constexpr unsigned kAvx512 = bit_AVX512F | bit_AVX512VL | bit_AVX512DQ | bit_AVX512BW | bit_AVX512CD;
  features.avx512 = features.avx2 && (xcr0 & kZmm) == kZmm && (ebx & kAvx512) == kAvx512;
  return features;
}

const Features& features() {
  static const Features found = read_features();
  return found;
}
#endif

// The option, or else the environment.
std::string forced(const std::string& option, const char* variable) {
  if (!option.empty()) return option;
  const char* const value = std::getenv(variable);
  return value == nullptr ? std::string() : std::string(value);
}

std::string refusal(const Kernel& kernel, const Bounds& bounds, const std::string& name, const std::string& isa) {
  if (bounds.device.kind != DeviceKind::kCpu) return "runs on CPU memory only";
  if (!name.empty() && name != kernel.name) return "kernel \"" + name + "\" is forced";
  if (!isa.empty() && isa != kernel.isa) return "isa \"" + isa + "\" is forced";
  if (!kernel.supported()) return std::string("this machine has no ") + kernel.isa;
  return {};
}

}  // namespace

std::span<const Kernel* const> kernels() { return kKernels; }

#if defined(__x86_64__)
bool machine_has_avx512() { return features().avx512; }
bool machine_has_avx2() { return features().avx2; }
bool machine_has_neon() { return false; }
#else
bool machine_has_avx512() { return false; }
bool machine_has_avx2() { return false; }
bool machine_has_neon() { return true; }  // every aarch64 has it; the flags' crypto extension is not used
#endif
bool machine_has_scalar() { return true; }

std::vector<KernelVerdict> select(const Bounds& bounds, const PlanOptions& options) {
  const std::string name = forced(options.kernel, "HEADWATER_FORCE_KERNEL");
  const std::string isa = forced(options.isa, "HEADWATER_FORCE_ISA");
  std::vector<KernelVerdict> verdicts;
  for (const Kernel* kernel : kKernels) {
    const std::string reason = refusal(*kernel, bounds, name, isa);
    verdicts.push_back({kernel->name, reason.empty(), reason});
  }
  return verdicts;
}

Result<const Kernel*> choose(const Bounds& bounds, const PlanOptions& options) {
  const std::string name = forced(options.kernel, "HEADWATER_FORCE_KERNEL");
  const std::string isa = forced(options.isa, "HEADWATER_FORCE_ISA");
  std::string reasons;
  for (const Kernel* kernel : kKernels) {
    const std::string reason = refusal(*kernel, bounds, name, isa);
    if (reason.empty()) return kernel;
    if (!reasons.empty()) reasons += "; ";
    reasons.append(kernel->name).append(": ").append(reason);
  }
  return unsupported("no CPU kernel takes this: " + reasons);
}

}  // namespace headwater::cpu
