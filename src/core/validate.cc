// validate: what the contract demands of a problem, in the order queries, sources, outputs, lengths. Nothing is written but `resolved`.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "src/core/check.h"
#include "src/core/resolved.h"
#include "src/core/validate_source.h"

namespace headwater {
namespace {

using check::Axis;
using check::bad;
using check::element;
using check::refuse;
using check::resolve_strides;
using check::text;

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

bool has_rows(const ResolvedProblem& p) { return p.total_q > 0 && p.requests > 0; }

Status check_device(const Device& device) {
  if (device.kind != DeviceKind::kCpu && device.kind != DeviceKind::kCuda) {
    return bad("device.kind", static_cast<int32_t>(device.kind), "no such device kind");
  }
  if (device.index < 0) return bad("device.index", device.index, "must be at least 0");
  if (device.kind == DeviceKind::kCpu && device.index != 0) return bad("device.index", device.index, "the CPU is device 0");
  return {};
}

Status resolve_queries(const Problem& in, ResolvedProblem* p) {
  const Query& q = in.q;
  if (q.type != Type::kBf16 && q.type != Type::kF16 && q.type != Type::kF32 && q.type != Type::kE4m3) {
    return bad("q.type", q.type, "must be bf16, f16, f32 or e4m3");
  }
  if (q.total < 0) return bad("q.total", q.total, "must be at least 0");
  if (q.total > kMaxInt32) return bad("q.total", q.total, "must be at most 2^31 - 1, since qo_indptr is int32");
  if (q.heads < 1) return bad("q.heads", q.heads, "must be at least 1");
  if (q.width < 1) return bad("q.width", q.width, "must be at least 1");
  if (in.q_tail.width < 0) return bad("q_tail.width", in.q_tail.width, "must be at least 0");
  if (in.q_tail.width == 0 && in.q_tail.data != nullptr) {
    return bad("q_tail.width", in.q_tail.width, "must be at least 1 where q_tail.data is given");
  }
  const int64_t d_qk = int64_t{q.width} + in.q_tail.width;
  if (d_qk > kMaxWidth) {
    return refuse(StatusCode::kUnsupported, in.q_tail.width > 0 ? "q.width + q_tail.width" : "q.width", text(d_qk),
                  "the largest supported is " + text(kMaxWidth));
  }
  p->q_type = q.type;
  p->total_q = q.total;
  p->heads = q.heads;
  p->q_width = q.width;
  p->q_tail_width = in.q_tail.width;
  p->d_qk = static_cast<int32_t>(d_qk);

  const int64_t item = type_bits(q.type) / 8;
  HEADWATER_TRY(check::check_array({}, "q.data", q.data, has_rows(*p), "q.total is above 0", item));
  HEADWATER_TRY(
      check::check_array({}, "q_tail.data", in.q_tail.data, has_rows(*p) && p->q_tail_width > 0, "q_tail.width is above 0", item));
  p->q = static_cast<const std::byte*>(q.data);
  p->q_tail = static_cast<const std::byte*>(in.q_tail.data);
  p->q_row_stride = q.row_stride_bytes;
  p->q_head_stride = q.head_stride_bytes;
  const std::array<Axis, 2> axes{{{"q.row_stride_bytes", q.total, &p->q_row_stride}, {"q.head_stride_bytes", q.heads, &p->q_head_stride}}};
  HEADWATER_TRY(resolve_strides({}, axes, q.width * item, item));
  if (p->q_tail_width == 0) return {};
  p->q_tail_row_stride = in.q_tail.row_stride_bytes;
  p->q_tail_head_stride = in.q_tail.head_stride_bytes;
  const std::array<Axis, 2> tail{
      {{"q_tail.row_stride_bytes", q.total, &p->q_tail_row_stride}, {"q_tail.head_stride_bytes", q.heads, &p->q_tail_head_stride}}};
  return resolve_strides({}, tail, in.q_tail.width * item, item);
}

Status resolve_q_scale(const QueryScale& scale, ResolvedProblem* p) {
  if (p->q_type != Type::kE4m3) {
    if (scale.data != nullptr) return bad("q_scale.data", scale.data, "only e4m3 queries take a scale, leave null");
    if (scale.value != 1.0F) return bad("q_scale.value", scale.value, "only e4m3 queries take a scale, leave 1");
    if (scale.per_row) return bad("q_scale.per_row", std::string_view("true"), "only e4m3 queries take a scale, leave false");
    return {};
  }
  if (scale.data == nullptr) {
    if (scale.per_row && has_rows(*p))
      return bad("q_scale.data", static_cast<const void*>(nullptr), "must be given where q_scale.per_row is set");
    if (!std::isfinite(scale.value)) return bad("q_scale.value", scale.value, "must be finite");
  }
  HEADWATER_TRY(check::check_array({}, "q_scale.data", scale.data, false, ""));
  p->q_scale = scale.data;
  p->q_scale_per_row = scale.per_row && scale.data != nullptr;
  p->q_scale_value = scale.value;
  if (!p->q_scale_per_row) return {};
  p->q_scale_row_stride = scale.row_stride;
  p->q_scale_head_stride = scale.head_stride;
  const std::array<Axis, 2> axes{
      {{"q_scale.row_stride", p->total_q, &p->q_scale_row_stride}, {"q_scale.head_stride", p->heads, &p->q_scale_head_stride}}};
  return resolve_strides({}, axes, 1, 1);
}

Status resolve_requests(const Problem& in, ResolvedProblem* p) {
  if (in.requests < 0) return bad("requests", in.requests, "must be at least 0");
  if (in.requests >= kMaxInt32) return bad("requests", in.requests, "must be below 2^31 - 1");
  p->requests = in.requests;
  HEADWATER_TRY(check::check_array({}, "qo_indptr", in.qo_indptr, in.requests > 0, "it holds the first row of each request"));
  HEADWATER_TRY(check::check_array({}, "context_lens", in.context_lens, false, ""));
  p->qo_indptr = in.qo_indptr;
  return {};
}

Status resolve_numbers(const Problem& in, ResolvedProblem* p) {
  if (!std::isfinite(in.sm_scale)) return bad("sm_scale", in.sm_scale, "must be finite");
  if (!std::isfinite(in.logits_soft_cap) || in.logits_soft_cap < 0.0F) {
    return bad("logits_soft_cap", in.logits_soft_cap, "must be finite and at least 0 (0 = off)");
  }
  p->sm_scale = in.sm_scale;
  p->softcap = in.logits_soft_cap;
  HEADWATER_TRY(check::check_array({}, "sinks", in.sinks, false, ""));
  p->sinks = in.sinks;
  p->sinks_request_stride = in.sinks_request_stride;
  const std::array<Axis, 1> axes{{{"sinks_request_stride", in.requests, &p->sinks_request_stride}}};
  return resolve_strides({}, axes, p->heads, 1);
}

Status resolve_sources(const Problem& in, ResolvedProblem* p) {
  const auto count = static_cast<int64_t>(in.sources.size());
  if (count < 1) return bad("sources.size()", count, "must be at least 1");
  if (count > kMaxSources) {
    return refuse(StatusCode::kUnsupported, "sources.size()", text(count), "at most " + text(kMaxSources) + " sources are supported");
  }
  p->num_sources = static_cast<int32_t>(count);
  p->d_v = in.sources[0].d_v();
  p->head_block = 0;
  for (int32_t s = 0; s < p->num_sources; ++s) {
    HEADWATER_TRY(check::resolve_source(in.sources[static_cast<size_t>(s)], s, p));
    p->head_block = std::gcd(p->head_block, p->sources[s].group);
  }
  return {};
}

// The contract: explicit, unless exactly one source is causal or windowed, has lengths, and stands at position_stride 1.
Status resolve_context(const Problem& in, ResolvedProblem* p) {
  int32_t candidates = 0;
  int32_t candidate = -1;
  const char* reader = "";
  for (int32_t s = 0; s < p->num_sources; ++s) {
    const RuleKind rule = p->sources[s].rule;
    if (rule == RuleKind::kCausal || rule == RuleKind::kWindow) {
      ++candidates;
      candidate = s;
      reader = "the causal and window rules";
    } else if (rule == RuleKind::kCompressed) {
      p->needs_context = true;
      if (candidates == 0) reader = "the compressed rule";
    }
  }
  p->needs_context = p->needs_context || candidates > 0;
  if (!p->needs_context) return {};  // context_lens is not read, whatever it holds
  p->context_lens = in.context_lens;
  if (in.context_lens != nullptr || p->requests == 0) return {};
  const auto refuse_null = [&](const std::string& why) {
    return bad("context_lens", static_cast<const void*>(nullptr), std::string("must be given: ") + reader + " read it, " + why);
  };
  if (candidates == 0) return refuse_null("and no source is causal or windowed");
  if (candidates > 1) return refuse_null("and " + text(candidates) + " sources are causal or windowed");
  const ResolvedSource& source = p->sources[candidate];
  if (source.position_stride != nullptr) {
    bool all_one = in.device.kind == DeviceKind::kCpu;
    for (int64_t b = 0; all_one && b < p->requests; ++b) all_one = source.position_stride[b] == 1;
    if (!all_one) return refuse_null("and " + check::field({candidate}, "position_stride") + " is not known to be 1");
  }
  p->context_source = candidate;
  return {};
}

Status resolve_outputs(const Problem& in, int64_t longest_q, ResolvedProblem* p) {
  const Output& out = in.out;
  if (out.type != Type::kBf16 && out.type != Type::kF16 && out.type != Type::kF32) {
    return bad("out.type", out.type, "must be bf16, f16 or f32");
  }
  const int64_t item = type_bits(out.type) / 8;
  HEADWATER_TRY(check::check_array({}, "out.data", out.data, has_rows(*p), "it receives the result", item));
  p->out_type = out.type;
  p->out = static_cast<std::byte*>(out.data);
  p->out_row_stride = out.row_stride_bytes;
  p->out_head_stride = out.head_stride_bytes;
  const std::array<Axis, 2> axes{
      {{"out.row_stride_bytes", p->total_q, &p->out_row_stride}, {"out.head_stride_bytes", p->heads, &p->out_head_stride}}};
  HEADWATER_TRY(resolve_strides({}, axes, p->d_v * item, item));
  HEADWATER_TRY(check::check_disjoint({}, axes, p->d_v * item));
  if (out.data != nullptr && (out.data == in.q.data || out.data == in.q_tail.data)) {
    return bad("out.data", static_cast<const void*>(out.data), "must not be the queries");
  }

  const LseOutput& lse = in.lse;
  if (lse.data == nullptr) return {};
  HEADWATER_TRY(check::check_array({}, "lse.data", lse.data, false, ""));
  if (static_cast<const void*>(lse.data) == out.data || static_cast<const void*>(lse.data) == in.q.data) {
    return bad("lse.data", static_cast<const void*>(lse.data), "must not be another tensor of the problem");
  }
  p->lse = lse.data;
  p->lse_token_stride = lse.token_stride;
  p->lse_head_stride = lse.head_stride;
  p->lse_per_request = lse.request_stride != kDense;
  p->lse_request_stride = p->lse_per_request ? lse.request_stride : 0;
  const std::array<Axis, 3> lse_axes{{{"lse.request_stride", p->lse_per_request ? p->requests : 1, &p->lse_request_stride},
                                      {"lse.token_stride", p->lse_per_request ? longest_q : p->total_q, &p->lse_token_stride},
                                      {"lse.head_stride", p->heads, &p->lse_head_stride}}};
  HEADWATER_TRY(resolve_strides({}, lse_axes, 1, 1));
  return check::check_disjoint({}, lse_axes, 1);
}

// CPU problems: offsets of the packed queries. Rows past the last offset are padding.
Status check_qo_indptr(const ResolvedProblem& p, int64_t* longest_q) {
  const int32_t* indptr = p.qo_indptr;
  if (p.requests == 0) return {};
  if (indptr[0] < 0) return bad("qo_indptr[0]", indptr[0], "must be at least 0");
  for (int64_t b = 0; b < p.requests; ++b) {
    const int64_t length = int64_t{indptr[b + 1]} - indptr[b];
    if (length < 0) {
      return bad(element("qo_indptr", b + 1), indptr[b + 1], "must not be below the offset before it, " + text(indptr[b]));
    }
    *longest_q = std::max(*longest_q, length);
  }
  if (indptr[p.requests] > p.total_q) {
    return bad(element("qo_indptr", p.requests), indptr[p.requests], "must be at most q.total = " + text(p.total_q));
  }
  return {};
}

Status check_context_values(const ResolvedProblem& p) {
  if (p.context_lens == nullptr) return {};
  for (int64_t b = 0; b < p.requests; ++b) {
    if (p.context_lens[b] < 0) return bad(element("context_lens", b), p.context_lens[b], "must be at least 0");
  }
  return {};
}

}  // namespace

Status validate(const Problem& problem, ResolvedProblem* resolved) {
  ResolvedProblem p;
  const bool readable = problem.device.kind == DeviceKind::kCpu;
  HEADWATER_TRY(check_device(problem.device));
  p.device = problem.device;
  HEADWATER_TRY(resolve_requests(problem, &p));
  HEADWATER_TRY(resolve_queries(problem, &p));
  HEADWATER_TRY(resolve_q_scale(problem.q_scale, &p));
  HEADWATER_TRY(resolve_numbers(problem, &p));
  HEADWATER_TRY(resolve_sources(problem, &p));
  int64_t longest_q = 1;  // of a device problem nobody knows
  if (readable) HEADWATER_TRY(check_qo_indptr(p, &longest_q));
  HEADWATER_TRY(resolve_outputs(problem, longest_q, &p));
  if (readable) {
    for (int32_t s = 0; s < p.num_sources; ++s) {
      HEADWATER_TRY(check::check_source_values(p, problem.sources[static_cast<size_t>(s)], s));
    }
  }
  HEADWATER_TRY(resolve_context(problem, &p));
  if (readable) {
    HEADWATER_TRY(check_context_values(p));
    for (int32_t s = 0; s < p.num_sources; ++s) {
      HEADWATER_TRY(check::check_live_pages(p, problem.sources[static_cast<size_t>(s)], s));
    }
  }
  *resolved = p;
  return {};
}

}  // namespace headwater
