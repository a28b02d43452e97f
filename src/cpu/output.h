// From the state of a row to out and lse.
#pragma once

#include "src/core/resolved.h"

namespace headwater::cpu {

// Where a finished row goes.
struct RowPlace {
  int64_t request = 0;
  int64_t q_begin = 0;  // first query row of the request
  int32_t token = 0;    // in the request
  int32_t head = 0;
};

// Adds the sink, normalises, converts and stores. o [d_v] is unnormalised, m and l in base 2. Precedence of the special cases: empty row,
// NaN score, NaN sink, +inf sink.
void finish_row(const ResolvedProblem& problem, const RowPlace& place, const float* o, float m, float l);

}  // namespace headwater::cpu
