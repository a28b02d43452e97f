#include "src/cpu/check_bounds.h"

#include <string>

#include "src/core/check.h"

namespace headwater::cpu {
namespace {

using check::field;
using check::refuse;
using check::text;

template <class V>
Status same(std::string_view name, const V& value, const V& planned) {
  if (value == planned) return {};
  return refuse(StatusCode::kInvalid, name, text(value), "planned for " + text(planned));
}

Status at_most(std::string_view name, int64_t value, int64_t planned) {
  if (value <= planned) return {};
  return refuse(StatusCode::kInvalid, name, text(value), "planned for at most " + text(planned));
}

std::string_view rule_name(RuleKind rule) {
  constexpr std::string_view kNames[] = {"full", "causal", "window", "compressed", "gathered"};
  return kNames[static_cast<size_t>(rule)];
}

std::string_view addressing_name(AddressingKind kind) {
  constexpr std::string_view kNames[] = {"ragged", "block_table", "page_list", "pool"};
  return kNames[static_cast<size_t>(kind)];
}

Status check_rule(int32_t index, const SourceBounds& planned, const ResolvedSource& source) {
  const auto name = [&](const char* f) { return field({index}, f); };
  HEADWATER_TRY(same(name("rule"), rule_name(source.rule), rule_name(planned.rule)));
  if (source.rule == RuleKind::kWindow) HEADWATER_TRY(same(name("window_left"), source.window_left, planned.window_left));
  if (source.rule == RuleKind::kCompressed) HEADWATER_TRY(same(name("ratio"), source.ratio, planned.ratio));
  if (source.rule != RuleKind::kGathered) return {};
  HEADWATER_TRY(same(name("topk"), source.topk, planned.topk));
  HEADWATER_TRY(same(name("index_type"), source.indices_are_64 ? Type::kI64 : Type::kI32, planned.index_type));
  const auto space = [](IndexSpace s) { return std::string_view(s == IndexSpace::kSlot ? "slot" : "position"); };
  return same(name("index_space"), space(source.index_space), space(planned.index_space));
}

Status check_source(int32_t index, const SourceBounds& planned, const ResolvedSource& source) {
  const auto name = [&](const char* f) { return field({index}, f); };
  HEADWATER_TRY(
      same(name("shared"), std::string_view(source.shared ? "true" : "false"), std::string_view(planned.shared ? "true" : "false")));
  HEADWATER_TRY(same(field({index, "k."}, "format"), source.k.layout.format, planned.k_format));
  if (!source.shared) HEADWATER_TRY(same(field({index, "v."}, "format"), source.v.layout.format, planned.v_format));
  HEADWATER_TRY(same(name("heads"), source.heads, planned.heads));
  HEADWATER_TRY(same(name("addressing"), addressing_name(source.addressing), addressing_name(planned.addressing)));
  if (source.addressing != AddressingKind::kRagged) HEADWATER_TRY(same(name("page_size"), source.page_size, planned.page_size));
  return check_rule(index, planned, source);
}

}  // namespace

Status check_bounds(const Bounds& bounds, const ResolvedProblem& problem) {
  HEADWATER_TRY(at_most("requests", problem.requests, bounds.max_requests));
  HEADWATER_TRY(same("q.type", problem.q_type, bounds.q_type));
  HEADWATER_TRY(same("out.type", problem.out_type, bounds.out_type));
  HEADWATER_TRY(same("q.heads", problem.heads, bounds.heads));
  HEADWATER_TRY(same("d_qk", problem.d_qk, bounds.d_qk));
  HEADWATER_TRY(same("d_v", problem.d_v, bounds.d_v));
  if (problem.softcap > 0.0F && !bounds.softcap) {
    return refuse(StatusCode::kInvalid, "logits_soft_cap", text(problem.softcap), "planned without one");
  }
  HEADWATER_TRY(same("sources", problem.num_sources, static_cast<int32_t>(bounds.sources.size())));
  for (int32_t i = 0; i < problem.num_sources; ++i) {
    HEADWATER_TRY(check_source(i, bounds.sources[static_cast<size_t>(i)], problem.sources[i]));
  }
  return {};
}

}  // namespace headwater::cpu
