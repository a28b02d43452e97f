// Scheduled lengths against the problem's own: rule 6 of the contract. Nothing of a request is read through tables before this held.
#pragma once

#include "src/cuda/common/args.h"
#include "src/plan/schedule-inl.h"

namespace headwater::cuda {

__device__ inline bool schedule_is_ours(const KernelArgs& a) {
  const plan::ScheduleHeader& h = *a.view.header;
  return h.magic == plan::kScheduleMagic && h.fingerprint == a.fingerprint && h.requests == a.problem.requests;
}

// Query rows only: whether the request still owns the rows it was scheduled with.
__device__ inline bool rows_hold(const KernelArgs& a, int64_t request) {
  return a.view.q_begin[request] == a.problem.qo_indptr[request] && a.view.q_begin[request + 1] == a.problem.qo_indptr[request + 1];
}

// Everything that the schedule was dealt from, topk_lens aside.
__device__ inline bool lengths_hold(const KernelArgs& a, int64_t request) {
  const ResolvedProblem& p = a.problem;
  bool holds = rows_hold(a, request);
  if (p.needs_context) holds = holds && a.view.context_len[request] == context_len(p, request);
  for (int32_t i = 0; i < p.num_sources; ++i) {
    const ResolvedSource& s = p.sources[i];
    const int64_t at = i * a.shape.max_requests + request;
    if (s.rule != RuleKind::kGathered || s.index_space == IndexSpace::kPosition) {
      holds = holds && a.view.kv_len[at] == source_kv_len(s, request);
    }
    if (s.rule == RuleKind::kGathered) continue;
    holds = holds && a.view.first_position[at] == (s.first_position ? s.first_position[request] : 0);
    holds = holds && a.view.position_stride[at] == (s.position_stride ? s.position_stride[request] : 1);
  }
  return holds;
}

__device__ inline bool topk_holds(const KernelArgs& a, int64_t row) {
  const ResolvedProblem& p = a.problem;
  bool holds = true;
  for (int32_t i = 0; i < p.num_sources; ++i) {
    if (p.sources[i].rule != RuleKind::kGathered) continue;
    holds = holds && a.view.topk_len[i * a.shape.max_total_q + row] == topk_len(p.sources[i], row);
  }
  return holds;
}

__device__ inline bool item_holds(const KernelArgs& a, const plan::WorkItem& item) {
  bool holds = lengths_hold(a, item.request);
  const int64_t q_begin = a.view.q_begin[item.request];
  for (int32_t t = 0; t < item.token_count; ++t) holds = holds && topk_holds(a, q_begin + item.token_begin + t);
  return holds;
}

// Entries of a source that the query `token` (in the request) sees, from scheduled lengths. Gathered: list positions.
__device__ inline EntryRange visible_to(const KernelArgs& a, int32_t source, int64_t request, int32_t token) {
  const plan::SourceRules& rules = a.shape.sources[source];
  if (rules.rule == RuleKind::kGathered) {
    return {0, a.view.topk_len[source * a.shape.max_total_q + a.view.q_begin[request] + token]};
  }
  const int64_t at = source * a.shape.max_requests + request;
  const int64_t q_len = a.view.q_begin[request + 1] - a.view.q_begin[request];
  return visible_range(rules.rule, rules.window_left, rules.ratio, a.view.first_position[at], a.view.position_stride[at], a.view.kv_len[at],
                       a.view.context_len[request] - q_len + token);
}

// Checked mode: a table entry of a live page outside of its cache is skipped and noted.
__device__ inline int64_t checked_slot(const KernelArgs& a, const ResolvedSource& source, int64_t slot) {
  if (a.checked == 0 || (slot >= 0 && slot < source.num_slots)) return slot;
  if (source.rule != RuleKind::kGathered || slot >= 0) atomicOr(&a.view.header->error, plan::kBadTable);
  return -1;
}

}  // namespace headwater::cuda
