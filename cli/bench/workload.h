// The tensors of one shape: random data, and as many copies of the KV as make every run read it from memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "cli/bench/shapes.h"
#include "headwater/headwater.h"

namespace headwater::cli {

// Aligned bytes, uninitialised. `huge_pages`: asks the system for them, as the memory behind the bandwidth ceiling does.
class Bytes {
 public:
  explicit Bytes(size_t n, bool huge_pages = false);
  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_;
};

// KV memory shared by all shapes of one record format, so that a hundred shapes need no more than the largest. Filled with records of
// normal values, 61 of them over and over.
class Arenas {
 public:
  explicit Arenas(bool huge_pages = true) : huge_pages_(huge_pages) {}

  struct Key {
    Format format = Format::kBf16;
    int32_t width = 0;      // 0 where any width reads the same bytes
    int32_t page_size = 0;  // planar formats
    bool value = false;     // V; otherwise K or the latent
    [[nodiscard]] auto tie() const { return std::tie(format, width, page_size, value); }
    bool operator<(const Key& other) const { return tie() < other.tie(); }
  };
  [[nodiscard]] static Key key(Format format, int32_t width, int32_t page_size, bool value);

  void reserve(const Key& key, int64_t bytes, int64_t scale_bytes);
  [[nodiscard]] Status fill();  // once, after all reservations
  [[nodiscard]] const std::byte* data(const Key& key) const { return arenas_.at(key).data->data(); }
  [[nodiscard]] const std::byte* scales(const Key& key) const { return arenas_.at(key).scales->data(); }
  [[nodiscard]] int64_t bytes() const;

 private:
  struct Arena {
    int64_t bytes = 0;
    int64_t scale_bytes = 0;
    std::unique_ptr<Bytes> data;
    std::unique_ptr<Bytes> scales;
  };
  bool huge_pages_;
  std::map<Key, Arena> arenas_;
};

// k_scale and v_scale of the data, where the format takes one.
inline constexpr float kDataScale = 0.0625F;

class Workload {
 public:
  // Lays the tensors out and reserves their memory. `cold_bytes`: what the copies' visible records must add up to.
  Workload(const Shape& shape, int64_t cold_bytes, Arenas* arenas);
  Workload(const Workload&) = delete;
  Workload& operator=(const Workload&) = delete;

  void bind(const Arenas& arenas);  // after Arenas::fill: pointers, queries, tables

  [[nodiscard]] const Shape& shape() const { return shape_; }
  [[nodiscard]] int64_t copies() const { return copies_; }
  [[nodiscard]] const Problem& problem(int64_t copy) const { return problems_[static_cast<size_t>(copy)]; }
  [[nodiscard]] double flops() const { return flops_; }        // of one run: 2 (d_qk + d_v) a visible pair
  [[nodiscard]] double kv_bytes() const { return kv_bytes_; }  // visible records, each once

  // Part of problem(0), small enough for the oracle: the last rows of a request, four heads of one KV head; outputs point into the
  // whole problem's. Views `sources` and `indptr`.
  struct Part {
    Problem problem;
    std::vector<Source> sources;
    std::vector<int32_t> indptr;
    int32_t context_len = 0;
  };
  [[nodiscard]] std::vector<std::unique_ptr<Part>> parts_to_check() const;

 private:
  struct Span {
    int64_t begin = 0;  // entries of a request that some query sees
    int64_t end = 0;
  };
  void count_work();
  void lay_out_pages();
  void make_indices();
  [[nodiscard]] Source make_source(const Arenas& arenas, int64_t copy) const;
  [[nodiscard]] KvTensor make_tensor(const Arenas& arenas, int64_t copy, bool value) const;
  [[nodiscard]] std::unique_ptr<Part> make_part(int32_t request, int32_t kv_head) const;
  [[nodiscard]] int64_t tensor_bytes(bool value, int64_t pages) const;  // dense; ragged: rows
  [[nodiscard]] int64_t scale_bytes(bool value, int64_t pages) const;

  Shape shape_;
  double flops_ = 0.0;
  double kv_bytes_ = 0.0;
  int64_t copies_ = 1;
  int64_t pages_of_copy_ = 0;  // ragged: rows
  int64_t max_pages_ = 0;
  std::vector<Span> spans_;
  std::vector<int32_t> qo_indptr_;
  std::vector<int32_t> kv_indptr_;
  std::vector<int32_t> tables_;  // [copies, batch, max_pages]
  std::vector<int32_t> indices_;
  std::vector<int32_t> topk_lens_;
  std::vector<float> sinks_;
  std::unique_ptr<Bytes> q_;
  std::unique_ptr<Bytes> out_;
  std::vector<float> lse_;
  std::vector<std::vector<Source>> sources_;
  std::vector<Problem> problems_;
};

}  // namespace headwater::cli
