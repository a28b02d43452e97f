// From lengths to the line of work, and from the line to each worker's items and merges. Every step runs per request, per token block
// or per worker, with prefix sums between them: a loop on the host (balance.cc), threads and scans on a device. Order of steps:
//   1 copy_lengths(r), token blocks of r          scan -> token_block_begin
//   2 token_block_units(b)                        scan -> unit_begin
//   3 worker_cut(w), measure_part(w)              scan -> first item, merge and partial of each worker
//   4 write_part(w)
#pragma once

#include <cstdint>

#include "src/plan/split_kv.h"

namespace headwater::plan {

// Entries of request r. Slots of a gathered source have no length; its positions do.
HEADWATER_HD int64_t given_kv_len(const SourceRules& rules, const SourceLengths& source, int64_t r) {
  if (rules.rule == RuleKind::kGathered && rules.index_space == IndexSpace::kSlot) return 0;
  if (rules.addressing == AddressingKind::kRagged) {
    return source.kv_indptr != nullptr ? int64_t{source.kv_indptr[r + 1]} - source.kv_indptr[r] : 0;
  }
  if (source.seq_lens != nullptr) return source.seq_lens[r];
  if (source.kv_indptr == nullptr || source.kv_last_page_len == nullptr) return 0;
  const int64_t pages = int64_t{source.kv_indptr[r + 1]} - source.kv_indptr[r];
  return pages == 0 ? 0 : (pages - 1) * rules.page_size + source.kv_last_page_len[r];
}

HEADWATER_HD int64_t given_first_position(const SourceLengths& source, int64_t r) {
  return source.first_position != nullptr ? source.first_position[r] : 0;
}

HEADWATER_HD int64_t given_position_stride(const SourceLengths& source, int64_t r) {
  return source.position_stride != nullptr ? source.position_stride[r] : 1;
}

HEADWATER_HD int64_t given_context_len(const PlanShape& shape, const Lengths& lengths, int64_t r) {
  if (!shape.needs_context) return 0;
  if (lengths.context_lens != nullptr) return lengths.context_lens[r];
  if (shape.context_source < 0) return 0;
  const SourceLengths& source = lengths.sources[shape.context_source];
  return given_first_position(source, r) + given_kv_len(shape.sources[shape.context_source], source, r);
}

// Clamped to [0, topk].
HEADWATER_HD int32_t given_topk_len(const SourceRules& rules, const SourceLengths& source, int64_t row) {
  if (source.topk_lens == nullptr) return rules.topk;
  const int32_t n = source.topk_lens[row];
  return n < 0 ? 0 : n > rules.topk ? rules.topk : n;
}

// What is wrong with a request's lengths, if anything.
enum class LengthFault : int32_t { kNone, kQoOrder, kQoTotal, kQLen, kKvNegative, kKvLen, kStride, kContext };
struct LengthCheck {
  LengthFault fault = LengthFault::kNone;
  int32_t source = -1;
};

HEADWATER_HD LengthCheck check_request(const PlanShape& shape, const Lengths& lengths, int64_t r) {
  LengthCheck check;
  const int64_t begin = lengths.qo_indptr[r];
  const int64_t end = lengths.qo_indptr[r + 1];
  if (begin < 0 || end < begin) check.fault = LengthFault::kQoOrder;
  if (end > shape.max_total_q || end > lengths.total_q) check.fault = LengthFault::kQoTotal;
  if (check.fault == LengthFault::kNone && end - begin > shape.max_q_len) check.fault = LengthFault::kQLen;
  for (int32_t s = 0; s < shape.num_sources && check.fault == LengthFault::kNone; ++s) {
    const SourceRules& rules = shape.sources[s];
    const int64_t kv_len = given_kv_len(rules, lengths.sources[s], r);
    if (kv_len < 0) check.fault = LengthFault::kKvNegative;
    if (rules.rule != RuleKind::kGathered && kv_len > rules.max_len) check.fault = LengthFault::kKvLen;
    if (kv_len > INT32_MAX) check.fault = LengthFault::kKvLen;
    if (given_position_stride(lengths.sources[s], r) < 1) check.fault = LengthFault::kStride;
    check.source = s;
  }
  if (check.fault == LengthFault::kNone) {
    const int64_t context_len = given_context_len(shape, lengths, r);
    if (context_len > INT32_MAX || context_len < INT32_MIN) check.fault = LengthFault::kContext;
  }
  return check;
}

// Step 1: the snapshot of one request's lengths, and its token blocks. Writes q_begin[r + 1] too. Needs header->requests set.
HEADWATER_HD int64_t copy_lengths(const PlanShape& shape, const Lengths& lengths, const ScheduleView& view, int64_t r) {
  const int64_t begin = lengths.qo_indptr[r];
  const int64_t end = lengths.qo_indptr[r + 1];
  view.q_begin[r] = static_cast<int32_t>(begin);
  view.q_begin[r + 1] = static_cast<int32_t>(end);
  view.context_len[r] = static_cast<int32_t>(given_context_len(shape, lengths, r));
  for (int32_t s = 0; s < shape.num_sources; ++s) {
    const int64_t at = s * shape.max_requests + r;
    const SourceLengths& source = lengths.sources[s];
    view.kv_len[at] = static_cast<int32_t>(given_kv_len(shape.sources[s], source, r));
    view.first_position[at] = static_cast<int32_t>(given_first_position(source, r));
    view.position_stride[at] = static_cast<int32_t>(given_position_stride(source, r));
    if (shape.sources[s].rule != RuleKind::kGathered) continue;
    for (int64_t row = begin; row < end; ++row) {
      view.topk_len[s * shape.max_total_q + row] = given_topk_len(shape.sources[s], source, row);
    }
  }
  return (end - begin + shape.tokens_per_block - 1) / shape.tokens_per_block;
}

// Step 2: the length of a token block on the line, all its head blocks.
HEADWATER_HD int64_t token_block_units(const PlanShape& shape, const TokenBlock& block) {
  return row_block_units(shape, block) * shape.num_head_blocks;
}

// What one worker gets. Non-invariant partials have fixed slots (2w, 2w + 1) and need no count.
struct WorkerPart {
  Cut begin;
  Cut end;
  int64_t items = 0;
  int64_t merges = 0;    // of row blocks that begin here and end elsewhere, or (batch_invariant) have several fragments
  int64_t partials = 0;  // batch_invariant
};

// Index of the fragment that begins at `tile`, a fragment boundary.
HEADWATER_HD int64_t fragment_at(const TokenBlock& block, int64_t tile) {
  return block.tiles == 0 ? 0 : (tile * block.fragments + block.tiles - 1) / block.tiles;
}

// Calls visit(row block, its token block, first tile, end tile) for every row block that the part touches, in order.
template <class Visit>
HEADWATER_HD void for_each_row_block(const PlanShape& shape, const ScheduleView& view, const WorkerPart& part, const Visit& visit) {
  int64_t token_block = -1;
  TokenBlock block;
  RequestLengths lengths;
  const int64_t last = part.end.tile > 0 ? part.end.block + 1 : part.end.block;
  for (int64_t b = part.begin.block; b < last; ++b) {
    const int64_t of = b / shape.num_head_blocks;
    if (of != token_block) {
      // The first is searched for; later ones are in this request or soon after.
      int64_t request = token_block < 0 ? last_at_most(view.token_block_begin, view.header->requests, of) : block.request;
      const bool loaded = token_block >= 0 && of < view.token_block_begin[request + 1];
      while (of >= view.token_block_begin[request + 1]) ++request;
      if (!loaded) load_lengths(shape, view, request, &lengths);
      block = make_token_block(shape, lengths, static_cast<int32_t>(request), of - view.token_block_begin[request]);
      token_block = of;
    }
    visit(b, block, b == part.begin.block ? part.begin.tile : 0, b == part.end.block ? part.end.tile : block.tiles);
  }
}

// A worker that begins a row block and leaves its rest to the next ones.
HEADWATER_HD bool leaves_head(const WorkerPart& part) {
  return part.end.tile > 0 && !(part.begin.block == part.end.block && part.begin.tile > 0);
}

// Step 3, between worker_cut(w) and worker_cut(w + 1). O(1); batch_invariant walks the part's row blocks.
HEADWATER_HD WorkerPart measure_part(const PlanShape& shape, const ScheduleView& view, const Cut& begin, const Cut& end) {
  WorkerPart part;
  part.begin = begin;
  part.end = end;
  if (!(part.begin < part.end)) return part;
  if (!shape.batch_invariant) {
    part.items = part.end.block - part.begin.block + (part.end.tile > 0 ? 1 : 0);
    part.merges = leaves_head(part) ? 1 : 0;
    return part;
  }
  for_each_row_block(shape, view, part, [&](int64_t, const TokenBlock& block, int64_t begin, int64_t end) {
    const int64_t fragments = fragment_at(block, end) - fragment_at(block, begin);
    part.items += block.tiles == 0 ? 1 : fragments;
    if (block.fragments == 1) return;
    part.partials += fragments;
    part.merges += begin == 0 ? 1 : 0;
  });
  return part;
}

HEADWATER_HD WorkItem make_item(const PlanShape& shape, const TokenBlock& block, int64_t row_block, int64_t begin, int64_t end,
                                int64_t partial) {
  WorkItem item;
  item.request = block.request;
  item.token_begin = block.token_begin;
  item.token_count = block.token_count;
  item.head_block = static_cast<int32_t>(row_block % shape.num_head_blocks);
  item.tile_begin = static_cast<int32_t>(begin);
  item.tile_end = static_cast<int32_t>(end);
  item.partial = static_cast<int32_t>(partial);
  return item;
}

HEADWATER_HD MergeItem make_merge(const WorkItem& item, int64_t partials, bool contiguous) {
  MergeItem merge;
  merge.request = item.request;
  merge.token_begin = item.token_begin;
  merge.token_count = item.token_count;
  merge.head_block = item.head_block;
  merge.first_partial = item.partial;
  merge.num_partials = static_cast<int32_t>(partials);
  merge.contiguous = contiguous ? 1 : 0;
  return merge;
}

// Workers that share the row block whose first part worker w leaves.
HEADWATER_HD int64_t count_sharers(const PlanShape& shape, const ScheduleView& view, int64_t w, int64_t row_block) {
  const Cut block_end{row_block + 1, 0};
  int64_t low = w + 2;  // the first worker that may begin at or after the block's end
  int64_t high = shape.workers;
  while (low < high) {
    const int64_t mid = low + (high - low) / 2;
    if (worker_cut(shape, view, mid) < block_end) {
      low = mid + 1;
    } else {
      high = mid;
    }
  }
  return low - w;
}

// Step 4: items[first_item ...], merges[first_merge ...].
HEADWATER_HD void write_part(const PlanShape& shape, const ScheduleView& view, int64_t w, const WorkerPart& part, int64_t first_item,
                             int64_t first_merge, int64_t first_partial) {
  if (!(part.begin < part.end)) return;
  int64_t item_at = first_item;
  int64_t merge_at = first_merge;
  int64_t partial_at = first_partial;
  for_each_row_block(shape, view, part, [&](int64_t row_block, const TokenBlock& block, int64_t begin, int64_t end) {
    if (!shape.batch_invariant) {
      const bool whole = begin == 0 && end == block.tiles;
      const int64_t slot = whole ? -1 : begin > 0 ? 2 * w : 2 * w + 1;
      view.items[item_at] = make_item(shape, block, row_block, begin, end, slot);
      if (begin == 0 && !whole) {
        view.merges[merge_at++] = make_merge(view.items[item_at], count_sharers(shape, view, w, row_block), false);
      }
      ++item_at;
      return;
    }
    if (block.fragments == 1) {
      view.items[item_at++] = make_item(shape, block, row_block, begin, end, -1);
      return;
    }
    for (int64_t f = fragment_at(block, begin); f < fragment_at(block, end); ++f) {
      const int64_t tile = fragment_begin(block.tiles, block.fragments, f);
      const int64_t next = fragment_begin(block.tiles, block.fragments, f + 1);
      view.items[item_at] = make_item(shape, block, row_block, tile, next, partial_at++);
      if (f == 0) view.merges[merge_at++] = make_merge(view.items[item_at], block.fragments, true);
      ++item_at;
    }
  });
}

// All steps on the host, worker after worker. The lengths have been checked.
[[nodiscard]] Status deal(const PlanShape& shape, const Lengths& lengths, const ScheduleView& view);

}  // namespace headwater::plan
