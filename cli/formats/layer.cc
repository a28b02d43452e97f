#include "cli/formats/layer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cli/formats/encoded.h"
#include "src/core/resolved.h"
#include "src/core/visibility.h"

namespace headwater::cli::formats {
namespace {

// A query row of the file: where it is and what position it stands at.
struct QueryRow {
  int64_t request = 0;
  int64_t row = 0;
  int64_t position = 0;
};

std::vector<QueryRow> query_rows(const ResolvedProblem& p) {
  std::vector<QueryRow> rows;
  for (int64_t b = 0; b < p.requests; ++b) {
    const int64_t q_len = int64_t{p.qo_indptr[b + 1]} - p.qo_indptr[b];
    for (int64_t i = 0; i < q_len; ++i) rows.push_back({b, p.qo_indptr[b] + i, context_len(p, b) - q_len + i});
  }
  return rows;
}

struct Span {
  EntryRange range;
  int64_t first = 0;
  int64_t stride = 1;
  int64_t newest = 0;  // position, or entry where the rule is full
};

// Of a source that is not gathered.
Span span_of(const ResolvedSource& s, const QueryRow& at) {
  Span span;
  span.first = s.first_position ? s.first_position[at.request] : 0;
  span.stride = s.position_stride ? s.position_stride[at.request] : 1;
  const int64_t kv_len = source_kv_len(s, at.request);
  span.range = visible_range(s.rule, s.window_left, s.ratio, span.first, span.stride, kv_len, at.position);
  span.newest = s.rule == RuleKind::kFull ? kv_len - 1 : at.position;
  return span;
}

// Calls fn(slot, age) for what the query sees.
template <class Fn>
void for_each_seen(const ResolvedSource& s, const QueryRow& at, const Fn& fn) {
  if (s.rule == RuleKind::kGathered) {
    for (int64_t i = 0; i < topk_len(s, at.row); ++i) {
      const int64_t slot = gathered_slot(s, at.request, at.row, i);
      if (slot >= 0) fn(slot, Visible::kNoAge);
    }
    return;
  }
  const Span span = span_of(s, at);
  for (int64_t j = span.range.begin; j < span.range.end; ++j) {
    const int64_t age = s.rule == RuleKind::kFull ? span.newest - j : span.newest - (span.first + j * span.stride);
    const bool aged = s.rule != RuleKind::kCompressed && age < Visible::kNoAge;
    fn(source_slot(s, at.request, j), aged ? static_cast<int32_t>(age) : Visible::kNoAge);
  }
}

// At most what the query sees, without listing it.
int64_t most_seen(const ResolvedProblem& p, const QueryRow& at) {
  int64_t n = 0;
  for (int32_t s = 0; s < p.num_sources; ++s) {
    const ResolvedSource& source = p.sources[s];
    if (source.rule == RuleKind::kGathered) {
      n += topk_len(source, at.row);
    } else {
      const EntryRange range = span_of(source, at).range;
      n += range.end - range.begin;
    }
  }
  return n;
}

// Every n-th row, so that the work stays bounded.
Result<std::vector<QueryRow>> sampled(const ResolvedProblem& p, const std::vector<QueryRow>& rows, int64_t max_pairs) {
  constexpr int64_t kMostSeen = int64_t{1} << 22;  // a table may name one page again and again: files do not bound it
  int64_t pairs = 0;
  for (const QueryRow& at : rows) {
    const int64_t seen = most_seen(p, at);
    if (seen > kMostSeen) {
      return unsupported("query row " + std::to_string(at.row) + " sees " + std::to_string(seen) + " entries: formats measures up to " +
                         std::to_string(kMostSeen));
    }
    pairs += seen * p.heads;
  }
  const int64_t step = std::max<int64_t>(1, (pairs + max_pairs - 1) / max_pairs);
  std::vector<QueryRow> kept;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (static_cast<int64_t>(rows.size() - 1 - i) % step == 0) kept.push_back(rows[i]);  // the last row always stays
  }
  return kept;
}

// Lists what each query sees; slots in order of first use become the rows of `rows`.
std::vector<int64_t> list_visible(const ResolvedSource& s, const std::vector<QueryRow>& queries, Visible* visible) {
  std::vector<int32_t> row_of(static_cast<size_t>(s.num_slots), -1);
  std::vector<int64_t> slots;
  for (const QueryRow& at : queries) {
    for_each_seen(s, at, [&](int64_t slot, int32_t age) {
      int32_t& row = row_of[static_cast<size_t>(slot)];
      if (row < 0) {
        row = static_cast<int32_t>(slots.size());
        slots.push_back(slot);
      }
      visible->entry.push_back(row);
      visible->age.push_back(age);
    });
    visible->begin.push_back(static_cast<int64_t>(visible->entry.size()));
  }
  return slots;
}

Format record_of(Type type) {
  switch (type) {
    case Type::kF32:
      return Format::kF32;
    case Type::kF16:
      return Format::kF16;
    case Type::kE4m3:
      return Format::kE4m3;
    default:
      return Format::kBf16;
  }
}

Status decode_queries(const ResolvedProblem& p, const std::vector<QueryRow>& queries, std::vector<float>* q) {
  q->resize(queries.size() * static_cast<size_t>(p.heads) * static_cast<size_t>(p.d_qk));
  float* to = q->data();
  for (const QueryRow& at : queries) {
    for (int32_t h = 0; h < p.heads; ++h) {
      const float scale = !p.q_scale           ? p.q_scale_value
                          : !p.q_scale_per_row ? p.q_scale[0]
                                               : p.q_scale[at.row * p.q_scale_row_stride + h * p.q_scale_head_stride];
      const float factor = p.q_type == Type::kE4m3 ? scale : 1.0F;
      const Format format = record_of(p.q_type);
      Status status = decode_record(format, p.q_width, p.q + at.row * p.q_row_stride + h * p.q_head_stride, nullptr, to, factor);
      if (status.ok() && p.q_tail_width > 0) {
        const std::byte* tail = p.q_tail + at.row * p.q_tail_row_stride + h * p.q_tail_head_stride;
        status = decode_record(format, p.q_tail_width, tail, nullptr, to + p.q_width, factor);
      }
      if (!status.ok()) return status;
      to += p.d_qk;
    }
  }
  return {};
}

Status decode_source(const Source& source, const std::vector<int64_t>& slots, int32_t d_qk, int32_t d_v, Rows* rows) {
  rows->k_format = source.k.format;
  rows->v_format = source.shared ? source.k.format : source.v.format;
  rows->shared = source.shared;
  rows->heads = source.heads;
  rows->d_qk = d_qk;
  rows->d_v = d_v;
  rows->count = static_cast<int64_t>(slots.size());
  const size_t records = slots.size() * static_cast<size_t>(source.heads);
  rows->k.resize(records * static_cast<size_t>(d_qk));
  if (!source.shared) rows->v.resize(records * static_cast<size_t>(d_v));
  return gather(source, slots.data(), rows->count, rows->k.data(), source.shared ? nullptr : rows->v.data());
}

Status compute_baseline(Layer* layer) {
  std::vector<Encoded> exact;
  for (const Rows& rows : layer->sources) {
    Result<Encoded> encoded = Encoded::make(rows, Format::kF32, Format::kF32, {});
    if (!encoded.ok()) return encoded.status();
    exact.push_back(std::move(encoded).value());
  }
  FlatProblem flat(*layer, exact, exact, 0);
  layer->out.resize(static_cast<size_t>(layer->queries) * static_cast<size_t>(layer->heads) * static_cast<size_t>(layer->d_v));
  ReferenceResult result;
  result.out = layer->out.data();
  return reference_attention(flat.problem(), result);
}

}  // namespace

int64_t Layer::seen(int64_t query) const {
  int64_t n = 0;
  for (const Visible& v : visible) n += v.begin[static_cast<size_t>(query) + 1] - v.begin[static_cast<size_t>(query)];
  return n;
}

std::string Layer::centring_refused() const {
  if (softcap != 0.0F) return "a soft cap is not invariant to a shift of the scores";
  if (!sinks.empty()) return "a sink is a score of its own: a shift of the others would move it";
  if (sources.size() > 1) return "several sources would need one common mean";
  if (sources[0].shared) return "V is part of the same row";
  return {};
}

Result<Layer> load_layer(const Problem& problem, std::string name, int64_t max_pairs) {
  ResolvedProblem p;
  Status status = validate(problem, &p);
  if (!status.ok()) return status;
  Layer layer;
  layer.name = std::move(name);
  layer.heads = p.heads;
  layer.d_qk = p.d_qk;
  layer.d_v = p.d_v;
  layer.sm_scale = p.sm_scale;
  layer.softcap = p.softcap;
  layer.q_type = p.q_type;
  const std::vector<QueryRow> rows = query_rows(p);
  layer.all_queries = static_cast<int64_t>(rows.size());
  const Result<std::vector<QueryRow>> chosen = sampled(p, rows, max_pairs);
  if (!chosen.ok()) return chosen.status();
  const std::vector<QueryRow>& queries = *chosen;
  layer.queries = static_cast<int64_t>(queries.size());
  if (queries.empty()) return invalid("q.total = 0: a format cannot be judged without queries");
  status = decode_queries(p, queries, &layer.q);
  for (int32_t s = 0; s < p.num_sources && status.ok(); ++s) {
    layer.visible.emplace_back();
    const std::vector<int64_t> slots = list_visible(p.sources[s], queries, &layer.visible.back());
    layer.sources.emplace_back();
    status = decode_source(problem.sources[static_cast<size_t>(s)], slots, p.d_qk, p.d_v, &layer.sources.back());
    layer.entries_per_token.push_back(p.sources[s].rule == RuleKind::kCompressed ? 1.0 / p.sources[s].ratio : 1.0);
    layer.has_gathered = layer.has_gathered || p.sources[s].rule == RuleKind::kGathered;
  }
  for (size_t i = 0; p.sinks && i < queries.size(); ++i) {
    const float* row = p.sinks + queries[i].request * p.sinks_request_stride;
    layer.sinks.insert(layer.sinks.end(), row, row + p.heads);
  }
  if (status.ok()) status = compute_baseline(&layer);
  if (!status.ok()) return status;
  return layer;
}

std::vector<float> channel_mean(const Rows& rows) {
  const size_t columns = static_cast<size_t>(rows.heads) * static_cast<size_t>(rows.d_qk);
  std::vector<double> sum(columns, 0.0);
  for (size_t i = 0; i < rows.k.size(); ++i) sum[i % columns] += rows.k[i];
  std::vector<float> mean(columns, 0.0F);
  for (size_t c = 0; c < columns && rows.count > 0; ++c) mean[c] = static_cast<float>(sum[c] / static_cast<double>(rows.count));
  return mean;
}

void subtract_mean(const std::vector<float>& mean, Rows* rows) {
  for (size_t i = 0; i < rows->k.size(); ++i) rows->k[i] -= mean[i % mean.size()];
}

}  // namespace headwater::cli::formats
