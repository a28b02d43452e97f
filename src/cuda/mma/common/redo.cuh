// Items with a result that is not finite, or queries that did not fit, once more in float32: rare, after everything else.
#pragma once

#include "src/cuda/common/exact_item.cuh"

namespace headwater::cuda::mma {

// Not inlined: the registers of the cold path are its own. All items of the worker whose flag is set.
static __device__ __noinline__ void redo_items(const KernelArgs& a, int32_t row_begin, int32_t rows, ExactStorage& storage) {
  for (int32_t i = a.view.worker_begin[blockIdx.x]; i < a.view.worker_begin[blockIdx.x + 1]; ++i) {
    const plan::WorkItem item = a.view.items[i];
    if (row_begin >= item.token_count * a.shape.head_block || !item_holds(a, item)) continue;
    if (a.redo[int64_t{i} * gridDim.y + blockIdx.y] != 0) exact_item(a, item, row_begin, row_begin + rows, storage);
  }
}

}  // namespace headwater::cuda::mma
