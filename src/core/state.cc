// The algebra of finished states (normalised out, natural-log lse): merge_states and finalize. Weights in float64, results rounded once
// to float32 and then to the result's type.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "headwater/headwater.h"
#include "src/core/check.h"
#include "src/core/float_env.h"
#include "src/core/ring_slots.h"
#include "src/formats/bf16.h"
#include "src/formats/f16.h"

namespace headwater {
namespace {

using check::Axis;
using check::bad;
using check::element;
using check::text;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A State with its strides filled in. Rows are (request, token in request, global token).
struct View {
  std::byte* out = nullptr;
  Type type = Type::kF32;
  int64_t out_token = 0;  // bytes
  int64_t out_head = 0;
  float* lse = nullptr;
  int64_t lse_token = 0;  // floats
  int64_t lse_head = 0;
  int64_t lse_request = 0;
  bool per_request = false;
};

struct Row {
  int64_t request = 0;
  int64_t token_in_request = 0;
  int64_t token = 0;
};

std::byte* out_row(const View& v, const Row& row, int64_t head) { return v.out + row.token * v.out_token + head * v.out_head; }

float* lse_at(const View& v, const Row& row, int64_t head) {
  const int64_t token = v.per_request ? row.request * v.lse_request + row.token_in_request * v.lse_token : row.token * v.lse_token;
  return v.lse + token + head * v.lse_head;
}

float load(Type type, const std::byte* row, int64_t i) {
  if (type == Type::kF32) {
    float value = 0.0F;
    std::memcpy(&value, row + 4 * i, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, row + 2 * i, sizeof bits);
  return type == Type::kF16 ? formats::decode_f16(bits) : formats::decode_bf16(bits);
}

void store(Type type, std::byte* row, int64_t i, float value) {
  if (type == Type::kF32) {
    std::memcpy(row + 4 * i, &value, sizeof value);
    return;
  }
  const uint16_t bits = type == Type::kF16 ? formats::encode_f16(value) : formats::encode_bf16(value);
  std::memcpy(row + 2 * i, &bits, sizeof bits);
}

void fill(const View& to, const Row& row, int64_t head, int32_t width, float value) {
  for (int32_t i = 0; i < width; ++i) store(to.type, out_row(to, row, head), i, value);
}

// The same value in the result's type: bit for bit where the types agree.
void copy(const View& from, const View& to, const Row& row, int64_t head, int32_t width) {
  const std::byte* source = out_row(from, row, head);
  std::byte* target = out_row(to, row, head);
  if (from.type == to.type) {
    std::memmove(target, source, static_cast<size_t>(width) * static_cast<size_t>(type_bits(from.type) / 8));
    return;
  }
  for (int32_t i = 0; i < width; ++i) store(to.type, target, i, load(from.type, source, i));
}

void write_lse(const View& to, const Row& row, int64_t head, float value) {
  if (to.lse != nullptr) *lse_at(to, row, head) = value;
}

void merge_row(const View& a, const View& b, const View& result, const Row& row, int64_t head, int32_t width) {
  const double lse_a = *lse_at(a, row, head);
  const double lse_b = *lse_at(b, row, head);
  if (std::isnan(lse_a) || std::isnan(lse_b) || lse_a == kInf || lse_b == kInf) {
    fill(result, row, head, width, kNan);
    write_lse(result, row, head, kNan);
  } else if (lse_a == -kInf && lse_b == -kInf) {
    fill(result, row, head, width, 0.0F);
    write_lse(result, row, head, static_cast<float>(-kInf));
  } else if (lse_a == -kInf || lse_b == -kInf) {
    copy(lse_a == -kInf ? b : a, result, row, head, width);
    write_lse(result, row, head, static_cast<float>(lse_a == -kInf ? lse_b : lse_a));
  } else {
    const double top = lse_a > lse_b ? lse_a : lse_b;
    const double weight_a = std::exp(lse_a - top);
    const double weight_b = std::exp(lse_b - top);
    const double sum = weight_a + weight_b;
    const std::byte* from_a = out_row(a, row, head);
    const std::byte* from_b = out_row(b, row, head);
    std::byte* to = out_row(result, row, head);
    for (int32_t i = 0; i < width; ++i) {
      const double value = (weight_a * double{load(a.type, from_a, i)} + weight_b * double{load(b.type, from_b, i)}) / sum;
      store(result.type, to, i, static_cast<float>(value));
    }
    write_lse(result, row, head, static_cast<float>(top + std::log(sum)));
  }
}

// Rule 1's precedence: empty row, then NaN or +inf scores, then NaN sink, then +inf sink, then the values.
void finalize_row(const View& state, const View& result, float sink, const Row& row, int64_t head, int32_t width) {
  const float lse = *lse_at(state, row, head);
  if (lse == static_cast<float>(-kInf)) {
    fill(result, row, head, width, 0.0F);
    write_lse(result, row, head, lse);
    return;
  }
  if (std::isnan(lse) || lse == static_cast<float>(kInf)) {
    fill(result, row, head, width, kNan);
    write_lse(result, row, head, kNan);
    return;
  }
  write_lse(result, row, head, lse);
  if (std::isnan(sink)) {
    fill(result, row, head, width, kNan);
  } else if (sink == static_cast<float>(kInf)) {
    fill(result, row, head, width, 0.0F);
  } else if (sink == static_cast<float>(-kInf)) {
    copy(state, result, row, head, width);
  } else {
    const double share = 1.0 / (1.0 + std::exp(double{sink} - double{lse}));
    const std::byte* from = out_row(state, row, head);
    std::byte* to = out_row(result, row, head);
    for (int32_t i = 0; i < width; ++i) store(result.type, to, i, static_cast<float>(double{load(state.type, from, i)} * share));
  }
}

// ---- checks ---------------------------------------------------------------------------------------------------------------------

Status check_shape(const StateShape& shape) {
  if (shape.tokens < 0) return bad("shape.tokens", shape.tokens, "must be at least 0");
  if (shape.heads < 1) return bad("shape.heads", shape.heads, "must be at least 1");
  if (shape.width < 1) return bad("shape.width", shape.width, "must be at least 1");
  if (shape.requests < 0) return bad("shape.requests", shape.requests, "must be at least 0");
  HEADWATER_TRY(check::check_array({}, "shape.indptr", shape.indptr, shape.requests > 0, "shape.requests is above 0"));
  if (shape.indptr == nullptr || shape.requests == 0) return {};
  if (shape.indptr[0] < 0) return bad("shape.indptr[0]", shape.indptr[0], "must be at least 0");
  for (int64_t r = 0; r < shape.requests; ++r) {
    if (shape.indptr[r + 1] < shape.indptr[r]) {
      return bad(element("shape.indptr", r + 1), shape.indptr[r + 1], "must not be below the offset before it, " + text(shape.indptr[r]));
    }
  }
  if (shape.indptr[shape.requests] > shape.tokens) {
    return bad(element("shape.indptr", shape.requests), shape.indptr[shape.requests],
               "must be at most shape.tokens = " + text(shape.tokens));
  }
  return {};
}

// part: "a.", "b.", "state.", "result.".
Status resolve(const char* part, const State& state, const StateShape& shape, bool written, View* view) {
  const check::Where at{-1, part};
  if (state.type != Type::kF32 && state.type != Type::kBf16 && state.type != Type::kF16) {
    return bad(at, "type", state.type, "must be f32, bf16 or f16");
  }
  const int64_t item = type_bits(state.type) / 8;
  const bool rows = shape.tokens > 0;
  HEADWATER_TRY(check::check_array(at, "out", state.out, rows, written ? "it receives the result" : "it is read", item));
  HEADWATER_TRY(check::check_array(at, "lse.data", state.lse.data, rows && !written, "it holds the weights"));
  *view = {static_cast<std::byte*>(state.out),
           state.type,
           state.out_token_stride_bytes,
           state.out_head_stride_bytes,
           state.lse.data,
           state.lse.token_stride,
           state.lse.head_stride,
           state.lse.request_stride,
           state.lse.request_stride != kDense};
  const std::array<Axis, 2> axes{
      {{"out_token_stride_bytes", shape.tokens, &view->out_token}, {"out_head_stride_bytes", shape.heads, &view->out_head}}};
  HEADWATER_TRY(check::resolve_strides(at, axes, shape.width * item, item));
  if (written) HEADWATER_TRY(check::check_disjoint(at, axes, shape.width * item));
  if (state.lse.data == nullptr) return {};
  if (view->per_request && shape.indptr == nullptr && shape.tokens > 0) {
    return bad("shape.indptr", static_cast<const void*>(nullptr), check::field(at, "lse.request_stride") + " needs it");
  }
  int64_t longest = 1;
  for (int64_t r = 0; shape.indptr != nullptr && r < shape.requests; ++r) {
    longest = std::max<int64_t>(longest, int64_t{shape.indptr[r + 1]} - shape.indptr[r]);
  }
  if (!view->per_request) view->lse_request = 0;
  const std::array<Axis, 3> lse_axes{{{"lse.request_stride", view->per_request ? shape.requests : 1, &view->lse_request},
                                      {"lse.token_stride", view->per_request ? longest : shape.tokens, &view->lse_token},
                                      {"lse.head_stride", shape.heads, &view->lse_head}}};
  HEADWATER_TRY(check::resolve_strides(at, lse_axes, 1, 1));
  return written ? check::check_disjoint(at, lse_axes, 1) : Status();
}

// In place is fine; a result that starts where an input does but is laid out otherwise would overwrite rows before they are read.
Status check_alias(const char* part, const View& in, const View& result) {
  if (in.out != nullptr && in.out == result.out &&
      (in.type != result.type || in.out_token != result.out_token || in.out_head != result.out_head)) {
    return bad("result.out", static_cast<const void*>(result.out),
               std::string("aliases ") + part + "out with another type or other strides");
  }
  if (in.lse != nullptr && in.lse == result.lse &&
      (in.per_request != result.per_request || in.lse_token != result.lse_token || in.lse_head != result.lse_head ||
       in.lse_request != result.lse_request)) {
    return bad("result.lse.data", static_cast<const void*>(result.lse), std::string("aliases ") + part + "lse with other strides");
  }
  return {};
}

// Every row that belongs to a request; all of them where no offsets are given.
template <class Body>
void for_each_row(const StateShape& shape, const Body& body) {
  const bool by_request = shape.indptr != nullptr;
  for (int64_t r = 0; r < (by_request ? shape.requests : 1); ++r) {
    const int64_t begin = by_request ? shape.indptr[r] : 0;
    const int64_t end = by_request ? shape.indptr[r + 1] : shape.tokens;
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < shape.heads; ++h) body(Row{r, t - begin, t}, h);
    }
  }
}

[[gnu::noinline]] void merge_rows(const StateShape& shape, const View& a, const View& b, const View& result) {
  for_each_row(shape, [&](const Row& row, int64_t head) { merge_row(a, b, result, row, head, shape.width); });
}

[[gnu::noinline]] void finalize_rows(const StateShape& shape, const View& state, const float* sinks, const View& result) {
  for_each_row(shape, [&](const Row& row, int64_t head) {
    finalize_row(state, result, sinks != nullptr ? sinks[head] : static_cast<float>(-kInf), row, head, shape.width);
  });
}

}  // namespace

Status merge_states(const StateShape& shape, const State& a, const State& b, const State& result) {
  View view_a;
  View view_b;
  View view_result;
  HEADWATER_TRY(check_shape(shape));
  HEADWATER_TRY(resolve("a.", a, shape, false, &view_a));
  HEADWATER_TRY(resolve("b.", b, shape, false, &view_b));
  HEADWATER_TRY(resolve("result.", result, shape, true, &view_result));
  HEADWATER_TRY(check_alias("a.", view_a, view_result));
  HEADWATER_TRY(check_alias("b.", view_b, view_result));
  const ScopedFloatEnv env;
  merge_rows(shape, view_a, view_b, view_result);
  return {};
}

Status finalize(const StateShape& shape, const State& state, const float* sinks, const State& result) {
  View view;
  View view_result;
  HEADWATER_TRY(check_shape(shape));
  HEADWATER_TRY(check::check_array({}, "sinks", sinks, false, ""));
  HEADWATER_TRY(resolve("state.", state, shape, false, &view));
  HEADWATER_TRY(resolve("result.", result, shape, true, &view_result));
  HEADWATER_TRY(check_alias("state.", view, view_result));
  const ScopedFloatEnv env;
  finalize_rows(shape, view, sinks, view_result);
  return {};
}

int32_t ring_slots(int64_t t, int32_t window_left, int32_t capacity, int32_t base, int32_t* indices, int32_t count) {
  return write_ring_slots(t, window_left, capacity, base, indices, count);
}

}  // namespace headwater
