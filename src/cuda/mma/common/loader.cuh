// From a tile descriptor to addresses and copies: each row of a tile is looked up in its source's table one tile early, then copied by the
// threads that share it. A lookup's value stays untouched until it is needed: warps issue in order, and its first use waits for memory.
#pragma once

#include "src/cuda/common/mma.cuh"
#include "src/cuda/mma/common/cursor.cuh"

namespace headwater::cuda::mma {

// Where a tile's row stands. row < 0: not a live entry; its bytes become zeros and its column is masked.
struct Place {
  int64_t page = 0;
  int32_t row = -1;
};

// A lookup under way.
struct Lookup {
  int32_t value = 0;   // page, row offset or list entry, as loaded
  int32_t row = 0;     // in the page; of an int64 list entry: its upper half
  int32_t entry = -1;  // -1: not a live entry
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

// Starts the lookup of column `column` of tile `d`.
__device__ inline Lookup look_up(const KernelArgs& a, const OpenItem* items, const TileDesc& d, int32_t column) {
  Lookup l;
  if (d.has(kEnd)) return l;
  const int32_t entry = d.begin + column;
  if (entry < d.low || entry >= d.high) return l;
  l.entry = entry;
  const ResolvedSource& s = a.problem.sources[d.source()];
  const OpenItem& open = items[d.slot()];
  if (s.rule == RuleKind::kGathered) {
    const int64_t at = (int64_t{open.q_begin} + open.item.token_begin) * s.indices_stride + entry;
    if (s.indices_are_64) {
      const int2 halves = static_cast<const int2*>(s.indices)[at];
      l.value = halves.x;
      l.row = halves.y;
    } else {
      l.value = static_cast<const int32_t*>(s.indices)[at];
    }
  } else if (s.addressing == AddressingKind::kRagged) {
    l.value = s.kv_indptr[open.item.request];
  } else {
    const uint32_t page = static_cast<uint32_t>(entry) / static_cast<uint32_t>(s.page_size);
    l.row = entry - static_cast<int32_t>(page) * s.page_size;
    l.value = s.addressing == AddressingKind::kBlockTable ? s.block_table[open.item.request * s.block_table_stride + page]
                                                          : s.kv_indices[int64_t{s.kv_indptr[open.item.request]} + page];
  }
  return l;
}

__device__ inline Place place_of(const KernelArgs& a, const OpenItem* items, const TileDesc& d, const Lookup& l) {
  if (l.entry < 0) return {};
  const ResolvedSource& s = a.problem.sources[d.source()];
  if (s.rule == RuleKind::kGathered) {
    const int64_t index = s.indices_are_64 ? int64_t{l.row} << 32 | static_cast<uint32_t>(l.value) : l.value;
    if (index < 0) return {};
    if (s.index_space == IndexSpace::kSlot) return index < s.num_slots ? split_slot(s, index) : Place{};
    const int64_t request = items[d.slot()].item.request;
    return index < source_kv_len(s, request) ? split_slot(s, source_slot(s, request, index)) : Place{};
  }
  if (s.addressing == AddressingKind::kRagged) return {0, l.value + l.entry};
  if (a.checked != 0 && checked_slot(a, s, int64_t{l.value} * s.page_size + l.row) < 0) return {};
  return {l.value, l.row};
}

// Chunks of 16 bytes are permuted within groups of 8 by the row, so that 8 rows of one chunk lie in 8 different bank groups.
__device__ inline int32_t swizzled(int32_t row, int32_t byte) { return byte ^ ((row & 7) << 4); }

// Bytes [0, valid) of a row, zeros up to `padded`; thread `first` of kStep.
template <int kBytes, int kStep>
__device__ inline void copy_row(uint32_t to, int32_t row, bool swizzle, const std::byte* from, int32_t first, int32_t valid,
                                int32_t padded) {
  const int32_t twist = swizzle ? (row & 7) << 4 : 0;
  const std::byte* const at_first = from + first * kBytes;
  int32_t at = first * kBytes;
  if constexpr (kStep * kBytes % 128 == 0) {  // the permutation repeats every 128 bytes
    const uint32_t to_first = to + (at ^ twist) - at;
#pragma unroll 3
    for (; at + kBytes <= valid; at += kStep * kBytes) copy_async<kBytes>(to_first + at, from + at, kBytes);
  }
#pragma unroll 2
  for (; at + kBytes <= valid; at += kStep * kBytes) copy_async<kBytes>(to + (at ^ twist), at_first + (at - first * kBytes), kBytes);
#pragma unroll 1
  for (; at < padded; at += kStep * kBytes) {
    const int32_t left = valid - at;
    copy_async<kBytes>(to + (at ^ twist), left > 0 ? from + at : from, left > 0 ? left : 0);
  }
}

// The row's record in this tensor, or any mapped address when it is not live.
__device__ inline const std::byte* record_of(const ResolvedTensor& t, const Place& place, int32_t head) {
  return place.row < 0 ? t.data : t.data + place.page * t.page_stride + int64_t{place.row} * t.row_stride + head * t.head_stride;
}

}  // namespace headwater::cuda::mma
