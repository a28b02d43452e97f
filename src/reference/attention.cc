#include "src/reference/attention.h"

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "src/core/resolved.h"
#include "src/formats/record.h"

namespace headwater::reference {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// The caller's rounding mode and FTZ/DAZ do not reach the oracle.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t saved_{};
};

int64_t stride_or(int64_t stride, int64_t dense) { return stride == kDense ? dense : stride; }

template <class T>
T load(const std::byte* at) {  // any alignment
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// A float of 1 sign bit, `exponent_bits` and `mantissa_bits`, with IEEE infinities and NaN, or e4m3fn's single NaN per sign.
double decode_float(uint32_t code, int exponent_bits, int mantissa_bits, bool has_infinity) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int mantissa = static_cast<int>(code & ((1U << mantissa_bits) - 1));
  const int exponent = static_cast<int>(code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = (code >> (exponent_bits + mantissa_bits)) != 0 ? -1.0 : 1.0;
  const bool top = exponent == (1 << exponent_bits) - 1;
  if (top && has_infinity) return mantissa == 0 ? sign * kInf : std::nan("");
  if (top && mantissa == (1 << mantissa_bits) - 1) return std::nan("");
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1.0 + fraction, exponent - bias));
}

double query_element(const std::byte* row, Type type, int32_t d) {
  if (type == Type::kF32) return load<float>(row + d * int64_t{4});
  if (type == Type::kF16) return decode_float(load<uint16_t>(row + d * int64_t{2}), 5, 10, true);
  if (type == Type::kBf16) return decode_float(load<uint16_t>(row + d * int64_t{2}), 8, 7, true);
  return decode_float(load<uint8_t>(row + d), 4, 3, false);
}

// One part of query row (row, head), decoded: columns [0, width) appended to `values`.
void append_query(const Problem& p, const void* data, int32_t width, int64_t row_stride, int64_t head_stride, int64_t row, int32_t head,
                  std::vector<double>* values) {
  const int64_t bytes = type_bits(p.q.type) / 8 * int64_t{width};
  const std::byte* at =
      static_cast<const std::byte*>(data) + row * stride_or(row_stride, bytes * p.q.heads) + head * stride_or(head_stride, bytes);
  float scale = p.q_scale.value;
  if (p.q_scale.data) {
    scale = p.q_scale.per_row
                ? p.q_scale.data[row * stride_or(p.q_scale.row_stride, p.q.heads) + head * stride_or(p.q_scale.head_stride, 1)]
                : *p.q_scale.data;
  }
  for (int32_t d = 0; d < width; ++d) {
    const double x = query_element(at, p.q.type, d);
    values->push_back(p.q.type == Type::kE4m3 ? static_cast<double>(static_cast<float>(x) * scale) : x);
  }
}

// The decoded record of (slot, head), float32.
void decode(const Source& source, const KvTensor& tensor, int64_t slot, int32_t head, float* values) {
  const Addressing& a = source.addressing;
  const bool ragged = a.kind == AddressingKind::kRagged;
  const int64_t page_size = ragged ? 1 : a.page_size;
  const int64_t page = ragged ? 0 : slot / page_size;
  const int64_t r = ragged ? slot : slot % page_size;
  const formats::RecordLayout layout = formats::resolve(tensor.format, tensor.width);
  const bool planar = layout.tail_bytes > 0;

  const int64_t head_stride = stride_or(tensor.head_stride_bytes, layout.row_bytes);
  const int64_t row_stride = stride_or(tensor.row_stride_bytes, int64_t{layout.row_bytes} * source.heads);
  int64_t dense_page = page_size * int64_t{layout.row_bytes} * source.heads;
  if (planar) dense_page = record_page_bytes(tensor.format, tensor.width, a.page_size);
  const std::byte* base = static_cast<const std::byte*>(tensor.data) + page * stride_or(tensor.page_stride_bytes, dense_page);
  formats::RowRef ref;
  ref.row = base + r * row_stride + head * head_stride;
  if (planar) ref.scales = base + page_size * layout.row_bytes + r * layout.tail_bytes;
  if (layout.apart_bytes > 0) {
    const int64_t bytes = layout.apart_bytes;
    ref.scale_block_stride = stride_or(tensor.scale_block_stride_bytes, layout.segments[0].scale_stride);
    ref.scales =
        static_cast<const std::byte*>(tensor.scales) + page * stride_or(tensor.scale_page_stride_bytes, page_size * source.heads * bytes) +
        r * stride_or(tensor.scale_row_stride_bytes, source.heads * bytes) + head * stride_or(tensor.scale_head_stride_bytes, bytes);
  }
  float scale = tensor.scale.count == 0 ? 1.0F : tensor.scale.value;
  if (tensor.scale.count > 0 && tensor.scale.data) scale = tensor.scale.data[tensor.scale.count == 1 ? 0 : head];
  formats::decode_row(layout, ref, scale, values);
}

int64_t entries(const Addressing& a, int64_t request) {
  if (a.kind == AddressingKind::kPool) return 0;
  if (a.kind == AddressingKind::kRagged) return a.kv_indptr ? int64_t{a.kv_indptr[request + 1]} - a.kv_indptr[request] : 0;
  if (a.seq_lens) return a.seq_lens[request];
  if (a.kind == AddressingKind::kBlockTable || !a.kv_indptr || !a.kv_last_page_len) return 0;
  const int64_t pages = int64_t{a.kv_indptr[request + 1]} - a.kv_indptr[request];
  return pages == 0 ? 0 : (pages - 1) * a.page_size + a.kv_last_page_len[request];
}

int64_t slot_of(const Addressing& a, int64_t request, int64_t j) {
  if (a.kind == AddressingKind::kRagged) return int64_t{a.kv_indptr[request]} + j;
  const int64_t page = a.kind == AddressingKind::kBlockTable
                           ? a.block_table[request * stride_or(a.block_table_stride, a.max_pages) + j / a.page_size]
                           : a.kv_indices[int64_t{a.kv_indptr[request]} + j / a.page_size];
  return page * a.page_size + j % a.page_size;
}

bool position_visible(const Rule& rule, int64_t position, int64_t t) {
  switch (rule.kind) {
    case RuleKind::kFull:
      return true;
    case RuleKind::kCausal:
      return position <= t;
    case RuleKind::kWindow:
      return position <= t && (rule.window_left < 0 || position >= t - rule.window_left);
    case RuleKind::kCompressed:
      return (position + 1) * rule.ratio <= t + 1;
    case RuleKind::kGathered:
      return false;  // by list, not by position
  }
  return false;
}

// Sum of q_d k_d and of its magnitudes, in eight running sums each: one would wait for every addition.
struct InnerProduct {
  double sum;
  double magnitude;
};
InnerProduct inner_product(const std::vector<double>& q, const std::vector<float>& k) {
  constexpr size_t kSums = 8;
  double sums[kSums] = {};
  double magnitudes[kSums] = {};
  size_t d = 0;
  for (; d + kSums <= k.size(); d += kSums) {
    for (size_t i = 0; i < kSums; ++i) {
      const double product = q[d + i] * double{k[d + i]};
      sums[i] += product;
      magnitudes[i] += std::fabs(product);
    }
  }
  for (; d < k.size(); ++d) {
    sums[0] += q[d] * double{k[d]};
    magnitudes[0] += std::fabs(q[d] * double{k[d]});
  }
  return {std::accumulate(sums, sums + kSums, 0.0), std::accumulate(magnitudes, magnitudes + kSums, 0.0)};
}

// What all rows of one token share while its visible entries are collected.
struct TokenRows {
  std::vector<std::vector<double>> q;  // [heads of the block][d_qk]
  std::vector<std::vector<double>> z;  // [heads of the block][entries]
  std::vector<double> score_term;      // [heads of the block]
  std::vector<float> values;           // [entries, d_v]
};

void see_entry(const Problem& p, const Source& source, int64_t slot, int32_t first_head, TokenRows* rows) {
  const int32_t kv_head = first_head / (p.q.heads / source.heads);
  std::vector<float> k(static_cast<size_t>(source.k.width));
  std::vector<float> v(static_cast<size_t>(source.shared ? 0 : source.v.width));
  decode(source, source.k, slot, kv_head, k.data());
  if (!source.shared) decode(source, source.v, slot, kv_head, v.data());
  const std::vector<float>& value = source.shared ? k : v;
  rows->values.insert(rows->values.end(), value.begin(), value.begin() + source.d_v());
  for (size_t h = 0; h < rows->q.size(); ++h) {
    const auto [dot, magnitude] = inner_product(rows->q[h], k);
    double z = double{p.sm_scale} * dot;
    if (p.logits_soft_cap > 0.0F) z = p.logits_soft_cap * std::tanh(z / p.logits_soft_cap);
    rows->z[h].push_back(z);
    const double term = std::fabs(double{p.sm_scale}) * magnitude;
    if (std::isfinite(term)) rows->score_term[h] = std::max(rows->score_term[h], term);
  }
}

// Heads [first, first + count) share one KV head in every source.
void attend_token(const Problem& p, const ReferenceResult& result, int64_t request, int64_t row, int64_t t, int32_t first, int32_t count) {
  TokenRows rows;
  for (int32_t h = first; h < first + count; ++h) {
    std::vector<double> q;
    append_query(p, p.q.data, p.q.width, p.q.row_stride_bytes, p.q.head_stride_bytes, row, h, &q);
    if (p.q_tail.data) append_query(p, p.q_tail.data, p.q_tail.width, p.q_tail.row_stride_bytes, p.q_tail.head_stride_bytes, row, h, &q);
    rows.q.push_back(std::move(q));
  }
  rows.z.resize(rows.q.size());
  rows.score_term.resize(rows.q.size());
  for (const Source& source : p.sources) {
    for (const int64_t slot : visible_slots(source, request, row, t)) see_entry(p, source, slot, first, &rows);
  }
  for (int32_t i = 0; i < count; ++i) {
    const int32_t h = first + i;
    const auto& z = rows.z[static_cast<size_t>(i)];
    const double sink = p.sinks ? double{p.sinks[request * p.sinks_request_stride + h]} : -kInf;
    const Row done = softmax_row(z, rows.values, p.d_v(), sink);
    const int64_t at = row * p.q.heads + h;
    if (result.out) std::copy(done.out.begin(), done.out.end(), result.out + at * p.d_v());
    if (result.lse) result.lse[at] = done.lse;
    if (result.spread) result.spread[at] = done.spread;
    if (result.score_term) result.score_term[at] = rows.score_term[static_cast<size_t>(i)];
    if (result.visible) result.visible[at] = static_cast<int64_t>(z.size());
  }
}

}  // namespace

Row softmax_row(const std::vector<double>& z, const std::vector<float>& values, int32_t width, double sink) {
  Row row;
  row.out.assign(static_cast<size_t>(width), 0.0);
  const double top = z.empty() ? -kInf : *std::max_element(z.begin(), z.end());
  const bool unordered = std::any_of(z.begin(), z.end(), [](double x) { return std::isnan(x) || x == kInf; });
  if (!unordered && top == -kInf) {  // sees nothing; a visible z = -inf is as if invisible
    row.lse = -kInf;
    return row;
  }
  if (unordered) {
    row.lse = std::nan("");
    row.out.assign(static_cast<size_t>(width), std::nan(""));
    return row;
  }
  double sum = 0.0;
  for (const double x : z) sum += std::exp(x - top);
  row.lse = top + std::log(sum);
  if (std::isnan(sink)) {
    row.out.assign(static_cast<size_t>(width), std::nan(""));
    return row;
  }
  if (sink == kInf) return row;
  const double reference = std::max(top, sink);
  const double denominator = sum * std::exp(top - reference) + std::exp(sink - reference);
  std::vector<double> squares(static_cast<size_t>(width), 0.0);
  for (size_t j = 0; j < z.size(); ++j) {
    if (z[j] == -kInf) continue;
    const double w = std::exp(z[j] - reference) / denominator;
    for (size_t d = 0; d < static_cast<size_t>(width); ++d) {
      const double x = w * double{values[j * static_cast<size_t>(width) + d]};
      row.out[d] += x;
      if (std::isfinite(x)) squares[d] += x * x;
    }
  }
  row.spread = std::sqrt(std::accumulate(squares.begin(), squares.end(), 0.0));
  return row;
}

int64_t context_length(const Problem& problem, int64_t request) {
  if (problem.context_lens) return problem.context_lens[request];
  for (const Source& s : problem.sources) {
    if (s.rule.kind != RuleKind::kCausal && s.rule.kind != RuleKind::kWindow) continue;
    return (s.first_position ? int64_t{s.first_position[request]} : 0) + entries(s.addressing, request);
  }
  return 0;
}

std::vector<int64_t> visible_slots(const Source& source, int64_t request, int64_t row, int64_t t) {
  std::vector<int64_t> slots;
  const Addressing& a = source.addressing;
  const Rule& rule = source.rule;
  const int64_t length = entries(a, request);
  if (rule.kind == RuleKind::kGathered) {
    const int64_t cache_slots = a.num_pages * (a.kind == AddressingKind::kRagged ? 1 : a.page_size);
    const int64_t live = rule.topk_lens ? rule.topk_lens[row] : rule.topk;
    for (int64_t i = 0; i < rule.topk && i < live; ++i) {
      const int64_t at = row * stride_or(rule.indices_stride, rule.topk) + i;
      const int64_t index =
          rule.index_type == Type::kI64 ? static_cast<const int64_t*>(rule.indices)[at] : static_cast<const int32_t*>(rule.indices)[at];
      if (index < 0) continue;
      if (rule.index_space == IndexSpace::kPosition) {
        if (index < length) slots.push_back(slot_of(a, request, index));
      } else if (index < cache_slots) {
        slots.push_back(index);
      }
    }
    return slots;
  }
  const int64_t first = source.first_position ? source.first_position[request] : 0;
  const int64_t step = source.position_stride ? source.position_stride[request] : 1;
  for (int64_t j = 0; j < length; ++j) {
    if (position_visible(rule, first + j * step, t)) slots.push_back(slot_of(a, request, j));
  }
  return slots;
}

}  // namespace headwater::reference

namespace headwater {

Status reference_attention(const Problem& problem, const ReferenceResult& result) {
  if (problem.device.kind != DeviceKind::kCpu) return invalid("device = cuda: the oracle reads host memory only");
  ResolvedProblem checked;  // for its verdict only
  if (Status status = validate(problem, &checked); !status.ok()) return status;
  const reference::DefaultFloatEnvironment environment;
  int32_t block = problem.q.heads;  // query heads that share a KV head in every source
  for (const Source& s : problem.sources) block = std::gcd(block, problem.q.heads / s.heads);
  for (int64_t request = 0; request < problem.requests; ++request) {
    const int64_t begin = problem.qo_indptr[request];
    const int64_t end = problem.qo_indptr[request + 1];
    const int64_t context = reference::context_length(problem, request);
    for (int64_t row = begin; row < end; ++row) {
      for (int32_t h = 0; h < problem.q.heads; h += block) {
        reference::attend_token(problem, result, request, row, context - end + row, h, block);
      }
    }
  }
  return {};
}

}  // namespace headwater
