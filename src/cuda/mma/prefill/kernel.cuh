// Attention of row blocks of 128 rows: a warp owns 32 rows for scores, softmax and output, so P never leaves its registers; K and V
// fragments serve two row tiles. 128 threads, two blocks an SM.
#pragma once

#include <algorithm>

#include "src/cuda/common/launch.cuh"
#include "src/cuda/kernel.h"
#include "src/cuda/mma/common/cursor.cuh"
#include "src/cuda/mma/common/loader.cuh"
#include "src/cuda/mma/common/output.cuh"
#include "src/cuda/mma/common/redo.cuh"

namespace headwater::cuda::prefill {

inline constexpr int kThreads = 128;
inline constexpr int kRows = 128;  // of a row block
inline constexpr int kTile = 64;   // entries
inline constexpr int kRing = mma::kRing;

struct Shared {
  mma::Cursor cursor;
  mma::Walk walk;  // of thread 0; registers are short
  mma::TileDesc ring[kRing];
  mma::OpenItem items[kRing];
  int32_t visible_low[kRows];  // entries of the current source that the row sees
  int32_t visible_high[kRows];
  int32_t any_redo;
};

// Bytes of a row of width kD, of a stage (K, then V) and of the whole block's dynamic shared memory (stages, then Q).
template <int kD>
inline constexpr int kPitch = 2 * kD;
template <int kD>
inline constexpr int kStageBytes = 2 * kTile* kPitch<kD>;

template <int kD, class T>
class Block {
 public:
  __device__ Block(const KernelArgs& args, unsigned char* memory, Shared& shared)
      : a_(args),
        p_(args.problem),
        memory_(memory),
        s_(shared),
        row_begin_(static_cast<int32_t>(blockIdx.y) * kRows),
        warp_(static_cast<int32_t>(threadIdx.x) / 32),
        lane_(static_cast<int32_t>(threadIdx.x) % 32) {}

  __device__ void run() {
    const int32_t stages = a_.launch.stages;
    if (threadIdx.x == 0) {
      mma::Walk walk;
      mma::begin_cursor(a_, s_.cursor);
      s_.any_redo = 0;
      for (int32_t i = 0; i <= stages; ++i) mma::next_tile<kTile>(a_, row_begin_, s_.cursor, s_.items, walk, s_.ring[i]);
      s_.walk = walk;
    }
    __syncthreads();
    mma::Lookup lookup = mma::look_up(a_, s_.items, s_.ring[0], tile_row());
    int32_t load_at = 0;
    int32_t at = 0;
    const int32_t end = stages * kStageBytes<kD>;
    for (int32_t i = 1 - stages;; ++i) {  // the first stages - 1 rounds only start copies
      if (i >= 0) {
        wait_copies(stages - 2);
        __syncthreads();  // tile i has landed for all; everyone is done with tile i - 1
        if (s_.ring[i % kRing].has(mma::kEnd)) break;
      }
      const mma::TileDesc ahead = s_.ring[(i + stages - 1) % kRing];
      load_tile(ahead, memory_ + load_at, mma::place_of(a_, s_.items, ahead, lookup));
      load_at = load_at + kStageBytes<kD> == end ? 0 : load_at + kStageBytes<kD>;
      lookup = mma::look_up(a_, s_.items, s_.ring[(i + stages) % kRing], tile_row());
      if (i < 0) continue;
      if (threadIdx.x == 0) mma::next_tile<kTile>(a_, row_begin_, s_.cursor, s_.items, s_.walk, s_.ring[(i + stages + 1) % kRing]);
      const mma::TileDesc d = s_.ring[i % kRing];
      if (d.has(mma::kFirst | mma::kNewSource)) {
        if (d.has(mma::kFirst)) begin_item(d);
        if (d.has(mma::kNewSource)) begin_source(d);
        __syncthreads();
      }
      if (!d.empty()) compute_tile(d, memory_ + at);
      at = at + kStageBytes<kD> == end ? 0 : at + kStageBytes<kD>;
      if (d.has(mma::kLast)) finish_item(d);
    }
    wait_copies(0);
    __syncthreads();
    if (s_.any_redo != 0) mma::redo_items(a_, row_begin_, kRows, *reinterpret_cast<ExactStorage*>(memory_));
  }

 private:
  static constexpr int kShare = kThreads / kTile;  // threads that copy a row
  static constexpr int kSteps = kD / 16;
  static constexpr int kRowTiles = 2;

  __device__ static int32_t tile_row() { return static_cast<int32_t>(threadIdx.x) / kShare; }
  __device__ const mma::OpenItem& open(const mma::TileDesc& d) const { return s_.items[d.slot()]; }
  __device__ unsigned char* queries() const { return memory_ + a_.launch.stages * kStageBytes<kD>; }
  __device__ int32_t kv_head(const mma::TileDesc& d, const ResolvedSource& source) const {
    return open(d).item.head_block * a_.shape.head_block / source.group;
  }

  __device__ void load_tile(const mma::TileDesc& d, unsigned char* stage, const mma::Place& place) {
    if (!d.has(mma::kEnd) && !d.empty()) {
      const ResolvedSource& source = p_.sources[d.source()];
      const int32_t head = kv_head(d, source);
      const int32_t lane = static_cast<int32_t>(threadIdx.x) % kShare;
      const uint32_t to = shared_address(stage) + tile_row() * kPitch<kD>;
#pragma unroll 1
      for (int32_t v = 0; v < 2; ++v) {
        const ResolvedTensor& t = v != 0 && !source.shared ? source.v : source.k;
        const int32_t bytes = place.row < 0 ? 0 : 2 * (v != 0 ? p_.d_v : p_.d_qk);
        mma::copy_row<16, kShare>(to + v * kTile * kPitch<kD>, tile_row(), true, mma::record_of(t, place, head), lane, bytes, kPitch<kD>);
      }
    }
    commit_copies();
  }

  __device__ void begin_item(const mma::TileDesc& d) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o_[m][n][i] = 0.0F;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        m_[m][half] = -INFINITY;
        l_[m][half] = 0.0F;
      }
    }
    for (int32_t r = warp_; r < kRows; r += kThreads / 32) {
      const mma::RowPlace place = mma::row_place(a_, open(d), row_begin_ + r);
      for (int32_t c = 2 * lane_; c < kD; c += 64) {
        *reinterpret_cast<uint32_t*>(queries() + r * kPitch<kD> + mma::swizzled(r, 2 * c)) = mma::query_pair_bits(p_, place, c);
      }
    }
  }

  __device__ void begin_source(const mma::TileDesc& d) {
    const int32_t r = static_cast<int32_t>(threadIdx.x);
    const mma::RowPlace place = mma::row_place(a_, open(d), row_begin_ + r);
    const EntryRange seen = visible_to(a_, d.source(), open(d).item.request, place.token);
    s_.visible_low[r] = place.live ? static_cast<int32_t>(seen.begin) : 0;
    s_.visible_high[r] = place.live ? static_cast<int32_t>(seen.end) : 0;
  }

  // Scores of the warp's 32 rows x 64 entries, masked and scaled to log2 units.
  __device__ void compute_scores(const mma::TileDesc& d, const unsigned char* stage, float (&z)[kRowTiles][kTile / 8][4]) {
    const uint32_t k_tile = shared_address(stage);
    const uint32_t q_tile = shared_address(queries());
    const int32_t k_row = (lane_ & 7) + (lane_ >> 4) * 8;
    const int32_t k_byte = ((lane_ >> 3) & 1) * 16;
    const int32_t q_row = warp_ * 32 + (lane_ & 15);
    const int32_t q_byte = (lane_ >> 4) * 16;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) z[m][n][i] = 0.0F;
      }
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t q[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        load_matrices(q_tile + (q_row + 16 * m) * kPitch<kD> + mma::swizzled(q_row, 32 * k + q_byte), q[m]);
      }
#pragma unroll
      for (int n = 0; n < kTile / 16; ++n) {
        uint32_t b[4];
        load_matrices(k_tile + (16 * n + k_row) * kPitch<kD> + mma::swizzled(k_row, 32 * k + k_byte), b);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          multiply_add<T>(z[m][2 * n], q[m], b[0], b[1]);
          multiply_add<T>(z[m][2 * n + 1], q[m], b[2], b[3]);
        }
      }
    }
    const float factor = p_.sm_scale * kLog2E;
    if (factor <= 0.0F) {  // the maximum is taken before the factor, which must then be positive
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
          for (int k = 0; k < 4; ++k) z[m][n][k] *= factor;
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t r = warp_ * 32 + 16 * m + lane_ / 4 + 8 * half;
        const int32_t low = max(d.low, s_.visible_low[r]) - d.begin;
        const int32_t high = min(d.high, s_.visible_high[r]) - d.begin;
        if (__all_sync(0xffffffffU, low <= 0 && high >= kTile)) continue;
        const int32_t column = 2 * (lane_ % 4);
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const int32_t e = 8 * n + column + k;
            if (e < low || e >= high) z[m][n][2 * half + k] = -INFINITY;
          }
        }
      }
    }
  }

  // z becomes P; O is brought to the new maximum.
  __device__ void softmax(float (&z)[kRowTiles][kTile / 8][4]) {
    const float given = p_.sm_scale * kLog2E;
    const float factor = given <= 0.0F ? 1.0F : given;  // otherwise applied already
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      float rescale[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float top = fmaxf(z[m][0][2 * half], z[m][0][2 * half + 1]);
#pragma unroll
        for (int n = 1; n < kTile / 8; ++n) top = fmaxf(top, fmaxf(z[m][n][2 * half], z[m][n][2 * half + 1]));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, 2)) * factor;
        const float before = m_[m][half];
        const float now = fmaxf(before, top);
        const float reference = now == -INFINITY ? 0.0F : now - mma::kWeightShift<T>;
        rescale[half] = before == now ? 1.0F : before == -INFINITY ? 0.0F : exp2_approx(before - now);
        m_[m][half] = now;
        float sum = 0.0F;
#pragma unroll
        for (int n = 0; n < kTile / 8; ++n) {
          z[m][n][2 * half] = exp2_approx(fmaf(z[m][n][2 * half], factor, -reference));
          z[m][n][2 * half + 1] = exp2_approx(fmaf(z[m][n][2 * half + 1], factor, -reference));
          sum += z[m][n][2 * half] + z[m][n][2 * half + 1];
        }
        l_[m][half] = l_[m][half] * rescale[half] + sum;
      }
      if (__all_sync(0xffffffffU, rescale[0] == 1.0F && rescale[1] == 1.0F)) continue;
#pragma unroll
      for (int n = 0; n < kD / 8; ++n) {
        o_[m][n][0] *= rescale[0];
        o_[m][n][1] *= rescale[0];
        o_[m][n][2] *= rescale[1];
        o_[m][n][3] *= rescale[1];
      }
    }
  }

  __device__ void compute_tile(const mma::TileDesc& d, const unsigned char* stage) {
    float z[kRowTiles][kTile / 8][4];
    compute_scores(d, stage, z);
    softmax(z);
    const uint32_t v_tile = shared_address(stage) + kTile * kPitch<kD>;
    const int32_t v_row = (lane_ & 7) + ((lane_ >> 3) & 1) * 8;
    const int32_t v_byte = (lane_ >> 4) * 16;
#pragma unroll
    for (int k = 0; k < kTile / 16; ++k) {
      uint32_t w[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        w[m][0] = pack<T>(z[m][2 * k][0], z[m][2 * k][1]);
        w[m][1] = pack<T>(z[m][2 * k][2], z[m][2 * k][3]);
        w[m][2] = pack<T>(z[m][2 * k + 1][0], z[m][2 * k + 1][1]);
        w[m][3] = pack<T>(z[m][2 * k + 1][2], z[m][2 * k + 1][3]);
      }
#pragma unroll
      for (int n = 0; n < kD / 16; ++n) {
        uint32_t b[4];
        load_matrices_transposed(v_tile + (16 * k + v_row) * kPitch<kD> + mma::swizzled(v_row, 32 * n + v_byte), b);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          multiply_add<T>(o_[m][2 * n], w[m], b[0], b[1]);
          multiply_add<T>(o_[m][2 * n + 1], w[m], b[2], b[3]);
        }
      }
    }
  }

  __device__ float* partial_slot(const mma::TileDesc& d) const {
    return reinterpret_cast<float*>(a_.partials + open(d).item.partial * a_.partial_stride);
  }

  // One row's (m, l), and the factor of its output.
  __device__ float finish_row(const mma::TileDesc& d, const mma::RowPlace& place, int32_t row_in_block, float m_run, float l, bool* bad) {
    const float m = m_run == -INFINITY ? -INFINITY : m_run - mma::kWeightShift<T>;
    *bad = *bad || !isfinite(l) || m_run == INFINITY;
    if (open(d).item.partial >= 0) {
      if (lane_ % 4 == 0) {
        float* const tail = partial_slot(d) + int64_t{a_.partial_rows} * p_.d_v;
        tail[row_in_block] = m;
        tail[a_.partial_rows + row_in_block] = l;
      }
      return 1.0F;
    }
    const RowResult result = finalize_row(m, l, sink_of(p_, open(d).item.request, place.head));
    if (lane_ % 4 == 0) store_lse(p_, open(d).item.request, place.token, place.row, place.head, result.lse);
    return result.zero ? 0.0F : result.factor;
  }

  __device__ void finish_item(const mma::TileDesc& d) {
    bool bad = false;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float l = l_[m][half];
        l += __shfl_xor_sync(0xffffffffU, l, 1);
        l += __shfl_xor_sync(0xffffffffU, l, 2);
        const int32_t r = row_begin_ + warp_ * 32 + 16 * m + lane_ / 4 + 8 * half;
        const mma::RowPlace place = mma::row_place(a_, open(d), r);
        if (!place.live) continue;
        const float factor = finish_row(d, place, r, m_[m][half], l, &bad);
        const mma::PairStore store =
            open(d).item.partial < 0
                ? mma::PairStore(p_.out + place.row * p_.out_row_stride + place.head * p_.out_head_stride, p_.out_type, p_.d_v)
                : mma::PairStore(reinterpret_cast<std::byte*>(partial_slot(d) + int64_t{r} * p_.d_v), Type::kF32, p_.d_v);
#pragma unroll
        for (int n = 0; n < kD / 8; ++n) {
          const int32_t c = 8 * n + 2 * (lane_ % 4);
          if (c >= p_.d_v) break;
          const float x = o_[m][n][2 * half] * factor;
          const float y = o_[m][n][2 * half + 1] * factor;
          bad = bad || !isfinite(x) || (c + 1 < p_.d_v && !isfinite(y));
          store.put(c, x, y);
        }
      }
    }
    const bool redo = __syncthreads_or(bad) != 0;
    if (threadIdx.x == 0) {
      a_.redo[int64_t{open(d).item_index} * gridDim.y + blockIdx.y] = redo ? 1 : 0;
      if (redo) s_.any_redo = 1;
    }
  }

  const KernelArgs& a_;
  const ResolvedProblem& p_;
  unsigned char* memory_;
  Shared& s_;
  const int32_t row_begin_;
  const int32_t warp_;
  const int32_t lane_;
  float o_[kRowTiles][kD / 8][4];
  float m_[kRowTiles][2];  // running maximum, log2 units
  float l_[kRowTiles][2];  // this lane's share of the sum
};

// grid (workers, pieces of 128 rows), 128 threads.
template <int kD, class T>
__global__ void __launch_bounds__(kThreads, 2) prefill_mma_kernel(const __grid_constant__ KernelArgs args) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ Shared shared;
  let_next_kernel_start();
  if (!schedule_is_ours(args)) return;  // the merge kernel writes NaN
  Block<kD, T> block(args, memory, shared);
  block.run();
}

template <int kD, class T>
struct Launcher {
  static constexpr bool kIsF16 = mma::kWeightShift<T> != 0.0F;
  static constexpr int32_t kStatic = (static_cast<int32_t>(sizeof(Shared)) + 127) / 128 * 128;

  static std::string refuse(const Choice& choice) {
    const Bounds& b = choice.bounds;
    const Type type = kIsF16 ? Type::kF16 : Type::kBf16;
    const Format format = kIsF16 ? Format::kF16 : Format::kBf16;
    if (choice.batch_invariant) return "batch_invariant: the number of query rows must not choose the kernel";
    if (choice.checked) return "checked mode: skipped entries are masked by the decode kernels";
    if (int64_t{b.max_q_len} * choice.head_block < kRows) return "fewer than 128 rows a KV head: a decode kernel wastes less";
    if (b.d_qk > kD || b.d_v > kD) return "widths above " + std::to_string(kD);
    if (b.q_type != type) return "queries of another type than the kernel's";
    if (b.softcap) return "softcap: decode kernels have it";
    for (const SourceBounds& s : b.sources) {
      if (s.rule == RuleKind::kGathered) return "gathered lists: one query a row block";
      if (s.k_format != format || (!s.shared && s.v_format != format)) return "a cache of another type than the queries";
      if (s.alignment < 16) return "kv alignment = " + std::to_string(s.alignment) + ": copies of 16 bytes";
    }
    if (shape(choice).smem_bytes + kStatic > choice.caps.smem_per_block) return "shared memory: does not fit a block";
    return {};
  }

  static int32_t bytes(int32_t stages) {
    return std::max(stages * kStageBytes<kD> + kRows * kPitch<kD>, static_cast<int32_t>(sizeof(ExactStorage)));
  }

  static LaunchShape shape(const Choice& choice) {
    LaunchShape launch;
    launch.stages = 2;
    while (launch.stages < 6 && (bytes(launch.stages + 1) + kStatic + 1024) * 2 <= choice.caps.smem_per_sm) ++launch.stages;
    launch.stage_bytes = kStageBytes<kD>;
    launch.smem_bytes = bytes(launch.stages);
    launch.blocks_per_sm = (launch.smem_bytes + kStatic + 1024) * 2 <= choice.caps.smem_per_sm ? 2 : 1;
    launch.rows = kRows;
    return launch;
  }

  static plan::KernelTraits traits(const Choice&) {
    plan::KernelTraits t;
    t.tile_entries = kTile;
    t.max_rows = kRows;
    t.bytes_per_us = 17e3;
    t.flops_per_us = 1.4e6;
    t.fragment_us = 2.0;
    t.merge_bytes_per_us = 100e3;
    t.max_splits = 64;
    return t;
  }

  static cudaError_t warm() { return allow_all_shared_memory(prefill_mma_kernel<kD, T>, kStatic); }

  static cudaError_t launch(const KernelArgs& args, cudaStream_t stream) {
    const dim3 grid(static_cast<uint32_t>(args.shape.workers), static_cast<uint32_t>(args.launch.row_blocks));
    return launch_kernel(prefill_mma_kernel<kD, T>, grid, kThreads, static_cast<size_t>(args.launch.smem_bytes), stream, false, args);
  }

  static constexpr Kernel kernel(const char* name, const char* accepts) {
    return {name, "src/cuda/mma/prefill/kernel.cuh", accepts, refuse, shape, traits, launch, warm};
  }
};

}  // namespace headwater::cuda::prefill
