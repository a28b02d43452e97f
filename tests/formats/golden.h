// Reader of tests/golden/*.golden (layout: make_golden.py).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace headwater::golden {

class Case {
 public:
  [[nodiscard]] bool has(const std::string& name) const { return fields_.count(name) != 0; }
  [[nodiscard]] const std::vector<char>& bytes(const std::string& name) const { return fields_.at(name); }
  [[nodiscard]] std::string text(const std::string& name) const { return {bytes(name).begin(), bytes(name).end()}; }
  [[nodiscard]] int64_t integer(const std::string& name) const { return array<int64_t>(name).at(0); }
  template <class T>
  [[nodiscard]] std::vector<T> array(const std::string& name) const {
    const std::vector<char>& from = bytes(name);
    std::vector<T> values(from.size() / sizeof(T));
    std::memcpy(values.data(), from.data(), values.size() * sizeof(T));
    return values;
  }
  void set(const std::string& name, std::vector<char> data) { fields_[name] = std::move(data); }

 private:
  std::map<std::string, std::vector<char>> fields_;
};

inline std::vector<Case> read(const std::string& file) {
  const std::string path = std::string(HEADWATER_GOLDEN_DIR) + "/" + file + ".golden";
  std::ifstream stream(path, std::ios::binary);
  const std::vector<char> data{std::istreambuf_iterator<char>(stream), {}};
  size_t at = 0;
  const auto take = [&](size_t n) {
    if (n > data.size() - at) throw std::runtime_error(path + ": missing or cut short");
    at += n;
    return data.data() + at - n;
  };
  const auto number = [&] {
    uint32_t n = 0;
    std::memcpy(&n, take(sizeof(n)), sizeof(n));
    return n;
  };
  if (std::string(take(8), 8) != "HWGOLD01") throw std::runtime_error(path + ": not a golden file");
  std::vector<Case> cases(number());
  for (Case& c : cases) {
    for (uint32_t fields = number(); fields > 0; --fields) {
      const uint32_t name_bytes = number();
      const std::string name(take(name_bytes), name_bytes);
      const uint32_t size = number();
      const char* begin = take(size);
      c.set(name, {begin, begin + size});
    }
  }
  if (at != data.size()) throw std::runtime_error(path + ": trailing bytes");
  return cases;
}

// Float32 bits with NaN made one.
inline uint32_t canonical_bits(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  return (bits & 0x7fffffffU) > 0x7f800000U ? 0x7fc00000U : bits;
}

inline uint64_t row_hash(const float* values, size_t count) {
  uint64_t state = 0xcbf29ce484222325U;
  for (size_t i = 0; i < count; ++i) state = (state ^ canonical_bits(values[i])) * 0x100000001b3U;
  return state;
}

}  // namespace headwater::golden
