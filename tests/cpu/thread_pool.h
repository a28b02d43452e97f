// A ParallelFor of plain std::threads, and aligned buffers.
#pragma once

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "headwater/plan.h"

namespace headwater::cpu {

inline void run_on_threads(void* context, int32_t tasks, void (*body)(void* arg, int32_t task), void* arg) {
  std::atomic<int32_t> next{0};
  const auto threads = static_cast<int32_t>(reinterpret_cast<intptr_t>(context));
  std::vector<std::thread> pool;
  for (int32_t i = 0; i < threads; ++i) {
    pool.emplace_back([&] {
      for (int32_t task = next++; task < tasks; task = next++) body(arg, task);
    });
  }
  for (std::thread& thread : pool) thread.join();
}

inline ParallelFor thread_hook(int32_t threads) { return {&run_on_threads, reinterpret_cast<void*>(static_cast<intptr_t>(threads))}; }

// 256-byte aligned, filled with NaN, with guard bytes behind.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(size_t bytes) : bytes_(bytes), size_((bytes + 511) / 256 * 256) {
    data_ = std::aligned_alloc(256, size_);
    std::memset(data_, 0xff, size_);
  }
  ~AlignedBuffer() { std::free(data_); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  [[nodiscard]] Buffer buffer() const { return {data_, bytes_}; }
  [[nodiscard]] bool guard_intact() const {
    const auto* const p = static_cast<const unsigned char*>(data_);
    for (size_t i = bytes_; i < size_; ++i) {
      if (p[i] != 0xff) return false;
    }
    return true;
  }

 private:
  size_t bytes_;
  size_t size_;
  void* data_;
};

}  // namespace headwater::cpu
