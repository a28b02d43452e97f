// From a tile descriptor to bytes in flight: each row of a tile is found through its source's table one tile early, then copied by the
// kThreads / kTile threads that share it.
#pragma once

#include "src/cuda/common/element.cuh"
#include "src/cuda/common/mma.cuh"
#include "src/cuda/mma/decode/args.h"
#include "src/cuda/mma/decode/cursor.cuh"

namespace headwater::cuda::decode {

// Where a tile's row stands. row < 0: not a live entry; its bytes become zeros and its column is masked.
struct Place {
  int64_t page = 0;
  int32_t row = -1;
};

__device__ inline Place split_slot(const ResolvedSource& s, int64_t slot) {
  if (slot < 0) return {};
  if (s.addressing == AddressingKind::kRagged) return {0, static_cast<int32_t>(slot)};
  if (slot <= 0xffffffffLL) {
    const uint32_t page = static_cast<uint32_t>(slot) / static_cast<uint32_t>(s.page_size);
    return {page, static_cast<int32_t>(static_cast<uint32_t>(slot) - page * static_cast<uint32_t>(s.page_size))};
  }
  const int64_t page = slot / s.page_size;
  return {page, static_cast<int32_t>(slot - page * s.page_size)};
}

// Column `column` of tile `d`.
__device__ inline Place find_place(const KernelArgs& a, const TileDesc& d, int32_t column) {
  const int32_t entry = d.begin + column;
  if ((d.flags & kEnd) != 0 || entry < d.low || entry >= d.high) return {};
  const ResolvedSource& s = a.problem.sources[d.source];
  if (s.rule == RuleKind::kGathered) {
    return split_slot(s, gathered_slot(s, d.item.request, int64_t{d.q_begin} + d.item.token_begin, entry));
  }
  if (s.addressing == AddressingKind::kRagged) return {0, s.kv_indptr[d.item.request] + entry};
  const uint32_t page_index = static_cast<uint32_t>(entry) / static_cast<uint32_t>(s.page_size);
  const int32_t row = entry - static_cast<int32_t>(page_index) * s.page_size;
  const int64_t page = s.addressing == AddressingKind::kBlockTable
                           ? s.block_table[d.item.request * s.block_table_stride + page_index]
                           : s.kv_indices[int64_t{s.kv_indptr[d.item.request]} + page_index];
  if (a.checked != 0 && checked_slot(a, s, page * s.page_size + row) < 0) return {};
  return {page, row};
}

// Chunks of 16 bytes are permuted within groups of 8 by the row, so that 8 rows of one chunk lie in 8 different bank groups.
__device__ inline int32_t swizzled(int32_t row, int32_t byte) { return byte ^ ((row & 7) << 4); }

template <int kBytes, int kStep>
__device__ inline void copy_row(uint32_t to, int32_t row, bool swizzle, const std::byte* from, int32_t first, int32_t valid, int32_t padded) {
#pragma unroll 4
  for (int32_t at = first * kBytes; at < padded; at += kStep * kBytes) {
    const int32_t left = valid - at;
    copy_async<kBytes>(to + (swizzle ? swizzled(row, at) : at), from + (left > 0 ? at : 0), left >= kBytes ? kBytes : left > 0 ? left : 0);
  }
}

// The row's record in this tensor, or any mapped address when it is not live.
__device__ inline const std::byte* record_of(const ResolvedTensor& t, const Place& place, int32_t head) {
  return place.row < 0 ? t.data : t.data + place.page * t.page_stride + int64_t{place.row} * t.row_stride + head * t.head_stride;
}

template <class P>
__device__ inline void copy_tensor(const ResolvedTensor& t, const TensorMode& mode, const Place& place, int32_t head, uint32_t stage, int32_t row,
                                   int32_t lane) {
  constexpr int kShare = kThreads / P::kTile;  // threads of a row
  const std::byte* from = record_of(t, place, head);
  const int32_t valid = place.row < 0 ? 0 : mode.row_bytes;
  const int32_t padded = mode.direct != 0 ? (mode.row_bytes + 31) & ~31 : (mode.row_bytes + 15) & ~15;
  const uint32_t to = stage + mode.offset + row * mode.pitch;
  if (mode.granule == 16) {
    copy_row<16, kShare>(to, row, mode.direct != 0, from, lane, valid, padded);
  } else if (mode.granule == 8) {
    copy_row<8, kShare>(to, row, mode.direct != 0, from, lane, valid, padded);
  } else {
    copy_row<4, kShare>(to, row, mode.direct != 0, from, lane, valid, padded);
  }
}

// Block scales that stand outside of the row: in registers while their tile's copies are under way, then to the stage.
inline constexpr int kMaxScales = 5;  // bytes a thread: 36 blocks of 16 columns over 8 threads; int8: one float in scale[0]
struct RowScales {
  uint32_t scale[kMaxScales];
};

template <class P>
__device__ inline void fetch_scales(const ResolvedSource& s, const ResolvedTensor& t, const TensorMode& mode, const Place& place, int32_t head,
                                    int32_t lane, RowScales& r) {
  constexpr int kShare = kThreads / P::kTile;
  if (mode.scale_blocks == 0) return;
  const std::byte* base;
  int64_t step;
  if (t.layout.tail_bytes > 0) {
    base = t.data + place.page * t.page_stride + int64_t{s.page_size} * t.layout.row_bytes + int64_t{place.row} * t.layout.tail_bytes;
    step = 1;
  } else {
    base = t.scales + place.page * t.scale_page_stride + int64_t{place.row} * t.scale_row_stride + head * t.scale_head_stride;
    step = t.scale_block_stride;
  }
  if (mode.row_scale != 0) {
    r.scale[0] = place.row >= 0 && lane == 0 ? __float_as_uint(load_f32(base)) : 0;
    return;
  }
#pragma unroll
  for (int i = 0; i < kMaxScales; ++i) {
    const int32_t block = lane + i * kShare;
    r.scale[i] = place.row >= 0 && block < mode.scale_blocks ? static_cast<uint32_t>(base[block * step]) : 0;
  }
}

template <class P>
__device__ inline void store_scales(const TensorMode& mode, unsigned char* stage, int32_t row, int32_t lane, const RowScales& r) {
  constexpr int kShare = kThreads / P::kTile;
  if (mode.scale_blocks == 0) return;
  unsigned char* to = stage + mode.scale_offset + row * mode.scale_pitch;
  if (mode.row_scale != 0) {
    if (lane == 0) *reinterpret_cast<uint32_t*>(to) = r.scale[0];
    return;
  }
#pragma unroll
  for (int i = 0; i < kMaxScales; ++i) {
    const int32_t block = lane + i * kShare;
    if (block < mode.scale_blocks) to[block] = static_cast<unsigned char>(r.scale[i]);
  }
}

}  // namespace headwater::cuda::decode
