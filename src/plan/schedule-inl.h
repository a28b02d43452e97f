// Reading a schedule buffer, for host and device alike.
#pragma once

#include "src/plan/schedule.h"

namespace headwater::plan {

inline constexpr uint64_t kScheduleMagic = 0x3168637357444548ULL;

HEADWATER_HD size_t align_up(size_t bytes, size_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

// Fills the pointers and returns the bytes used. buffer may be null (to measure).
HEADWATER_HD size_t layout_schedule(const PlanShape& shape, void* buffer, ScheduleView* view) {
  char* const base = static_cast<char*>(buffer);
  size_t at = 0;
  auto take = [&](size_t bytes) {
    char* p = base == nullptr ? nullptr : base + at;  // no arithmetic on null
    at = align_up(at + bytes, 256);
    return p;
  };
  const size_t requests = static_cast<size_t>(shape.max_requests);
  const size_t per_source = requests * static_cast<size_t>(shape.num_sources) * sizeof(int32_t);
  view->header = reinterpret_cast<ScheduleHeader*>(take(sizeof(ScheduleHeader)));
  view->worker_begin = reinterpret_cast<int32_t*>(take((static_cast<size_t>(shape.workers) + 1) * sizeof(int32_t)));
  view->items = reinterpret_cast<WorkItem*>(take(static_cast<size_t>(shape.max_items) * sizeof(WorkItem)));
  view->merges = reinterpret_cast<MergeItem*>(take(static_cast<size_t>(shape.max_merges) * sizeof(MergeItem)));
  view->token_block_begin = reinterpret_cast<int32_t*>(take((requests + 1) * sizeof(int32_t)));
  view->unit_begin = reinterpret_cast<int64_t*>(take((static_cast<size_t>(shape.max_token_blocks) + 1) * sizeof(int64_t)));
  view->q_begin = reinterpret_cast<int32_t*>(take((requests + 1) * sizeof(int32_t)));
  view->context_len = reinterpret_cast<int32_t*>(take(requests * sizeof(int32_t)));
  view->kv_len = reinterpret_cast<int32_t*>(take(per_source));
  view->first_position = reinterpret_cast<int32_t*>(take(per_source));
  view->position_stride = reinterpret_cast<int32_t*>(take(per_source));
  bool gathered = false;
  for (int32_t s = 0; s < shape.num_sources; ++s) gathered = gathered || shape.sources[s].rule == RuleKind::kGathered;
  view->topk_len = reinterpret_cast<int32_t*>(
      take(gathered ? static_cast<size_t>(shape.max_total_q) * static_cast<size_t>(shape.num_sources) * sizeof(int32_t) : 0));
  return at;
}

HEADWATER_HD ScheduleView view_schedule(const PlanShape& shape, void* buffer) {
  ScheduleView view;
  layout_schedule(shape, buffer, &view);
  return view;
}

// One request's scheduled lengths, for kernels (only num_sources entries are filled).
HEADWATER_HD void load_lengths(const PlanShape& shape, const ScheduleView& view, int64_t request, RequestLengths* out) {
  out->q_begin = view.q_begin[request];
  out->q_len = view.q_begin[request + 1] - view.q_begin[request];
  out->context_len = view.context_len[request];
  for (int32_t s = 0; s < shape.num_sources; ++s) {
    const int64_t at = s * shape.max_requests + request;
    out->kv_len[s] = view.kv_len[at];
    out->first_position[s] = view.first_position[at];
    out->position_stride[s] = view.position_stride[at];
    out->topk_lens[s] = shape.sources[s].rule == RuleKind::kGathered ? view.topk_len + s * shape.max_total_q : nullptr;
  }
}

}  // namespace headwater::plan
