// What work costs, in integer units: PlanShape's cost fields, and functions of them that host and device share.
// One unit is 1/64 of a tile of a one-token row block. The fields come from the kernel's rates and from formats, heads and widths
// (cost.cc), never from lengths, batch or workers.
#pragma once

#include <cstdint>

#include "src/plan/schedule.h"

namespace headwater::plan {

inline constexpr int32_t kUnitsPerTile = 64;

// One tile of a row block of `tokens` tokens: reading its KV, or the arithmetic, whichever takes longer.
HEADWATER_HD int64_t tile_units(const PlanShape& shape, int32_t tokens) {
  const int64_t arithmetic = int64_t{shape.tile_token_cost} * tokens;
  return arithmetic > shape.tile_cost ? arithmetic : shape.tile_cost;
}

// What one more cut costs: another fragment is started, its partial written and read back.
// partial_cost grows with head_block * d_v; relative to tile_units it weighs more the smaller the records are.
HEADWATER_HD int64_t cut_units(const PlanShape& shape, int32_t tokens) {
  return shape.block_cost + 2 * int64_t{shape.partial_cost} * tokens;
}

HEADWATER_HD int64_t floor_sqrt(int64_t x) {  // 0 <= x < 2^62
  int64_t root = 0;
  for (int64_t bit = int64_t{1} << 30; bit > 0; bit >>= 1) {
    const int64_t next = root + bit;
    if (next * next <= x) root = next;
  }
  return root;
}

// Fewest tiles that a fragment is worth starting for: those that cost as much as its own overhead.
HEADWATER_HD int64_t min_fragment_tiles(const PlanShape& shape, int32_t tokens) {
  const int64_t tile = tile_units(shape, tokens);
  return (cut_units(shape, tokens) + tile - 1) / tile;
}

// Tiles of a fragment where workers outnumber the fragments worth having. The partials of a block are read back by one worker, so
// S fragments of n tiles take n / S tiles + S partials: best at n / S = sqrt(n * partial / tile).
HEADWATER_HD int64_t latency_fragment_tiles(const PlanShape& shape, int32_t tokens, int64_t n) {
  const int64_t least = min_fragment_tiles(shape, tokens);
  const int64_t merge = floor_sqrt(n * (int64_t{shape.partial_cost} * tokens) / tile_units(shape, tokens));
  return least > merge ? least : merge;
}

// batch_invariant: fragments of an n-tile row block, from its own tiles and tokens alone. The count grows with sqrt(n), so that the
// share of the overhead falls with length whatever the batch, and stops at max_splits.
HEADWATER_HD int32_t invariant_fragments(const PlanShape& shape, int32_t tokens, int64_t n) {
  const int64_t own = min_fragment_tiles(shape, tokens);
  const int64_t even = floor_sqrt(n * cut_units(shape, tokens) / tile_units(shape, tokens));
  const int64_t fragments = n / (own > even ? own : even);
  if (fragments <= 1) return 1;
  return static_cast<int32_t>(fragments < shape.max_splits ? fragments : shape.max_splits);
}

// The rates of a kernel and the sizes of the problem as unit costs: fills tile_cost, tile_token_cost, block_cost and partial_cost.
// Reads shape->head_block and tile_entries.
void set_costs(const Bounds& bounds, const KernelTraits& traits, PlanShape* shape);

// KV bytes of one entry of one KV head, scales included.
[[nodiscard]] double entry_bytes(const Bounds& bounds, const SourceBounds& source);

}  // namespace headwater::plan
