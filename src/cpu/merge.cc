// Joins the partials of a cut row block in tile order. Baseline code: it moves memory, a few operations per float.
#include "src/core/partial.h"
#include "src/cpu/kernel.h"
#include "src/cpu/output.h"

namespace headwater::cpu {
namespace {

PartialView partial_at(const MergeArgs& args, int32_t i, int64_t rows) {
  std::byte* const slot = args.partials + plan::partial_slot(args.merge, i) * args.partial_stride_bytes;
  return view_partial(slot, rows, args.problem->d_v);
}

void merge_row(const MergeArgs& args, int32_t row, int64_t rows) {
  const int32_t d_v = args.problem->d_v;
  float o[kMaxWidth];
  float m = 0.0F;
  float l = 0.0F;
  for (int32_t i = 0; i < args.merge.num_partials; ++i) {
    const PartialView p = partial_at(args, i, rows);
    const float* const from = p.o + int64_t{row} * d_v;
    if (i == 0) {
      for (int32_t d = 0; d < d_v; ++d) o[d] = from[d];
      m = p.m[row];
      l = p.l[row];
      continue;
    }
    if (p.m[row] == -INFINITY) continue;
    const MergeFactors f = merge_factors(m, p.m[row]);
    if (m == -INFINITY) {
      for (int32_t d = 0; d < d_v; ++d) o[d] = from[d];
      l = p.l[row];
    } else {
      for (int32_t d = 0; d < d_v; ++d) o[d] = o[d] * f.a + from[d] * f.b;
      l = l * f.a + p.l[row] * f.b;
    }
    m = f.m;
  }
  const int32_t head_block = args.shape->head_block;
  const RowPlace place{args.merge.request, args.lengths->q_begin, args.merge.token_begin + row / head_block,
                       args.merge.head_block * head_block + row % head_block};
  finish_row(*args.problem, place, o, m, l);
}

}  // namespace

void run_merge(const MergeArgs& args) {
  const int64_t rows = int64_t{args.merge.token_count} * args.shape->head_block;
  for (int32_t row = args.row_begin; row < args.row_end; ++row) merge_row(args, row, rows);
}

}  // namespace headwater::cpu
