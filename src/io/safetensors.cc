#include "src/io/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

namespace headwater::io {
namespace {

struct DTypeRow {
  DType type;
  std::string_view name;
  int32_t bits;
};
constexpr DTypeRow kDTypes[] = {
    {DType::kBool, "BOOL", 8},      {DType::kF4, "F4", 4},    {DType::kF6E2m3, "F6_E2M3", 6}, {DType::kF6E3m2, "F6_E3M2", 6},
    {DType::kU8, "U8", 8},          {DType::kI8, "I8", 8},    {DType::kF8E5m2, "F8_E5M2", 8}, {DType::kF8E4m3, "F8_E4M3", 8},
    {DType::kF8E8m0, "F8_E8M0", 8}, {DType::kI16, "I16", 16}, {DType::kU16, "U16", 16},       {DType::kF16, "F16", 16},
    {DType::kBf16, "BF16", 16},     {DType::kI32, "I32", 32}, {DType::kU32, "U32", 32},       {DType::kF32, "F32", 32},
    {DType::kC64, "C64", 64},       {DType::kF64, "F64", 64}, {DType::kI64, "I64", 64},       {DType::kU64, "U64", 64},
};

std::optional<DType> dtype_by_name(std::string_view name) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

// A name from a file, cut to a length that fits into a message.
std::string shown(std::string_view name) {
  constexpr size_t kShown = 80;
  std::string text(1, '\'');
  text += name.substr(0, kShown);
  return text += name.size() > kShown ? "...'" : "'";
}

// Bytes of a dense tensor; nullopt when the product overflows or does not end on a byte.
std::optional<uint64_t> tensor_bytes(DType type, std::span<const int64_t> shape) {
  uint64_t bits = static_cast<uint64_t>(dtype_bits(type));
  for (int64_t n : shape) {
    if (n < 0 || __builtin_mul_overflow(bits, static_cast<uint64_t>(n), &bits)) return std::nullopt;
  }
  if (bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

// Reads the JSON header event by event: nothing is built beyond the tensors themselves, and the depth is fixed by the format.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<TensorInfo> tensors;
  std::map<std::string, size_t, std::less<>> by_name;
  std::map<std::string, std::string, std::less<>> metadata;
  std::string error;

  bool null() override { return fail("null"); }
  bool boolean(bool /*value*/) override { return fail("a boolean"); }
  bool number_integer(number_integer_t value) override { return fail("the negative number " + std::to_string(value)); }
  bool number_float(number_float_t /*value*/, const string_t& text) override { return fail("the number " + text.substr(0, 40)); }
  bool binary(binary_t& /*value*/) override { return fail("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kShape) {
      if (value > static_cast<uint64_t>(INT64_MAX)) return fail("the dimension " + std::to_string(value));
      if (current_.shape.size() == kMaxRank) return refuse("more than " + std::to_string(kMaxRank) + " dimensions");
      current_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (state_ == State::kOffsets) {
      if (num_offsets_ == 2) return refuse("data_offsets holds more than two numbers");
      (num_offsets_++ == 0 ? current_.begin : current_.end) = value;
      return true;
    }
    return fail("a number");
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) {
      metadata.emplace(key_, value);
      return true;
    }
    if (state_ == State::kTensor && key_ == "dtype") {
      const auto type = dtype_by_name(value);
      if (!type) return refuse("dtype " + shown(value) + " is not a safetensors type");
      current_.type = *type;
      return true;
    }
    return fail("a string");
  }

  bool start_object(size_t /*count*/) override {
    if (state_ == State::kStart) {
      state_ = State::kTop;
      return true;
    }
    if (state_ != State::kTop) return fail("an object");
    if (key_ == "__metadata__") {
      state_ = State::kMetadata;
    } else {
      state_ = State::kTensor;
      current_ = TensorInfo{};
      current_.name = key_;
      has_dtype_ = has_shape_ = has_offsets_ = false;
    }
    return true;
  }

  bool key(string_t& value) override {
    if (value.size() > kMaxNameBytes) return refuse("name " + shown(value) + " is longer than " + std::to_string(kMaxNameBytes) + " bytes");
    if (state_ == State::kTop) {
      if (value == "__metadata__" ? std::exchange(has_metadata_, true) : by_name.count(value) != 0)
        return refuse(shown(value) + " is named twice");
    } else if (state_ == State::kMetadata) {
      if (metadata.count(value) != 0) return refuse("__metadata__ key " + shown(value) + " is given twice");
    } else {
      bool* const seen = value == "dtype"          ? &has_dtype_
                         : value == "shape"        ? &has_shape_
                         : value == "data_offsets" ? &has_offsets_
                                                   : nullptr;
      if (seen == nullptr) return refuse("unknown field " + shown(value));
      if (std::exchange(*seen, true)) return refuse("field " + shown(value) + " is given twice");
    }
    key_ = value;
    return true;
  }

  bool end_object() override {
    if (state_ == State::kTensor) {
      if (!has_dtype_ || !has_shape_ || !has_offsets_) {
        return refuse(std::string("no ") + (!has_dtype_ ? "dtype" : !has_shape_ ? "shape" : "data_offsets"));
      }
      if (num_offsets_ != 2) return refuse("data_offsets holds " + std::to_string(num_offsets_) + " numbers: must be two");
      if (tensors.size() == kMaxTensors) return refuse("more than " + std::to_string(kMaxTensors) + " tensors");
      by_name.emplace(current_.name, tensors.size());
      tensors.push_back(std::move(current_));
    }
    state_ = state_ == State::kTop ? State::kEnd : State::kTop;
    return true;
  }

  bool start_array(size_t /*count*/) override {
    if (state_ != State::kTensor || (key_ != "shape" && key_ != "data_offsets")) return fail("an array");
    state_ = key_ == "shape" ? State::kShape : State::kOffsets;
    if (state_ == State::kOffsets) num_offsets_ = 0;
    return true;
  }
  bool end_array() override {
    state_ = State::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string& /*token*/, const nlohmann::json::exception& /*e*/) override {
    error = "header is not valid JSON at byte " + std::to_string(position);
    return false;
  }

 private:
  enum class State { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool refuse(const std::string& why) {
    const bool in_tensor = state_ == State::kTensor || state_ == State::kShape || state_ == State::kOffsets;
    error = (in_tensor ? "tensor " + shown(current_.name) + ": " : "") + why;
    return false;
  }
  bool fail(const std::string& what) {
    switch (state_) {
      case State::kStart:
      case State::kEnd:
        return refuse("header holds " + what + ": must be one object");
      case State::kTop:
        return refuse(shown(key_) + " is " + what + ": must be an object");
      case State::kMetadata:
        return refuse("__metadata__ key " + shown(key_) + " is " + what + ": must be a string");
      case State::kTensor:
        return refuse("field " + shown(key_) + " is " + what);
      case State::kShape:
      case State::kOffsets:
        return refuse("field " + shown(key_) + " holds " + what + ": must hold whole numbers below 2^63");
    }
    return false;
  }

  State state_ = State::kStart;
  std::string key_;
  TensorInfo current_;
  int num_offsets_ = 0;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
};

// Sizes, offsets, overlaps and holes. data_bytes: what the file really has behind its header.
std::string check_layout(const std::vector<TensorInfo>& tensors, uint64_t data_bytes) {
  for (const TensorInfo& t : tensors) {
    const std::string where = "tensor " + shown(t.name) + ": ";
    const std::string offsets = "data_offsets [" + std::to_string(t.begin) + ", " + std::to_string(t.end) + "]: ";
    if (t.end < t.begin) return where + offsets + "end before begin";
    if (t.end > data_bytes) return where + offsets + "past the end of the file, which has " + std::to_string(data_bytes) + " bytes of data";
    const auto bytes = tensor_bytes(t.type, t.shape);
    std::string size(dtype_name(t.type));
    size.append(" of shape ").append(shape_text(t.shape));
    if (!bytes) return where + size + " has no valid size in bytes";
    if (*bytes != t.bytes()) return where + offsets + size.append(" takes ").append(std::to_string(*bytes)).append(" bytes");
  }
  std::vector<const TensorInfo*> order;
  order.reserve(tensors.size());
  for (const TensorInfo& t : tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
  uint64_t at = 0;
  for (const TensorInfo* t : order) {
    const std::string where = "tensor " + shown(t->name) + ": begins at " + std::to_string(t->begin) + ", but the one before ";
    if (t->begin < at) return where + "ends at " + std::to_string(at) + ": tensors overlap";
    if (t->begin > at) return where + "ends at " + std::to_string(at) + ": bytes that belong to no tensor";
    at = t->end;
  }
  if (at != data_bytes)
    return "the last tensor ends at byte " + std::to_string(at) + " of " + std::to_string(data_bytes) + ": bytes that belong to no tensor";
  return {};
}

uint64_t load_le64(const unsigned char* b) {
  uint64_t v = 0;
  for (int i = 7; i >= 0; --i) v = v << 8U | b[i];
  return v;
}

}  // namespace

std::string_view dtype_name(DType type) { return kDTypes[static_cast<size_t>(type)].name; }
int32_t dtype_bits(DType type) { return kDTypes[static_cast<size_t>(type)].bits; }

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

// A file descriptor, or borrowed memory.
class Safetensors::Bytes {
 public:
  explicit Bytes(std::span<const std::byte> memory) : memory_(memory), size_(memory.size()) {}
  Bytes(int fd, uint64_t size) : fd_(fd), size_(size) {}
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] uint64_t size() const { return size_; }

  // [offset, offset + out.size()) must lie inside size(). Empty on success, else why not.
  [[nodiscard]] std::string read(uint64_t offset, std::span<std::byte> out) const {
    if (out.empty()) return {};
    if (fd_ < 0) {
      std::memcpy(out.data(), memory_.data() + offset, out.size());
      return {};
    }
    while (!out.empty()) {
      const ssize_t n = ::pread(fd_, out.data(), std::min(out.size(), size_t{1} << 30), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return std::strerror(errno);
      if (n == 0) return "the file became shorter while it was read";
      out = out.subspan(static_cast<size_t>(n));
      offset += static_cast<uint64_t>(n);
    }
    return {};
  }

 private:
  int fd_ = -1;
  std::span<const std::byte> memory_;
  uint64_t size_;
};

Result<Safetensors> Safetensors::open(const std::string& path) {
  // Not blocking on a FIFO: what is not a regular file is refused below.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return invalid(path + ": " + std::strerror(errno));
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    return invalid(path + ": not a regular file");
  }
  return load(std::make_shared<const Bytes>(fd, static_cast<uint64_t>(info.st_size)), path);
}

Result<Safetensors> Safetensors::parse(std::span<const std::byte> bytes, std::string name) {
  return load(std::make_shared<const Bytes>(bytes), std::move(name));
}

Result<Safetensors> Safetensors::load(std::shared_ptr<const Bytes> bytes, std::string name) {
  const auto refuse = [&](const std::string& why) { return invalid(name + ": " + why); };
  const uint64_t file_bytes = bytes->size();
  if (file_bytes < 8)
    return refuse("not a safetensors file: " + std::to_string(file_bytes) + " bytes, shorter than the 8 of its header length");
  unsigned char length[8];
  if (const auto why = bytes->read(0, std::as_writable_bytes(std::span(length))); !why.empty()) return refuse(why);
  const uint64_t header_bytes = load_le64(length);
  if (header_bytes > kMaxHeaderBytes) {
    return refuse("not a safetensors file, or a hostile one: header length " + std::to_string(header_bytes) + " is above the limit of " +
                  std::to_string(kMaxHeaderBytes));
  }
  if (header_bytes > file_bytes - 8) {
    return refuse("cut short: header length " + std::to_string(header_bytes) + ", but only " + std::to_string(file_bytes - 8) +
                  " bytes follow");
  }
  std::string header(header_bytes, '\0');
  if (const auto why = bytes->read(8, std::as_writable_bytes(std::span(header))); !why.empty()) return refuse(why);
  // The JSON reader takes a zero byte for the end of its input and skips a byte order mark; neither belongs here.
  if (header.empty() || header[0] != '{') return refuse("header does not begin with '{'");
  if (const size_t zero = header.find('\0'); zero != std::string::npos) return refuse("header has a zero byte at " + std::to_string(zero));
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(header, &reader)) return refuse(reader.error);
  if (const std::string why = check_layout(reader.tensors, file_bytes - 8 - header_bytes); !why.empty()) return refuse(why);

  Safetensors file;
  file.name_ = std::move(name);
  file.bytes_ = std::move(bytes);
  file.data_begin_ = 8 + header_bytes;
  file.tensors_ = std::move(reader.tensors);
  file.by_name_ = std::move(reader.by_name);
  file.metadata_ = std::move(reader.metadata);
  return file;
}

const TensorInfo* Safetensors::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

Status Safetensors::read(const TensorInfo& tensor, std::span<std::byte> out) const {
  const std::string where = name_ + ": tensor " + shown(tensor.name) + ": ";
  if (out.size() != tensor.bytes())
    return invalid(where + "buffer of " + std::to_string(out.size()) + " bytes for " + std::to_string(tensor.bytes()));
  const std::string why = bytes_->read(data_begin_ + tensor.begin, out);
  return why.empty() ? Status() : invalid(where + why);
}

namespace {

// Writes everything to a stream of its own; the caller renames or removes.
std::string write_all(const std::string& path, const std::string& header, std::span<const TensorToWrite* const> order) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) return std::strerror(errno);
  const auto put = [fd](const void* data, uint64_t bytes) -> std::string {
    const char* p = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n = ::write(fd, p, std::min<uint64_t>(bytes, uint64_t{1} << 30));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return std::strerror(errno);
      p += n;
      bytes -= static_cast<uint64_t>(n);
    }
    return {};
  };
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(static_cast<uint64_t>(header.size()) >> (8 * i));
  std::string why = put(length, 8);
  if (why.empty()) why = put(header.data(), header.size());
  for (const TensorToWrite* t : order) {
    if (why.empty()) why = put(t->data, *tensor_bytes(t->type, t->shape));
  }
  if (::close(fd) != 0 && why.empty()) why = std::strerror(errno);
  return why;
}

}  // namespace

Status write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                         const std::map<std::string, std::string, std::less<>>& metadata) {
  std::vector<const TensorToWrite*> order;
  for (const TensorToWrite& t : tensors) {
    if (!tensor_bytes(t.type, t.shape))
      return invalid(path + ": tensor " + shown(t.name) + ": shape " + shape_text(t.shape) + " has no valid size");
    order.push_back(&t);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return dtype_bits(a->type) > dtype_bits(b->type); });

  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  uint64_t at = 0;
  for (const TensorToWrite* t : order) {
    const uint64_t end = at + *tensor_bytes(t->type, t->shape);
    if (t->name == "__metadata__" || json.contains(t->name)) return invalid(path + ": tensor " + shown(t->name) + " is given twice");
    json[t->name] = {{"dtype", dtype_name(t->type)}, {"shape", t->shape}, {"data_offsets", {at, end}}};
    at = end;
  }
  std::string header;
  try {
    header = json.dump();
  } catch (const nlohmann::json::exception&) {
    return invalid(path + ": a tensor name or metadata text is not UTF-8");
  }
  header.append((64 - (8 + header.size()) % 64) % 64, ' ');
  if (header.size() > kMaxHeaderBytes) return invalid(path + ": header of " + std::to_string(header.size()) + " bytes is above the limit");

  struct stat info {};
  const bool replace = ::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode);  // not so: a pipe or a device
  const std::string target = replace ? path + ".part" : path;
  std::string why = write_all(target, header, order);
  if (why.empty() && replace && ::rename(target.c_str(), path.c_str()) != 0) why = std::strerror(errno);
  if (!why.empty() && replace) ::unlink(target.c_str());
  return why.empty() ? Status() : invalid(path + ": " + why);
}

}  // namespace headwater::io
