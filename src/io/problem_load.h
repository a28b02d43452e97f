// One problem out of an opened safetensors file whose names are known to be legal.
#pragma once

#include <string>

#include "src/io/problem_file.h"

namespace headwater::io {

// `name`: "layers.3" (unprefixed fields are its defaults), or empty.
[[nodiscard]] Result<OwnedProblem> load_problem(const Safetensors& file, const std::string& name);

}  // namespace headwater::io
