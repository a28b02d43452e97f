// Random plans and lengths, and the schedule they give with guard bytes on both sides.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "src/plan/balance.h"
#include "src/plan/describe.h"

namespace headwater::plan {

// Owns the arrays behind Lengths.
struct Batch {
  std::vector<int32_t> qo_indptr{0};
  std::vector<int32_t> context_lens;
  struct Lens {
    std::vector<int32_t> kv_indptr{0};  // ragged
    std::vector<int32_t> seq_lens;      // paged
    std::vector<int32_t> first_position;
    std::vector<int32_t> position_stride;
    std::vector<int32_t> topk_lens;  // [total_q], empty = absent
  };
  std::vector<Lens> sources;

  [[nodiscard]] int64_t requests() const { return static_cast<int64_t>(qo_indptr.size()) - 1; }
  [[nodiscard]] Lengths lengths(const Bounds& bounds) const;
  // Request r alone, as a batch of one, or appended to a batch.
  void append_request(const Batch& from, int64_t r);
};

struct Case {
  Bounds bounds;
  KernelTraits traits;
  PlanOptions options;
  Batch batch;
};

[[nodiscard]] Case random_case(uint32_t seed);
// Bounds as tight as the batch.
void tighten(Case* c);
// One source and rule, q_len 1 each.
[[nodiscard]] Case decode_case(const std::vector<int32_t>& kv_lens, int32_t heads, int32_t kv_heads, int32_t workers);

class Schedule {
 public:
  Schedule(const Case& c);  // NOLINT(google-explicit-constructor): a test's shorthand
  [[nodiscard]] bool guards_intact() const;
  [[nodiscard]] const PlanShape& shape() const { return shape_; }
  [[nodiscard]] const ScheduleView& view() const { return view_; }
  [[nodiscard]] const Status& status() const { return status_; }
  [[nodiscard]] std::vector<WorkItem> items() const { return {view_.items, view_.items + view_.header->num_items}; }
  [[nodiscard]] std::vector<MergeItem> merges() const { return {view_.merges, view_.merges + view_.header->num_merges}; }
  // Items of one request in tile order: tokens, head block, tiles; partial slots as "cut or not" only.
  [[nodiscard]] std::vector<std::vector<int32_t>> cuts_of(int64_t request) const;

 private:
  PlanShape shape_;
  std::vector<std::byte> memory_;
  std::byte* buffer_ = nullptr;
  size_t bytes_ = 0;
  ScheduleView view_;
  Status status_;
};

}  // namespace headwater::plan
