#include "src/cpu/output.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/core/partial.h"
#include "src/formats/bf16.h"
#include "src/formats/f16.h"

namespace headwater::cpu {
namespace {

// What every element of the row is multiplied by, or replaced with.
struct RowFactor {
  float factor = 0.0F;
  bool replace = false;
};

RowFactor row_factor(const ResolvedProblem& problem, const RowPlace& place, float m, float l) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  if (l == 0.0F && !(m != m)) return {0.0F, true};  // an empty row
  if (!(l == l) || !(m == m)) return {kNan, true};
  if (problem.sinks == nullptr) return {1.0F / l, false};
  const float sink = problem.sinks[place.request * problem.sinks_request_stride + place.head];
  if (sink != sink) return {kNan, true};
  if (sink == std::numeric_limits<float>::infinity()) return {0.0F, true};
  // In double: a sink far above the scores leaves a factor that float32 powers would lose.
  const double gap = static_cast<double>(sink) * 1.4426950408889634 - static_cast<double>(m);  // in powers of two
  if (gap > 0) return {static_cast<float>(std::exp2(-gap) / (l * std::exp2(-gap) + 1.0)), false};
  return {static_cast<float>(1.0 / (l + std::exp2(gap))), false};
}

// By way of an array of its own, aligned and apart from `o`: the loop becomes vectors.
void store_bf16(const ResolvedProblem& problem, RowFactor f, const float* o, std::byte* out) {
  uint16_t row[kMaxWidth];
  if (f.replace) {
    std::fill_n(row, problem.d_v, formats::encode_bf16(f.factor));
  } else {
    for (int32_t i = 0; i < problem.d_v; ++i) row[i] = formats::encode_bf16(o[i] * f.factor);
  }
  std::memcpy(out, row, sizeof(uint16_t) * static_cast<size_t>(problem.d_v));
}

void store_f16(const ResolvedProblem& problem, RowFactor f, const float* o, std::byte* out) {
  for (int32_t i = 0; i < problem.d_v; ++i) {
    const uint16_t bits = formats::encode_f16(f.replace ? f.factor : o[i] * f.factor);
    std::memcpy(out + 2 * i, &bits, sizeof(bits));
  }
}

void store_f32(const ResolvedProblem& problem, RowFactor f, const float* o, std::byte* out) {
  for (int32_t i = 0; i < problem.d_v; ++i) {
    const float x = f.replace ? f.factor : o[i] * f.factor;
    std::memcpy(out + 4 * i, &x, sizeof(x));
  }
}

}  // namespace

void finish_row(const ResolvedProblem& problem, const RowPlace& place, const float* o, float m, float l) {
  const int64_t row = place.q_begin + place.token;
  if (problem.lse != nullptr) {
    float lse = -std::numeric_limits<float>::infinity();
    if (!(l == l) || !(m == m)) {
      lse = std::numeric_limits<float>::quiet_NaN();
    } else if (l != 0.0F) {
      lse = static_cast<float>((static_cast<double>(m) + std::log2(static_cast<double>(l))) * 0.69314718055994531);
    }
    problem.lse[lse_offset(problem, place.request, place.token, row, place.head)] = lse;
  }
  const RowFactor f = row_factor(problem, place, m, l);
  std::byte* out = problem.out + row * problem.out_row_stride + place.head * problem.out_head_stride;
  if (problem.out_type == Type::kBf16) return store_bf16(problem, f, o, out);
  if (problem.out_type == Type::kF16) return store_f16(problem, f, o, out);
  store_f32(problem, f, o, out);
}

}  // namespace headwater::cpu
