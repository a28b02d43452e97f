#include "src/plan/covers.h"

#include <string>

#include "src/core/check.h"

namespace headwater::plan {
namespace {

using check::text;

template <class V>
Status same(const std::string& name, const V& value, const V& planned) {
  if (value == planned) return {};
  return check::bad(name, value, "planned for " + text(planned));
}

std::string source_field(int32_t index, const char* name) { return check::field({index}, name); }

std::string_view rule_name(RuleKind rule) {
  constexpr std::string_view kNames[] = {"full", "causal", "window", "compressed", "gathered"};
  return kNames[static_cast<size_t>(rule)];
}
std::string_view addressing_name(AddressingKind kind) {
  constexpr std::string_view kNames[] = {"ragged", "block_table", "page_list", "pool"};
  return kNames[static_cast<size_t>(kind)];
}
std::string_view space_name(IndexSpace space) { return space == IndexSpace::kSlot ? "slot" : "position"; }
std::string_view yes_no(bool value) { return value ? "true" : "false"; }

// Everything that must be a multiple of the promise: pointers and the strides that are walked.
class Promise {
 public:
  explicit Promise(int32_t alignment) : alignment_(alignment) {}
  void pointer(const std::string& name, const void* p) {
    if (reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(alignment_) != 0) note(name, text(p));
  }
  void stride(const std::string& name, int64_t value, int64_t n) {
    if (n > 1 && value % alignment_ != 0) note(name, text(value));
  }
  [[nodiscard]] Status status() const {
    if (broken_.empty()) return {};
    return check::refuse(StatusCode::kInvalid, broken_, value_, "planned for multiples of " + text(alignment_) + " bytes");
  }

 private:
  void note(const std::string& name, const std::string& value) {
    if (!broken_.empty()) return;
    broken_ = name;
    value_ = value;
  }
  int64_t alignment_;
  std::string broken_;
  std::string value_;
};

Status check_query(const Bounds& bounds, const ResolvedProblem& p) {
  HEADWATER_TRY(same("q.type", p.q_type, bounds.q_type));
  HEADWATER_TRY(same("out.type", p.out_type, bounds.out_type));
  HEADWATER_TRY(same("q.heads", p.heads, bounds.heads));
  HEADWATER_TRY(same("d_qk", p.d_qk, bounds.d_qk));
  HEADWATER_TRY(same("d_v", p.d_v, bounds.d_v));
  if (p.softcap > 0.0F && !bounds.softcap) return check::bad("logits_soft_cap", p.softcap, "planned without one");
  if (p.requests > bounds.max_requests) return check::bad("requests", p.requests, "planned for at most " + text(bounds.max_requests));
  Promise promise(bounds.q_alignment);
  promise.pointer("q.data", p.q);
  promise.stride("q.row_stride_bytes", p.q_row_stride, p.total_q);
  promise.stride("q.head_stride_bytes", p.q_head_stride, p.heads);
  if (p.q_tail_width > 0) {
    promise.pointer("q_tail.data", p.q_tail);
    promise.stride("q_tail.row_stride_bytes", p.q_tail_row_stride, p.total_q);
    promise.stride("q_tail.head_stride_bytes", p.q_tail_head_stride, p.heads);
  }
  promise.pointer("out.data", p.out);
  promise.stride("out.row_stride_bytes", p.out_row_stride, p.total_q);
  promise.stride("out.head_stride_bytes", p.out_head_stride, p.heads);
  return promise.status();
}

Status check_rule(int32_t index, const SourceBounds& bounds, const ResolvedSource& s) {
  HEADWATER_TRY(same(source_field(index, "rule"), rule_name(s.rule), rule_name(bounds.rule)));
  if (s.rule == RuleKind::kWindow) HEADWATER_TRY(same(source_field(index, "window_left"), s.window_left, bounds.window_left));
  if (s.rule == RuleKind::kCompressed) HEADWATER_TRY(same(source_field(index, "ratio"), s.ratio, bounds.ratio));
  if (s.rule != RuleKind::kGathered) return {};
  HEADWATER_TRY(same(source_field(index, "topk"), s.topk, bounds.topk));
  HEADWATER_TRY(same(source_field(index, "index_type"), s.indices_are_64 ? Type::kI64 : Type::kI32, bounds.index_type));
  return same(source_field(index, "index_space"), space_name(s.index_space), space_name(bounds.index_space));
}

void promise_tensor(int32_t index, const char* part, const ResolvedSource& s, const ResolvedTensor& t, int64_t num_pages,
                    Promise* promise) {
  const bool ragged = s.addressing == AddressingKind::kRagged;
  promise->pointer(check::field({index, part}, "data"), t.data);
  promise->stride(check::field({index, part}, "row_stride_bytes"), t.row_stride, ragged ? s.num_slots : s.page_size);
  promise->stride(check::field({index, part}, "head_stride_bytes"), t.head_stride, s.heads);
  if (!ragged) promise->stride(check::field({index, part}, "page_stride_bytes"), t.page_stride, num_pages);
}

Status check_source(int32_t index, const SourceBounds& bounds, const Source& source, const ResolvedSource& s) {
  HEADWATER_TRY(same(source_field(index, "k.format"), source.k.format, bounds.k_format));
  HEADWATER_TRY(same(source_field(index, "shared"), yes_no(s.shared), yes_no(bounds.shared)));
  if (!s.shared) HEADWATER_TRY(same(source_field(index, "v.format"), source.v.format, bounds.v_format));
  HEADWATER_TRY(same(source_field(index, "heads"), s.heads, bounds.heads));
  HEADWATER_TRY(same(source_field(index, "addressing"), addressing_name(s.addressing), addressing_name(bounds.addressing)));
  if (s.addressing != AddressingKind::kRagged) HEADWATER_TRY(same(source_field(index, "page_size"), s.page_size, bounds.page_size));
  HEADWATER_TRY(check_rule(index, bounds, s));
  Promise promise(bounds.alignment);
  promise_tensor(index, "k.", s, s.k, source.addressing.num_pages, &promise);
  if (!s.shared) promise_tensor(index, "v.", s, s.v, source.addressing.num_pages, &promise);
  return promise.status();
}

}  // namespace

Status check_covers(const Bounds& bounds, const Problem& problem, const ResolvedProblem& p) {
  HEADWATER_TRY(same("device.kind", static_cast<int32_t>(p.device.kind), static_cast<int32_t>(bounds.device.kind)));
  HEADWATER_TRY(same("device.index", p.device.index, bounds.device.index));
  HEADWATER_TRY(check_query(bounds, p));
  HEADWATER_TRY(same("sources", static_cast<int64_t>(p.num_sources), static_cast<int64_t>(bounds.sources.size())));
  for (int32_t i = 0; i < p.num_sources; ++i) {
    const auto at = static_cast<size_t>(i);
    HEADWATER_TRY(check_source(i, bounds.sources[at], problem.sources[at], p.sources[i]));
  }
  return {};
}

}  // namespace headwater::plan
