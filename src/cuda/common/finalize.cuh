// From a row's merged (m, l) to the factor of its output and its lse, with the sink: rules 1 to 3 of the contract, once.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "src/core/partial.h"
#include "src/core/resolved.h"

namespace headwater::cuda {

struct RowResult {
  float factor = 0.0F;  // out = O * factor ...
  bool zero = false;    // ... unless the output is 0 whatever O holds
  float lse = 0.0F;
};

// m, l in log2 units (core/partial.h). sink: -inf = none.
__device__ inline RowResult finalize_row(float m, float l, float sink) {
  RowResult r;
  if (m == -INFINITY) {  // nothing visible
    r.zero = true;
    r.lse = -INFINITY;
    return r;
  }
  r.lse = (m + log2f(l)) * kLn2;  // NaN l (a NaN or +inf score) gives NaN
  if (l != l || m == INFINITY || m != m) {
    r.lse = NAN;
    r.factor = NAN;
    return r;
  }
  if (sink == INFINITY) {
    r.zero = true;
    return r;
  }
  r.factor = 1.0F / (sink == -INFINITY ? l : l + exp2f(sink * kLog2E - m));  // NaN sink: NaN
  return r;
}

__device__ inline float sink_of(const ResolvedProblem& p, int64_t request, int32_t head) {
  return p.sinks == nullptr ? -INFINITY : p.sinks[request * p.sinks_request_stride + head];
}

__device__ inline void store_output(const ResolvedProblem& p, int64_t row, int32_t head, int32_t column, float value) {
  std::byte* at = p.out + row * p.out_row_stride + head * p.out_head_stride;
  if (p.out_type == Type::kF32) {
    reinterpret_cast<float*>(at)[column] = value;
  } else if (p.out_type == Type::kBf16) {
    reinterpret_cast<__nv_bfloat16*>(at)[column] = __float2bfloat16_rn(value);
  } else {
    reinterpret_cast<__half*>(at)[column] = __float2half_rn(value);
  }
}

__device__ inline void store_lse(const ResolvedProblem& p, int64_t request, int64_t token, int64_t row, int32_t head, float lse) {
  if (p.lse != nullptr) p.lse[lse_offset(p, request, token, row, head)] = lse;
}

}  // namespace headwater::cuda
