#include "src/io/problem_names.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "headwater/problem.h"

namespace headwater::io {
namespace {

constexpr std::string_view kProblemTensors[] = {"q", "q_tail", "q_scale", "qo_indptr", "context_lens", "sinks"};
constexpr std::string_view kSourceTensors[] = {"k",        "v",         "latent",      "bytes",      "scales",         "v_bytes",
                                               "v_scales", "kv_indptr", "block_table", "kv_indices", "seq_lens",       "kv_last_page_len",
                                               "indices",  "topk_lens", "k_scale",     "v_scale",    "first_position", "position_stride"};
constexpr std::string_view kProblemKeys[] = {"sm_scale", "logits_soft_cap", "q_type", "out_type"};
constexpr std::string_view kSourceKeys[] = {"rule",      "window_left", "ratio",       "format", "v_format",
                                            "page_size", "index_space", "value_width", "width",  "heads"};
constexpr int64_t kMaxLayer = 999'999;

// Takes "<number>." off the front. Plain decimal, no leading zeros, at most `limit`.
std::optional<int64_t> take_number(std::string_view* text, int64_t limit) {
  int64_t value = 0;
  const char* const end = text->data() + text->size();
  const auto [at, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || at == end || *at != '.' || value < 0 || value > limit || text->front() == '-') return std::nullopt;
  if (text->front() == '0' && at != text->data() + 1) return std::nullopt;
  text->remove_prefix(static_cast<size_t>(at - text->data()) + 1);
  return value;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replace, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string unknown(std::string_view field, std::span<const std::string_view> names) {
  constexpr size_t kLongest = 40;
  std::string text = "unknown name";
  std::string_view best;
  size_t best_distance = 3;
  for (const std::string_view name : names) {
    if (field.size() > kLongest) break;
    const size_t distance = edit_distance(field, name);
    if (distance < best_distance && distance < name.size()) {
      best = name;
      best_distance = distance;
    }
  }
  if (!best.empty()) return text.append(", did you mean ").append(best).append("?");
  text += ": one of";
  for (const std::string_view name : names) text.append(name == names.front() ? " " : ", ").append(name);
  return text;
}

}  // namespace

std::span<const std::string_view> problem_tensor_names() { return kProblemTensors; }
std::span<const std::string_view> source_tensor_names() { return kSourceTensors; }
std::span<const std::string_view> problem_metadata_keys() { return kProblemKeys; }
std::span<const std::string_view> source_metadata_keys() { return kSourceKeys; }

bool is_note(const FieldName& name) {
  if (name.source >= 0) return false;
  return name.field == "note" || name.field == "origin" || name.field == "text" || name.field.starts_with("note.") ||
         (name.field == "format" && name.layer < 0);
}

ParsedName parse_field_name(std::string_view text, FieldKind kind) {
  FieldName name;
  if (text.starts_with("layers.")) {
    text.remove_prefix(7);
    const auto layer = take_number(&text, kMaxLayer);
    if (!layer) return {std::nullopt, "layers. must be followed by a layer number from 0 to " + std::to_string(kMaxLayer) + " and a name"};
    name.layer = *layer;
  }
  if (text.starts_with("kv.")) {
    text.remove_prefix(3);
    const auto source = take_number(&text, kMaxSources - 1);
    if (!source)
      return {std::nullopt, "kv. must be followed by a source number from 0 to " + std::to_string(kMaxSources - 1) + " and a name"};
    name.source = static_cast<int32_t>(*source);
  }
  name.field = text;
  if (kind == FieldKind::kMetadata ? is_note(name) : name.source < 0 && text.starts_with("note.")) return {name, {}};
  const auto names = kind == FieldKind::kTensor ? (name.source < 0 ? problem_tensor_names() : source_tensor_names())
                                                : (name.source < 0 ? problem_metadata_keys() : source_metadata_keys());
  if (std::find(names.begin(), names.end(), text) == names.end()) return {std::nullopt, unknown(text, names)};
  return {name, {}};
}

}  // namespace headwater::io
