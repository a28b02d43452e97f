// Work of one run as plain data, shared by host and device. A *row block* is some tokens of one request times the query heads that
// share a KV head (head block). Its visible entries, source after source, are cut into tiles of `tile_entries`, numbered in one
// sequence. A work item is a run of tiles of one row block; the partials of a cut row block are merged in tile order.
#pragma once

#include <cstdint>

#include "headwater/problem.h"
#include "src/core/hd.h"
#include "src/core/visibility.h"

namespace headwater::plan {

// Fixed by the plan. Passed by value to kernels.
struct SourceRules {
  RuleKind rule = RuleKind::kFull;
  int32_t window_left = -1;
  int32_t ratio = 0;
  int32_t topk = 0;
  AddressingKind addressing = AddressingKind::kRagged;
  int32_t page_size = 1;
  IndexSpace index_space = IndexSpace::kSlot;
  int64_t max_len = 0;  // bounds that schedules are checked against; not for gathered sources
  int64_t max_total_len = 0;
};
struct PlanShape {
  int32_t num_sources = 0;
  int32_t heads = 0;
  int32_t head_block = 1;        // query heads of a row block
  int32_t num_head_blocks = 1;   // heads / head_block
  int32_t tokens_per_block = 1;  // query tokens of a row block; 1 when any source is gathered
  int32_t tile_entries = 64;
  int32_t workers = 1;
  bool batch_invariant = false;
  bool needs_context = false;
  int32_t context_source = -1;  // read when Lengths::context_lens is null
  // Costs in integer units of 1/64 of a one-token tile (plan/cost.h): deterministic on host and device, and never taken from bounds
  // other than formats, heads and widths, so that batch_invariant cuts are a function of the request alone.
  int32_t tile_cost = 1;        // one tile of one row block: its KV bytes ...
  int32_t tile_token_cost = 0;  // ... or this much arithmetic per token of the block, whichever is more
  int32_t block_cost = 1;       // starting and finishing one fragment
  int32_t partial_cost = 0;     // per token: writing one partial, or reading it back
  int32_t max_splits = 1;       // batch_invariant: most fragments of a row block
  // Bounds and capacities, for checks and the buffer layout.
  int32_t max_q_len = 0;
  int64_t max_requests = 0;
  int64_t max_total_q = 0;
  int64_t max_token_blocks = 0;
  int64_t max_items = 0;
  int64_t max_merges = 0;
  int64_t max_partials = 0;
  SourceRules sources[kMaxSources];
};

struct WorkItem {
  int32_t request = 0;
  int32_t token_begin = 0;  // in the request
  int32_t token_count = 0;
  int32_t head_block = 0;
  int32_t tile_begin = 0;  // in the row block's tile sequence
  int32_t tile_end = 0;
  int32_t partial = -1;  // slot of the partial it leaves; -1: it covers the whole row block and writes out and lse
  int32_t reserved = 0;
};

struct MergeItem {
  int32_t request = 0;
  int32_t token_begin = 0;
  int32_t token_count = 0;
  int32_t head_block = 0;
  int32_t first_partial = 0;
  int32_t num_partials = 0;  // merged left to right
  int32_t contiguous = 0;    // slots first, first + 1, ...; otherwise first, first + 1, first + 3, first + 5, ...
  int32_t reserved = 0;
};

HEADWATER_HD int32_t partial_slot(const MergeItem& merge, int32_t i) {
  return merge.first_partial + (i == 0 ? 0 : merge.contiguous != 0 ? i : 2 * i - 1);
}

// One request's lengths as they were scheduled, per source.
struct RequestLengths {
  int64_t q_begin = 0;  // first query row
  int32_t q_len = 0;
  int32_t reserved = 0;
  int64_t context_len = 0;
  int64_t kv_len[kMaxSources];
  int64_t first_position[kMaxSources];
  int64_t position_stride[kMaxSources];
  const int32_t* topk_lens[kMaxSources];  // gathered sources: [total_q], each in [0, topk]; or null
};

// Tiles of one source for a row block: tile k covers entries [ (tile_first + k) * tile_entries, + tile_entries ) cut to [begin, end).
// Gathered sources: entries are list positions [0, topk_len).
struct TileSpan {
  int64_t begin = 0;  // visible to some token of the block
  int64_t end = 0;
  int64_t tile_first = 0;  // begin / tile_entries
  int64_t num_tiles = 0;
};

HEADWATER_HD TileSpan source_tiles(const PlanShape& shape, const RequestLengths& lengths, int32_t source, int32_t token_begin,
                                   int32_t token_count) {
  const SourceRules& rules = shape.sources[source];
  TileSpan span;
  if (rules.rule == RuleKind::kGathered) {
    // token_count is 1
    span.end = lengths.topk_lens[source] ? lengths.topk_lens[source][lengths.q_begin + token_begin] : rules.topk;
  } else {
    const int64_t t_first = lengths.context_len - lengths.q_len + token_begin;
    const EntryRange first = visible_range(rules.rule, rules.window_left, rules.ratio, lengths.first_position[source],
                                           lengths.position_stride[source], lengths.kv_len[source], t_first);
    const EntryRange last = visible_range(rules.rule, rules.window_left, rules.ratio, lengths.first_position[source],
                                          lengths.position_stride[source], lengths.kv_len[source], t_first + token_count - 1);
    // Both ends grow with t; an empty first interval may begin before the window's own entries, which only adds masked ones.
    // An interval that would begin past kv_len is empty wherever it stands: cut to the entries that exist.
    span.begin = first.begin;
    span.end = last.end < lengths.kv_len[source] ? last.end : lengths.kv_len[source];
  }
  if (span.end <= span.begin) {
    span.end = span.begin;
    return span;
  }
  span.tile_first = span.begin / shape.tile_entries;
  span.num_tiles = (span.end + shape.tile_entries - 1) / shape.tile_entries - span.tile_first;
  return span;
}

}  // namespace headwater::plan
