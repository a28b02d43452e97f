// A case: one random problem with its memory, made from a spec.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/check/features.h"
#include "cli/check/memory.h"
#include "headwater/headwater.h"

namespace headwater::conformance {

// The longest tile that a kernel here works in: long sources are made to exceed three of them.
inline constexpr int64_t kTile = 96;

struct Case {
  Spec spec;
  int64_t index = 0;
  uint64_t seed = 0;  // of the run
  Arena arena;
  std::vector<Source> sources;
  Problem problem;  // out and lse point into the guarded blocks
  Guarded out;
  Guarded lse;
  std::vector<int32_t> qo_indptr;
  Status status;                 // why the problem could not be laid out: a fault of the generator or of validate
  bool boundary_placed = false;  // a key on an edge dominates some row

  Case() = default;
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  [[nodiscard]] int64_t live_rows() const { return qo_indptr.empty() ? 0 : qo_indptr.back(); }
  [[nodiscard]] std::string describe() const;  // choices that differ from the plainest, and sizes
};

// The tensors of case `index` of a run: a function of (seed, index, spec).
[[nodiscard]] std::unique_ptr<Case> build_case(const Spec& spec, uint64_t seed, int64_t index);

// ---- stages of build_case, in order ------------------------------------------------------------------------------------------
struct Draft {
  Case* made = nullptr;
  Random random{0};
  int32_t heads = 0;
  int32_t d_qk = 0;
  int32_t d_v = 0;
  int64_t requests = 0;
  int64_t total_q = 0;  // rows in memory
  std::vector<int32_t> q_lens;
  std::vector<int64_t> context;
  // Per source.
  struct Entries {
    int32_t kv_heads = 1;
    std::vector<int64_t> kv_len;  // slots of a pool stand in kv_len[0]
    std::vector<int32_t> first;
    std::vector<int32_t> stride;
    std::vector<bool> visible;  // [slots] to some row
    std::vector<bool> loud;     // [slots] boundary keys that dominate
    struct Fault {              // a non-finite value
      int64_t slot;
      bool in_v;
      float value;
    };
    std::vector<Fault> faults;
  };
  std::vector<Entries> entries;
  std::vector<float> direction;  // [d_qk] what loud keys and all queries share

  [[nodiscard]] const Spec& spec() const { return made->spec; }
};
void draft_lengths(Draft* draft);   // shapes, query lengths, entries, positions, context
void draft_tables(Draft* draft);    // sources with their addressing and lists, no data yet
void draft_edges(Draft* draft);     // what is visible, which boundary keys are loud, where values are not finite
void draft_contents(Draft* draft);  // queries, K and V bytes, scales, sinks, outputs

}  // namespace headwater::conformance
