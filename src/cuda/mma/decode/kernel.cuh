// Attention of row blocks on tensor cores, sm_80 and newer: mma.sync, several tiles in flight by cp.async. Per tile:
//   copies of a later tile start | records are converted | scores, each warp a part of d_qk | softmax by rows | O += P V, each warp its
//   columns
// A block keeps O in registers over a whole item; m and l stay with the threads of the softmax.
#pragma once

#include "src/cuda/common/launch.cuh"
#include "src/cuda/mma/common/output.cuh"
#include "src/cuda/mma/common/redo.cuh"
#include "src/cuda/mma/decode/convert.cuh"
#include "src/cuda/mma/decode/softmax.cuh"

namespace headwater::cuda::decode {

template <class P, class T>
class Block {
 public:
  __device__ Block(const DecodeArgs& args, unsigned char* memory, Shared<P>& shared)
      : a_(args.base),
        p_(args.base.problem),
        modes_(args.modes),
        memory_(memory),
        s_(shared),
        at_(args.modes.layout),
        row_begin_(static_cast<int32_t>(blockIdx.y) * P::kRows),
        warp_(static_cast<int32_t>(threadIdx.x) / 32),
        lane_(static_cast<int32_t>(threadIdx.x) % 32),
        tile_row_(static_cast<int32_t>(threadIdx.x) / kShare),
        tile_lane_(static_cast<int32_t>(threadIdx.x) % kShare) {}

  __device__ void run() {
    const int32_t stages = a_.launch.stages;
    if (threadIdx.x == 0) {
      Walk walk;
      begin_cursor(a_, s_.cursor);
      s_.any_redo = 0;
      for (int32_t i = 0; i <= stages; ++i) next_tile<P::kTile>(a_, row_begin_, s_.cursor, s_.items, walk, s_.ring[i]);
      s_.walk = walk;
    }
    __syncthreads();
    RowScales scales;
    Lookup lookup = look_up(a_, s_.items, s_.ring[0], tile_row_);
    int32_t load_at = 0;  // stages, as offsets
    int32_t at = 0;
    const auto next_stage = [&](int32_t offset) {
      offset += a_.launch.stage_bytes;
      return offset == at_.operand ? 0 : offset;
    };
    for (int32_t i = 1 - stages;; ++i) {  // the first stages - 1 rounds only start copies
      if (i >= 0) {
        wait_copies(stages - 2);
        __syncthreads();  // tile i has landed for all; everyone is done with tile i - 1
        if (s_.ring[i % kRing].has(kEnd)) break;
      }
      const TileDesc ahead = s_.ring[(i + stages - 1) % kRing];
      const Place place = place_of(a_, s_.items, ahead, lookup);
      load_tile(ahead, (i + stages - 1) % kRing, memory_ + load_at, place, scales);
      lookup = look_up(a_, s_.items, s_.ring[(i + stages) % kRing], tile_row_);
      if (i >= 0) {
        if (threadIdx.x == 0) next_tile<P::kTile>(a_, row_begin_, s_.cursor, s_.items, s_.walk, s_.ring[(i + stages + 1) % kRing]);
        const TileDesc d = s_.ring[i % kRing];
        if (d.has(kFirst)) begin_item(d);
        if (d.has(kNewSource)) begin_source(d);
        compute_tile(d, i % kRing, memory_ + at);
        at = next_stage(at);
      }
      keep_scales(ahead, memory_ + load_at, scales);
      load_at = next_stage(load_at);
      if (i >= 0 && s_.ring[i % kRing].has(kLast)) finish_item(s_.ring[i % kRing]);
    }
    wait_copies(0);
    __syncthreads();
    if (threadIdx.x < kExactThreads && s_.any_redo != 0) redo_items(a_, row_begin_, P::kRows, *reinterpret_cast<ExactStorage*>(memory_));
  }

 private:
  static constexpr int kShare = P::kThreads / P::kTile;  // threads that copy a row
  static constexpr int kRowTiles = P::kRows / 16;
  static constexpr int kScorePitch = P::kTile + kRowPad;

  __device__ const OpenItem& open(const TileDesc& d) const { return s_.items[d.slot()]; }

  __device__ int32_t kv_head(const TileDesc& d, const ResolvedSource& source) const {
    return open(d).item.head_block * a_.shape.head_block / source.group;
  }

  // Copies of one tile, one group whatever it holds.
  __device__ void load_tile(const TileDesc& d, int32_t ring, unsigned char* stage, const Place& place, RowScales& scales) {
    if (!d.has(kEnd) && !d.empty()) {
      const ResolvedSource& source = p_.sources[d.source()];
      const SourceMode& mode = modes_.sources[d.source()];
      const int32_t head = kv_head(d, source);
      const uint32_t to = shared_address(stage);
      fetch_scales<P>(source, source.k, mode.k, place, head, tile_lane_, scales);
#pragma unroll 1
      for (int32_t v = 0; v < (source.shared ? 1 : 2); ++v) {
        copy_tensor<P>(v != 0 ? source.v : source.k, v != 0 ? mode.v : mode.k, place, head, to, tile_row_, tile_lane_);
      }
      if (!source.shared && mode.v.scale_blocks != 0) {  // V's own wait here: registers are short
        RowScales v_scales;
        fetch_scales<P>(source, source.v, mode.v, place, head, tile_lane_, v_scales);
        store_scales<P>(mode.v, stage, tile_row_, tile_lane_, v_scales);
      }
      if (tile_lane_ == 0) s_.live[ring][tile_row_] = place.row >= 0 ? 1 : 0;
    }
    commit_copies();
  }

  __device__ void keep_scales(const TileDesc& d, unsigned char* stage, const RowScales& scales) {
    if (d.has(kEnd) || d.empty()) return;
    store_scales<P>(modes_.sources[d.source()].k, stage, tile_row_, tile_lane_, scales);
  }

  // ---- items -------------------------------------------------------------------------------------------------------------------
  __device__ void begin_item(const TileDesc& d) {
    state_ = {};
    exact_ = false;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < 2 * P::kPairs; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o_[m][n][i] = 0.0F;
      }
    }
    load_queries(d);
  }

  __device__ int32_t query_pitch() const { return (p_.d_qk + 63) / 64 * 128; }

  // All rows to shared memory, swizzled like a K tile; from there to registers unless they stay.
  __device__ void load_queries(const TileDesc& d) {
    const bool scaled = kWeightShift<T> != 0.0F && p_.q_type == Type::kBf16;  // f16 operands
    unsigned char* const tile = memory_ + at_.queries;
    const int32_t pairs = (p_.d_qk + 15) / 16 * 8;
    for (int32_t r = warp_; r < P::kRows; r += kWarps<P>) {
      const RowPlace place = row_place(a_, open(d), row_begin_ + r);
      int32_t shift = 0;
      if (scaled) {
        uint32_t large = 0;
        uint32_t small = 0x7f800000U;
        for (int32_t c = lane_; c < pairs; c += 32) note_magnitudes(query_operand<T>(p_, place, 2 * c), large, small);
#pragma unroll
        for (int o = 1; o < 32; o *= 2) {
          large = max(large, __shfl_xor_sync(0xffffffffU, large, o));
          small = min(small, __shfl_xor_sync(0xffffffffU, small, o));
        }
        bool fits;
        shift = query_shift(large, small, &fits);
        exact_ = exact_ || !fits;
      }
      const float factor = ldexpf(1.0F, shift);
      for (int32_t c = lane_; c < pairs; c += 32) {
        const uint32_t bits = query_operand<T>(p_, place, 2 * c);
        *reinterpret_cast<uint32_t*>(tile + r * query_pitch() + swizzled(r, 4 * c)) = scaled ? scaled_half(bits, factor) : bits;
      }
      if (lane_ == 0) s_.row_factor[r] = score_factor(p_, place, shift);
    }
    __syncthreads();
    if constexpr (!P::kQueriesStay) {
      const uint32_t base = shared_address(tile) + (lane_ & 15) * query_pitch();
#pragma unroll
      for (int k = 0; k < P::kDepthSteps; ++k) {
        q_[k][0] = q_[k][1] = q_[k][2] = q_[k][3] = 0;
        if (k < depth_steps()) load_matrices(base + swizzled(lane_ & 15, 32 * (first_step() + k) + 16 * (lane_ >> 4)), q_[k]);
      }
      __syncthreads();  // scores overwrite the tile
    }
  }

  // What each row sees of a source. Read after the next barrier.
  __device__ void begin_source(const TileDesc& d) {
    const ResolvedSource& source = p_.sources[d.source()];
    if (threadIdx.x >= P::kRows) return;
    if (threadIdx.x == 0) {
      s_.k_scale = foldable(tensor_scale(source.k, kv_head(d, source)));
      s_.v_scale = foldable(tensor_scale(source.shared ? source.k : source.v, kv_head(d, source)));
    }
    const RowPlace r = row_place(a_, open(d), row_begin_ + static_cast<int32_t>(threadIdx.x));
    const EntryRange seen = visible_to(a_, d.source(), open(d).item.request, r.token);
    s_.visible_low[threadIdx.x] = r.live ? static_cast<int32_t>(seen.begin) : 0;
    s_.visible_high[threadIdx.x] = r.live ? static_cast<int32_t>(seen.end) : 0;
  }

  // ---- one tile ----------------------------------------------------------------------------------------------------------------
  __device__ void compute_tile(const TileDesc& d, int32_t ring, unsigned char* staged) {
    if (d.empty()) {
      __syncthreads();  // the descriptor ring, as below
      return;
    }
    const ResolvedSource& source = p_.sources[d.source()];
    const SourceMode& mode = modes_.sources[d.source()];
    const bool apart = !source.shared;
    unsigned char* const operand = memory_ + at_.operand;
    bool k_low = false;
    bool v_low = false;
    if (mode.k.direct == 0 || (apart && mode.v.direct == 0)) {
      int32_t low = 0;
#pragma unroll 1
      for (int32_t i = 0; i < (apart ? 2 : 1); ++i) {
        const TensorMode& from = i != 0 ? mode.v : mode.k;
        if (from.direct != 0) continue;
        const bool any = convert_tensor<P, T>(i != 0 ? source.v.layout : source.k.layout, from, i != 0 ? p_.d_v : p_.d_qk, staged,
                                              operand + (i != 0 ? modes_.operand_v : 0), i != 0 ? modes_.v_pitch : modes_.k_pitch,
                                              i != 0 ? modes_.operand_v_plane : modes_.operand_k_plane);
        if (any) low |= 1 << i;
      }
      k_low = __syncthreads_or(low & 1) != 0;  // also: the converted tile is whole
      if (apart && mode.v.planes > 1) v_low = __syncthreads_or(low & 2) != 0;
    }
    const unsigned char* const k = mode.k.direct != 0 ? staged + mode.k.offset : operand;
    compute_scores(shared_address(k), k_low ? 2 : 1);
    __syncthreads();
    TileScale scale;
    scale.k = s_.k_scale;
    if (modes_.fold_v_scale != 0) scale.v = s_.v_scale;
    if (mode.k.row_scale != 0) {
      scale.k_rows = staged + mode.k.scale_offset;
      scale.k_pitch = mode.k.scale_pitch;
    }
    const TensorMode& v_mode = apart ? mode.v : mode.k;
    if (v_mode.row_scale != 0) {
      scale.v_rows = staged + v_mode.scale_offset;
      scale.v_pitch = v_mode.scale_pitch;
    }
    softmax_tile<P, T>(p_, d, s_.live[ring], scale, reinterpret_cast<const float*>(memory_ + at_.scores), memory_ + at_.weights, s_,
                       state_);
    __syncthreads();
    rescale_output();
    if (!apart) {
      add_values(shared_address(k), modes_.k_pitch);
      if (k_low) add_values(shared_address(k) + modes_.operand_k_plane, modes_.k_pitch);
    } else {
      const unsigned char* const v = mode.v.direct != 0 ? staged + mode.v.offset : operand + modes_.operand_v;
      add_values(shared_address(v), modes_.v_pitch);
      if (v_low) add_values(shared_address(v) + modes_.operand_v_plane, modes_.v_pitch);
    }
  }

  __device__ int32_t total_steps() const { return (p_.d_qk + 15) / 16; }
  __device__ int32_t steps_per_warp() const { return (total_steps() + P::kDepthWarps - 1) / P::kDepthWarps; }
  __device__ int32_t first_step() const { return warp_ / (P::kTokenWarps * P::kRowWarps) * steps_per_warp(); }
  __device__ int32_t depth_steps() const { return min(steps_per_warp(), max(0, total_steps() - first_step())); }

  // kSteps steps from the warp's first, without a branch between them: loads run ahead of products. Steps past d_qk meet zero queries
  // and the last step's keys.
  template <int kSteps>
  __device__ void score_steps(uint32_t k_base, int32_t k_twist, uint32_t q_base, int32_t q_twist, float (&c)[2][4]) {
    const int32_t first = first_step();
    const int32_t last = total_steps() - 1;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t b[4];
      load_matrices(k_base + ((32 * min(first + k, last) + 16 * ((lane_ >> 3) & 1)) ^ k_twist), b);
      if constexpr (!P::kQueriesStay) {
        multiply_add<T>(c[0], q_[k], b[0], b[1]);
        multiply_add<T>(c[1], q_[k], b[2], b[3]);
      } else {
        uint32_t q[4];
        load_matrices(q_base + ((32 * k + 16 * (lane_ >> 4)) ^ q_twist), q);
        multiply_add<T>(c[0], q, b[0], b[1]);
        multiply_add<T>(c[1], q, b[2], b[3]);
      }
    }
  }

  // This warp: 16 rows x 16 entries x its part of d_qk.
  __device__ void compute_scores(uint32_t k_tile, int32_t planes) {
    const int32_t token = warp_ % P::kTokenWarps * 16;
    const int32_t row = P::kRowWarps > 1 ? warp_ / P::kTokenWarps * 16 : 0;
    const int32_t depth = P::kRowWarps > 1 ? 0 : warp_ / P::kTokenWarps;
    const int32_t k_row = token + (lane_ & 7) + (lane_ >> 4) * 8;
    const int32_t q_row = row + (lane_ & 15);
    const uint32_t q_base = shared_address(memory_ + at_.queries) + q_row * query_pitch();
    const int32_t k_twist = (k_row & 7) << 4;
    const int32_t q_twist = (q_row & 7) << 4;
    float c[2][4] = {};
    for (int32_t plane = 0; plane < planes; ++plane) {
      const uint32_t base = k_tile + k_row * modes_.k_pitch + plane * modes_.operand_k_plane;
      if constexpr (P::kQueriesStay) {
#pragma unroll 1
        for (int32_t k = 0; k < total_steps(); k += 4) score_four(base, k_twist, q_base, q_twist, k, c);
      } else {
        if (steps_per_warp() <= P::kDepthSteps / 2) {
          score_steps<P::kDepthSteps / 2>(base, k_twist, q_base, q_twist, c);
        } else {
          score_steps<P::kDepthSteps>(base, k_twist, q_base, q_twist, c);
        }
      }
    }
    float* const scores = reinterpret_cast<float*>(memory_ + at_.scores) + (depth * P::kRows + row) * kScorePitch;
    const int32_t g = lane_ / 4;
    const int32_t t = lane_ % 4;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int32_t e = token + 8 * n + 2 * t;
      *reinterpret_cast<float2*>(scores + g * kScorePitch + e) = make_float2(c[n][0], c[n][1]);
      *reinterpret_cast<float2*>(scores + (g + 8) * kScorePitch + e) = make_float2(c[n][2], c[n][3]);
    }
  }

  // Four steps from `first`; those past d_qk are skipped.
  __device__ void score_four(uint32_t k_base, int32_t k_twist, uint32_t q_base, int32_t q_twist, int32_t first, float (&c)[2][4]) {
    const int32_t steps = total_steps() - first;
    uint32_t b[4][4];
    uint32_t q[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int32_t at = 32 * (first + min(k, steps - 1));
      load_matrices(k_base + ((at + 16 * ((lane_ >> 3) & 1)) ^ k_twist), b[k]);
      load_matrices(q_base + ((at + 16 * (lane_ >> 4)) ^ q_twist), q[k]);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k < steps) {
        multiply_add<T>(c[0], q[k], b[k][0], b[k][1]);
        multiply_add<T>(c[1], q[k], b[k][2], b[k][3]);
      }
    }
  }

  __device__ int32_t column_pairs() const { return (p_.d_v + 15) / 16; }

  __device__ void rescale_output() {
    const int32_t g = lane_ / 4;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const float low = s_.rescale[16 * m + g];
      const float high = s_.rescale[16 * m + g + 8];
      if (!__any_sync(0xffffffffU, low != 1.0F || high != 1.0F)) continue;
#pragma unroll
      for (int n = 0; n < 2 * P::kPairs; ++n) {
        o_[m][n][0] *= low;
        o_[m][n][1] *= low;
        o_[m][n][2] *= high;
        o_[m][n][3] *= high;
      }
    }
  }

  // O += P V for the warp's first kPairs column pairs.
  template <int kPairs>
  __device__ void value_pairs(uint32_t v_base, int32_t v_pitch, int32_t v_twist) {
    const uint32_t weights = shared_address(memory_ + at_.weights) + 2 * ((lane_ & 15) * kScorePitch + 8 * (lane_ >> 4));
#pragma unroll
    for (int k = 0; k < P::kTile / 16; ++k) {
      uint32_t w[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) load_matrices(weights + 2 * (16 * m * kScorePitch + 16 * k), w[m]);
#pragma unroll
      for (int n = 0; n < kPairs; ++n) {
        uint32_t b[4];
        load_matrices_transposed(v_base + 16 * k * v_pitch + ((32 * (warp_ + kWarps<P> * n) + 16 * (lane_ >> 4)) ^ v_twist), b);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          multiply_add<T>(o_[m][2 * n], w[m], b[0], b[1]);
          multiply_add<T>(o_[m][2 * n + 1], w[m], b[2], b[3]);
        }
      }
    }
  }

  __device__ void add_values(uint32_t v_tile, int32_t v_pitch) {
    const int32_t v_row = (lane_ & 7) + ((lane_ >> 3) & 1) * 8;
    const uint32_t base = v_tile + v_row * v_pitch;
    const int32_t twist = (v_row & 7) << 4;
    const int32_t pairs = (column_pairs() - warp_ + kWarps<P> - 1) / kWarps<P>;  // of this warp
    if (pairs >= P::kPairs) {
      value_pairs<P::kPairs>(base, v_pitch, twist);
    } else if (P::kPairs > 4 && pairs == 4) {
      value_pairs<(P::kPairs > 4 ? 4 : 1)>(base, v_pitch, twist);
    } else if (P::kPairs > 3 && pairs == 3) {
      value_pairs<(P::kPairs > 3 ? 3 : 1)>(base, v_pitch, twist);
    } else if (P::kPairs > 2 && pairs == 2) {
      value_pairs<(P::kPairs > 2 ? 2 : 1)>(base, v_pitch, twist);
    } else if (pairs == 1) {
      value_pairs<1>(base, v_pitch, twist);
    }
  }

  // ---- the end of an item ------------------------------------------------------------------------------------------------------
  __device__ void finish_item(const TileDesc& d) {
    const bool final = open(d).item.partial < 0;
    const int32_t r = static_cast<int32_t>(threadIdx.x) / RowLanes<P>::kLanes;
    const float l = row_sum<P>(state_.l);
    const float l_used = row_sum<P>(state_.l_used);
    bool bad = exact_ || !isfinite(l) || state_.m == INFINITY;
    if (threadIdx.x % RowLanes<P>::kLanes == 0) {
      const float m = state_.m == -INFINITY ? -INFINITY : state_.m - kWeightShift<T>;
      const RowPlace place = row_place(a_, open(d), row_begin_ + r);
      s_.row_l[r] = 1.0F;
      s_.row_share[r] = l_used > 0.0F ? l / l_used : 1.0F;
      if (place.live && final) {
        const RowResult result = finalize_row(m, l, sink_of(p_, open(d).item.request, place.head));
        s_.row_l[r] = result.zero ? 0.0F : result.factor;
        store_lse(p_, open(d).item.request, place.token, place.row, place.head, result.lse);
      } else if (place.live) {
        float* const tail = partial_slot(d) + int64_t{a_.partial_rows} * p_.d_v;
        tail[row_begin_ + r] = m;
        tail[a_.partial_rows + row_begin_ + r] = l;
      }
    }
    __syncthreads();
    bad = store_rows(d, final) || bad;
    const bool redo = __syncthreads_or(bad) != 0;
    if (threadIdx.x == 0) {
      a_.redo[int64_t{open(d).item_index} * gridDim.y + blockIdx.y] = redo ? 1 : 0;
      if (redo) s_.any_redo = 1;
    }
  }

  __device__ float* partial_slot(const TileDesc& d) const {
    return reinterpret_cast<float*>(a_.partials + open(d).item.partial * a_.partial_stride);
  }

  // Returns whether O holds a value that is not finite.
  __device__ bool store_rows(const TileDesc& d, bool final) {
    const float v_scale = modes_.fold_v_scale != 0 ? 1.0F : s_.v_scale;
    bool bad = false;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t r = 16 * m + lane_ / 4 + 8 * half;
        const RowPlace place = row_place(a_, open(d), row_begin_ + r);
        if (!place.live) continue;
        // An empty row is +0 whatever stands in v_scale.
        const float factor = s_.row_l[r] == 0.0F ? 0.0F : s_.row_l[r] * s_.row_share[r] * v_scale;
        PairStore store;
        if (final) {
          store = PairStore(p_.out + place.row * p_.out_row_stride + place.head * p_.out_head_stride, p_.out_type, p_.d_v);
        } else {
          store = PairStore(reinterpret_cast<std::byte*>(partial_slot(d) + int64_t{row_begin_ + r} * p_.d_v), Type::kF32, p_.d_v);
        }
#pragma unroll
        for (int n = 0; n < 2 * P::kPairs; ++n) {
          const int32_t c = 16 * (warp_ + kWarps<P> * (n / 2)) + 8 * (n % 2) + 2 * (lane_ % 4);
          if (c >= p_.d_v) break;
          const float x = o_[m][n][2 * half] * factor;
          const float y = o_[m][n][2 * half + 1] * factor;
          bad = bad || !isfinite(x) || (c + 1 < p_.d_v && !isfinite(y));
          store.put(c, x, y);
        }
      }
    }
    return bad;
  }

  const KernelArgs& a_;
  const ResolvedProblem& p_;
  const Modes& modes_;
  unsigned char* memory_;
  Shared<P>& s_;
  const Layout& at_;
  const int32_t row_begin_;
  const int32_t warp_;
  const int32_t lane_;
  const int32_t tile_row_;
  const int32_t tile_lane_;
  uint32_t q_[P::kQueriesStay ? 1 : P::kDepthSteps][4];
  float o_[kRowTiles][2 * P::kPairs][4];
  RowState state_;
  bool exact_ = false;
};

// grid (workers, pieces of kRows rows), P::kThreads threads.
template <class P, class T>
__global__ void __launch_bounds__(P::kThreads, P::kBlocksPerSm) decode_mma_kernel(const __grid_constant__ DecodeArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ Shared<P> shared;
  let_next_kernel_start();
  if (!schedule_is_ours(args.base)) return;  // the merge kernel writes NaN
  Block<P, T> block(args, memory, shared);
  block.run();
}

}  // namespace headwater::cuda::decode
