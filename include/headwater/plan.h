// Plan, schedule, run.
//
//   Result<Plan> plan = make_plan(bounds, options);   // kernel, tiles, grid, buffer sizes: from bounds alone. Immutable, thread-safe.
//   plan->schedule(lengths, schedule_buf, stream);    // deals work from real lengths; once a step, shared by all layers
//   plan->run(problem, schedule_buf, scratch, stream) // never synchronises, never allocates
//   plan->check(schedule_buf, stream);                // synchronises: reads and clears the error word
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headwater/problem.h"

namespace headwater {

// The parallel loop of CPU work: calls body(arg, task) for every task in [0, tasks), on any threads, and returns when all are done.
// Default (run == nullptr): OpenMP. An engine hands in its own pool here.
struct ParallelFor {
  void (*run)(void* context, int32_t tasks, void (*body)(void* arg, int32_t task), void* arg) = nullptr;
  void* context = nullptr;
};

using Stream = void*;  // cudaStream_t; ignored on the CPU

struct Buffer {
  void* data = nullptr;  // 256-byte aligned, on the plan's device
  size_t bytes = 0;
};

// What the chooser may know of one source.
struct SourceBounds {
  Format k_format = Format::kBf16;
  Format v_format = Format::kBf16;  // = k_format when shared
  bool shared = false;
  int32_t heads = 1;
  AddressingKind addressing = AddressingKind::kRagged;
  int32_t page_size = 1;
  RuleKind rule = RuleKind::kFull;
  int32_t window_left = -1;
  int32_t ratio = 0;
  int32_t topk = 0;
  Type index_type = Type::kI32;
  IndexSpace index_space = IndexSpace::kSlot;
  int64_t max_len = 0;        // largest kv_len of a request (entries); gathered: topk
  int64_t max_total_len = 0;  // largest sum over the batch; 0 = max_requests * max_len
  int32_t alignment = 16;     // bytes that data pointers and all their strides promise to be multiples of
};

// Everything that fixes a plan. `run` refuses by name a problem outside of it.
struct Bounds {
  Device device;
  int64_t max_requests = 0;
  int64_t max_total_q = 0;
  int32_t max_q_len = 0;
  Type q_type = Type::kBf16;
  Type out_type = Type::kBf16;
  int32_t heads = 0;
  int32_t d_qk = 0;
  int32_t d_v = 0;
  bool softcap = false;
  int32_t q_alignment = 16;  // bytes: q, q_tail, out and their strides
  std::vector<SourceBounds> sources;

  // The tightest bounds of one problem. On the CPU lengths are read; on a GPU they are not: max_q_len and max_len come from tensor
  // shapes (total, table width x page size, rows) and may be lowered by the caller.
  [[nodiscard]] static Result<Bounds> of(const Problem& problem);
};

struct PlanOptions {
  bool batch_invariant = false;  // a request's bits do not depend on other requests, bounds or workers
  int32_t workers = 0;           // CPU threads or GPU SMs to plan for; 0 = all that this process may use
  std::string kernel;            // force a kernel by name (also: environment HEADWATER_FORCE_KERNEL)
  std::string isa;               // CPU: force "scalar", "avx2", "avx512", "neon" (also: HEADWATER_FORCE_ISA)
  ParallelFor parallel_for;      // CPU
  bool checked = false;          // GPU: verify table entries and count skipped indices in the kernel
};

// The lengths that a schedule is dealt from; pointers on the plan's device. Same meaning as in Problem.
struct SourceLengths {
  const int32_t* kv_indptr = nullptr;
  const int32_t* seq_lens = nullptr;
  const int32_t* kv_last_page_len = nullptr;
  const int32_t* first_position = nullptr;
  const int32_t* position_stride = nullptr;
  const int32_t* topk_lens = nullptr;
};
struct Lengths {
  int64_t requests = 0;
  int64_t total_q = 0;  // rows of topk_lens
  const int32_t* qo_indptr = nullptr;
  const int32_t* context_lens = nullptr;
  SourceLengths sources[kMaxSources];
  int32_t num_sources = 0;

  [[nodiscard]] static Lengths of(const Problem& problem);
};

class PlanImpl;  // one per backend

class Plan {
 public:
  explicit Plan(std::shared_ptr<const PlanImpl> impl) : impl_(std::move(impl)) {}

  [[nodiscard]] size_t schedule_bytes() const;
  [[nodiscard]] size_t scratch_bytes() const;
  [[nodiscard]] Status schedule(const Lengths& lengths, Buffer schedule_buf, Stream stream = nullptr) const;
  [[nodiscard]] Status run(const Problem& problem, Buffer schedule_buf, Buffer scratch_buf, Stream stream = nullptr) const;
  [[nodiscard]] Status check(Buffer schedule_buf, Stream stream = nullptr) const;
  [[nodiscard]] std::string kernel() const;  // name of the chosen kernel, e.g. "panel_cpu_avx2"
  [[nodiscard]] const Bounds& bounds() const;
  [[nodiscard]] const PlanImpl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const PlanImpl> impl_;
};

[[nodiscard]] Result<Plan> make_plan(const Bounds& bounds, const PlanOptions& options = {});
// Loads what the first call of such a plan would load (a GPU's modules and their attributes), as make_plan does.
[[nodiscard]] Status warmup(const Bounds& bounds, const PlanOptions& options = {});

}  // namespace headwater
