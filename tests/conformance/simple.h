// Problems for tests, made of a few fields: one or more sources over memory of their own, values by function or at random.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "headwater/headwater.h"

namespace headwater::conformance {

inline constexpr float kNanF = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfF = std::numeric_limits<float>::infinity();

// value(request, entry, kv_head, column)
using Values = std::function<float(int64_t, int64_t, int32_t, int32_t)>;
inline Values constant(float x) {
  return [x](int64_t, int64_t, int32_t, int32_t) { return x; };
}

// One source: set the fields, then Simple::add stores its entries. Pages are dealt in reverse order; memory of nobody is NaN.
struct SimpleSource {
  std::vector<int32_t> kv_lens;
  int32_t heads = 1;
  int32_t page_size = 0;  // 0: ragged, otherwise a block table
  Format k_format = Format::kF32;
  Format v_format = Format::kF32;
  bool shared = false;
  Rule rule = Rule::full();
  Scale k_scale;
  Scale v_scale;
  std::vector<int32_t> first_position;
  std::vector<int32_t> position_stride;
  Values k;  // empty: random
  Values v;
};

class Simple {
 public:
  int32_t heads = 1;
  int32_t d_qk = 8;
  int32_t d_v = 8;
  std::vector<int32_t> q_lens = {1};
  Type out_type = Type::kF32;
  std::vector<int32_t> context_lens;  // empty: derived or not needed
  std::vector<float> sinks;           // [heads], or [requests, heads]
  float sm_scale = 0.3F;
  float softcap = 0.0F;
  std::function<float(int64_t row, int32_t head, int32_t column)> q;  // empty: random

  explicit Simple(uint32_t seed = 1) : engine_(seed) {}
  Simple(const Simple&) = delete;
  Simple& operator=(const Simple&) = delete;

  void add(const SimpleSource& from);
  // Builds queries and outputs; call once, after add.
  Problem& build();
  [[nodiscard]] Problem& problem() { return problem_; }
  [[nodiscard]] Source& source(size_t s = 0) { return sources_[s]; }
  [[nodiscard]] int64_t rows() const { return rows_; }
  // Bytes of entry j of a request, to be damaged on purpose.
  [[nodiscard]] std::byte* record(size_t s, bool v, int64_t request, int64_t j, int32_t head);

  [[nodiscard]] float out(int64_t row, int32_t head, int32_t column) const;
  [[nodiscard]] float lse(int64_t row, int32_t head) const;
  [[nodiscard]] const std::vector<std::byte>& out_bytes() const { return out_; }
  [[nodiscard]] const std::vector<float>& lse_values() const { return lse_; }
  void clear_outputs();  // a pattern that is no answer

  // attend with every usable ISA in turn; each result is judged by the contract's tolerance.
  void expect_oracle(const std::string& what, const PlanOptions& options = {});
  void attend_ok(const PlanOptions& options = {});

 private:
  float random_value() { return normal_(engine_); }

  std::mt19937 engine_;
  std::normal_distribution<float> normal_;
  std::vector<Source> sources_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> bytes_;
  std::vector<std::unique_ptr<std::vector<int32_t>>> ints_;
  std::vector<int32_t> qo_indptr_;
  std::vector<float> q_;
  std::vector<std::byte> out_;
  std::vector<float> lse_;
  Problem problem_;
  int64_t rows_ = 0;
};

// A plan with buffers of its own.
struct Prepared {
  Result<Plan> plan;
  std::unique_ptr<std::byte[], void (*)(std::byte*)> schedule{nullptr, nullptr};
  std::unique_ptr<std::byte[], void (*)(std::byte*)> scratch{nullptr, nullptr};
  [[nodiscard]] Buffer schedule_buf() const { return {schedule.get(), plan->schedule_bytes()}; }
  [[nodiscard]] Buffer scratch_buf() const { return {scratch.get(), plan->scratch_bytes()}; }
};
[[nodiscard]] Prepared prepare(const Bounds& bounds, const PlanOptions& options = {});

}  // namespace headwater::conformance
