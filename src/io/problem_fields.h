// Typed access to the fields of one problem: tensors and metadata by their local names ("q", "kv.0.k"), the first error kept.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "src/io/problem_file.h"

namespace headwater::io {

class Fields {
 public:
  Fields(const Safetensors& file, const std::string& name, std::vector<AlignedBytes>* storage)
      : file_(file), prefix_(name.empty() ? "" : name + "."), storage_(storage) {}

  [[nodiscard]] bool ok() const { return status_.ok(); }
  [[nodiscard]] const Status& status() const { return status_; }
  // "FILE: layers.3.kv.0.k: why". Returns false, for `return refuse(...)`.
  bool refuse(std::string_view local, const std::string& why);

  // The problem's own tensor, or the file-wide default; null when absent. Marks it as read.
  const TensorInfo* tensor(std::string_view local);
  const std::string* text(std::string_view local);

  // Reads a tensor's bytes into storage of the problem; null after an error.
  const std::byte* bytes(std::string_view local, const TensorInfo& tensor);
  // Tensor of exactly this type and shape; null when absent or wrong (then !ok()). `axes` explains the shape in the message.
  const int32_t* int32s(std::string_view local, std::initializer_list<int64_t> shape, const char* axes);
  const float* floats(std::string_view local, const TensorInfo& tensor);
  [[nodiscard]] bool has_shape(std::string_view local, const TensorInfo& tensor, std::initializer_list<int64_t> shape, const char* axes);
  [[nodiscard]] bool has_type(std::string_view local, const TensorInfo& tensor, std::initializer_list<DType> types);

  // Metadata; absent and wrong both give nullopt, wrong also !ok().
  std::optional<float> number(std::string_view local);
  std::optional<int64_t> integer(std::string_view local, int64_t low, int64_t high);
  std::optional<size_t> choice(std::string_view local, std::initializer_list<std::string_view> names);
  std::optional<Format> format(std::string_view local);

  // A field that stands in the file for this problem alone and was not read.
  bool refuse_unread();
  [[nodiscard]] const std::string& prefix() const { return prefix_; }
  [[nodiscard]] const Safetensors& file() const { return file_; }

 private:
  const Safetensors& file_;
  std::string prefix_;
  std::vector<AlignedBytes>* storage_;
  std::set<std::string, std::less<>> read_;  // full names
  Status status_;
};

}  // namespace headwater::io
