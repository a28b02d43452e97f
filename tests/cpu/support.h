// Small problems with owned memory for the CPU kernels: random data, unread memory poisoned with NaN, and the comparison with the oracle.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "headwater/headwater.h"
#include "tests/cpu/guarded_bytes.h"

namespace headwater::cpu {

struct SourceCase {
  Format k_format = Format::kBf16;
  Format v_format = Format::kBf16;
  bool shared = false;
  int32_t heads = 1;
  AddressingKind addressing = AddressingKind::kBlockTable;
  int32_t page_size = 16;
  RuleKind rule = RuleKind::kCausal;
  int32_t window_left = -1;
  int32_t ratio = 4;
  int32_t topk = 40;
  bool slots_64 = false;
  IndexSpace index_space = IndexSpace::kSlot;
  int32_t odd_bytes = 0;      // every record starts at an odd address
  std::vector<int32_t> lens;  // [requests]
  float k_scale = 1.0F;       // formats that take one; per head when heads > 1
  float v_scale = 1.0F;
};

struct ProblemCase {
  std::vector<int32_t> q_lens{1};
  int32_t heads = 4;
  int32_t d_qk = 64;
  int32_t d_v = 64;
  int32_t q_tail = 0;
  Type q_type = Type::kBf16;
  Type out_type = Type::kBf16;
  float softcap = 0.0F;
  bool sinks = false;
  float sm_scale = 0.0F;  // 0: 1 / sqrt(d_qk)
  float spike = 0.0F;     // score that the last visible entry of each source gets on top
  uint32_t seed = 1;
  std::vector<SourceCase> sources;
};

// Owns everything that a Problem points to.
class OwnedProblem {
 public:
  explicit OwnedProblem(const ProblemCase& c);
  OwnedProblem(const OwnedProblem&) = delete;
  OwnedProblem& operator=(const OwnedProblem&) = delete;

  Problem problem;
  std::vector<std::byte> out;  // guard bytes on both sides
  std::vector<float> lse;
  std::vector<Source> sources;

  // Bytes of out and lse without the guards; false when a guard was touched.
  [[nodiscard]] bool guards_intact() const;
  void poison_outputs();
  [[nodiscard]] std::vector<std::byte> output_bytes() const;

 private:
  ProblemCase case_;
  std::vector<float> q_scales_;
  std::vector<int32_t> qo_indptr_;
  std::vector<int32_t> context_lens_;
  std::vector<float> sinks_;
  std::vector<GuardedBytes> bytes_;  // queries and caches
  std::vector<std::vector<int32_t>> ints_;
  std::vector<std::vector<int64_t>> longs_;
  std::vector<std::vector<float>> floats_;

  void fill_queries();
  Source make_source(const SourceCase& c, uint32_t seed);
  KvTensor make_tensor(const SourceCase& c, Format format, int32_t width, int64_t pages, int32_t page_size, float scale);
  void write_rows(const Source& source, const SourceCase& c, const std::vector<int64_t>& slots, uint32_t seed);
};

// Empty when out and lse are within the contract's tolerance of the oracle (semantics.md, "Numbers"), otherwise the first difference.
[[nodiscard]] std::string compare_with_oracle(const OwnedProblem& owned);

// Kernels that this machine runs.
[[nodiscard]] std::vector<std::string> usable_isas();

}  // namespace headwater::cpu
