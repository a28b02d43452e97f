// The flat sequence of tiles that a thread block works through: item after item, source after source. One thread walks ahead and leaves
// descriptors in a ring; copies of the next item's tiles start while the current item is still computed.
#pragma once

#include "src/cuda/common/lengths.cuh"

namespace headwater::cuda::mma {

inline constexpr int kRing = 16;  // tile descriptors and open items; at least stages + 3

enum TileFlags : int32_t { kFirst = 1, kLast = 2, kNewSource = 4, kEnd = 8 };

// One tile. `info`: flags, source << 8, place of the item in the ring of items << 16.
struct __align__(16) TileDesc {
  int32_t begin;  // entry of column 0
  int32_t low;    // valid entries [low, high)
  int32_t high;
  int32_t info;
  __device__ bool has(int32_t flags) const { return (info & flags) != 0; }
  __device__ int32_t source() const { return (info >> 8) & 0xff; }
  __device__ int32_t slot() const { return info >> 16; }
  __device__ bool empty() const { return low >= high; }
};

struct OpenItem {
  plan::WorkItem item;
  int32_t item_index;
  int32_t q_begin;  // row of the request's first token
};

// What the walking thread needs once per item or source.
struct Cursor {
  plan::RequestLengths lengths;  // of the open item
  int32_t index;                 // of the next item
  int32_t end;
};

// What it needs once per tile, in its registers.
struct Walk {
  int32_t begin = 0;       // of the next tile
  int32_t span_begin = 0;  // entries of the current source that the row block sees
  int32_t span_end = 0;
  int32_t left_source = 0;  // tiles
  int32_t left_item = 0;
  int32_t tile = 0;  // in the row block's sequence, at the end of the current source
  int32_t source = 0;
  int32_t slot = 0;
};

__device__ inline void begin_cursor(const KernelArgs& a, Cursor& c) {
  c.index = a.view.worker_begin[blockIdx.x];
  c.end = a.view.worker_begin[blockIdx.x + 1];
}

// The next item that has rows for this thread block and whose lengths hold; the merge kernel answers for those that do not.
static __device__ __noinline__ bool open_item(const KernelArgs& a, int32_t row_begin, Cursor& c, OpenItem& open) {
  while (c.index < c.end) {
    const plan::WorkItem item = a.view.items[c.index++];
    if (row_begin >= item.token_count * a.shape.head_block || !item_holds(a, item)) continue;
    plan::load_lengths(a.shape, a.view, item.request, &c.lengths);
    open.item = item;
    open.item_index = c.index - 1;
    open.q_begin = static_cast<int32_t>(c.lengths.q_begin);
    return true;
  }
  return false;
}

// The source that holds tile `w.tile` + the item's first, walking on from w.source.
template <int kTile>
__device__ __noinline__ Walk enter_source(const KernelArgs& a, const Cursor& c, const plan::WorkItem& item, Walk w) {
  // w.tile: where the source before ends in the sequence; the item's next tile stands at item.tile_end - w.left_item.
  const int32_t next = item.tile_end - w.left_item;
  for (;;) {
    const plan::TileSpan span = plan::source_tiles(a.shape, c.lengths, w.source, item.token_begin, item.token_count);
    const int32_t tiles = static_cast<int32_t>(span.num_tiles);
    if (next < w.tile + tiles) {
      w.begin = static_cast<int32_t>((span.tile_first + next - w.tile) * kTile);
      w.span_begin = static_cast<int32_t>(span.begin);
      w.span_end = static_cast<int32_t>(span.end);
      w.left_source = w.tile + tiles - next;
      w.tile += tiles;
      return w;
    }
    w.tile += tiles;
    ++w.source;
  }
}

template <int kTile>
__device__ inline void next_tile(const KernelArgs& a, int32_t row_begin, Cursor& c, OpenItem* items, Walk& w, TileDesc& d) {
  int32_t flags = 0;
  if (w.left_item == 0) {
    w.slot = (w.slot + 1) % kRing;
    if (!open_item(a, row_begin, c, items[w.slot])) {
      d.info = kEnd;
      return;
    }
    const plan::WorkItem& item = items[w.slot].item;
    w.left_item = item.tile_end - item.tile_begin;
    w.left_source = 0;
    w.source = -1;
    w.tile = 0;
    flags = kFirst;
    if (w.left_item == 0) {  // nothing is visible: the row block is still written
      d = {0, 0, 0, kFirst | kLast | w.slot << 16};
      return;
    }
  }
  if (w.left_source == 0) {
    ++w.source;
    w = enter_source<kTile>(a, c, items[w.slot].item, w);
    flags |= kNewSource;
  }
  --w.left_source;
  if (--w.left_item == 0) flags |= kLast;
  TileDesc next;
  next.begin = w.begin;
  next.low = max(w.span_begin, w.begin);
  next.high = min(w.span_end, w.begin + kTile);
  next.info = flags | w.source << 8 | w.slot << 16;
  d = next;
  w.begin += kTile;
}

}  // namespace headwater::cuda::mma
