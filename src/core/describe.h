// A problem in words, for people: the command line's run and explain, logs.
#pragma once

#include <string>

#include "headwater/problem.h"
#include "src/core/resolved.h"

namespace headwater {

// "4 requests, 4 query rows x 16 heads, d 576/512, kv[0] mxfp4 shared, paged 64, causal, 3.1k entries". `resolved` is from validate;
// lengths are told for CPU problems only.
[[nodiscard]] std::string describe_line(const Problem& problem, const ResolvedProblem& resolved);
// The same with more detail, a line for the queries, one for each source, one for the output. No newline at the end.
[[nodiscard]] std::string describe(const Problem& problem, const ResolvedProblem& resolved);

// 999, 3.1k, 12M
[[nodiscard]] std::string short_count(int64_t n);

}  // namespace headwater
