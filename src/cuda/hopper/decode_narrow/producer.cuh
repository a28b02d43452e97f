// Producer warps: walk the worker's items tile by tile and bring each tile into a free stage. Rows outside [low, high) of a tile are
// neither read nor written; consumers clear them.
#pragma once

#include "src/cuda/common/mma.cuh"
#include "src/cuda/hopper/common/async.cuh"
#include "src/cuda/hopper/decode_narrow/args.h"
#include "src/cuda/hopper/decode_narrow/config.h"
#include "src/cuda/hopper/decode_narrow/shared.cuh"

namespace headwater::cuda::narrow {

// A run of neighbouring entries, and its table entry as loaded: untouched until the copy, for its first use waits for memory.
struct Piece {
  int32_t first = 0;  // entry
  int32_t count = 0;
  int32_t value = 0;  // page, or row where the request begins
  int32_t row = 0;    // in the page
};

template <class C>
class Producer {
 public:
  __device__ Producer(const NarrowArgs& args, Shared<C>& shared, uint32_t memory, int32_t warp)
      : args_(args),
        a_(args.base),
        source_(args.base.problem.sources[0]),
        s_(shared),
        memory_(memory),
        warp_(warp),
        lane_(threadIdx.x % 32) {}

  __device__ void run() {
    if (lane_ == 0) begin_cursor(a_, s_.cursor[warp_]);
    __syncwarp();
    TileDesc d = next_desc();
    Piece pieces[kPieces];
    look_up(d, pieces);
    int32_t stage = 0;
    uint32_t parity = 1;  // of the phase before: a fresh barrier's is complete
    while (true) {
      TileDesc ahead;
      Piece next[kPieces];
      ahead.info = kEnd;
      if (!d.has(kEnd)) {
        ahead = next_desc();
        look_up(ahead, next);
      }
      hopper::wait_barrier(shared_address(&s_.empty[stage]), parity);
      publish(d, pieces, stage);
      if (d.has(kEnd)) break;
      d = ahead;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) pieces[i] = next[i];
      if (++stage == C::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    if constexpr (!kBulk) wait_copies<0>();
  }

 private:
  static constexpr bool kBulk = C::kCopies == Copies::kBulk;
  // Copies of 16 bytes: lanes of a row, rows at a time, rounds of a tile.
  static constexpr int kChunks = C::Keys::kRowBytes / 16;
  static constexpr int kRowLanes = kChunks % 8 == 0 ? 8 : 4;
  static constexpr int kAtOnce = 32 / kRowLanes;
  static constexpr int kRounds = C::kTile / C::kProducerWarps / kAtOnce;
  static constexpr int kPieces = kBulk ? C::kTile / 32 : kRounds;
  static_assert(kBulk || kChunks % kRowLanes == 0);

  // The next tile's descriptor, in every lane.
  __device__ TileDesc next_desc() {
    TileDesc d;
    d.begin = d.low = d.high = 0;
    d.info = kEnd;
    if (lane_ == 0) next_tile<C::kTile>(a_, 0, s_.cursor[warp_], s_.items[warp_], walk_, d);
    __syncwarp();
    d.begin = __shfl_sync(0xffffffffU, d.begin, 0);
    d.low = __shfl_sync(0xffffffffU, d.low, 0);
    d.high = __shfl_sync(0xffffffffU, d.high, 0);
    d.info = __shfl_sync(0xffffffffU, d.info, 0);
    return d;
  }

  // First entry of the lane's piece, in the tile.
  __device__ int32_t piece_entry(int i) const {
    if constexpr (kBulk) return lane_ + 32 * i;
    return warp_ * (C::kTile / C::kProducerWarps) + i * kAtOnce + lane_ / kRowLanes;
  }

  __device__ void look_up(const TileDesc& d, Piece (&pieces)[kPieces]) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      Piece piece;
      if (kBulk && args_.grouped != 0) {
        if (i == 0 && lane_ < 8) {
          piece.first = max(d.low, d.begin + lane_ * C::Keys::kGroup);
          piece.count = min(d.high, d.begin + (lane_ + 1) * C::Keys::kGroup) - piece.first;
        }
      } else {
        piece.first = d.begin + piece_entry(i);
        piece.count = piece.first >= d.low && piece.first < d.high ? 1 : 0;
      }
      if (d.has(kEnd)) piece.count = 0;
      if (piece.count > 0) find(s_.items[warp_][d.slot()].item.request, piece);
      pieces[i] = piece;
    }
  }

  __device__ void find(int64_t request, Piece& piece) const {
    if (source_.addressing == AddressingKind::kRagged) {
      piece.value = source_.kv_indptr[request];
      return;
    }
    const uint32_t page = static_cast<uint32_t>(piece.first) / static_cast<uint32_t>(source_.page_size);
    piece.row = piece.first - static_cast<int32_t>(page) * source_.page_size;
    piece.value = source_.addressing == AddressingKind::kBlockTable ? source_.block_table[request * source_.block_table_stride + page]
                                                                    : source_.kv_indices[int64_t{source_.kv_indptr[request]} + page];
  }

  __device__ const std::byte* record(const ResolvedTensor& t, const Piece& piece, int32_t head) const {
    const std::byte* const base = t.data + head * t.head_stride;
    if (source_.addressing == AddressingKind::kRagged) return base + (int64_t{piece.value} + piece.first) * t.row_stride;
    return base + piece.value * t.page_stride + piece.row * t.row_stride;
  }

  // Starts the tile's copies; the stage is free.
  __device__ void publish(const TileDesc& d, const Piece (&pieces)[kPieces], int32_t stage) const {
    const uint32_t full = shared_address(&s_.full[stage]);
    if (warp_ == 0 && lane_ == 0) {
      s_.ring[stage] = d;
      hopper::arrive(shared_address(&s_.told[stage]));
    }
    if (d.has(kEnd)) return;
    const int32_t live = max(0, d.high - d.low);
    if constexpr (kBulk) {
      if (lane_ == 0) {
        hopper::arrive_expecting(full, static_cast<uint32_t>(live * (C::Keys::kRowBytes + (C::kShared ? 0 : C::Values::kRowBytes))));
      }
      __syncwarp();
    }
    if (live > 0) {
      const int32_t head = s_.items[warp_][d.slot()].item.head_block * a_.shape.head_block / source_.group;
      const uint32_t to = memory_ + stage * C::kStageBytes;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        if (pieces[i].count <= 0) continue;
        copy<typename C::Keys>(source_.k, pieces[i], d, head, to, full);
        if constexpr (!C::kShared) copy<typename C::Values>(source_.v, pieces[i], d, head, to + C::kValuesAt, full);
      }
    }
    if constexpr (!kBulk) hopper::arrive_after_copies(full);
  }

  template <class Tile>
  __device__ void copy(const ResolvedTensor& t, const Piece& piece, const TileDesc& d, int32_t head, uint32_t to, uint32_t full) const {
    const std::byte* from = record(t, piece, head);
    to += Tile::offset_of_entry(static_cast<uint32_t>(piece.first - d.begin));
    if constexpr (kBulk) {
      hopper::copy_bulk(to, from, static_cast<uint32_t>(piece.count * Tile::kRowBytes), full);
    } else {
      from += lane_ % kRowLanes * 16;
      to += lane_ % kRowLanes * 16;
#pragma unroll
      for (int c = 0; c < Tile::kRowBytes / 16 / kRowLanes; ++c) {
        copy_async<16>(to + c * kRowLanes * 16, from + c * kRowLanes * 16, 16);
      }
    }
  }

  const NarrowArgs& args_;
  const KernelArgs& a_;
  const ResolvedSource& source_;
  Shared<C>& s_;
  const uint32_t memory_;
  const int32_t warp_;
  const int32_t lane_;
  Walk walk_;  // of lane 0
};

}  // namespace headwater::cuda::narrow
