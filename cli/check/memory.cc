#include "cli/check/memory.h"

#include <algorithm>
#include <new>

#ifdef HEADWATER_HAS_CUDA
#include "src/cuda/pinned.h"
#endif

namespace headwater::conformance {
namespace {

constexpr size_t kAlign = 256;
constexpr size_t kArenaAlign = 64;
#ifdef HEADWATER_HAS_CUDA
bool cases_are_pinned = false;
#endif

size_t round_up_to_alignment(const std::byte* at) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  return static_cast<size_t>((address + kAlign - 1) / kAlign * kAlign - address);
}

}  // namespace

bool place_cases(DeviceKind device) {
#ifdef HEADWATER_HAS_CUDA
  cases_are_pinned = device == DeviceKind::kCuda;
  return true;
#else
  return device == DeviceKind::kCpu;
#endif
}

void* allocate_case_memory(size_t bytes, size_t alignment) {
#ifdef HEADWATER_HAS_CUDA
  if (cases_are_pinned) {
    void* const block = cuda::allocate_pinned(bytes);
    if (block == nullptr) throw std::bad_alloc();
    return block;
  }
#endif
  return ::operator new[](bytes, std::align_val_t{alignment});
}

void release_case_memory(void* block, size_t bytes, size_t alignment) {
#ifdef HEADWATER_HAS_CUDA
  if (cases_are_pinned) return cuda::release_pinned(block, bytes);
#endif
  (void)bytes;
  ::operator delete[](block, std::align_val_t{alignment});
}

void Arena::Free::operator()(std::byte* block) const { release_case_memory(block, bytes, kArenaAlign); }

std::byte* Arena::take(size_t bytes, size_t misalign, int fill) {
  const size_t whole = bytes + misalign;
  auto* block = static_cast<std::byte*>(allocate_case_memory(whole, kArenaAlign));
  blocks_.emplace_back(block, Free{whole});
  std::memset(block, fill, whole);
  return block + misalign;
}

Guarded::Guarded(size_t bytes, size_t misalign) : block_(kGuard + kAlign + misalign + bytes + kGuard), bytes_(bytes) {
  begin_ = kGuard + round_up_to_alignment(block_.data() + kGuard) + misalign;
}

void Guarded::allow(size_t offset, size_t bytes) {
  allowed_.emplace_back(begin_ + offset, bytes);
  sorted_ = false;
}

void Guarded::fill(uint8_t value) {
  if (!sorted_) std::sort(allowed_.begin(), allowed_.end());
  sorted_ = true;
  filled_ = value;
  std::fill(block_.begin(), block_.end(), std::byte{value});
}

std::string Guarded::damage() const {
  const auto changed = [this](size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) {
      if (block_[i] != std::byte{filled_}) {
        return "byte " + std::to_string(static_cast<int64_t>(i) - static_cast<int64_t>(begin_)) + " (of " + std::to_string(bytes_) +
               ") was written";
      }
    }
    return std::string();
  };
  size_t at = 0;
  for (const auto& [offset, bytes] : allowed_) {
    if (std::string where = changed(at, offset); !where.empty()) return where;
    at = std::max(at, offset + bytes);
  }
  return changed(at, block_.size());
}

std::vector<std::byte> Guarded::written() const {
  std::vector<std::byte> result;
  for (const auto& [offset, bytes] : allowed_) {
    result.insert(result.end(), block_.begin() + static_cast<std::ptrdiff_t>(offset),
                  block_.begin() + static_cast<std::ptrdiff_t>(offset + bytes));
  }
  return result;
}

}  // namespace headwater::conformance
