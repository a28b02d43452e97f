// Consumer warps. Per tile, two meetings of all eight:
//   scores: each warp a quarter of the entries x half of d_qk, partial sums to shared memory | meet |
//   weights of the warp's own block of entries against the maximum of earlier tiles, in the lanes where the left operand of O += P V wants
//   them, to shared memory | meet; where a score lies too far above that maximum, every warp makes all weights instead (softmax) |
//   O += P V for the warp's own columns
// Two score buffers let a warp start on the next tile while others still work on this one.
#pragma once

#include "src/cuda/common/mma.cuh"
#include "src/cuda/hopper/common/async.cuh"
#include "src/cuda/hopper/decode_narrow/queries.cuh"
#include "src/cuda/mma/common/output.cuh"
#include "src/cuda/mma/common/queries.cuh"
#include "src/cuda/mma/common/redo.cuh"

namespace headwater::cuda::narrow {

template <class C, class T>
class Consumer {
 public:
  __device__ Consumer(const NarrowArgs& args, Shared<C>& shared, unsigned char* memory)
      : args_(args),
        a_(args.base),
        p_(args.base.problem),
        s_(shared),
        memory_(memory),
        base_(shared_address(memory)),
        warp_(threadIdx.x / 32),
        lane_(threadIdx.x % 32) {}

  __device__ void run() {
    int32_t stage = 0;
    while (true) {
      hopper::wait_barrier(shared_address(&s_.told[stage]), flags_ & kParity);
      const TileDesc d = s_.ring[stage];
      if (d.has(kEnd)) break;
      if (d.has(kFirst)) begin_item(d);
      hopper::wait_barrier(shared_address(&s_.full[stage]), flags_ & kParity);
      if (!d.empty()) compute_tile(d, base_ + stage * C::kStageBytes, memory_ + stage * C::kStageBytes);
      __syncwarp();
      if (lane_ == 0) hopper::arrive(shared_address(&s_.empty[stage]));
      if (d.has(kLast)) finish_item(d);
      if (++stage == C::kStages) {
        stage = 0;
        flags_ ^= kParity;
      }
    }
    meet();
    if (s_.any_redo != 0) redo_items(a_, 0, kRows, *reinterpret_cast<ExactStorage*>(memory_));
  }

 private:
  static constexpr uint32_t kOnes = kWeightShift<T> != 0.0F ? 0x3c003c00U : 0x3f803f80U;
  // Weights are 2^(z - m + kShift). m lags behind, and weights may grow to 2^(kShift + kSlack) before it is taken again.
  static constexpr bool kHalf = kWeightShift<T> != 0.0F;
  static constexpr float kShift = kHalf ? 6.0F : kWeightShift<T>;
  static constexpr float kSlack = kHalf ? 9.0F : 16.0F;
  __device__ static void meet() { hopper::meet<1, C::kConsumers>(); }
  __device__ const OpenItem& open(const TileDesc& d) const { return s_.items[0][d.slot()]; }
  // The value, hidden from the compiler: nothing made of it is computed ahead of rare code and kept in registers.
  __device__ static uint32_t here(uint32_t value) {
    asm volatile("" : "+r"(value));
    return value;
  }
  __device__ int32_t kv_head(const TileDesc& d) const { return open(d).item.head_block * a_.shape.head_block / p_.sources[0].group; }
  __device__ uint32_t entry_warp() const { return warp_ % kEntryWarps; }
  __device__ uint32_t half() const { return warp_ / kEntryWarps; }

  // Four e4m3, exact: bytes 0 and 1, bytes 2 and 3.
  __device__ static void e4m3x4_to_half2(uint32_t x, uint32_t (&both)[2]) {
    asm("{\n.reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n}"
        : "=r"(both[0]), "=r"(both[1])
        : "r"(x));
  }

  // ---- items -------------------------------------------------------------------------------------------------------------------
  __device__ void begin_item(const TileDesc& d) {
    const ResolvedSource& source = p_.sources[0];
#pragma unroll 1
    for (uint32_t r = 2 * warp_; r < 2 * warp_ + 2; ++r) {
      const RowPlace place = row_place(a_, open(d), static_cast<int32_t>(r));
      if (!load_query_row<C, T>(args_, place, r, memory_ + C::kQueriesAt, s_)) s_.bad = 1;
      if (lane_ == 0) {
        s_.visible_low[r] = 0;
        s_.visible_high[r] = 0x7fffffff;
        if (place.live) {
          const EntryRange seen = visible_to(a_, 0, open(d).item.request, place.token);
          s_.visible_low[r] = static_cast<int32_t>(seen.begin);
          s_.visible_high[r] = static_cast<int32_t>(seen.end);
        }
      }
    }
    meet();
    load_fragments();
    const float k_scale = foldable(tensor_scale(source.k, kv_head(d)));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t r = lane_ / 4 + 8 * i;
      factor_[i] = s_.row_factor[r] * k_scale;
      m_[i] = -INFINITY;
      l_[i] = 0.0F;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) used_[i] = 0.0F;
#pragma unroll
    for (int n = 0; n < C::kProducts; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o_[n][i] = 0.0F;
    }
  }

  // This warp's half of d_qk of all rows, as left operands (layout.h: depth_in_step).
  __device__ void load_fragments() {
    const uint32_t at = base_ + C::kQueriesAt + lane_ % 16 * C::Queries::kPitch + 32 * half() * C::kSteps + lane_ / 16 * 16;
#pragma unroll
    for (int k = 0; k < C::kSteps; ++k) load_matrices(at + 32 * k, q_[k]);
  }

  // ---- one tile ----------------------------------------------------------------------------------------------------------------
  __device__ void compute_tile(const TileDesc& d, uint32_t stage, unsigned char* stage_memory) {
    if (d.low > d.begin || d.high < d.begin + C::kTile) {
      clear_dead<typename C::Keys>(d, stage_memory);
      if constexpr (!C::kShared) clear_dead<typename C::Values>(d, stage_memory + C::kValuesAt);
      hopper::fence_copy_engine();
      meet();
    }
    unsigned char* const scores = memory_ + C::kScoresAt + flags_ / kBuffer * C::Scores::kBytes;
    flags_ ^= kBuffer;
    compute_scores(stage, scores);
    meet();
    uint32_t weights[C::kBlocks][2];  // [block][row]: entries 2t, 2t + 1 of the block in 16 bit
    float sum[2];
    const bool over = own_weights(d, scores, sum);
    if (hopper::meet_any<2, C::kConsumers>(over)) {  // also: everyone's weights are there
      softmax(d, scores, weights);
    } else {
      l_[0] += sum[0];
      l_[1] += sum[1];
#pragma unroll
      for (int b = 0; b < C::kBlocks; ++b) {
        const uint2 w = *reinterpret_cast<const uint2*>(memory_ + C::kWeightsAt + (b * 32 + lane_) * 8);
        weights[b][0] = w.x;
        weights[b][1] = w.y;
      }
    }
    add_values(stage + C::kValuesAt, weights);
  }

  // Rows that were not copied hold whatever stood there: 0 x NaN would be NaN.
  template <class Tile>
  __device__ void clear_dead(const TileDesc& d, unsigned char* tile) const {
    constexpr int kChunks = Tile::kRowBytes / 16;
#pragma unroll 1
    for (uint32_t i = here(threadIdx.x); i < C::kTile * kChunks; i += C::kConsumers) {
      const auto entry = static_cast<int32_t>(i / kChunks);
      if (d.begin + entry >= d.low && d.begin + entry < d.high) continue;
      *reinterpret_cast<uint4*>(tile + Tile::offset_of_entry(entry) + i % kChunks * 16) = make_uint4(0, 0, 0, 0);
    }
  }

  __device__ void compute_scores(uint32_t tile, unsigned char* scores) {
    using Tile = typename C::Keys;
    float c[2][4] = {};  // two blocks, or the even and the odd steps of one
    const uint32_t base = tile + Tile::offset_of_slot(8 * C::kWarpBlocks * entry_warp()) + half() * C::kSteps * 16 * C::kElement;
    if constexpr (C::kOneByte) {
      const uint32_t at = base + Tile::blocks_then_chunks(lane_);
#pragma unroll
      for (int k = 0; k < C::kSteps; k += 2) {
        uint32_t b[4];
        load_matrices(at + 16 * k, b);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t both[2];
          e4m3x4_to_half2(b[i], both);
          multiply_add<T>(c[i / 2], q_[k + i % 2], both[0], both[1]);
        }
      }
    } else if constexpr (C::kWarpBlocks == 2) {
      const uint32_t at = base + Tile::blocks_then_chunks(lane_);
#pragma unroll
      for (int k = 0; k < C::kSteps; ++k) {
        uint32_t b[4];
        load_matrices(at + 32 * k, b);
        multiply_add<T>(c[0], q_[k], b[0], b[1]);
        multiply_add<T>(c[1], q_[k], b[2], b[3]);
      }
    } else {
      static_assert(C::kSteps % 2 == 0);
      const uint32_t at = base + Tile::four_chunks(lane_);
#pragma unroll
      for (int k = 0; k < C::kSteps; k += 2) {
        uint32_t b[4];
        load_matrices(at + 32 * k, b);
        multiply_add<T>(c[0], q_[k], b[0], b[1]);
        multiply_add<T>(c[1], q_[k + 1], b[2], b[3]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) c[0][i] += c[1][i];
    }
#pragma unroll
    for (int i = 0; i < C::kWarpBlocks; ++i) {
      *reinterpret_cast<float4*>(scores + C::Scores::offset(half(), C::kWarpBlocks * entry_warp() + i, lane_)) =
          make_float4(c[i][0], c[i][1], c[i][2], c[i][3]);
    }
  }

  // Weights of the warp's own block of entries against the maximum of earlier tiles, to shared memory. True: a score lies so far above it
  // that the tile has to be done by softmax().
  __device__ bool own_weights(const TileDesc& d, const unsigned char* scores, float (&sum)[2]) const {
    sum[0] = sum[1] = 0.0F;
    if (warp_ >= C::kBlocks) return false;
    const float4 x = *reinterpret_cast<const float4*>(scores + C::Scores::offset(0, warp_, lane_));
    const float4 y = *reinterpret_cast<const float4*>(scores + C::Scores::offset(1, warp_, lane_));
    float z[4] = {(x.x + y.x) * factor_[0], (x.y + y.y) * factor_[0], (x.z + y.z) * factor_[1], (x.w + y.w) * factor_[1]};
    uint32_t bits[2];
    bool over = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t low = max(d.low, s_.visible_low[lane_ / 4 + 8 * i]) - d.begin;
      const int32_t high = min(d.high, s_.visible_high[lane_ / 4 + 8 * i]) - d.begin;
      const float reference = m_[i] == -INFINITY ? 0.0F : m_[i] - kShift;
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const auto e = static_cast<int32_t>(C::Keys::entry_of_slot(8 * warp_ + 2 * (lane_ % 4) + j));
        if (e < low || e >= high) z[2 * i + j] = -INFINITY;
        over = over || z[2 * i + j] > m_[i] + kSlack;
        z[2 * i + j] = exp2_approx(z[2 * i + j] - reference);
      }
      sum[i] = z[2 * i] + z[2 * i + 1];
      bits[i] = pack<T>(z[2 * i], z[2 * i + 1]);
    }
    *reinterpret_cast<uint2*>(memory_ + C::kWeightsAt + (warp_ * 32 + lane_) * 8) = make_uint2(bits[0], bits[1]);
    return over;
  }

  // Rows g and g + 8 of all entries. Every warp does the same on the same numbers: the same bits.
  __device__ void softmax(const TileDesc& d, const unsigned char* scores, uint32_t (&weights)[C::kBlocks][2]) {
    float z[C::kBlocks][4];
    float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int b = 0; b < C::kBlocks; ++b) {
      const float4 x = *reinterpret_cast<const float4*>(scores + C::Scores::offset(0, b, lane_));
      const float4 y = *reinterpret_cast<const float4*>(scores + C::Scores::offset(1, b, lane_));
      z[b][0] = (x.x + y.x) * factor_[0];
      z[b][1] = (x.y + y.y) * factor_[0];
      z[b][2] = (x.z + y.z) * factor_[1];
      z[b][3] = (x.w + y.w) * factor_[1];
    }
    int32_t low[2];  // columns that rows g and g + 8 see
    int32_t high[2];
    bool whole = true;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      low[i] = max(d.low, s_.visible_low[lane_ / 4 + 8 * i]) - d.begin;
      high[i] = min(d.high, s_.visible_high[lane_ / 4 + 8 * i]) - d.begin;
      whole = whole && low[i] <= 0 && high[i] >= C::kTile;
    }
    if (!__all_sync(0xffffffffU, whole)) mask(low, high, z);
#pragma unroll
    for (int b = 0; b < C::kBlocks; ++b) {
      top[0] = fmaxf(top[0], fmaxf(z[b][0], z[b][1]));
      top[1] = fmaxf(top[1], fmaxf(z[b][2], z[b][3]));
    }
    float reference[2];
    float rescale[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffU, top[i], 1));
      top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffU, top[i], 2));
      const float m = fmaxf(m_[i], top[i]);
      reference[i] = m == -INFINITY ? 0.0F : m - kShift;
      rescale[i] = m_[i] == m ? 1.0F : exp2_approx(m_[i] - m);
      m_[i] = m;
      l_[i] *= rescale[i];
    }
    if (__any_sync(0xffffffffU, rescale[0] != 1.0F || rescale[1] != 1.0F)) rescale_output(rescale);
#pragma unroll
    for (int b = 0; b < C::kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float w0 = exp2_approx(z[b][2 * i] - reference[i]);
        const float w1 = exp2_approx(z[b][2 * i + 1] - reference[i]);
        if (warp_ == b) l_[i] += w0 + w1;
        weights[b][i] = pack<T>(w0, w1);
      }
    }
  }

  __device__ void mask(const int32_t (&low)[2], const int32_t (&high)[2], float (&z)[C::kBlocks][4]) const {
    const auto first = static_cast<int32_t>(here(lane_) % 4 * (2 * C::Keys::kGroup));
#pragma unroll
    for (int b = 0; b < C::kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t e = first + static_cast<int32_t>(C::Keys::entry_of_slot(8 * b + i % 2));
        z[b][i] = e >= low[i / 2] && e < high[i / 2] ? z[b][i] : -INFINITY;
      }
    }
  }

  __device__ void rescale_output(const float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) used_[i] *= rescale[i / 2];
#pragma unroll
    for (int n = 0; n < C::kProducts; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o_[n][i] *= rescale[i / 2];
    }
  }

  // O += P V for this warp's columns; the sums of the rounded weights by the same products, against ones.
  __device__ void add_values(uint32_t tile, const uint32_t (&weights)[C::kBlocks][2]) {
    using Tile = typename C::Values;
    const uint32_t at = tile + Tile::chunks_then_blocks(lane_) + warp_ * C::kProducts * 8 * C::kElement;
#pragma unroll
    for (int k = 0; k < C::kBlocks / 2; ++k) {
      const uint32_t w[4] = {weights[2 * k][0], weights[2 * k][1], weights[2 * k + 1][0], weights[2 * k + 1][1]};
      multiply_add<T>(used_, w, kOnes, kOnes);
#pragma unroll
      for (int n = 0; n < C::kProducts; n += 2 * (C::kOneByte ? 2 : 1)) {
        uint32_t b[4];
        load_matrices_transposed(at + Tile::offset_of_slot(16 * k) + n * 8 * C::kElement, b);
        if constexpr (C::kOneByte) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {  // 16 columns: bytes of two entries side by side, then even and odd columns
            uint32_t first[2];
            uint32_t second[2];
            e4m3x4_to_half2(__byte_perm(b[2 * c], 0, 0x3120), first);
            e4m3x4_to_half2(__byte_perm(b[2 * c + 1], 0, 0x3120), second);
            multiply_add<T>(o_[n + 2 * c], w, first[0], second[0]);
            multiply_add<T>(o_[n + 2 * c + 1], w, first[1], second[1]);
          }
        } else {
          multiply_add<T>(o_[n], w, b[0], b[1]);
          multiply_add<T>(o_[n + 1], w, b[2], b[3]);
        }
      }
    }
  }

  // ---- the end of an item ------------------------------------------------------------------------------------------------------
  __device__ void finish_item(const TileDesc& d) {
    const ResolvedSource& source = p_.sources[0];
    const float v_scale = foldable(tensor_scale(C::kShared ? source.k : source.v, kv_head(d)));
    bool bad = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      l_[i] += __shfl_xor_sync(0xffffffffU, l_[i], 1);
      l_[i] += __shfl_xor_sync(0xffffffffU, l_[i], 2);
      if (lane_ % 4 == 0) s_.row_l[warp_][lane_ / 4 + 8 * i] = l_[i];
    }
    meet();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      l_[i] = s_.row_l[0][lane_ / 4 + 8 * i];
      for (int w = 1; w < C::kBlocks; ++w) l_[i] += s_.row_l[w][lane_ / 4 + 8 * i];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) bad = finish_row(d, i, v_scale) || bad;
    if (bad) s_.bad = 1;
    meet();
    if (threadIdx.x == 0) {
      a_.redo[open(d).item_index] = s_.bad != 0 ? 1 : 0;
      if (s_.bad != 0) s_.any_redo = 1;
      s_.bad = 0;
    }
    meet();
  }

  // Row g + 8 i. Returns whether it holds a value that is not finite.
  __device__ bool finish_row(const TileDesc& d, int i, float v_scale) {
    const OpenItem& item = open(d);
    const auto r = static_cast<int32_t>(lane_ / 4) + 8 * i;
    const RowPlace place = row_place(a_, item, r);
    if (!place.live) return false;
    bool bad = !isfinite(l_[i]) || m_[i] == INFINITY;
    const float m = m_[i] == -INFINITY ? -INFINITY : m_[i] - kShift;
    float factor = used_[2 * i] > 0.0F ? l_[i] / used_[2 * i] : 1.0F;
    const bool writes = warp_ == 0 && lane_ % 4 == 0;
    PairStore store;
    if (item.item.partial < 0) {
      const RowResult result = finalize_row(m, l_[i], sink_of(p_, item.item.request, place.head));
      factor = result.zero ? 0.0F : factor * result.factor * v_scale;
      if (writes) store_lse(p_, item.item.request, place.token, place.row, place.head, result.lse);
      store = PairStore(p_.out + place.row * p_.out_row_stride + place.head * p_.out_head_stride, p_.out_type, C::kDv);
    } else {
      factor *= v_scale;
      float* const slot = reinterpret_cast<float*>(a_.partials + item.item.partial * a_.partial_stride);
      if (writes) {
        slot[int64_t{a_.partial_rows} * C::kDv + r] = m;
        slot[int64_t{a_.partial_rows} * (C::kDv + 1) + r] = l_[i];
      }
      store = PairStore(reinterpret_cast<std::byte*>(slot + int64_t{r} * C::kDv), Type::kF32, C::kDv);
    }
#pragma unroll
    for (int n = 0; n < C::kProducts; n += 2) {
      const uint32_t first = warp_ * C::kProducts * 8 + output_column<C::kOneByte>(n, lane_, 0);
      const uint32_t second =
          warp_ * C::kProducts * 8 + (C::kOneByte ? output_column<true>(n, lane_, 1) : output_column<false>(n + 1, lane_, 0));
      // Neighbours: of one product, or of the even and the odd columns' products.
      const float x0 = o_[n][2 * i] * factor;
      const float y0 = (C::kOneByte ? o_[n + 1][2 * i] : o_[n][2 * i + 1]) * factor;
      const float x1 = (C::kOneByte ? o_[n][2 * i + 1] : o_[n + 1][2 * i]) * factor;
      const float y1 = o_[n + 1][2 * i + 1] * factor;
      bad = bad || !isfinite(x0) || !isfinite(y0) || !isfinite(x1) || !isfinite(y1);
      store.put(static_cast<int32_t>(first), x0, y0);
      store.put(static_cast<int32_t>(second), x1, y1);
    }
    return bad;
  }

  const NarrowArgs& args_;
  const KernelArgs& a_;
  const ResolvedProblem& p_;
  Shared<C>& s_;
  unsigned char* const memory_;
  const uint32_t base_;
  const uint32_t warp_;
  const uint32_t lane_;
  static constexpr uint32_t kParity = 1;  // of the stages' phase
  static constexpr uint32_t kBuffer = 2;  // which of the score buffers is next
  uint32_t flags_ = 0;
  uint32_t q_[C::kSteps][4];
  float o_[C::kProducts][4];
  float used_[4];  // sums of rounded weights: rows g (0, 1) and g + 8 (2, 3)
  float m_[2];     // largest score so far, log2 units
  float l_[2];     // this lane's share of sum 2^(z - m + shift)
  float factor_[2];
};

}  // namespace headwater::cuda::narrow
