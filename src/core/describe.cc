#include "src/core/describe.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "src/core/check.h"

namespace headwater {
namespace {

using check::text;

struct Entries {
  int64_t total = 0;
  int64_t longest = 0;
};

// Entries of a source over the batch: list lengths of the gathered rule, otherwise kv_len.
Entries count_entries(const ResolvedProblem& p, const ResolvedSource& s) {
  Entries entries;
  const auto add = [&](int64_t n) {
    entries.total += n;
    entries.longest = std::max(entries.longest, n);
  };
  for (int64_t b = 0; b < p.requests; ++b) {
    if (s.rule != RuleKind::kGathered) {
      add(source_kv_len(s, b));
      continue;
    }
    for (int64_t row = p.qo_indptr[b]; row < p.qo_indptr[b + 1]; ++row) add(topk_len(s, row));
  }
  return entries;
}

std::string plural(int64_t n, const char* noun) { return short_count(n) + " " + noun + (n == 1 ? "" : "s"); }

std::string format_words(const Source& source) {
  const std::string k = text(source.k.format);
  if (source.shared) return k + " shared";
  const std::string v = text(source.v.format);
  return k == v ? k : "K " + k + ", V " + v;
}

std::string addressing_words(const ResolvedSource& s) {
  switch (s.addressing) {
    case AddressingKind::kRagged:
      return "ragged";
    case AddressingKind::kBlockTable:
      return "paged " + text(s.page_size);
    case AddressingKind::kPageList:
      return "page list " + text(s.page_size);
    case AddressingKind::kPool:
      return s.page_size == 1 ? "pool" : "pool of pages " + text(s.page_size);
  }
  return "";
}

std::string rule_words(const ResolvedSource& s) {
  switch (s.rule) {
    case RuleKind::kFull:
      return "full";
    case RuleKind::kCausal:
      return "causal";
    case RuleKind::kWindow:
      return s.window_left < 0 ? "causal" : "window_left " + text(s.window_left);
    case RuleKind::kCompressed:
      return "compressed " + text(s.ratio) + ":1";
    case RuleKind::kGathered:
      return "gathered top " + text(s.topk) + (s.index_space == IndexSpace::kPosition ? " by position" : "");
  }
  return "";
}

std::string source_words(const ResolvedProblem& p, const Source& source, int32_t index) {
  const ResolvedSource& s = p.sources[index];
  std::string words = check::element("kv", index) + " " + format_words(source) + ", ";
  if (s.heads > 1) words += text(s.heads) + " KV heads, ";
  words += addressing_words(s) + ", " + rule_words(s);
  if (p.device.kind == DeviceKind::kCpu) {
    words += ", " + short_count(count_entries(p, s).total) + (s.rule == RuleKind::kGathered ? " listed" : " entries");
  }
  return words;
}

std::string width_words(const ResolvedProblem& p) { return "d " + text(p.d_qk) + "/" + text(p.d_v); }

}  // namespace

std::string short_count(int64_t n) {
  constexpr std::array<const char*, 7> kUnits{"", "k", "M", "G", "T", "P", "E"};
  size_t unit = 0;
  double value = static_cast<double>(n);
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000.0;
    ++unit;
  }
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), unit > 0 && value < 9.95 ? "%.1f%s" : "%.0f%s", value, kUnits[unit]);
  return buffer.data();
}

std::string describe_line(const Problem& problem, const ResolvedProblem& p) {
  std::string line =
      plural(p.requests, "request") + ", " + plural(p.total_q, "query row") + " x " + plural(p.heads, "head") + ", " + width_words(p);
  for (int32_t i = 0; i < p.num_sources; ++i) {
    line += (i == 0 ? ", " : "; ") + source_words(p, problem.sources[static_cast<size_t>(i)], i);
  }
  if (p.sinks != nullptr) line += "; sinks";
  return line;
}

std::string describe(const Problem& problem, const ResolvedProblem& p) {
  std::string words = plural(p.requests, "request") + ", " + plural(p.total_q, "query row") + " x " + plural(p.heads, "head") + " of " +
                      text(p.q_type) + ", " + width_words(p);
  if (p.q_tail_width > 0) words += " (queries in two parts, " + text(p.q_width) + " + " + text(p.q_tail_width) + ")";
  words += ", sm_scale " + text(p.sm_scale);
  if (p.softcap > 0.0F) words += ", soft cap " + text(p.softcap);
  if (p.sinks != nullptr) words += p.sinks_request_stride != 0 ? ", sinks by request and head" : ", sinks by head";
  for (int32_t i = 0; i < p.num_sources; ++i) {
    const Source& source = problem.sources[static_cast<size_t>(i)];
    const ResolvedSource& s = p.sources[i];
    words += '\n';
    words += source_words(p, source, i);
    if (p.device.kind == DeviceKind::kCpu && p.requests > 1) words += " (longest " + short_count(count_entries(p, s).longest) + ")";
    words += ", " + plural(s.group, "query head") + " to a KV head";
    if (s.k.scale_count > 0) words += s.k.scale_count > 1 ? ", k_scale by head" : ", k_scale";
    if (!s.shared && s.v.scale_count > 0) words += s.v.scale_count > 1 ? ", v_scale by head" : ", v_scale";
    if (s.first_position != nullptr) words += ", first_position given";
    if (s.position_stride != nullptr) words += ", position_stride given";
  }
  words += "\nout " + text(p.out_type) + (p.lse != nullptr ? ", lse" : ", no lse");
  if (p.needs_context && p.context_lens == nullptr && p.context_source >= 0) {
    words += "; context length = first_position + kv_len of " + check::element("kv", p.context_source);
  }
  return words;
}

}  // namespace headwater
