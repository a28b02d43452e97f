#include "src/io/problem_fields.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "src/io/problem_names.h"

namespace headwater::io {
namespace {

// A tensor above this cannot be held anyway; a sparse file may claim terabytes.
uint64_t memory_bytes() {
  static const uint64_t bytes = [] {
    const long pages = ::sysconf(_SC_PHYS_PAGES);
    const long page = ::sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page) : UINT64_MAX;
  }();
  return bytes;
}

std::string join(std::initializer_list<std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

std::string shown_value(const std::string& value) {
  constexpr size_t kShown = 40;
  std::string text(1, '\'');
  text += value.substr(0, kShown);
  return text += value.size() > kShown ? "...'" : "'";
}

}  // namespace

bool Fields::refuse(std::string_view local, const std::string& why) {
  if (!status_.ok()) return false;
  std::string full = prefix_ + std::string(local);
  const bool own = file_.find(full) != nullptr || file_.metadata().count(full) != 0;
  const bool shared = file_.find(local) != nullptr || file_.metadata().find(local) != file_.metadata().end();
  if (!own && shared) full = local;
  status_ = invalid(file_.file_name() + ": " + full + ": " + why);
  return false;
}

const TensorInfo* Fields::tensor(std::string_view local) {
  const std::string full = prefix_ + std::string(local);
  const TensorInfo* t = file_.find(full);
  if (t == nullptr && !prefix_.empty()) t = file_.find(local);
  if (t != nullptr) read_.insert(t->name);
  return t;
}

const std::string* Fields::text(std::string_view local) {
  auto it = file_.metadata().find(prefix_ + std::string(local));
  if (it == file_.metadata().end() && !prefix_.empty()) it = file_.metadata().find(local);
  if (it == file_.metadata().end()) return nullptr;
  read_.insert(it->first);
  return &it->second;
}

const std::byte* Fields::bytes(std::string_view local, const TensorInfo& tensor) {
  if (!ok()) return nullptr;
  if (tensor.bytes() <= memory_bytes()) {
    AlignedBytes data(tensor.bytes());
    if (data.data() != nullptr) {
      status_ = file_.read(tensor, data.span());
      if (!ok()) return nullptr;
      storage_->push_back(std::move(data));
      return storage_->back().data();
    }
  }
  refuse(local, std::to_string(tensor.bytes()) + " bytes do not fit into this machine's memory");
  return nullptr;
}

bool Fields::has_shape(std::string_view local, const TensorInfo& tensor, std::initializer_list<int64_t> shape, const char* axes) {
  if (std::equal(tensor.shape.begin(), tensor.shape.end(), shape.begin(), shape.end())) return true;
  return refuse(local, "shape " + shape_text(tensor.shape) + ": must be " + axes + " = " + shape_text(std::vector<int64_t>(shape)));
}

bool Fields::has_type(std::string_view local, const TensorInfo& tensor, std::initializer_list<DType> types) {
  std::string wanted;
  for (const DType type : types) {
    if (type == tensor.type) return true;
    if (!wanted.empty()) wanted += " or ";
    wanted += dtype_name(type);
  }
  return refuse(local, "type " + std::string(dtype_name(tensor.type)) + ": must be " + wanted);
}

const int32_t* Fields::int32s(std::string_view local, std::initializer_list<int64_t> shape, const char* axes) {
  const TensorInfo* t = tensor(local);
  if (t == nullptr || !ok() || !has_type(local, *t, {DType::kI32}) || !has_shape(local, *t, shape, axes)) return nullptr;
  return reinterpret_cast<const int32_t*>(bytes(local, *t));
}

const float* Fields::floats(std::string_view local, const TensorInfo& tensor) {
  if (!ok() || !has_type(local, tensor, {DType::kF32})) return nullptr;
  return reinterpret_cast<const float*>(bytes(local, tensor));
}

std::optional<float> Fields::number(std::string_view local) {
  const std::string* s = text(local);
  if (s == nullptr) return std::nullopt;
  double value = 0;
  const char* const end = s->data() + s->size();
  const auto [at, error] = std::from_chars(s->data(), end, value);
  const auto single = static_cast<float>(value);
  if (error != std::errc() || at != end || !std::isfinite(single)) {
    refuse(local, shown_value(*s) + ": must be a finite number such as 0.125");
    return std::nullopt;
  }
  return single;
}

std::optional<int64_t> Fields::integer(std::string_view local, int64_t low, int64_t high) {
  const std::string* s = text(local);
  if (s == nullptr) return std::nullopt;
  int64_t value = 0;
  const char* const end = s->data() + s->size();
  const auto [at, error] = std::from_chars(s->data(), end, value);
  if (error != std::errc() || at != end || value < low || value > high) {
    refuse(local, shown_value(*s) + ": must be a whole number from " + std::to_string(low) + " to " + std::to_string(high));
    return std::nullopt;
  }
  return value;
}

std::optional<size_t> Fields::choice(std::string_view local, std::initializer_list<std::string_view> names) {
  const std::string* s = text(local);
  if (s == nullptr) return std::nullopt;
  const auto* const it = std::find(names.begin(), names.end(), *s);
  if (it == names.end()) {
    refuse(local, shown_value(*s) + ": must be one of " + join(names));
    return std::nullopt;
  }
  return static_cast<size_t>(it - names.begin());
}

std::optional<Format> Fields::format(std::string_view local) {
  const std::string* s = text(local);
  if (s == nullptr) return std::nullopt;
  const auto format = format_by_name(*s);
  if (!format) {
    std::string names;
    for (const FormatInfo& info : all_formats()) {
      if (!names.empty()) names += ", ";
      names += info.name;
    }
    refuse(local, shown_value(*s) + ": must be one of " + names);
  }
  return format;
}

bool Fields::refuse_unread() {
  const auto unread = [&](const std::string& name) {
    const ParsedName parsed = parse_field_name(name, FieldKind::kTensor);
    const bool note = (parsed.name && parsed.name->field.starts_with("note.")) ||
                      is_note(parse_field_name(name, FieldKind::kMetadata).name.value_or(FieldName{}));
    return name.starts_with(prefix_) && !note && read_.count(name) == 0;
  };
  constexpr const char* kWhy = "not read by a problem of this kind (rule, addressing and storage decide which fields are)";
  for (const TensorInfo& t : file_.tensors()) {
    if (unread(t.name)) return refuse(std::string_view(t.name).substr(prefix_.size()), kWhy);
  }
  for (const auto& [key, value] : file_.metadata()) {
    if (unread(key)) return refuse(std::string_view(key).substr(prefix_.size()), kWhy);
  }
  return true;
}

}  // namespace headwater::io
