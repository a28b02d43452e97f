// Memory of a case: blocks of exact size (so that a sanitizer sees the byte behind), filled with poison, and outputs between guards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "headwater/problem.h"

namespace headwater::conformance {

// Which backend reads the cases: on a CUDA device they live in page-locked memory that host and device see at one address. Set before
// the first case; false where this build has no CUDA backend.
[[nodiscard]] bool place_cases(DeviceKind device);
[[nodiscard]] void* allocate_case_memory(size_t bytes, size_t alignment);
void release_case_memory(void* block, size_t bytes, size_t alignment);

template <class T>
struct CaseAllocator {
  using value_type = T;
  CaseAllocator() = default;
  template <class U>
  CaseAllocator(const CaseAllocator<U>&) {}  // NOLINT(google-explicit-constructor)
  T* allocate(size_t n) { return static_cast<T*>(allocate_case_memory(n * sizeof(T), 64)); }
  void deallocate(T* block, size_t n) { release_case_memory(block, n * sizeof(T), 64); }
  friend bool operator==(const CaseAllocator&, const CaseAllocator&) { return true; }
};

// Owns blocks; nothing moves.
class Arena {
 public:
  // `bytes` bytes at an address that is `misalign` past a multiple of 64, filled with `fill`.
  std::byte* take(size_t bytes, size_t misalign, int fill);
  template <class T>
  T* copy(const std::vector<T>& values) {
    std::byte* at = take(values.size() * sizeof(T), 0, 0);
    if (!values.empty()) std::memcpy(at, values.data(), values.size() * sizeof(T));
    return reinterpret_cast<T*>(at);
  }

 private:
  struct Free {
    size_t bytes = 0;
    void operator()(std::byte* block) const;
  };
  std::vector<std::unique_ptr<std::byte, Free>> blocks_;
};

// An output block: guard bytes before and behind, gaps between its elements. What may be written is declared once; check says
// whether anything else changed since the last fill.
class Guarded {
 public:
  Guarded() = default;
  Guarded(size_t bytes, size_t misalign);
  [[nodiscard]] std::byte* data() { return block_.data() + begin_; }
  [[nodiscard]] const std::byte* data() const { return block_.data() + begin_; }
  [[nodiscard]] size_t bytes() const { return bytes_; }
  void allow(size_t offset, size_t bytes);
  void fill(uint8_t value);
  // Empty, or where a byte outside of the allowed ones changed.
  [[nodiscard]] std::string damage() const;
  // Bytes that may be written, in order: equal for equal results.
  [[nodiscard]] std::vector<std::byte> written() const;

 private:
  static constexpr size_t kGuard = 256;
  std::vector<std::byte, CaseAllocator<std::byte>> block_;
  std::vector<std::pair<size_t, size_t>> allowed_;  // offset in the block, bytes; ascending after fill
  size_t begin_ = 0;
  size_t bytes_ = 0;
  uint8_t filled_ = 0;
  bool sorted_ = false;
};

}  // namespace headwater::conformance
