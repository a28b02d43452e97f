// The contract between the CPU executor (backend.cc) and the per-ISA row-block kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/core/resolved.h"
#include "src/plan/work.h"

namespace headwater::cpu {

// Partial slot in scratch: rows x (d_v floats of O, unnormalised), then m[rows], l[rows]   (base 2, see core/partial.h).
// rows = token_count * head_block, row = token * head_block + head, at most PlanShape's tokens_per_block * head_block.
struct PartialView {
  float* o = nullptr;  // [rows, d_v]
  float* m = nullptr;  // [rows]
  float* l = nullptr;  // [rows]
};

inline PartialView view_partial(std::byte* slot, int64_t rows, int64_t d_v) {
  auto* const floats = reinterpret_cast<float*>(slot);
  return {floats, floats + rows * d_v, floats + rows * d_v + rows};
}

struct ItemArgs {
  const ResolvedProblem* problem = nullptr;
  const plan::PlanShape* shape = nullptr;
  const plan::RequestLengths* lengths = nullptr;  // of the item's request
  plan::WorkItem item;
  PartialView partial;             // item.partial >= 0
  std::byte* workspace = nullptr;  // this worker's, 64-byte aligned, workspace_bytes() long
};

struct MergeArgs {
  const ResolvedProblem* problem = nullptr;
  const plan::PlanShape* shape = nullptr;
  const plan::RequestLengths* lengths = nullptr;
  plan::MergeItem merge;
  std::byte* partials = nullptr;  // slot 0
  int64_t partial_stride_bytes = 0;
  int32_t row_begin = 0;  // rows of the row block to merge: workers share one merge
  int32_t row_end = 0;
};

// Fixed order, sinks once, out and lse. The same code for every kernel: baseline flags.
void run_merge(const MergeArgs& args);

// One ISA level: everything that touches tensors.
struct Kernel {
  const char* name;  // "panel_cpu_avx2"
  const char* isa;   // "avx2"
  const char* file;
  bool (*supported)();  // CPUID and XCR0, or the architecture
  // Partials, or final out and lse. The items differ in head_block, by 1 from each to the next, and in their partials only; more than one,
  // at most kMaxGang, if their row blocks have few rows.
  void (*run_items)(const ItemArgs* args, int32_t count);
};

}  // namespace headwater::cpu
