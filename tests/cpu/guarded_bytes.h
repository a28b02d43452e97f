// Memory that ends at a page without access: one byte read past the end stops the test.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace headwater::cpu {

class GuardedBytes {
 public:
  explicit GuardedBytes(size_t size, int fill = 0xff) : size_(size) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (size + page - 1) / page * page + page;
    void* const base = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED || mprotect(static_cast<std::byte*>(base) + mapped_ - page, page, PROT_NONE) != 0) {
      std::perror("GuardedBytes");
      std::abort();
    }
    base_ = static_cast<std::byte*>(base);
    data_ = base_ + mapped_ - page - size;
    std::memset(data_, fill, size);
  }
  ~GuardedBytes() {
    if (base_ != nullptr) munmap(base_, mapped_);
  }
  GuardedBytes(GuardedBytes&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), data_(other.data_), mapped_(other.mapped_), size_(other.size_) {}
  GuardedBytes& operator=(GuardedBytes&&) = delete;
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t size() const { return size_; }

 private:
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
  size_t mapped_ = 0;
  size_t size_ = 0;
};

}  // namespace headwater::cpu
