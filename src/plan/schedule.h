// The schedule buffer: one flat block in the caller's memory, written by schedule (host or device, same code) and read by run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headwater/plan.h"
#include "src/core/resolved.h"
#include "src/plan/work.h"

namespace headwater::plan {

// What a kernel tells the planner about itself and its machine. Rates are planning figures, not promises.
struct KernelTraits {
  int32_t tile_entries = 64;
  int32_t max_rows = 128;  // rows of a row block: tokens_per_block * head_block <= max(max_rows, head_block)
  int32_t default_workers = 1;
  double bytes_per_us = 10e3;        // KV bytes one worker reads
  double flops_per_us = 80e3;        // one worker
  double fragment_us = 1.0;          // starting one fragment
  double merge_bytes_per_us = 10e3;  // partials written and read back, one worker
  int32_t max_splits = 32;
};

struct ScheduleHeader {
  uint64_t magic = 0;
  uint64_t fingerprint = 0;  // of the PlanShape it was dealt for
  int64_t requests = 0;
  int64_t total_q = 0;  // qo_indptr[requests]
  int32_t num_items = 0;
  int32_t num_merges = 0;
  int32_t error = 0;  // OR of ScheduleError bits, set by runs, read and cleared by check
  int32_t reserved = 0;
};
enum ScheduleError : int32_t { kStaleLengths = 1, kOverBounds = 2, kBadTable = 4 };

struct Cut;  // plan/split_kv.h

// Pointers into a schedule buffer. Everything is int32 or POD; arrays are sized by the PlanShape's capacities.
struct ScheduleView {
  ScheduleHeader* header = nullptr;
  int32_t* worker_begin = nullptr;  // [workers + 1] offsets into items: worker w runs items [w, w + 1)
  WorkItem* items = nullptr;        // [max_items]
  MergeItem* merges = nullptr;      // [max_merges]
  // The line of work (plan/split_kv.h).
  int32_t* token_block_begin = nullptr;  // [max_requests + 1] token blocks of the requests before
  int64_t* unit_begin = nullptr;         // [max_token_blocks + 1] cost of the token blocks before, all their head blocks
  // The lengths that were scheduled.
  int32_t* q_begin = nullptr;          // [max_requests + 1]
  int32_t* context_len = nullptr;      // [max_requests]
  int32_t* kv_len = nullptr;           // [num_sources, max_requests]
  int32_t* first_position = nullptr;   // [num_sources, max_requests]
  int32_t* position_stride = nullptr;  // [num_sources, max_requests]
  int32_t* topk_len = nullptr;         // [num_sources, max_total_q]; only gathered sources are filled
  // Not in the buffer: worker_cut of every worker, where a caller has them at hand.
  const Cut* cuts = nullptr;  // [workers]
};

[[nodiscard]] size_t schedule_bytes(const PlanShape& shape);
// view_schedule(shape, buffer) and load_lengths(...): src/plan/schedule-inl.h, host and device.

// Everything about a run that bounds fix. Pure.
// traits.max_rows, tile_entries and the rates must not depend on bounds in batch_invariant mode.
[[nodiscard]] PlanShape make_shape(const Bounds& bounds, const KernelTraits& traits, const PlanOptions& options);
// kUnsupported when a capacity does not fit the schedule's 32-bit counters (2^31 row blocks). Backends call it in make_plan.
[[nodiscard]] Status check_shape(const PlanShape& shape);
[[nodiscard]] uint64_t fingerprint(const PlanShape& shape);  // ScheduleHeader::fingerprint
// Scratch for partials: shape.max_partials slots of partial_bytes.
[[nodiscard]] size_t partial_bytes(const PlanShape& shape, int32_t d_v);

// Host lengths -> schedule. kInvalid when a length breaks the shape's bounds; then the buffer holds no schedule.
[[nodiscard]] Status schedule_host(const PlanShape& shape, const Lengths& lengths, void* buffer);
// Host: does the problem still have the lengths that were scheduled? Names the first that differs.
[[nodiscard]] Status check_scheduled_lengths(const PlanShape& shape, const ScheduleView& view, const ResolvedProblem& problem);

}  // namespace headwater::plan
