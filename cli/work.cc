#include "cli/work.h"

#include <algorithm>

#include "src/core/visibility.h"

namespace headwater::cli {
namespace {

double record_bytes(const formats::RecordLayout& layout) {
  return static_cast<double>(layout.row_bytes) + layout.tail_bytes + layout.apart_bytes;
}

}  // namespace

Work count_work(const ResolvedProblem& p) {
  Work work;
  double pairs = 0;  // (query head, entry)
  int64_t rows = 0;
  for (int64_t b = 0; b < p.requests; ++b) {
    const int64_t begin = p.qo_indptr[b];
    const int64_t end = p.qo_indptr[b + 1];
    rows += end - begin;
    for (int32_t i = 0; i < p.num_sources; ++i) {
      const ResolvedSource& s = p.sources[i];
      int64_t read = 0;
      int64_t first = INT64_MAX;
      int64_t last = 0;
      for (int64_t row = begin; row < end; ++row) {
        if (s.rule == RuleKind::kGathered) {
          for (int64_t j = 0; j < topk_len(s, row); ++j) read += gathered_slot(s, b, row, j) >= 0 ? 1 : 0;
          continue;
        }
        const EntryRange seen = visible_range(s.rule, s.window_left, s.ratio, s.first_position ? s.first_position[b] : 0,
                                              s.position_stride ? s.position_stride[b] : 1, source_kv_len(s, b),
                                              (p.needs_context ? context_len(p, b) : 0) - (end - row));
        if (seen.end <= seen.begin) continue;
        first = std::min(first, seen.begin);
        last = std::max(last, seen.end);
        pairs += static_cast<double>(seen.end - seen.begin) * p.heads;
      }
      if (s.rule == RuleKind::kGathered) {
        pairs += static_cast<double>(read) * p.heads;
      } else {
        read = std::max<int64_t>(last - std::min(first, last), 0);
      }
      work.entries += read;
      work.kv_bytes += static_cast<double>(read) * s.heads * (record_bytes(s.k.layout) + (s.shared ? 0.0 : record_bytes(s.v.layout)));
    }
  }
  work.flops = pairs * 2.0 * (p.d_qk + p.d_v);
  work.io_bytes = static_cast<double>(rows) * p.heads * (p.d_qk * type_bits(p.q_type) + p.d_v * type_bits(p.out_type)) / 8.0;
  return work;
}

}  // namespace headwater::cli
