// The flat sequence of tiles that a thread block works through: item after item, source after source. One thread walks ahead and leaves
// descriptors in a ring; copies of the next item's tiles start while the current item is still computed.
#pragma once

#include "src/cuda/common/lengths.cuh"
#include "src/cuda/mma/decode/layout.h"

namespace headwater::cuda::decode {

enum TileFlags : int32_t { kFirst = 1, kLast = 2, kNewSource = 4, kEnd = 8 };

struct TileDesc {
  plan::WorkItem item;
  int32_t item_index = 0;
  int32_t q_begin = 0;  // row of the request's first token
  int32_t source = 0;
  int32_t begin = 0;  // entry of column 0
  int32_t low = 0;    // valid entries [low, high)
  int32_t high = 0;
  int32_t flags = 0;
};

struct Cursor {
  plan::RequestLengths lengths;  // of the open item
  plan::WorkItem item;
  plan::TileSpan span;  // of the current source
  int64_t span_begin = 0;  // in the row block's tile sequence
  int64_t span_end = 0;
  int32_t index = 0;  // of the next item
  int32_t end = 0;
  int32_t tile = 0;
  int32_t source = -1;
  int32_t open = 0;
};

__device__ inline void begin_cursor(const KernelArgs& a, Cursor& c) {
  c.index = a.view.worker_begin[blockIdx.x];
  c.end = a.view.worker_begin[blockIdx.x + 1];
  c.open = 0;
}

// The next item that has rows for this thread block and whose lengths hold; the merge kernel answers for those that do not.
__device__ inline bool open_item(const KernelArgs& a, int32_t row_begin, Cursor& c) {
  while (c.index < c.end) {
    c.item = a.view.items[c.index++];
    if (row_begin >= c.item.token_count * a.shape.head_block || !item_holds(a, c.item)) continue;
    plan::load_lengths(a.shape, a.view, c.item.request, &c.lengths);
    c.tile = c.item.tile_begin;
    c.source = -1;
    c.span_begin = 0;
    c.span_end = 0;
    c.open = 1;
    return true;
  }
  return false;
}

template <int kTile>
__device__ inline void next_tile(const KernelArgs& a, int32_t row_begin, Cursor& c, TileDesc& d) {
  d.flags = 0;
  if (c.open == 0) {
    if (!open_item(a, row_begin, c)) {
      d.flags = kEnd;
      return;
    }
    d.flags = kFirst | kNewSource;
  }
  d.item = c.item;
  d.item_index = c.index - 1;
  d.q_begin = static_cast<int32_t>(c.lengths.q_begin);
  if (c.item.tile_begin >= c.item.tile_end) {  // nothing is visible: the row block is still written
    d.flags = kFirst | kLast;
    d.low = d.high = 0;
    c.open = 0;
    return;
  }
  while (c.tile >= c.span_end) {
    ++c.source;
    c.span = plan::source_tiles(a.shape, c.lengths, c.source, c.item.token_begin, c.item.token_count);
    c.span_begin = c.span_end;
    c.span_end += c.span.num_tiles;
    d.flags |= kNewSource;
  }
  d.source = c.source;
  const int64_t begin = (c.span.tile_first + c.tile - c.span_begin) * kTile;
  d.begin = static_cast<int32_t>(begin);
  d.low = static_cast<int32_t>(c.span.begin > begin ? c.span.begin : begin);
  d.high = static_cast<int32_t>(c.span.end < begin + kTile ? c.span.end : begin + kTile);
  if (++c.tile == c.item.tile_end) {
    d.flags |= kLast;
    c.open = 0;
  }
}

}  // namespace headwater::cuda::decode
