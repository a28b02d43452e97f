#include "src/cuda/common/launch.cuh"
#include "src/cuda/schedule/kernel.h"
#include "src/plan/balance.h"

namespace headwater::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

struct Shared {
  plan::ScheduleHeader header;
  int64_t warp_sum[kWarps];
  int32_t fault;
  double units;
  plan::Cut cut[kThreads];
  unsigned long long total_len[kMaxSources];
};

// Sum of `value` over the threads before this one; *total: over all of them. Every thread of the block calls it.
__device__ int64_t scan_block(int64_t value, int64_t* total, Shared& s) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  int64_t sum = value;
  for (int o = 1; o < 32; o *= 2) {
    const int64_t before = __shfl_up_sync(0xffffffffU, sum, o);
    if (lane >= o) sum += before;
  }
  if (lane == 31) s.warp_sum[warp] = sum;
  __syncthreads();
  int64_t base = 0;
  int64_t all = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) base += s.warp_sum[w];
    all += s.warp_sum[w];
  }
  __syncthreads();
  *total = all;
  return base + sum - value;
}

// Where the arrays that every step searches stand while the block works: shared memory if they fit, else the buffer itself.
__device__ plan::ScheduleView working_view(const ScheduleArgs& a, Shared& s, unsigned char* memory) {
  plan::ScheduleView view = a.view;
  view.header = &s.header;
  if (a.on_chip == 0) return view;
  const int64_t requests = a.shape.max_requests;
  int64_t* wide = reinterpret_cast<int64_t*>(memory);
  view.unit_begin = wide;
  int32_t* next = reinterpret_cast<int32_t*>(wide + a.shape.max_token_blocks + 1);
  auto take = [&](int64_t count) {
    int32_t* const at = next;
    next += count;
    return at;
  };
  view.token_block_begin = take(requests + 1);
  view.q_begin = take(requests + 1);
  view.context_len = take(requests);
  view.kv_len = take(requests * a.shape.num_sources);
  view.first_position = take(requests * a.shape.num_sources);
  view.position_stride = take(requests * a.shape.num_sources);
  return view;
}

int64_t working_bytes(const plan::PlanShape& shape) {
  return (shape.max_token_blocks + 1) * 8 + 4 * (2 * (shape.max_requests + 1) + shape.max_requests * (1 + 3 * shape.num_sources));
}

template <class T>
__device__ void copy_out(T* to, const T* from, int64_t count) {
  for (int64_t i = threadIdx.x; i < count; i += kThreads) to[i] = from[i];
}

__device__ void copy_lengths_out(const ScheduleArgs& a, const plan::ScheduleView& view) {
  const int64_t requests = a.lengths.requests;
  copy_out(a.view.unit_begin, view.unit_begin, view.token_block_begin[requests] + 1);
  copy_out(a.view.token_block_begin, view.token_block_begin, requests + 1);
  copy_out(a.view.q_begin, view.q_begin, requests + 1);
  copy_out(a.view.context_len, view.context_len, requests);
  for (int32_t s = 0; s < a.shape.num_sources; ++s) {
    const int64_t at = s * a.shape.max_requests;
    copy_out(a.view.kv_len + at, view.kv_len + at, requests);
    copy_out(a.view.first_position + at, view.first_position + at, requests);
    copy_out(a.view.position_stride + at, view.position_stride + at, requests);
  }
}

// Lengths inside the plan's bounds, as schedule_host checks them.
__device__ bool lengths_fit(const ScheduleArgs& a, Shared& s) {
  for (int64_t r = threadIdx.x; r < a.lengths.requests; r += kThreads) {
    if (plan::check_request(a.shape, a.lengths, r).fault != plan::LengthFault::kNone) s.fault = 1;
    for (int32_t i = 0; i < a.shape.num_sources; ++i) {
      if (a.shape.sources[i].rule == RuleKind::kGathered) continue;
      const int64_t kv_len = plan::given_kv_len(a.shape.sources[i], a.lengths.sources[i], r);
      if (kv_len > 0) atomicAdd(&s.total_len[i], static_cast<unsigned long long>(kv_len));
    }
    if (a.shape.needs_context && a.lengths.context_lens == nullptr &&
        plan::given_position_stride(a.lengths.sources[a.shape.context_source], r) != 1) {
      s.fault = 1;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int32_t i = 0; i < a.shape.num_sources; ++i) {
      if (s.total_len[i] > static_cast<unsigned long long>(a.shape.sources[i].max_total_len)) s.fault = 1;
    }
  }
  __syncthreads();
  return s.fault == 0;
}

// Steps 1 and 2 of plan/balance.h.
__device__ void lay_out_line(const ScheduleArgs& a, const plan::ScheduleView& view, Shared& s) {
  const int64_t requests = a.lengths.requests;
  if (threadIdx.x == 0) {
    view.token_block_begin[0] = 0;
    view.unit_begin[0] = 0;
    view.q_begin[0] = requests > 0 ? a.lengths.qo_indptr[0] : 0;
  }
  int64_t carry = 0;
  for (int64_t first = 0; first < requests; first += kThreads) {
    const int64_t r = first + threadIdx.x;
    const int64_t blocks = r < requests ? plan::copy_lengths(a.shape, a.lengths, view, r) : 0;
    int64_t total;
    const int64_t before = scan_block(blocks, &total, s);
    if (r < requests) view.token_block_begin[r + 1] = static_cast<int32_t>(carry + before + blocks);
    carry += total;
  }
  __syncthreads();
  const int64_t token_blocks = carry;
  carry = 0;
  for (int64_t first = 0; first < token_blocks; first += kThreads) {
    const int64_t b = first + threadIdx.x;
    int64_t units = 0;
    if (b < token_blocks) {
      units = plan::token_block_units(a.shape, plan::find_token_block(a.shape, view, b));
      atomicAdd(&s.units, static_cast<double>(units));
    }
    int64_t total;
    const int64_t before = scan_block(units, &total, s);
    if (b < token_blocks) view.unit_begin[b + 1] = carry + before + units;
    carry += total;
  }
  __syncthreads();
}

// Steps 3 and 4.
__device__ void deal_parts(const ScheduleArgs& a, plan::ScheduleView view, Shared& s) {
  int64_t items = 0;
  int64_t merges = 0;
  int64_t partials = 0;
  for (int64_t first = 0; first < a.shape.workers; first += kThreads) {
    const int64_t w = first + threadIdx.x;
    plan::WorkerPart part;
    if (w < a.shape.workers) s.cut[threadIdx.x] = plan::worker_cut(a.shape, view, w);
    __syncthreads();
    if (a.shape.workers <= kThreads) view.cuts = s.cut;
    if (w < a.shape.workers) {
      const plan::Cut end =
          threadIdx.x + 1 < kThreads && w + 1 < a.shape.workers ? s.cut[threadIdx.x + 1] : plan::worker_cut(a.shape, view, w + 1);
      part = plan::measure_part(a.shape, view, s.cut[threadIdx.x], end);
    }
    int64_t all_items;
    int64_t all_merges;
    int64_t all_partials;
    const int64_t first_item = items + scan_block(part.items, &all_items, s);
    const int64_t first_merge = merges + scan_block(part.merges, &all_merges, s);
    const int64_t first_partial = partials + scan_block(part.partials, &all_partials, s);
    if (w < a.shape.workers) {
      view.worker_begin[w] = static_cast<int32_t>(first_item);
      plan::write_part(a.shape, view, w, part, first_item, first_merge, first_partial);
    }
    items += all_items;
    merges += all_merges;
    partials += all_partials;
  }
  if (threadIdx.x == 0) {
    view.worker_begin[a.shape.workers] = static_cast<int32_t>(items);
    s.header.num_items = static_cast<int32_t>(items);
    s.header.num_merges = static_cast<int32_t>(merges);
  }
}

__global__ void __launch_bounds__(kThreads) schedule_cuda_kernel(const __grid_constant__ ScheduleArgs args) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ Shared s;
  if (threadIdx.x == 0) {
    // An error that no check has read yet survives a new schedule; a buffer that never held one of this plan has none.
    s.header.error = args.view.header->fingerprint == args.fingerprint ? args.view.header->error : 0;
    s.header.magic = 0;
    s.header.fingerprint = args.fingerprint;
    s.header.requests = args.lengths.requests;
    s.header.total_q = args.lengths.requests > 0 ? args.lengths.qo_indptr[args.lengths.requests] : 0;
    s.header.num_items = 0;
    s.header.num_merges = 0;
    s.header.reserved = 0;
    s.fault = 0;
    s.units = 0.0;
  }
  if (threadIdx.x < kMaxSources) s.total_len[threadIdx.x] = 0;
  __syncthreads();
  const plan::ScheduleView view = working_view(args, s, memory);
  bool fits = lengths_fit(args, s);
  if (fits) {
    lay_out_line(args, view, s);
    fits = s.units <= 4e18;
  }
  if (fits) {
    deal_parts(args, view, s);
    if (args.on_chip != 0) copy_lengths_out(args, view);
    if (threadIdx.x == 0) s.header.magic = plan::kScheduleMagic;
  } else if (threadIdx.x == 0) {
    s.header.error |= plan::kOverBounds;
  }
  __syncthreads();
  if (threadIdx.x == 0) *args.view.header = s.header;
}

}  // namespace

cudaError_t launch_schedule(ScheduleArgs args, int32_t smem_per_block, cudaStream_t stream) {
  const int64_t bytes = working_bytes(args.shape);
  args.on_chip = bytes + static_cast<int64_t>(sizeof(Shared)) + 1024 <= smem_per_block ? 1 : 0;
  return launch_kernel(schedule_cuda_kernel, 1, kThreads, args.on_chip != 0 ? static_cast<size_t>(bytes) : 0, stream, false, args);
}

cudaError_t warm_schedule(int32_t smem_per_block) {
  return cudaFuncSetAttribute(schedule_cuda_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              smem_per_block - static_cast<int32_t>(sizeof(Shared)) - 1024);
}

}  // namespace headwater::cuda
