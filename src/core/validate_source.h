// Validation of one KV source. Part of validate.cc, split by size.
#pragma once

#include "src/core/resolved.h"

namespace headwater::check {

// Fields, shapes and strides of source `index`. Nothing is dereferenced. Needs resolved: device, heads, d_qk, d_v, total_q, requests.
[[nodiscard]] Status resolve_source(const Source& source, int32_t index, ResolvedProblem* resolved);

// CPU problems: lengths, offsets, positions and scales of source `index`. Table entries only of pages that some query may see.
[[nodiscard]] Status check_source_values(const ResolvedProblem& problem, const Source& source, int32_t index);

// CPU problems, after the context lengths are known to be sane: table entries of live pages.
[[nodiscard]] Status check_live_pages(const ResolvedProblem& problem, const Source& source, int32_t index);

}  // namespace headwater::check
