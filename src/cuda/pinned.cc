#include "src/cuda/pinned.h"

#include <cuda_runtime_api.h>

#include <bit>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace headwater::cuda {
namespace {

constexpr size_t kSlabBytes = size_t{64} << 20;
constexpr size_t kSmallest = 256;

// Blocks of powers of two, cut from slabs that live as long as the process: a page-locked allocation costs as much as a case.
class Pool {
 public:
  void* take(size_t bytes) {
    const size_t size = std::bit_ceil(bytes < kSmallest ? kSmallest : bytes);
    const std::lock_guard lock(mutex_);
    std::vector<void*>& free = free_[size];
    if (free.empty()) {
      if (size > left_ && !grow(size)) return nullptr;
      if (size > kSlabBytes) return std::exchange(large_, nullptr);
      void* const at = next_;
      next_ += size;
      left_ -= size;
      return at;
    }
    void* const at = free.back();
    free.pop_back();
    return at;
  }

  void give(void* data, size_t bytes) {
    const size_t size = std::bit_ceil(bytes < kSmallest ? kSmallest : bytes);
    const std::lock_guard lock(mutex_);
    free_[size].push_back(data);
  }

 private:
  bool grow(size_t size) {
    void* slab = nullptr;
    const bool is_large = size > kSlabBytes;
    if (cudaHostAlloc(&slab, is_large ? size : kSlabBytes, cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess) return false;
    if (is_large) {
      large_ = slab;
      return true;
    }
    next_ = static_cast<char*>(slab);
    left_ = kSlabBytes;
    return true;
  }

  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;
  char* next_ = nullptr;
  size_t left_ = 0;
  void* large_ = nullptr;
};

Pool& pool() {
  static Pool* const instance = new Pool;  // outlives every static user
  return *instance;
}

}  // namespace

void* allocate_pinned(size_t bytes) { return pool().take(bytes); }
void release_pinned(void* data, size_t bytes) { pool().give(data, bytes); }

}  // namespace headwater::cuda
