// The bench's table, its JSON, and the comparison with an earlier one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/bench/measure.h"

namespace headwater::cli {

// 0 when no row has a ratio.
[[nodiscard]] double geometric_mean_ratio(const std::vector<Row>& rows);

[[nodiscard]] std::string ceilings_line(const Ceilings& ceilings, double steadiness);
[[nodiscard]] std::string report_text(const std::vector<Row>& rows, const Ceilings& ceilings, double steadiness);
[[nodiscard]] nlohmann::ordered_json bench_json(const std::vector<Row>& rows, const Ceilings& ceilings, double steadiness);

struct Comparison {
  std::string text;
  int64_t slower = 0;  // rows slower than the baseline past the noise
  int64_t compared = 0;
};
// Noise of a row: 5 %, or the larger of the two spreads. Rows of one side only are not judged.
[[nodiscard]] Result<Comparison> compare(const std::vector<Row>& rows, const nlohmann::json& baseline);

}  // namespace headwater::cli
