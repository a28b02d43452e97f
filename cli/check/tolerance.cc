#include "cli/check/tolerance.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "src/core/resolved.h"
#include "src/formats/record.h"

namespace headwater::conformance {
namespace {

// T of one row.
double row_tolerance(bool narrow, double visible, double score_term) {
  const double base = narrow ? 3e-3 : 2e-6 + 3e-8 * std::sqrt(visible);
  return base + 4.0 * 0x1p-24 * score_term;
}

// What rounding to the output type alone may cost an element near zero: half the spacing of f16's subnormals; for the others the
// smallest normal number, below which a float32 sum has lost its digits.
double smallest_step(Type type) { return type == Type::kF16 ? 0x1p-25 : 0x1p-126; }

std::string place(int64_t request, int64_t row, int32_t head) {
  return "request " + std::to_string(request) + ", row " + std::to_string(row) + ", head " + std::to_string(head);
}

std::string number(double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.9g", value);
  return text.data();
}

const char* kind(double value) { return std::isnan(value) ? "NaN" : std::isinf(value) ? "infinite" : "finite"; }

// NaN rows are NaN throughout; an element made non-finite by V only has to be non-finite.
bool same_kind(double got, double want) { return std::isfinite(got) == std::isfinite(want); }

struct Sums {
  double error = 0.0;
  double out = 0.0;
  double allowed = 0.0;
};

// Squared norms over the row's finite elements; empty string or the first element of the wrong kind.
std::string compare_row(const std::vector<float>& got, const double* want, bool row_is_nan, Sums* sums) {
  for (size_t d = 0; d < got.size(); ++d) {
    if (!same_kind(got[d], want[d]) || (row_is_nan && !std::isnan(got[d]))) {
      return "out[" + std::to_string(d) + "] is " + number(got[d]) + ", the oracle's is " + number(want[d]);
    }
    if (!std::isfinite(want[d])) continue;
    const double difference = double{got[d]} - want[d];
    sums->error += difference * difference;
    sums->out += want[d] * want[d];
  }
  return {};
}

// L2 error that the nearest values of the output type have: no answer is nearer. A bf16 row of one repeated value may be 2^-8 off,
// which is above T.
double rounding_error(const formats::RecordLayout& layout, const double* want) {
  std::array<float, kMaxWidth> values{};
  std::array<std::byte, kMaxWidth * sizeof(float)> stored{};
  for (int32_t d = 0; d < layout.width; ++d) values[static_cast<size_t>(d)] = static_cast<float>(want[d]);
  formats::encode_row(layout, values.data(), 1.0F, BlockScaleRule::kRoundUp, stored.data(), nullptr, 0);
  formats::decode_row(layout, {stored.data(), nullptr, 0}, 1.0F, values.data());
  double sum = 0.0;
  for (int32_t d = 0; d < layout.width; ++d) {
    const double difference = values[static_cast<size_t>(d)] - want[d];
    if (std::isfinite(difference)) sum += difference * difference;
  }
  return std::sqrt(sum);
}

std::string compare_lse(double got, double want, double score_term, double* worst) {
  if (std::isnan(want) || std::isinf(want)) {
    const bool same = std::isnan(want) ? std::isnan(got) : got == want;
    return same ? std::string() : "lse is " + number(got) + ", the oracle's is " + number(want);
  }
  const double allowed = 1e-5 + 1e-5 * std::fabs(want) + 4.0 * 0x1p-24 * score_term;
  const double error = std::fabs(got - want);
  if (std::isfinite(got)) *worst = std::max(*worst, error / allowed);
  if (error <= allowed) return {};
  return "lse is " + number(got) + " (" + kind(got) + "), the oracle's is " + number(want) + ": off by " + number(error) + " of " +
         number(allowed) + " allowed";
}

}  // namespace

Reference run_reference(const Problem& problem) {
  Reference r;
  const auto rows = static_cast<size_t>(problem.q.total * problem.q.heads);
  r.out.resize(rows * static_cast<size_t>(problem.d_v()));
  r.lse.resize(rows);
  r.spread.resize(rows);
  r.score_term.resize(rows);
  r.visible.resize(rows);
  r.status = reference_attention(problem, {r.out.data(), r.lse.data(), r.spread.data(), r.score_term.data(), r.visible.data()});
  return r;
}

Judgement judge(const Problem& problem, const Reference& reference, bool rounds_p) {
  Judgement verdict;
  ResolvedProblem p;
  if (const Status status = validate(problem, &p); !status.ok()) {
    verdict.fault = status.message();
    return verdict;
  }
  const bool narrow = rounds_p || problem.out.type != Type::kF32;
  const Format as_record = problem.out.type == Type::kF32 ? Format::kF32 : problem.out.type == Type::kF16 ? Format::kF16 : Format::kBf16;
  const formats::RecordLayout layout = formats::resolve(as_record, p.d_v);
  const double step = smallest_step(problem.out.type) * std::sqrt(static_cast<double>(p.d_v));
  std::vector<float> got(static_cast<size_t>(p.d_v));
  Sums whole;
  for (int64_t b = 0; b < p.requests; ++b) {
    for (int64_t row = p.qo_indptr[b]; row < p.qo_indptr[b + 1]; ++row) {
      for (int32_t h = 0; h < p.heads; ++h) {
        const auto at = static_cast<size_t>(row * p.heads + h);
        formats::decode_row(layout, {p.out + row * p.out_row_stride + h * p.out_head_stride, nullptr, 0}, 1.0F, got.data());
        Sums sums;
        const bool row_is_nan = std::isnan(reference.lse[at]);
        const double* const want = reference.out.data() + at * static_cast<size_t>(p.d_v);
        std::string fault = compare_row(got, want, row_is_nan, &sums);
        const double visible = static_cast<double>(reference.visible[at]);
        const double size = std::max(std::sqrt(sums.out), std::isfinite(reference.spread[at]) ? reference.spread[at] : 0.0);
        const double allowed = row_tolerance(narrow, visible, reference.score_term[at]) * size;
        const double error = std::sqrt(sums.error);
        const bool empty = reference.lse[at] == -INFINITY;  // exactly 0
        if (fault.empty() && error > (empty ? 0.0 : 2.0 * allowed + step)) {
          fault = "out is off by " + number(error) + " of " + number(empty ? 0.0 : 2.0 * allowed + step) + " allowed (|out| " +
                  number(std::sqrt(sums.out)) + ", |r| " + number(reference.spread[at]) + ", " + number(visible) + " visible)";
        }
        if (!empty) verdict.worst = std::max(verdict.worst, error / (2.0 * allowed + step));
        if (fault.empty() && p.lse) {
          fault = compare_lse(p.lse[lse_offset(p, b, row - p.qo_indptr[b], row, h)], reference.lse[at], reference.score_term[at],
                              &verdict.worst);
        }
        if (!fault.empty()) {
          verdict.fault = place(b, row, h) + ": " + fault;
          return verdict;
        }
        whole.error += sums.error;
        whole.out += size * size;
        const double share = std::max(allowed, 1.01 * rounding_error(layout, want)) + step;
        whole.allowed += share * share;
      }
    }
  }
  // The whole: half of what single rows are allowed, each row with its own T, but never less than its rounding.
  if (std::sqrt(whole.error) > std::sqrt(whole.allowed)) {
    verdict.fault = "the whole output is off by " + number(std::sqrt(whole.error)) + " of " + number(std::sqrt(whole.allowed)) + " allowed";
  }
  if (whole.out > 0.0) {
    verdict.error = std::sqrt(whole.error / whole.out);
    verdict.allowed = std::sqrt(whole.allowed / whole.out);
  }
  if (whole.allowed > 0.0) verdict.worst = std::max(verdict.worst, std::sqrt(whole.error / whole.allowed));
  return verdict;
}

}  // namespace headwater::conformance
