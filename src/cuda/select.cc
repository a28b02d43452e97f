#include "src/cuda/select.h"

#include <array>
#include <numeric>

#if defined(HEADWATER_CUDA_HOPPER)
#include "src/cuda/hopper/decode_narrow/kernel.h"
#endif
#include "src/cuda/mma/decode/kernel.h"
#include "src/cuda/mma/prefill/kernel.h"
#include "src/cuda/simt/kernel.h"

namespace headwater::cuda {
namespace {

constexpr std::array kKernels = {
#define HEADWATER_CUDA_KERNEL(constant) &constant,
#include "src/cuda/kernels.inc"
#undef HEADWATER_CUDA_KERNEL
};

}  // namespace

const Kernel* const* kernel_list(int32_t* count) {
  *count = static_cast<int32_t>(kKernels.size());
  return kKernels.data();
}

int32_t head_block_of(const Bounds& bounds) {
  int32_t block = 0;
  for (const SourceBounds& source : bounds.sources) block = std::gcd(block, bounds.heads / source.heads);
  return block < 1 ? 1 : block;
}

std::vector<KernelVerdict> verdicts(const DeviceCaps& caps, const Bounds& bounds, const PlanOptions& options) {
  const Choice choice{caps, bounds, options.batch_invariant, head_block_of(bounds), options.checked};
  std::vector<KernelVerdict> list;
  for (const Kernel* kernel : kKernels) {
    KernelVerdict verdict;
    verdict.kernel = kernel->name;
    verdict.reason = caps.major < 8 ? "needs compute capability 8.0" : kernel->refuse(choice);
    verdict.accepted = verdict.reason.empty();
    list.push_back(std::move(verdict));
  }
  return list;
}

const Kernel* kernel_by_name(const std::string& name) {
  for (const Kernel* kernel : kKernels) {
    if (name == kernel->name) return kernel;
  }
  return nullptr;
}

}  // namespace headwater::cuda
