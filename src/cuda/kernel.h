// The contract between the CUDA executor (backend.cc) and its attention kernels: one constant per row of kernels.inc.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "headwater/backend.h"
#include "src/cuda/common/args.h"
#include "src/plan/schedule.h"

namespace headwater::cuda {

// What the chooser knows of a device. Filled by device.cc; tests fill it by hand.
struct DeviceCaps {
  int32_t major = 0;
  int32_t minor = 0;
  int32_t sm_count = 0;
  int32_t smem_per_block = 0;  // opt-in limit
  int32_t smem_per_sm = 0;
  int32_t regs_per_sm = 65536;
};

struct Choice {
  const DeviceCaps& caps;
  const Bounds& bounds;
  bool batch_invariant = false;
  int32_t head_block = 1;  // query heads that share a KV head in every source
  bool checked = false;
};

struct Kernel {
  const char* name;
  const char* file;
  const char* accepts;                          // one line
  std::string (*refuse)(const Choice& choice);  // empty: accepted
  LaunchShape (*shape)(const Choice& choice);   // of an accepted choice
  plan::KernelTraits (*traits)(const Choice& choice);
  cudaError_t (*launch)(const KernelArgs& args, cudaStream_t stream);  // grid (workers, row_blocks)
  cudaError_t (*warm)();                                               // loads the module and sets attributes on the current device
};

// Best first; the SIMT kernel last.
const Kernel* const* kernel_list(int32_t* count);

}  // namespace headwater::cuda
