// merge_cuda: joins the partials of cut row blocks in their fixed order, applies sinks once, and gives the rows of requests whose
// lengths are not the scheduled ones NaN and the schedule an error bit. Launched after every attention kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "src/cuda/common/args.h"

namespace headwater::cuda {

// overlap: programmatic dependent launch behind the attention kernel (sm_90 and newer).
cudaError_t launch_merge(const KernelArgs& args, int32_t sm_count, bool overlap, cudaStream_t stream);
cudaError_t warm_merge();

}  // namespace headwater::cuda
