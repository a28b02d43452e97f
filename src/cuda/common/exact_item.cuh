// One work item in plain float32, entry by entry: every format, type, width, stride and rule. The SIMT kernel is a loop over it; tensor
// core kernels call it for an item whose result is not finite, because a 0 weight times a NaN or infinite V must be selected away,
// which a matrix product cannot do.
//
// Thread (row, lane): one warp a row, 8 rows. Scores: lanes 2e and 2e + 1 share entry e of the tile, each half of the columns. Output: a
// lane owns columns lane, lane + 32, ...
#pragma once

#include "src/cuda/common/args.h"
#include "src/cuda/common/element.cuh"
#include "src/cuda/common/finalize.cuh"
#include "src/cuda/common/lengths.cuh"

namespace headwater::cuda {

inline constexpr int kExactRows = 8;
inline constexpr int kExactLanes = 32;
inline constexpr int kExactEntries = 16;  // of a tile
inline constexpr int kExactThreads = kExactRows * kExactLanes;

// Rows at a time: a block of fewer threads takes fewer. Threads past kExactThreads must have left.
__device__ inline int32_t exact_rows() {
  const int32_t warps = static_cast<int32_t>(blockDim.x) / kExactLanes;
  return warps < kExactRows ? warps : kExactRows;
}
inline constexpr int kExactColumns = kMaxWidth / kExactLanes;  // output columns of a thread

struct ExactStorage {
  float q[kExactRows][kMaxWidth + 1];       // decoded, q_scale and sm_scale included
  float kv[kExactEntries][kMaxWidth + 1];   // decoded tile: K, then V where stored apart
  float weight[kExactRows][kExactEntries];  // exp2(score - m)
  float score[kExactRows][kExactEntries];   // -inf: not visible
  int64_t slot[kExactEntries];              // -1: skipped
  plan::RequestLengths lengths;
};

struct ExactRow {
  float m = -INFINITY;
  float l = 0.0F;
  float o[kExactColumns];
};

__device__ inline void exact_load_queries(const KernelArgs& a, const plan::WorkItem& item, int32_t row_begin, int32_t rows,
                                          ExactStorage& s) {
  const ResolvedProblem& p = a.problem;
  const int32_t heads = a.shape.head_block;
  for (int32_t r = threadIdx.x / kExactLanes, c0 = threadIdx.x % kExactLanes; r < rows; r += exact_rows()) {
    const int64_t row = s.lengths.q_begin + item.token_begin + (row_begin + r) / heads;
    const int32_t head = item.head_block * heads + (row_begin + r) % heads;
    const float scale = query_scale(p, row, head);
    for (int32_t c = c0; c < p.d_qk; c += kExactLanes) {
      const float value = query_element(p, row, head, c);
      // sm_scale goes in here: a dot product that only the scale brings into float32's range must not overflow.
      s.q[r][c] = (p.q_type == Type::kE4m3 ? __fmul_rn(value, scale) : value) * p.sm_scale;
    }
  }
}

// Decodes the tile's records of K (or V) to s.kv.
__device__ inline void exact_load_records(const ResolvedSource& source, const ResolvedTensor& tensor, int32_t columns, int32_t kv_head,
                                          int32_t count, ExactStorage& s) {
  const float global = tensor_scale(tensor, kv_head);
  for (int32_t e = threadIdx.x / kExactLanes; e < count; e += exact_rows()) {
    if (s.slot[e] < 0) continue;
    const formats::RowRef ref = record_at(source, tensor, s.slot[e], kv_head);
    for (int32_t c = threadIdx.x % kExactLanes; c < columns; c += kExactLanes) s.kv[e][c] = decoded_column(tensor.layout, ref, c, global);
  }
}

// Both lanes of an entry get the score.
__device__ inline float exact_score(const ResolvedProblem& p, const float* q, const float* k, int32_t half) {
  float dot = 0.0F;
  for (int32_t c = half; c < p.d_qk; c += 2) dot = fmaf(q[c], k[c], dot);
  dot += __shfl_xor_sync(0xffffffffU, dot, 1);
  if (p.softcap != 0.0F) dot = p.softcap * tanhf(dot / p.softcap);
  return dot * kLog2E;
}

// Softmax step of one row over one tile: a warp, entry = lane / 2. Leaves exp2(score - m) in s.weight.
__device__ inline void exact_softmax(int32_t r, int32_t lane, float z, ExactStorage& s, ExactRow& state) {
  float top = z;
  for (int o = kExactLanes / 2; o > 1; o /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, o));
  const float m = fmaxf(state.m, top);
  const float reference = m == -INFINITY ? 0.0F : m;
  const float w = exp2f(z - reference);
  const float rescale = state.m == -INFINITY ? 0.0F : exp2f(state.m - reference);
  float l = w;
  for (int o = kExactLanes / 2; o > 1; o /= 2) l += __shfl_xor_sync(0xffffffffU, l, o);  // a NaN score makes it NaN
  state.l = state.l * rescale + l;
  state.m = m;
  s.score[r][lane / 2] = z;
  s.weight[r][lane / 2] = w;
#pragma unroll
  for (int i = 0; i < kExactColumns; ++i) state.o[i] *= rescale;
}

__device__ inline void exact_accumulate(int32_t r, int32_t lane, int32_t count, int32_t d_v, const ExactStorage& s, ExactRow& state) {
  for (int32_t e = 0; e < count; ++e) {
    if (s.score[r][e] == -INFINITY) continue;  // select: V of an unseen entry may be NaN
    const float w = s.weight[r][e];
#pragma unroll
    for (int i = 0; i < kExactColumns; ++i) {
      const int32_t c = lane + i * kExactLanes;
      if (c < d_v) state.o[i] = fmaf(w, s.kv[e][c], state.o[i]);
    }
  }
}

// One source's entries [begin, end) for rows [row_begin, row_begin + rows) of the item.
__device__ inline void exact_source(const KernelArgs& a, const plan::WorkItem& item, int32_t source_index, int64_t begin, int64_t end,
                                    int32_t row_begin, int32_t rows, ExactStorage& s, ExactRow& state) {
  const ResolvedProblem& p = a.problem;
  const ResolvedSource& source = p.sources[source_index];
  const int32_t r = threadIdx.x / kExactLanes;
  const int32_t lane = threadIdx.x % kExactLanes;
  const int32_t heads = a.shape.head_block;
  const int32_t kv_head = item.head_block * heads / source.group;
  const int32_t token = item.token_begin + (row_begin + (r < rows ? r : 0)) / heads;
  const EntryRange visible = visible_to(a, source_index, item.request, token);
  for (int64_t tile = begin; tile < end; tile += kExactEntries) {
    const int32_t count = static_cast<int32_t>(end - tile < kExactEntries ? end - tile : kExactEntries);
    if (threadIdx.x < kExactEntries) {
      int64_t slot = -1;
      if (lane < count) {
        slot = source.rule == RuleKind::kGathered ? gathered_slot(source, item.request, s.lengths.q_begin + item.token_begin, tile + lane)
                                                  : source_slot(source, item.request, tile + lane);
        slot = checked_slot(a, source, slot);
      }
      s.slot[lane] = slot;
    }
    __syncthreads();
    exact_load_records(source, source.k, p.d_qk, kv_head, count, s);
    __syncthreads();
    const int32_t e = lane / 2;
    const bool seen = r < rows && e < count && s.slot[e] >= 0 && tile + e >= visible.begin && tile + e < visible.end;
    const float z = exact_score(p, s.q[r], s.kv[e], lane % 2);  // of an unseen entry: whatever stands there
    exact_softmax(r, lane, seen ? z : -INFINITY, s, state);
    __syncthreads();
    if (!source.shared) {
      exact_load_records(source, source.v, p.d_v, kv_head, count, s);
      __syncthreads();
    }
    if (r < rows) exact_accumulate(r, lane, count, p.d_v, s, state);
    __syncthreads();
  }
}

__device__ inline void exact_store(const KernelArgs& a, const plan::WorkItem& item, int32_t row_in_block, const ExactStorage& s,
                                   const ExactRow& state) {
  const ResolvedProblem& p = a.problem;
  const int32_t lane = threadIdx.x % kExactLanes;
  const int32_t heads = a.shape.head_block;
  // A NaN score leaves no trace in a maximum: +inf keeps the row from looking empty.
  const float m = state.l != state.l ? INFINITY : state.m;
  if (item.partial >= 0) {
    float* slot = reinterpret_cast<float*>(a.partials + item.partial * a.partial_stride);
#pragma unroll
    for (int i = 0; i < kExactColumns; ++i) {
      const int32_t c = lane + i * kExactLanes;
      if (c < p.d_v) slot[int64_t{row_in_block} * p.d_v + c] = state.o[i];
    }
    if (lane == 0) {
      float* const tail = slot + int64_t{a.partial_rows} * p.d_v;
      tail[row_in_block] = m;
      tail[a.partial_rows + row_in_block] = state.l;
    }
    return;
  }
  const int32_t token = item.token_begin + row_in_block / heads;
  const int32_t head = item.head_block * heads + row_in_block % heads;
  const int64_t row = s.lengths.q_begin + token;
  const RowResult result = finalize_row(m, state.l, sink_of(p, item.request, head));
#pragma unroll
  for (int i = 0; i < kExactColumns; ++i) {
    const int32_t c = lane + i * kExactLanes;
    if (c < p.d_v) store_output(p, row, head, c, result.zero ? 0.0F : state.o[i] * result.factor);
  }
  if (lane == 0) store_lse(p, item.request, token, row, head, result.lse);
}

// Rows [row_begin, row_end) of the item's row block. At most 256 threads, whole warps, all of them; `storage` is theirs. The item's lengths
// hold.
__device__ inline void exact_item(const KernelArgs& a, const plan::WorkItem& item, int32_t row_begin, int32_t row_end, ExactStorage& s) {
  __syncthreads();
  if (threadIdx.x == 0) plan::load_lengths(a.shape, a.view, item.request, &s.lengths);
  __syncthreads();
  const int32_t item_rows = item.token_count * a.shape.head_block;
  if (row_end > item_rows) row_end = item_rows;
  for (int32_t first = row_begin; first < row_end; first += exact_rows()) {
    const int32_t rows = row_end - first < exact_rows() ? row_end - first : exact_rows();
    ExactRow state;
#pragma unroll
    for (int i = 0; i < kExactColumns; ++i) state.o[i] = 0.0F;
    exact_load_queries(a, item, first, rows, s);
    __syncthreads();
    int64_t tile = 0;  // of the row block's sequence, where the source begins
    for (int32_t i = 0; i < a.shape.num_sources; ++i) {
      const plan::TileSpan span = plan::source_tiles(a.shape, s.lengths, i, item.token_begin, item.token_count);
      const int64_t from = item.tile_begin > tile ? item.tile_begin - tile : 0;
      const int64_t to = item.tile_end - tile < span.num_tiles ? item.tile_end - tile : span.num_tiles;
      if (from < to) {
        const int64_t entries = a.shape.tile_entries;
        const int64_t begin = (span.tile_first + from) * entries;
        const int64_t end = (span.tile_first + to) * entries;
        exact_source(a, item, i, begin > span.begin ? begin : span.begin, end < span.end ? end : span.end, first, rows, s, state);
      }
      tile += span.num_tiles;
    }
    if (static_cast<int32_t>(threadIdx.x) / kExactLanes < rows) {
      exact_store(a, item, first + static_cast<int32_t>(threadIdx.x) / kExactLanes, s, state);
    }
    __syncthreads();
  }
}

}  // namespace headwater::cuda
