// The bench's table, its JSON, and the comparison with an earlier one.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/bench/measure.h"

namespace headwater::cli {

// 0 when no row has a ratio.
[[nodiscard]] double geometric_mean_ratio(const std::vector<Row>& rows);

// The run that rows belong to.
struct Conditions {
  Ceilings ceilings;
  double steadiness = 1.0;
  Ceilings known;  // the best seen on this machine, this run included
  int32_t fewer_threads = 0;
  [[nodiscard]] double share_of_known() const;
  // Rows of a run whose ceilings are below kValidShare of the best known say nothing about the code.
  [[nodiscard]] bool valid() const { return share_of_known() >= kValidShare; }
};
// The best of `now` and of the "ceilings" in the *.json of a directory that are of this CPU, thread count and ISA. A directory that is not
// there and files of another make are passed over.
[[nodiscard]] Ceilings best_known(const std::string& directory, const Ceilings& now);

[[nodiscard]] std::string ceilings_line(const Conditions& conditions);
[[nodiscard]] std::string report_text(const std::vector<Row>& rows, const Conditions& conditions);
[[nodiscard]] nlohmann::ordered_json bench_json(const std::vector<Row>& rows, const Conditions& conditions);

struct Comparison {
  std::string text;
  int64_t slower = 0;  // rows slower than the baseline past the noise
  int64_t compared = 0;
};
// Noise of a row: 5 %, or the larger of the two spreads. Rows of one side only are not judged.
[[nodiscard]] Result<Comparison> compare(const std::vector<Row>& rows, const nlohmann::json& baseline);

}  // namespace headwater::cli
