// The oracle: attention in float64 by the definitions of the contract, entry by entry. No tiles, no planner, no merge, no closed forms.
// The public entry point, reference_attention, is declared in headwater/headwater.h. It knows the public problem and the record
// codecs, nothing else: strides, tables and visibility are worked out here a second time, on purpose.
#pragma once

#include <cstdint>
#include <vector>

#include "headwater/headwater.h"

namespace headwater::reference {

// One softmax row, given everything it sees: z [n] scores, values [n, width], sink (-inf: none). Rule 1's precedence lives here.
struct Row {
  double lse = 0.0;
  double spread = 0.0;      // L2 norm of r, r_d = sqrt(sum_j w_j^2 v_jd^2), over finite V
  std::vector<double> out;  // [width]
};
[[nodiscard]] Row softmax_row(const std::vector<double>& z, const std::vector<float>& values, int32_t width, double sink);

// Physical slots that query row `row` (the token at position t of its request) sees in a source, in order, repeats kept.
[[nodiscard]] std::vector<int64_t> visible_slots(const Source& source, int64_t request, int64_t row, int64_t t);

// Tokens of a request, its new ones included; 0 where no rule reads it.
[[nodiscard]] int64_t context_length(const Problem& problem, int64_t request);

}  // namespace headwater::reference
