#include "cli/bench/ceilings.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "cli/machine.h"

namespace headwater::cli {

#define HEADWATER_CEILING(isa) extern const CeilingKernel kCeilingKernel_##isa;
#include "ceilings.inc"
#undef HEADWATER_CEILING

namespace {

using Clock = std::chrono::steady_clock;

// body(thread) on all threads, begun together; seconds from the first begin to the last end. Threads that a busy machine runs one after
// another must not look as if each had the memory to itself at the same time.
template <class Body>
double together(int32_t threads, const Body& body) {
  std::atomic<int32_t> ready{0};
  std::vector<Clock::time_point> begins(static_cast<size_t>(threads));
  std::vector<Clock::time_point> ends(static_cast<size_t>(threads));
  const auto work = [&](int32_t t) {
    ready.fetch_add(1);
    while (ready.load() < threads) std::this_thread::yield();
    begins[static_cast<size_t>(t)] = Clock::now();
    body(t);
    ends[static_cast<size_t>(t)] = Clock::now();
  };
  std::vector<std::thread> others;
  for (int32_t t = 1; t < threads; ++t) others.emplace_back(work, t);
  work(0);
  for (std::thread& other : others) other.join();
  return std::chrono::duration<double>(*std::max_element(ends.begin(), ends.end()) - *std::min_element(begins.begin(), begins.end()))
      .count();
}

// Of this machine, in the order of cmake/isa_flags.cmake: the highest level last.
const std::vector<const CeilingKernel*>& usable_kernels() {
  static const std::vector<const CeilingKernel*> usable = [] {
    std::vector<const CeilingKernel*> kernels;
#define HEADWATER_CEILING(isa) \
  if (kCeilingKernel_##isa.supported()) kernels.push_back(&kCeilingKernel_##isa);
#include "ceilings.inc"
#undef HEADWATER_CEILING
    return kernels;
  }();
  return usable;
}

constexpr int64_t kSteps = 1'000'000;  // about 4 ms a core at 12 multiply-adds a step

}  // namespace

struct CeilingMeter::Memory {
  explicit Memory(size_t n) : bytes(n) {
#ifdef __linux__
    void* const p = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    madvise(p, n, MADV_HUGEPAGE);
    data = static_cast<std::byte*>(p);
#else
    data = static_cast<std::byte*>(std::aligned_alloc(4096, n));
    if (data == nullptr) throw std::bad_alloc();
#endif
  }
  ~Memory() {
#ifdef __linux__
    munmap(data, bytes);
#else
    std::free(data);
#endif
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data = nullptr;
  size_t bytes;
};

const CeilingKernel& best_kernel() { return *usable_kernels().back(); }

CeilingMeter::CeilingMeter(int32_t threads, size_t bytes) : kernels_(usable_kernels()) {
  best_.threads = threads;
  if (bytes == 0) bytes = std::max(size_t{256} << 20, static_cast<size_t>(8 * last_cache_bytes()));
  memory_ = std::make_unique<Memory>((bytes / static_cast<size_t>(threads) / 4096 + 1) * 4096 * static_cast<size_t>(threads));
  const size_t part = memory_->bytes / static_cast<size_t>(threads);
  together(threads, [&](int32_t t) {  // each page is touched first by its reader
    std::fill_n(memory_->data + static_cast<size_t>(t) * part, part, std::byte{0});
  });
}

CeilingMeter::~CeilingMeter() = default;

void CeilingMeter::sample() {
  Ceilings now;
  const int32_t threads = best_.threads;
  const size_t part = memory_->bytes / static_cast<size_t>(threads);
  std::vector<double> results(static_cast<size_t>(threads));
  for (const CeilingKernel* kernel : kernels_) {
    double seconds = together(threads, [&](int32_t t) { results[static_cast<size_t>(t)] = kernel->multiply_add(kSteps); });
    double operations = 0.0;
    for (const double r : results) operations += r;
    const double gflops = operations / seconds * 1e-9;
    if (gflops > now.fma_gflops) {
      now.fma_gflops = gflops;
      now.isa = kernel->isa;
    }
    seconds = together(
        threads, [&](int32_t t) { results[static_cast<size_t>(t)] = kernel->read(memory_->data + static_cast<size_t>(t) * part, part); });
    now.dram_gbps = std::max(now.dram_gbps, static_cast<double>(memory_->bytes) / seconds * 1e-9);
  }
  samples_.push_back(now);
  best_.dram_gbps = std::max(best_.dram_gbps, now.dram_gbps);
  if (now.fma_gflops > best_.fma_gflops) {
    best_.fma_gflops = now.fma_gflops;
    best_.isa = now.isa;
  }
}

double CeilingMeter::steadiness() const {
  double worst = 1.0;
  for (const Ceilings& s : samples_) worst = std::min({worst, s.fma_gflops / best_.fma_gflops, s.dram_gbps / best_.dram_gbps});
  return worst;
}

}  // namespace headwater::cli
