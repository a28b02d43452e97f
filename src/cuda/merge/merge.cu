#include "src/cuda/common/finalize.cuh"
#include "src/cuda/common/launch.cuh"
#include "src/cuda/common/lengths.cuh"
#include "src/cuda/merge/kernel.h"

namespace headwater::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kColumns = 128;  // of a warp's unit: 4 a lane
constexpr int kAtOnce = 8;     // partials in flight

struct Joined {
  float m = -INFINITY;
  float l = 0.0F;
  float o[4] = {0.0F, 0.0F, 0.0F, 0.0F};
};

struct Place {  // of a unit in every slot of a merge
  const std::byte* slots = nullptr;
  int64_t stride = 0;
  int64_t o = 0;  // floats: row's first column of this lane
  int64_t m = 0;
  int64_t l = 0;
  int32_t columns = 0;  // valid of this lane's 4
  bool vector = false;  // 16-byte loads are aligned
};

__device__ const float* slot_of(const Place& place, const plan::MergeItem& merge, int32_t i) {
  return reinterpret_cast<const float*>(place.slots + plan::partial_slot(merge, i) * place.stride);
}

__device__ float reference_of(const Place& place, const plan::MergeItem& merge) {
  float top = -INFINITY;
  for (int32_t i = static_cast<int32_t>(threadIdx.x % 32); i < merge.num_partials; i += 32)
    top = fmaxf(top, slot_of(place, merge, i)[place.m]);
  for (int o = 16; o > 0; o /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, o));
  return top;
}

__device__ void load_columns(const Place& place, const float* slot, float (&value)[4]) {
  if (place.vector && place.columns == 4) {
    const float4 v = *reinterpret_cast<const float4*>(slot + place.o);
    value[0] = v.x;
    value[1] = v.y;
    value[2] = v.z;
    value[3] = v.w;
    return;
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) value[c] = c < place.columns ? slot[place.o + c] : 0.0F;
}

// Left to right: O and l grow in the order of the partials, all brought to the largest m first.
__device__ Joined join(const Place& place, const plan::MergeItem& merge) {
  Joined joined;
  joined.m = reference_of(place, merge);
  if (joined.m == -INFINITY) return joined;
  for (int32_t first = 0; first < merge.num_partials; first += kAtOnce) {
    float value[kAtOnce][4];
    float m[kAtOnce];
    float l[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= merge.num_partials) break;
      const float* slot = slot_of(place, merge, first + i);
      m[i] = slot[place.m];
      l[i] = slot[place.l];
      load_columns(place, slot, value[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= merge.num_partials || m[i] == -INFINITY) continue;  // absent: its O is not used
      const float factor = exp2f(m[i] - joined.m);
      joined.l += l[i] * factor;
#pragma unroll
      for (int c = 0; c < 4; ++c) joined.o[c] += value[i][c] * factor;
    }
  }
  return joined;
}

__device__ void merge_unit(const KernelArgs& a, const plan::MergeItem& merge, int32_t row_in_block, int32_t chunk) {
  const ResolvedProblem& p = a.problem;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t column = chunk * kColumns + 4 * lane;
  Place place;
  place.slots = a.partials;
  place.stride = a.partial_stride;
  place.o = int64_t{row_in_block} * p.d_v + column;
  place.m = int64_t{a.partial_rows} * p.d_v + row_in_block;
  place.l = place.m + a.partial_rows;
  place.columns = p.d_v - column < 0 ? 0 : p.d_v - column < 4 ? p.d_v - column : 4;
  place.vector = p.d_v % 4 == 0;
  const Joined joined = join(place, merge);
  const int32_t token = merge.token_begin + row_in_block / a.shape.head_block;
  const int32_t head = merge.head_block * a.shape.head_block + row_in_block % a.shape.head_block;
  const int64_t row = a.view.q_begin[merge.request] + token;
  const RowResult result = finalize_row(joined.m, joined.l, sink_of(p, merge.request, head));
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    if (c < place.columns) store_output(p, row, head, column + c, result.zero ? 0.0F : joined.o[c] * result.factor);
  }
  if (chunk == 0 && lane == 0) store_lse(p, merge.request, token, row, head, result.lse);
}

// The rows that the problem now gives to a request whose schedule does not hold.
__device__ void poison_request(const KernelArgs& a, int64_t request) {
  const ResolvedProblem& p = a.problem;
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  const int64_t begin = p.qo_indptr[request] < 0 ? 0 : p.qo_indptr[request];
  const int64_t end = p.qo_indptr[request + 1] < p.total_q ? p.qo_indptr[request + 1] : p.total_q;
  for (int64_t row = begin; row < end; ++row) {
    for (int32_t head = 0; head < p.heads; ++head) {
      for (int32_t c = lane; c < p.d_v; c += 32) store_output(p, row, head, c, NAN);
      if (lane == 0) store_lse(p, request, row - p.qo_indptr[request], row, head, NAN);
    }
  }
  if (lane == 0) atomicOr(&a.view.header->error, plan::kStaleLengths);
}

// One warp per request, all lanes together.
__device__ void check_request_rows(const KernelArgs& a, int64_t request, bool ours) {
  const ResolvedProblem& p = a.problem;
  bool holds = ours && lengths_hold(a, request);
  if (holds) {
    bool gathered = false;
    for (int32_t i = 0; i < p.num_sources; ++i) gathered = gathered || (p.sources[i].rule == RuleKind::kGathered && p.sources[i].topk_lens);
    if (gathered) {
      for (int64_t row = p.qo_indptr[request] + static_cast<int64_t>(threadIdx.x % 32); row < p.qo_indptr[request + 1]; row += 32) {
        holds = holds && topk_holds(a, row);
      }
    }
  }
  if (!__all_sync(0xffffffffU, holds)) poison_request(a, request);
}

__global__ void __launch_bounds__(kThreads) merge_cuda_kernel(const __grid_constant__ KernelArgs args) {
  wait_for_kernel_before();
  const ResolvedProblem& p = args.problem;
  const int64_t warp = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  const bool ours = schedule_is_ours(args);
  if (ours) {
    const int32_t chunks = (p.d_v + kColumns - 1) / kColumns;
    const int64_t per_merge = int64_t{args.partial_rows} * chunks;
    const int64_t units = args.view.header->num_merges * per_merge;
    for (int64_t unit = warp; unit < units; unit += warps) {
      const plan::MergeItem merge = args.view.merges[unit / per_merge];
      const int32_t in_merge = static_cast<int32_t>(unit % per_merge);
      const int32_t row_in_block = in_merge / chunks;
      if (row_in_block >= merge.token_count * args.shape.head_block) continue;
      bool holds = lengths_hold(args, merge.request);
      for (int32_t t = 0; t < merge.token_count; ++t) {
        holds = holds && topk_holds(args, args.view.q_begin[merge.request] + merge.token_begin + t);
      }
      if (holds) merge_unit(args, merge, row_in_block, in_merge % chunks);
    }
  }
  for (int64_t request = warp; request < p.requests; request += warps) check_request_rows(args, request, ours);
}

}  // namespace

cudaError_t launch_merge(const KernelArgs& args, int32_t sm_count, bool overlap, cudaStream_t stream) {
  const int64_t chunks = (args.problem.d_v + kColumns - 1) / kColumns;
  const int64_t units = args.shape.max_merges * args.partial_rows * chunks + args.problem.requests;
  const int64_t blocks = (units + kWarps - 1) / kWarps;
  const int64_t most = int64_t{sm_count} * 8;
  const dim3 grid(static_cast<uint32_t>(blocks < 1 ? 1 : blocks < most ? blocks : most));
  return launch_kernel(merge_cuda_kernel, grid, kThreads, 0, stream, overlap, args);
}

cudaError_t warm_merge() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, merge_cuda_kernel);
}

}  // namespace headwater::cuda
