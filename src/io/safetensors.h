// The safetensors container: 8 bytes little-endian header length, a JSON header, then the tensors' bytes without holes.
// Files come from anywhere: every size, offset and count is checked before anything is allocated or read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwater/status.h"

namespace headwater::io {

// Every type of the published format. Names in files: "F32", "BF16", "F8_E4M3", ...
enum class DType : uint8_t {
  kBool = 0,
  kF4,  // two per byte
  kF6E2m3,
  kF6E3m2,
  kU8,
  kI8,
  kF8E5m2,
  kF8E4m3,
  kF8E8m0,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};
[[nodiscard]] std::string_view dtype_name(DType type);
[[nodiscard]] int32_t dtype_bits(DType type);

// Limits of the reader. The header limit bounds what a hostile file can make us allocate.
inline constexpr uint64_t kMaxHeaderBytes = uint64_t{16} << 20;
inline constexpr size_t kMaxTensors = 200'000;
inline constexpr size_t kMaxNameBytes = 256;
inline constexpr size_t kMaxRank = 8;

struct TensorInfo {
  std::string name;
  DType type = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes, from the start of the data part
  uint64_t end = 0;

  [[nodiscard]] uint64_t bytes() const { return end - begin; }
};
// "[4, 16, 576]"
[[nodiscard]] std::string shape_text(std::span<const int64_t> shape);

// The checked header of a file, and access to its tensors' bytes. Data is read on demand, never mapped: a file that shrinks
// under us gives a Status, and what is read stands aligned whatever the file's offsets are.
class Safetensors {
 public:
  [[nodiscard]] static Result<Safetensors> open(const std::string& path);
  // The same over bytes in memory, which must outlive the object.
  [[nodiscard]] static Result<Safetensors> parse(std::span<const std::byte> bytes, std::string name);

  [[nodiscard]] const std::string& file_name() const { return name_; }
  [[nodiscard]] const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in file order of the header
  [[nodiscard]] const TensorInfo* find(std::string_view name) const;
  [[nodiscard]] const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }
  // Copies a tensor's bytes; `out` must hold tensor.bytes() of them.
  [[nodiscard]] Status read(const TensorInfo& tensor, std::span<std::byte> out) const;

 private:
  class Bytes;
  Safetensors() = default;
  static Result<Safetensors> load(std::shared_ptr<const Bytes> bytes, std::string name);

  std::string name_;
  std::shared_ptr<const Bytes> bytes_;
  uint64_t data_begin_ = 0;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

// One tensor to write; `data` holds elements(shape) * bits / 8 bytes, dense.
struct TensorToWrite {
  std::string name;
  DType type = DType::kF32;
  std::vector<int64_t> shape;
  const void* data = nullptr;
};
// Writes a whole file (wider types first, so that every tensor is aligned to its element). A regular file is replaced only when
// all of it has been written.
[[nodiscard]] Status write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                                       const std::map<std::string, std::string, std::less<>>& metadata);

}  // namespace headwater::io
