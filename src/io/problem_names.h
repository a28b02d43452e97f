// The names that problem files may use. One list: reader, writer, suggestions for typos and the test of the docs read it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace headwater::io {

[[nodiscard]] std::span<const std::string_view> problem_tensor_names();   // "q", "qo_indptr", ...
[[nodiscard]] std::span<const std::string_view> source_tensor_names();    // "k", "block_table", ... behind "kv.I."
[[nodiscard]] std::span<const std::string_view> problem_metadata_keys();  // "sm_scale", ...
[[nodiscard]] std::span<const std::string_view> source_metadata_keys();   // "rule", ... behind "kv.I."

// [layers.N.][kv.I.]field
struct FieldName {
  int64_t layer = -1;
  int32_t source = -1;
  std::string_view field;
};
enum class FieldKind : uint8_t { kTensor, kMetadata };

// Free text or foreign: "note", "origin", "text", "note.anything", and the "format" = "pt" that other writers leave.
[[nodiscard]] bool is_note(const FieldName& name);
// Splits and looks up; the error says what is wrong with the name and which known one is nearest.
struct ParsedName {
  std::optional<FieldName> name;
  std::string error;
};
[[nodiscard]] ParsedName parse_field_name(std::string_view text, FieldKind kind);

}  // namespace headwater::io
