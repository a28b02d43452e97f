// The plain baseline: what a user would write. K and V in float32, an OpenBLAS GEMM for either product, a vectorised softmax in between.
// OpenBLAS is loaded when it is asked for; nothing links it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cli/bench/workload.h"

namespace headwater::cli {

// Random float32 K and V for all shapes. Runs read on from where the last one ended, so that nothing is found in a cache.
class PlainMemory {
 public:
  explicit PlainMemory(int64_t floats);
  [[nodiscard]] const float* take(int64_t floats);  // at most as many as it holds
  [[nodiscard]] int64_t size() const { return floats_; }

 private:
  Bytes bytes_;  // huge pages, as the KV it is compared with
  int64_t floats_;
  int64_t next_ = 0;
};

class PlainAttention {
 public:
  static bool available();  // libopenblas.so.0 is here
  // Gathered lists have no plain GEMM.
  static bool takes(const Shape& shape) { return shape.rule != RuleKind::kGathered; }
  // Floats of the largest request and KV head.
  static int64_t largest_unit(const Shape& shape);

  PlainAttention(const Shape& shape, int32_t threads, PlainMemory* memory);

  void prepare();  // before a timed run: where it reads, and OpenBLAS's thread count
  void run();
  // Largest deviation of the last run's first and last rows from a float64 loop, over the largest |out| there.
  [[nodiscard]] double worst_error() const;

 private:
  struct Unit {  // one KV head of a request
    int32_t request = 0;
    int32_t kv_head = 0;
    const float* k = nullptr;  // [kv_len, d_qk]
    const float* v = nullptr;  // [kv_len, d_v], shared: k with stride d_qk
    float* out = nullptr;      // [q_len, group, d_v]
  };
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };
  [[nodiscard]] Range visible(int32_t request, int64_t token) const;
  [[nodiscard]] int64_t value_stride() const { return shape_.shared ? shape_.d_qk : shape_.d_v; }
  void run_unit(const Unit& unit, std::vector<float>* scores) const;
  void run_block(const Unit& unit, int64_t first, int64_t last, std::vector<float>* scores) const;
  [[nodiscard]] double row_error(const Unit& unit, int64_t token, int64_t head) const;

  Shape shape_;
  PlainMemory* memory_;
  int32_t group_;
  int32_t unit_threads_ = 1;  // threads over units; OpenBLAS's own are 1 then
  int32_t blas_threads_ = 1;
  std::vector<Unit> units_;
  std::vector<float> q_;  // [q_len, group, d_qk], the same for every unit
  std::vector<float> out_;
};

}  // namespace headwater::cli
