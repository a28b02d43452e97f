// `headwater check`: random problems over the whole feature space against the float64 oracle.
#pragma once

#include <string>

#include "cli/check/runner.h"

namespace headwater::conformance {

// Runs, prints a report for people on stdout (progress on a terminal's stderr), writes JSON where a path is given.
// Exit code: 0 all passed, 1 a case, a refusal or the coverage failed, 2 the options cannot be run.
[[nodiscard]] int run_check(const CheckOptions& options, const std::string& json_path);

}  // namespace headwater::conformance
