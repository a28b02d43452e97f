// Rows stored in a format, and the problem that reads them: each measured query is a request of its own whose page list (pages of one
// row) names what it sees, so that every addressing and rule of the capture becomes the same plain problem.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cli/formats/layer.h"
#include "src/io/problem_file.h"

namespace headwater::cli::formats {

// k_scale / v_scale: empty = none given, one value, or one per head.
struct ScaleValues {
  std::vector<float> k;
  std::vector<float> v;
};

class Encoded {
 public:
  struct Layout {
    int32_t page_size = 1;
    int64_t copies = 1;  // the rows again and again, for timing
  };
  // Quantises through append().
  [[nodiscard]] static Result<Encoded> make(const Rows& rows, Format k_format, Format v_format, ScaleValues scales, Layout layout);
  [[nodiscard]] static Result<Encoded> make(const Rows& rows, Format k_format, Format v_format, ScaleValues scales) {
    return make(rows, k_format, v_format, std::move(scales), Layout{});
  }
  // Addressed as a pool; the caller sets addressing and rule.
  [[nodiscard]] const Source& source() const { return source_; }
  // Reads everything back through gather() (V empty when shared).
  [[nodiscard]] Status decode(Rows* rows) const;

 private:
  Encoded() = default;
  Status store(const Rows& rows, int64_t copies);
  std::unique_ptr<ScaleValues> scales_;  // the source points into it
  std::vector<io::AlignedBytes> bytes_;
  Source source_;
};

// Stored bytes of one entry, all heads, planar scales and page padding included (pages of 64).
[[nodiscard]] double entry_bytes(const Rows& rows, Format k_format, Format v_format);

class FlatProblem {
 public:
  // Entries younger than `recent` tokens are read from `newest`, the others from `encoded` (one per source of the layer).
  FlatProblem(const Layer& layer, const std::vector<Encoded>& encoded, const std::vector<Encoded>& newest, int32_t recent);
  FlatProblem(const FlatProblem&) = delete;
  FlatProblem& operator=(const FlatProblem&) = delete;
  [[nodiscard]] const Problem& problem() const { return problem_; }
  [[nodiscard]] const std::vector<float>& out() const { return out_; }  // [queries, heads, d_v]

 private:
  struct PageList {
    std::vector<int32_t> indptr{0};
    std::vector<int32_t> indices;
    std::vector<int32_t> lens;
  };
  void add_source(const Layer& layer, size_t index, const Encoded& encoded, bool young, int32_t recent);
  std::vector<int32_t> qo_indptr_;
  std::vector<std::unique_ptr<PageList>> lists_;
  std::vector<Source> sources_;
  std::vector<float> out_;
  std::vector<float> lse_;
  Problem problem_;
};

}  // namespace headwater::cli::formats
