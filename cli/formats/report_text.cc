// The table for people.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "cli/formats/study.h"

namespace headwater::cli::formats {
namespace {

constexpr size_t kLoudShown = 8;

std::string error_cell(double x) {
  if (x == 0.0) return "0";
  return x < 1e-4 ? fmt::format("{:.0e}", x) : fmt::format("{:.4f}", x);
}

std::string thousands(double x) {
  std::string text = fmt::format("{:.0f}", x);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<size_t>(at), 1, ',');
  return text;
}

std::string trimmed(double x) { return fmt::format("{:.{}f}", x, std::floor(x) == x ? 0 : 1); }

std::string short_name(const Layer& layer) { return layer.name.rfind("layers.", 0) == 0 ? layer.name.substr(7) : "-"; }

std::string heading(const Study& study) {
  std::string text = printable(study.file) + "\n";
  if (study.synthetic) text += "  SYNTHETIC numbers: they say nothing about any model.\n";
  for (const std::string& line : {study.origin, study.text}) {
    if (!line.empty()) text += fmt::format("  {}\n", printable(line));
  }
  const Layer& first = study.layers[0];
  const Rows& rows = first.sources[0];
  int64_t least = first.seen(0);
  int64_t most = 0;
  int64_t queries = 0;
  int64_t all = 0;
  std::string names;
  for (const Layer& layer : study.layers) {
    names += fmt::format("{}{}", names.empty() ? "" : " ", short_name(layer));
    queries += layer.queries;
    all += layer.all_queries;
    for (int64_t i = 0; i < layer.queries; ++i) {
      least = std::min(least, layer.seen(i));
      most = std::max(most, layer.seen(i));
    }
  }
  text += study.layers.size() == 1 ? "  1 layer" : fmt::format("  {} layers ({})", study.layers.size(), names);
  text += fmt::format("; {} query rows, {} query heads, {} KV head{}, d {}/{}{}; KV in the file: {}; a query sees {} to {} entries\n",
                      queries, first.heads, rows.heads, rows.heads == 1 ? "" : "s", first.d_qk, first.d_v,
                      rows.shared ? ", V in K's row" : "", study.stored_as, least, most);
  if (queries < all) text += fmt::format("  Sampled: {} of {} query rows are measured.\n", queries, all);
  return text;
}

const ChoiceResult* find(const Study& study, const std::string& name) {
  const auto found = std::find_if(study.results.begin(), study.results.end(),
                                  [&](const ChoiceResult& r) { return r.choice.name == name && r.refused.empty(); });
  return found == study.results.end() ? nullptr : &*found;
}

std::string why_scales_do_not_help(const Study& study) {
  const ChoiceResult* one = find(study, "fp8, scale 1.0");
  const ChoiceResult* tensor = find(study, "fp8 per tensor");
  if (!one || !tensor || tensor->all.k_rms < one->all.k_rms || one->all.k_rms == 0.0) return {};
  return fmt::format(
      "  fp8 is a floating format: a scale matters where values pass 448 or sink below 2^-6, and otherwise only moves them within their\n"
      "  binade. {:.1f} % of K's values stand between as they are: its scaled rows are no better than scale 1.0.\n",
      100.0 * study.k_in_fp8_normal);
}

std::string main_table(const Study& study) {
  Table table({"format", study.bytes_are_per_entry ? "bytes/entry" : "bytes/token",
               study.bytes_are_per_entry ? "entries/GiB" : "tokens/GiB", "K nats RMS", "K p99", "V rel RMS", "out p50", "out p99",
               "out worst", "worst at", "scales"});
  for (const ChoiceResult& r : study.results) {
    if (!r.refused.empty()) {
      table.add({r.choice.name, "-", "-", "-", "-", "-", "-", "-", "-", "refused: " + r.refused});
      continue;
    }
    table.add({r.choice.name, trimmed(r.bytes_per_token), thousands(r.tokens_in_gib), error_cell(r.all.k_rms), error_cell(r.all.k_p99),
               error_cell(r.all.v_rms), error_cell(r.all.out_p50), error_cell(r.all.out_p99), error_cell(r.all.out_worst), r.worst_at,
               r.scales});
  }
  std::string text =
      fmt::format("\nWhat each format costs, over the {} captured layer{}{}\n", study.layers.size(), study.layers.size() == 1 ? "" : "s",
                  study.centred ? ", K stored less its channel means " + study.mean_from : "");
  text += table.text(2);
  text +=
      "  K: error of the scores before softmax, over every (query, head, entry). V: relative error of the value row an entry gives.\n"
      "  out: relative error of an output row of one head. Rank formats by K and V. Output error alone ranks nothing: it depends on V's\n"
      "  mean, which quantisation hardly moves, and one row that hangs on one entry sets its worst.\n";
  const bool scaled = std::any_of(study.results.begin(), study.results.end(), [](const ChoiceResult& r) {
    return r.choice.scales == ScaleFrom::kTensor || r.choice.scales == ScaleFrom::kHead;
  });
  if (scaled) text += fmt::format("  scales: {} = {}.\n", study.calibrated ? "calibrated" : "this data", printable(study.scales_from));
  text += why_scales_do_not_help(study);
  if (!study.stored_in_float) {
    text += fmt::format("  The file holds its KV as {}: errors are against what that decodes to, so formats that can hold it look exact.\n",
                        study.stored_as);
  }
  if (study.bytes_are_per_entry) text += "  A gathered pool counts as one entry a token; a pool of ratio m costs 1/m of that.\n";
  return text;
}

std::string saturation(const Study& study) {
  std::string text;
  for (const ChoiceResult& r : study.results) {
    if (r.saturated > 0) {
      text += fmt::format("  {}: values beyond the largest that its scale ({}) can hold, cut to it: {}\n", r.choice.name, r.scales,
                          thousands(static_cast<double>(r.saturated)));
    }
  }
  return text;
}

// Choices down, `columns` across.
std::string grid(const Study& study, const std::string& title, const std::vector<std::string>& columns,
                 const std::function<std::string(const ChoiceResult&, size_t)>& cell) {
  std::vector<std::string> header{"format"};
  header.insert(header.end(), columns.begin(), columns.end());
  Table table(header);
  for (const ChoiceResult& r : study.results) {
    if (!r.refused.empty()) continue;
    std::vector<std::string> row{r.choice.name};
    for (size_t i = 0; i < columns.size(); ++i) row.push_back(cell(r, i));
    table.add(row);
  }
  return "\n" + title + "\n" + table.text(2);
}

std::string by_layer(const Study& study) {
  if (study.layers.size() < 2) return {};
  std::vector<std::string> columns;
  for (const Layer& layer : study.layers) columns.push_back("layer " + short_name(layer));
  return grid(study, "K nats RMS by layer", columns, [](const ChoiceResult& r, size_t i) { return error_cell(r.by_layer[i].k_rms); }) +
         grid(study, "V relative RMS by layer", columns, [](const ChoiceResult& r, size_t i) { return error_cell(r.by_layer[i].v_rms); }) +
         grid(study, "Output p99 by layer", columns, [](const ChoiceResult& r, size_t i) { return error_cell(r.by_layer[i].out_p99); });
}

std::string by_context(const Study& study) {
  if (study.contexts.size() < 2) return {};
  return grid(study, "K nats RMS / output p50 by entries seen", study.contexts, [](const ChoiceResult& r, size_t i) {
    const Errors& e = r.by_context[i];
    return e.rows == 0 ? std::string("-") : error_cell(e.k_rms) + " / " + error_cell(e.out_p50);
  });
}

std::string channels(const Study& study) {
  std::string text =
      fmt::format("\nK channels above {:.0f} times the median channel of their head (RMS): {}\n", study.loud_factor, study.loud.size());
  if (!study.loud.empty()) {
    Table table({"layer", "source", "head", "channel", "RMS", "x median", "|mean|/RMS"});
    for (size_t i = 0; i < std::min(kLoudShown, study.loud.size()); ++i) {
      const LoudChannel& c = study.loud[i];
      table.add({c.layer.empty() ? "-" : c.layer, std::to_string(c.source), std::to_string(c.head), std::to_string(c.channel),
                 fmt::format("{:.2f}", c.rms), fmt::format("{:.1f}", c.times_median), fmt::format("{:.2f}", c.mean_share)});
    }
    text += table.text(2);
    if (study.loud.size() > kLoudShown) text += fmt::format("  and {} more (--json has all)\n", study.loud.size() - kLoudShown);
  }
  if (!study.centring_refused.empty()) return text + "  --center-k would not be exact here: " + study.centring_refused + ".\n";
  if (study.centred) return text;
  Table table({"format", "K nats RMS", "with --center-k", "ratio"});
  for (const ChoiceResult& r : study.results) {
    if (!r.refused.empty() || !r.centred_k_rms || r.all.k_rms == 0.0) continue;
    table.add(
        {r.choice.name, error_cell(r.all.k_rms), error_cell(*r.centred_k_rms), fmt::format("{:.2f}", *r.centred_k_rms / r.all.k_rms)});
  }
  return text + "\nWhat --center-k would gain (per-channel mean of K " + study.mean_from + " taken off; exact in softmax)\n" +
         table.text(2);
}

std::string times(const Study& study) {
  const auto timed = std::find_if(study.results.begin(), study.results.end(), [](const ChoiceResult& r) { return r.time.context > 0; });
  if (timed == study.results.end()) return {};
  Table table({"format", "median us", "fastest us", "upper quartile us", "KV read GB/s", "kernel"});
  for (const ChoiceResult& r : study.results) {
    if (r.time.context == 0) continue;
    const auto us = [](double seconds) { return fmt::format("{:.0f}", seconds * 1e6); };
    table.add({r.choice.name, us(r.time.median_s), us(r.time.fastest_s), us(r.time.high_s),
               study.busy.empty() ? fmt::format("{:.1f}", static_cast<double>(r.time.bytes) / r.time.median_s * 1e-9) : "-",
               r.time.kernel});
  }
  return fmt::format("\nDecode step on this machine ({}): 1 query, {} entries (the rows of {} again and again, paged), 1 layer\n",
                     study.machine, thousands(static_cast<double>(timed->time.context)),
                     study.layers[0].name.empty() ? "the first source" : study.layers[0].name) +
         table.text(2) + (study.busy.empty() ? "" : fmt::format("  This machine is busy ({}): these times say little.\n", study.busy));
}

std::string closing(const Study& study) {
  int64_t entries = 0;
  for (const Layer& layer : study.layers) {
    for (const Rows& rows : layer.sources) entries = std::max(entries, rows.count);
  }
  const std::string what = study.text.empty() ? printable(study.file) : printable(study.text);
  if (study.synthetic) return "\nData: " + what + ". Synthetic numbers test layouts and arithmetic; no accuracy can be read from them.\n";
  return fmt::format("\nData: {}. {} entries of one text are a smoke test: they can show that a format is bad here, not that it is good.\n",
                     what, thousands(static_cast<double>(entries)));
}

}  // namespace

std::string report_text(const Study& study) {
  return heading(study) + main_table(study) + saturation(study) + by_layer(study) + by_context(study) + channels(study) + times(study) +
         closing(study);
}

}  // namespace headwater::cli::formats
