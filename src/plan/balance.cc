#include "src/plan/balance.h"

namespace headwater::plan {

namespace {

// Steps 1 and 2. False when the line is longer than 2^62 units.
bool lay_out_line(const PlanShape& shape, const Lengths& lengths, const ScheduleView& view) {
  view.token_block_begin[0] = 0;
  view.unit_begin[0] = 0;
  view.q_begin[0] = lengths.requests > 0 ? lengths.qo_indptr[0] : 0;
  double total = 0.0;
  for (int64_t r = 0; r < lengths.requests; ++r) {
    const int64_t blocks = copy_lengths(shape, lengths, view, r);
    const int64_t first = view.token_block_begin[r];
    view.token_block_begin[r + 1] = static_cast<int32_t>(first + blocks);
    RequestLengths request;
    load_lengths(shape, view, r, &request);
    for (int64_t k = 0; k < blocks; ++k) {
      const TokenBlock block = make_token_block(shape, request, static_cast<int32_t>(r), k);
      total += static_cast<double>(row_block_units(shape, block)) * shape.num_head_blocks;
      if (total > 4e18) return false;
      view.unit_begin[first + k + 1] = view.unit_begin[first + k] + token_block_units(shape, block);
    }
  }
  return true;
}

}  // namespace

Status deal(const PlanShape& shape, const Lengths& lengths, const ScheduleView& view) {
  ScheduleHeader* const header = view.header;
  header->requests = lengths.requests;
  header->total_q = lengths.requests > 0 ? lengths.qo_indptr[lengths.requests] : 0;
  if (!lay_out_line(shape, lengths, view)) return unsupported("lengths: more work than the planner's 62-bit costs can add up");
  int64_t items = 0;
  int64_t merges = 0;
  int64_t partials = 0;
  Cut begin;
  for (int64_t w = 0; w < shape.workers; ++w) {
    const Cut end = worker_cut(shape, view, w + 1);
    const WorkerPart part = measure_part(shape, view, begin, end);
    begin = end;
    view.worker_begin[w] = static_cast<int32_t>(items);
    write_part(shape, view, w, part, items, merges, partials);
    items += part.items;
    merges += part.merges;
    partials += part.partials;
  }
  view.worker_begin[shape.workers] = static_cast<int32_t>(items);
  header->num_items = static_cast<int32_t>(items);
  header->num_merges = static_cast<int32_t>(merges);
  header->fingerprint = fingerprint(shape);
  header->magic = kScheduleMagic;
  return {};
}

}  // namespace headwater::plan
