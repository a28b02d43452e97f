// The rows of the table: which format K and V take, and where their scales come from.
#pragma once

#include <string>
#include <vector>

#include "cli/formats/encoded.h"

namespace headwater::cli::formats {

enum class ScaleFrom : uint8_t {
  kRecord,  // the format carries its own, or needs none
  kOne,
  kTensor,  // amax of the tensor
  kHead,    // amax of each KV head
};

struct Choice {
  std::string name;
  Format k = Format::kBf16;
  Format v = Format::kBf16;
  ScaleFrom scales = ScaleFrom::kRecord;
  int32_t recent = 0;  // newest tokens kept in bf16
};

// What fits a source of these widths. `recent`: tokens of the "last N in bf16" rows.
[[nodiscard]] std::vector<Choice> choices_for(const Rows& rows, int32_t recent);

// Largest magnitudes of a source: what scales are made from.
struct Range {
  std::vector<float> k;  // per head
  std::vector<float> v;
};
[[nodiscard]] Range range_of(const Rows& rows);
[[nodiscard]] ScaleValues scales_for(const Choice& choice, const Range& range);

// Values beyond what e4m3 holds under these scales: they saturate.
[[nodiscard]] int64_t saturated(const Choice& choice, const ScaleValues& scales, const Rows& rows);

}  // namespace headwater::cli::formats
