// Everything public, and the one-call convenience.
#pragma once

#include <cstdint>
#include <span>

#include "headwater/backend.h"
#include "headwater/format.h"
#include "headwater/plan.h"
#include "headwater/problem.h"
#include "headwater/status.h"

namespace headwater {

[[nodiscard]] const char* version();

// Plans, schedules and runs one problem with buffers of its own. For tools and tests; engines keep a Plan.
[[nodiscard]] Status attend(const Problem& problem, const PlanOptions& options = {}, Stream stream = nullptr);

// The float64 oracle: plain loops by the definitions, host memory only. Writes where `result` points and nowhere else: the
// problem's own out and lse stay as they are (an answer to be judged may stand there).
struct ReferenceResult {
  double* out = nullptr;         // [total_q, heads, d_v]; rows past qo_indptr[b] untouched
  double* lse = nullptr;         // [total_q, heads]
  double* spread = nullptr;      // [total_q, heads]: L2 norm of r, r_d = sqrt(sum_j w_j^2 v_jd^2)
  double* score_term = nullptr;  // [total_q, heads]: max_j sum_d |sm_scale q_d k_jd|
  int64_t* visible = nullptr;    // [total_q, heads]: visible entries
};
[[nodiscard]] Status reference_attention(const Problem& problem, const ReferenceResult& result);

// Partial states and their algebra: cascades, context parallelism.
struct State {
  void* out = nullptr;     // [tokens, heads, width], normalised by its own sum
  Type type = Type::kF32;  // f32, bf16, f16
  int64_t out_token_stride_bytes = kDense;
  int64_t out_head_stride_bytes = kDense;
  LseOutput lse;  // natural log; -inf = absent, its out is not read
};
struct StateShape {
  int64_t tokens = 0;
  int32_t heads = 0;
  int32_t width = 0;
  // [b+1] token offsets: needed only by states whose lse has a request_stride.
  const int32_t* indptr = nullptr;
  int64_t requests = 0;
};
// result = a (+) b. NaN or +inf lse gives NaN. result may alias a or b. CPU memory.
[[nodiscard]] Status merge_states(const StateShape& shape, const State& a, const State& b, const State& result);
// out *= sum / (sum + exp(sink)), in place or into result; lse is copied, the sink left out. sinks [heads].
[[nodiscard]] Status finalize(const StateShape& shape, const State& state, const float* sinks, const State& result);

// Cache access beside the readers.
struct AppendRows {
  const void* k = nullptr;       // [count, heads, k_width - k_tail_width] (or the whole latent row)
  const void* k_tail = nullptr;  // [count, heads, k_tail_width]: rope columns held apart; nullptr = none
  int32_t k_tail_width = 0;
  const void* v = nullptr;  // [count, heads, v_width]; null when shared
  Type type = Type::kBf16;  // bf16, f16, f32
  int64_t count = 0;
  int64_t k_row_stride_bytes = kDense, k_head_stride_bytes = kDense;
  int64_t k_tail_row_stride_bytes = kDense, k_tail_head_stride_bytes = kDense;
  int64_t v_row_stride_bytes = kDense, v_head_stride_bytes = kDense;
};
// Quantises rows into a source's cache at physical slots [count] (negative = skip). The source's data pointers are written.
[[nodiscard]] Status append(const Source& cache, const AppendRows& rows, const int64_t* slots,
                            BlockScaleRule rule = BlockScaleRule::kRoundUp);
// Reads slots back decoded, float32: k_out [count, heads, k.width], v_out [count, heads, d_v] (either may be null).
// Slots out of range are refused.
[[nodiscard]] Status gather(const Source& cache, const int64_t* slots, int64_t count, float* k_out, float* v_out);

// One record block-encoded: `values` [width] -> `row`, and `scales` for formats that hold them apart or planar.
[[nodiscard]] Status encode_record(Format format, int32_t width, const float* values, void* row, void* scales, float scale = 1.0F,
                                   BlockScaleRule rule = BlockScaleRule::kRoundUp);
[[nodiscard]] Status decode_record(Format format, int32_t width, const void* row, const void* scales, float* values, float scale = 1.0F);

// Ring-buffer caches: the live slots of a query at position t, for a gathered source.
// Position p lives at slot base + p % capacity. Writes `count` int32 (oldest first, -1 padded) and returns how many are live:
// positions max(0, t - window_left) .. t, at most `capacity` of them (window_left -1: the last `capacity`).
int32_t ring_slots(int64_t t, int32_t window_left, int32_t capacity, int32_t base, int32_t* indices, int32_t count);

}  // namespace headwater
