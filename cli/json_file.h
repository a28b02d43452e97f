// Reports for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "headwater/status.h"

namespace headwater::cli {

// Writes to `path`, or to standard output for "-". Text that is not UTF-8 gets replacement characters.
[[nodiscard]] Status write_json(const std::string& path, const nlohmann::ordered_json& json);

}  // namespace headwater::cli
