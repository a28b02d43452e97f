// Where a row block may be cut. The row blocks of a run stand on one line of work: request by request, token block by token block,
// head block by head block, each as long as it costs. Worker w of W owns [w * U / W, (w + 1) * U / W) of the line, and every position
// snaps to a legal cut by a rule that both neighbours evaluate alike. Host and device, no allocation, no recursion.
#pragma once

#include <cstdint>

#include "src/plan/cost.h"
#include "src/plan/schedule-inl.h"

namespace headwater::plan {

// A place between tiles: before tile `tile` of row block `block`. tile 0 is the edge between two row blocks.
struct Cut {
  int64_t block = 0;  // token block * num_head_blocks + head block
  int64_t tile = 0;
};

HEADWATER_HD bool operator==(const Cut& a, const Cut& b) { return a.block == b.block && a.tile == b.tile; }
HEADWATER_HD bool operator<(const Cut& a, const Cut& b) { return a.block != b.block ? a.block < b.block : a.tile < b.tile; }

// A token block: the row blocks that differ in their head block only.
struct TokenBlock {
  int32_t request = 0;
  int32_t token_begin = 0;  // in the request
  int32_t token_count = 0;
  int32_t fragments = 1;  // batch_invariant
  int64_t tiles = 0;
};

// Largest i in [0, n) with begin[i] <= x. begin[0] <= x; empty stretches are stepped over.
template <class T>
HEADWATER_HD int64_t last_at_most(const T* begin, int64_t n, int64_t x) {
  int64_t low = 0;
  int64_t high = n;
  while (high - low > 1) {
    const int64_t mid = low + (high - low) / 2;
    if (begin[mid] <= x) {
      low = mid;
    } else {
      high = mid;
    }
  }
  return low;
}

HEADWATER_HD int64_t count_tiles(const PlanShape& shape, const RequestLengths& lengths, int32_t token_begin, int32_t token_count) {
  int64_t tiles = 0;
  for (int32_t s = 0; s < shape.num_sources; ++s) tiles += source_tiles(shape, lengths, s, token_begin, token_count).num_tiles;
  return tiles;
}

// Token block k of a request.
HEADWATER_HD TokenBlock make_token_block(const PlanShape& shape, const RequestLengths& lengths, int32_t request, int64_t k) {
  TokenBlock block;
  block.request = request;
  block.token_begin = static_cast<int32_t>(k * shape.tokens_per_block);
  const int32_t rest = lengths.q_len - block.token_begin;
  block.token_count = rest < shape.tokens_per_block ? rest : shape.tokens_per_block;
  block.tiles = count_tiles(shape, lengths, block.token_begin, block.token_count);
  if (shape.batch_invariant) block.fragments = invariant_fragments(shape, block.token_count, block.tiles);
  return block;
}

// token_block < token_block_begin[requests]. Reads the scheduled lengths.
HEADWATER_HD TokenBlock find_token_block(const PlanShape& shape, const ScheduleView& view, int64_t token_block) {
  const auto request = static_cast<int32_t>(last_at_most(view.token_block_begin, view.header->requests, token_block));
  RequestLengths lengths;
  load_lengths(shape, view, request, &lengths);
  return make_token_block(shape, lengths, request, token_block - view.token_block_begin[request]);
}

// Length of one row block on the line. An empty one still costs its start: it writes zeros.
HEADWATER_HD int64_t row_block_units(const PlanShape& shape, const TokenBlock& block) {
  return block.tiles * tile_units(shape, block.token_count) + int64_t{block.fragments} * shape.block_cost;
}

// Where fragment i of n begins; i = n is the end. Sizes differ by at most one tile.
HEADWATER_HD int64_t fragment_begin(int64_t tiles, int32_t fragments, int64_t i) { return tiles * i / fragments; }

// Position of worker w's first unit: w * total / workers, without the product's overflow.
HEADWATER_HD int64_t worker_position(int64_t total, int32_t workers, int64_t w) {
  return total / workers * w + total % workers * w / workers;
}

// First worker whose position is above x; workers + 1 if none.
HEADWATER_HD int64_t first_worker_above(int64_t total, int32_t workers, int64_t x) {
  int64_t low = 0;
  int64_t high = int64_t{workers} + 1;
  while (low < high) {
    const int64_t mid = low + (high - low) / 2;
    if (worker_position(total, workers, mid) > x) {
      high = mid;
    } else {
      low = mid + 1;
    }
  }
  return low;
}

// batch_invariant: the nearest fragment boundary to `offset` units into the block.
HEADWATER_HD int64_t snap_to_fragment(const PlanShape& shape, const TokenBlock& block, int64_t offset) {
  const int64_t units = row_block_units(shape, block);
  const int64_t step = units / block.fragments;  // boundaries stand at nearly even distances
  const int64_t i = (offset + step / 2) / step;
  return i >= block.fragments ? block.tiles : fragment_begin(block.tiles, block.fragments, i);
}

// Otherwise: the cut that worker w's position makes `offset` units (more than 0) into the block that begins at `block_units`.
// Result in [0, tiles]; 0 and tiles are the block's edges. Cuts inside one block are distinct and belong to successive workers. The
// fragments at a block's ends hold at least min_fragment_tiles, those between at least half of that (rounded up).
HEADWATER_HD int64_t snap_to_tile(const PlanShape& shape, const TokenBlock& block, int64_t total, int64_t w, int64_t block_units,
                                  int64_t offset) {
  const int64_t n = block.tiles;
  const int64_t units = row_block_units(shape, block);
  const int64_t least = min_fragment_tiles(shape, block.token_count);
  if (n < 2 * least) return 2 * offset < units ? 0 : n;

  const int64_t tile = tile_units(shape, block.token_count);
  const int64_t spacing = total / shape.workers / tile;  // whole tiles from one worker's position to the next, at least
  const int64_t apart = latency_fragment_tiles(shape, block.token_count, n);
  if (spacing < apart) {
    // More workers than fragments worth having: even pieces, one worker each; the workers left over stand empty at the block's end.
    const int64_t first = first_worker_above(total, shape.workers, block_units);
    const int64_t positions = first_worker_above(total, shape.workers, block_units + units - 1) - first;
    const int64_t worth = n / apart > 1 ? n / apart : 1;
    const int64_t pieces = worth < positions + 1 ? worth : positions + 1;
    const int64_t piece = w - first + 1;
    return piece < pieces ? n * piece / pieces : n;
  }
  int64_t cut = (offset - shape.block_cost / 2 + tile / 2) / tile;  // half of the block's own cost at each end
  if (cut < least) return 2 * cut < least ? 0 : least;
  if (cut > n - least) {
    // Moving back to n - least may come too near to the cut before, unless positions are two fragments apart.
    return spacing >= 2 * least && 2 * (n - cut) > least ? n - least : n;
  }
  return cut;
}

// The cut at which worker w begins (and w - 1 ends), 0 <= w <= workers.
HEADWATER_HD Cut worker_cut(const PlanShape& shape, const ScheduleView& view, int64_t w) {
  const int64_t token_blocks = view.token_block_begin[view.header->requests];
  const int64_t total = view.unit_begin[token_blocks];
  Cut cut;
  if (w <= 0 || token_blocks == 0) return cut;
  if (view.cuts != nullptr && w < shape.workers) return view.cuts[w];
  if (w >= shape.workers) {
    cut.block = token_blocks * shape.num_head_blocks;
    return cut;
  }
  const int64_t position = worker_position(total, shape.workers, w);
  const int64_t token_block = last_at_most(view.unit_begin, token_blocks, position);
  const int64_t inside = position - view.unit_begin[token_block];
  const int64_t units = (view.unit_begin[token_block + 1] - view.unit_begin[token_block]) / shape.num_head_blocks;
  const int64_t head_block = inside / units;
  const int64_t offset = inside - head_block * units;
  cut.block = token_block * shape.num_head_blocks + head_block;
  if (offset == 0) return cut;
  const TokenBlock block = find_token_block(shape, view, token_block);
  if (block.tiles == 0) {  // both edges are tile 0
    cut.block += 2 * offset < units ? 0 : 1;
    return cut;
  }
  cut.tile =
      shape.batch_invariant ? snap_to_fragment(shape, block, offset) : snap_to_tile(shape, block, total, w, position - offset, offset);
  if (cut.tile >= block.tiles) {
    cut.block += 1;
    cut.tile = 0;
  }
  return cut;
}

}  // namespace headwater::plan
