#include "src/core/bounds.h"

#include <algorithm>
#include <limits>

#include "src/core/check.h"
#include "src/core/resolved.h"

namespace headwater {
namespace {

using check::bad;
using check::refuse;
using check::text;

constexpr int32_t kMaxAlignment = 16;  // what kernels ask of tensors; more is promised by nobody

// Largest power of two, up to kMaxAlignment, that divides everything OR-ed into it.
struct Alignment {
  uint64_t bits = kMaxAlignment;
  void add(const void* pointer) { bits |= reinterpret_cast<uintptr_t>(pointer); }
  void add_stride(int64_t stride, int64_t n) {
    if (n > 1) bits |= static_cast<uint64_t>(stride);
  }
  [[nodiscard]] int32_t value() const { return static_cast<int32_t>(bits & (~bits + 1)); }
};

int32_t alignment_of(const ResolvedSource& s, int64_t num_pages) {
  Alignment a;
  const bool ragged = s.addressing == AddressingKind::kRagged;
  const auto add = [&](const ResolvedTensor& t) {
    a.add(t.data);
    if (!ragged) a.add_stride(t.page_stride, num_pages);
    a.add_stride(t.row_stride, ragged ? s.num_slots : s.page_size);
    a.add_stride(t.head_stride, s.heads);
  };
  add(s.k);
  if (!s.shared) add(s.v);
  return a.value();
}

int32_t q_alignment_of(const ResolvedProblem& p) {
  Alignment a;
  const auto add = [&](const void* data, int64_t row, int64_t head) {
    a.add(data);
    a.add_stride(row, p.total_q);
    a.add_stride(head, p.heads);
  };
  add(p.q, p.q_row_stride, p.q_head_stride);
  if (p.q_tail_width > 0) add(p.q_tail, p.q_tail_row_stride, p.q_tail_head_stride);
  add(p.out, p.out_row_stride, p.out_head_stride);
  return a.value();
}

// Lengths: read on the CPU, from tensor shapes elsewhere.
void bound_lengths(const ResolvedProblem& p, int32_t index, const Source& source, SourceBounds* bounds) {
  const ResolvedSource& s = p.sources[index];
  if (s.rule == RuleKind::kGathered) {
    bounds->max_len = s.topk;
    return;
  }
  if (p.device.kind == DeviceKind::kCpu) {
    for (int64_t b = 0; b < p.requests; ++b) {
      const int64_t length = source_kv_len(s, b);
      bounds->max_len = std::max(bounds->max_len, length);
      bounds->max_total_len += length;
    }
    return;
  }
  constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();  // of one request's length
  const Addressing& a = source.addressing;
  if (a.kind == AddressingKind::kBlockTable) {
    bounds->max_len = static_cast<int64_t>(std::min<check::Int128>(check::Int128{a.max_pages} * a.page_size, kMaxInt32));
    return;
  }
  const int64_t pages = a.kind == AddressingKind::kRagged ? a.num_pages : a.num_indices;
  const auto total = std::min<check::Int128>(check::Int128{pages} * s.page_size, check::kMaxSpan);
  bounds->max_total_len = static_cast<int64_t>(total);
  bounds->max_len = std::min(bounds->max_total_len, kMaxInt32);
}

Status check_source_bounds(const SourceBounds& s, const std::string& name, const Bounds& bounds) {
  const auto at = [&](const char* field_name) { return name + "." + field_name; };
  if (static_cast<int32_t>(s.k_format) >= kNumFormats) return bad(at("k_format"), s.k_format, "no such format");
  if (static_cast<int32_t>(s.v_format) >= kNumFormats) return bad(at("v_format"), s.v_format, "no such format");
  if (s.shared && s.v_format != s.k_format) return bad(at("v_format"), s.v_format, "must be k_format where storage is shared");
  if (s.shared && bounds.d_v > bounds.d_qk) return bad("bounds.d_v", bounds.d_v, "must be at most d_qk where storage is shared");
  const FormatInfo& k = format_info(s.k_format);
  const FormatInfo& v = format_info(s.v_format);
  if (k.fixed_width != 0 && k.fixed_width != bounds.d_qk) {
    return bad(at("k_format"), s.k_format, "its records have " + text(k.fixed_width) + " columns, d_qk = " + text(bounds.d_qk));
  }
  if (!s.shared && v.fixed_width != 0 && v.fixed_width != bounds.d_v) {
    return bad(at("v_format"), s.v_format, "its records have " + text(v.fixed_width) + " columns, d_v = " + text(bounds.d_v));
  }
  if (s.k_format == Format::kMxfp4RopeBf16 && bounds.d_qk <= 64) {
    return bad("bounds.d_qk", bounds.d_qk, "records of mxfp4_rope_bf16 have more than their 64 bf16 columns");
  }
  if (!s.shared && s.v_format == Format::kMxfp4RopeBf16 && bounds.d_v <= 64) {
    return bad("bounds.d_v", bounds.d_v, "records of mxfp4_rope_bf16 have more than their 64 bf16 columns");
  }
  if (s.heads < 1) return bad(at("heads"), s.heads, "must be at least 1");
  if (bounds.heads % s.heads != 0) return bad(at("heads"), s.heads, "must divide bounds.heads = " + text(bounds.heads));
  if (s.addressing < AddressingKind::kRagged || s.addressing > AddressingKind::kPool) {
    return bad(at("addressing"), static_cast<int32_t>(s.addressing), "no such addressing");
  }
  if ((k.planar || v.planar) && s.addressing == AddressingKind::kRagged) {
    return bad(at("addressing"), std::string_view("ragged"), "planar formats need paged storage");
  }
  if (s.page_size < 1) return bad(at("page_size"), s.page_size, "must be at least 1");
  if (s.rule < RuleKind::kFull || s.rule > RuleKind::kGathered) return bad(at("rule"), static_cast<int32_t>(s.rule), "no such rule");
  if (s.addressing == AddressingKind::kPool && s.rule != RuleKind::kGathered) {
    return bad(at("addressing"), std::string_view("pool"), "has no table: only the gathered rule reads it");
  }
  if (s.window_left < -1) return bad(at("window_left"), s.window_left, "must be at least 0, or -1 for no left edge");
  if (s.rule == RuleKind::kCompressed && s.ratio < 1) return bad(at("ratio"), s.ratio, "must be at least 1");
  if (s.topk < 0) return bad(at("topk"), s.topk, "must be at least 0");
  if (s.index_type != Type::kI32 && s.index_type != Type::kI64) return bad(at("index_type"), s.index_type, "must be i32 or i64");
  if (s.index_space != IndexSpace::kSlot && s.index_space != IndexSpace::kPosition) {
    return bad(at("index_space"), static_cast<int32_t>(s.index_space), "no such index space");
  }
  if (s.max_len < 0) return bad(at("max_len"), s.max_len, "must be at least 0");
  if (s.max_len > std::numeric_limits<int32_t>::max()) return bad(at("max_len"), s.max_len, "must be at most 2^31 - 1");
  if (s.max_total_len < 0) return bad(at("max_total_len"), s.max_total_len, "must be at least 0");
  if (s.alignment < 1 || (s.alignment & (s.alignment - 1)) != 0) return bad(at("alignment"), s.alignment, "must be a power of two");
  return {};
}

Status check_width(const char* name, int32_t width) {
  if (width < 1) return bad(name, width, "must be at least 1");
  if (width > kMaxWidth) return refuse(StatusCode::kUnsupported, name, text(width), "the largest supported is " + text(kMaxWidth));
  return {};
}

}  // namespace

Result<Bounds> Bounds::of(const Problem& problem) {
  ResolvedProblem p;
  HEADWATER_TRY(validate(problem, &p));
  Bounds bounds;
  bounds.device = p.device;
  bounds.max_requests = p.requests;
  bounds.max_total_q = p.total_q;
  bounds.max_q_len = static_cast<int32_t>(p.total_q);  // fits: validate
  if (p.device.kind == DeviceKind::kCpu) {
    bounds.max_q_len = 0;
    for (int64_t b = 0; b < p.requests; ++b) bounds.max_q_len = std::max(bounds.max_q_len, p.qo_indptr[b + 1] - p.qo_indptr[b]);
  }
  bounds.q_type = p.q_type;
  bounds.out_type = p.out_type;
  bounds.heads = p.heads;
  bounds.d_qk = p.d_qk;
  bounds.d_v = p.d_v;
  bounds.softcap = p.softcap > 0.0F;
  bounds.q_alignment = q_alignment_of(p);
  for (int32_t i = 0; i < p.num_sources; ++i) {
    const ResolvedSource& s = p.sources[i];
    const Source& source = problem.sources[static_cast<size_t>(i)];
    SourceBounds& to = bounds.sources.emplace_back();
    to.k_format = source.k.format;
    to.v_format = s.shared ? source.k.format : source.v.format;
    to.shared = s.shared;
    to.heads = s.heads;
    to.addressing = s.addressing;
    to.page_size = s.page_size;
    to.rule = s.rule;
    to.window_left = s.window_left;
    to.ratio = s.ratio;
    to.topk = s.topk;
    to.index_type = source.rule.index_type;
    to.index_space = s.index_space;
    to.alignment = alignment_of(s, source.addressing.num_pages);
    bound_lengths(p, i, source, &to);
  }
  return bounds;
}

Lengths Lengths::of(const Problem& problem) {
  Lengths lengths;
  lengths.requests = problem.requests;
  lengths.total_q = problem.q.total;
  lengths.qo_indptr = problem.qo_indptr;
  lengths.context_lens = problem.context_lens;
  lengths.num_sources = static_cast<int32_t>(std::min<size_t>(problem.sources.size(), kMaxSources));
  for (int32_t i = 0; i < lengths.num_sources; ++i) {
    const Source& s = problem.sources[static_cast<size_t>(i)];
    SourceLengths& to = lengths.sources[i];
    const bool gathered = s.rule.kind == RuleKind::kGathered;
    if (gathered) to.topk_lens = s.rule.topk_lens;
    if (!gathered) to.first_position = s.first_position;
    if (!gathered) to.position_stride = s.position_stride;
    if (gathered && s.rule.index_space == IndexSpace::kSlot) continue;  // no table, no length
    to.kv_indptr = s.addressing.kv_indptr;
    to.seq_lens = s.addressing.seq_lens;
    to.kv_last_page_len = s.addressing.kv_last_page_len;
  }
  return lengths;
}

Status validate_bounds(const Bounds& bounds, const PlanOptions& options) {
  if (bounds.device.kind != DeviceKind::kCpu && bounds.device.kind != DeviceKind::kCuda) {
    return bad("bounds.device.kind", static_cast<int32_t>(bounds.device.kind), "no such device kind");
  }
  if (bounds.device.index < 0) return bad("bounds.device.index", bounds.device.index, "must be at least 0");
  constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
  if (bounds.max_requests < 0) return bad("bounds.max_requests", bounds.max_requests, "must be at least 0");
  if (bounds.max_requests >= kMaxInt32) return bad("bounds.max_requests", bounds.max_requests, "must be below 2^31 - 1");
  if (bounds.max_total_q < 0) return bad("bounds.max_total_q", bounds.max_total_q, "must be at least 0");
  if (bounds.max_total_q > kMaxInt32) return bad("bounds.max_total_q", bounds.max_total_q, "must be at most 2^31 - 1");
  if (bounds.max_q_len < 0) return bad("bounds.max_q_len", bounds.max_q_len, "must be at least 0");
  if (bounds.q_type != Type::kBf16 && bounds.q_type != Type::kF16 && bounds.q_type != Type::kF32 && bounds.q_type != Type::kE4m3) {
    return bad("bounds.q_type", bounds.q_type, "must be bf16, f16, f32 or e4m3");
  }
  if (bounds.out_type != Type::kBf16 && bounds.out_type != Type::kF16 && bounds.out_type != Type::kF32) {
    return bad("bounds.out_type", bounds.out_type, "must be bf16, f16 or f32");
  }
  if (bounds.heads < 1) return bad("bounds.heads", bounds.heads, "must be at least 1");
  HEADWATER_TRY(check_width("bounds.d_qk", bounds.d_qk));
  HEADWATER_TRY(check_width("bounds.d_v", bounds.d_v));
  if (bounds.q_alignment < 1 || (bounds.q_alignment & (bounds.q_alignment - 1)) != 0) {
    return bad("bounds.q_alignment", bounds.q_alignment, "must be a power of two");
  }
  const auto count = static_cast<int64_t>(bounds.sources.size());
  if (count < 1) return bad("bounds.sources.size()", count, "must be at least 1");
  if (count > kMaxSources) {
    return refuse(StatusCode::kUnsupported, "bounds.sources.size()", text(count), "at most " + text(kMaxSources) + " are supported");
  }
  for (int64_t i = 0; i < count; ++i) {
    HEADWATER_TRY(check_source_bounds(bounds.sources[static_cast<size_t>(i)], check::element("bounds.sources", i), bounds));
  }
  if (options.workers < 0) return bad("options.workers", options.workers, "must be at least 0");
  return {};
}

}  // namespace headwater
