// The same problem with its KV stored in another format.
#pragma once

#include <optional>
#include <string>

#include "headwater/headwater.h"
#include "src/io/problem_file.h"

namespace headwater::cli {

struct Reencoding {
  Format k = Format::kBf16;
  std::optional<Format> v;  // absent: as k. Shared storage has one format: another one is refused
  BlockScaleRule rule = BlockScaleRule::kRoundUp;
};
// Decodes the live entries of every source (those that a request's table or a query's list names) and quantises them; other slots
// become zero. Formats with a k_scale / v_scale get it from these entries' largest magnitudes, per KV head. `said`: what was done
// about scales, one sentence, empty when there are none.
[[nodiscard]] Status reencode(io::OwnedProblem* problem, const Reencoding& to, std::string* said);

// up, even, floor.
[[nodiscard]] std::optional<BlockScaleRule> block_scale_rule(const std::string& name);
// Looks a format up for an option; the error names the option and lists the formats.
[[nodiscard]] Result<Format> format_option(const std::string& option, const std::string& name);

}  // namespace headwater::cli
