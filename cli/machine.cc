#include "cli/machine.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace headwater::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Runs body(thread) on all threads at once; the slowest one's seconds.
template <class Body>
double timed_together(int32_t threads, const Body& body) {
  std::atomic<int32_t> ready{0};
  std::atomic<bool> go{false};
  std::vector<double> seconds(static_cast<size_t>(threads));
  std::vector<std::thread> pool;
  for (int32_t t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      ready.fetch_add(1);
      while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
      const auto begin = Clock::now();
      body(t);
      seconds[static_cast<size_t>(t)] = seconds_since(begin);
    });
  }
  while (ready.load() < threads) std::this_thread::yield();
  go.store(true, std::memory_order_release);
  for (std::thread& thread : pool) thread.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

// Keeps a value alive without writing it anywhere.
template <class T>
void use(const T& value) {
  asm volatile("" : : "g"(&value) : "memory");
}

double read_gbs(int32_t threads) {
  const int64_t wanted = std::clamp<int64_t>(4 * last_cache_bytes(), int64_t{64} << 20, int64_t{256} << 20);
  const size_t words = static_cast<size_t>(wanted) / sizeof(uint64_t) / static_cast<size_t>(threads);
  std::vector<std::vector<uint64_t>> parts(static_cast<size_t>(threads));
  timed_together(threads, [&](int32_t t) { parts[static_cast<size_t>(t)].assign(words, 1); });  // first touch by its reader
  double best = 0.0;
  for (int repeat = 0; repeat < 4; ++repeat) {
    const double s = timed_together(threads, [&](int32_t t) {
      uint64_t sum[8] = {};  // independent chains, so that the adds never limit
      const uint64_t* const p = parts[static_cast<size_t>(t)].data();
      for (size_t i = 0; i + 8 <= words; i += 8) {
        for (size_t j = 0; j < 8; ++j) sum[j] += p[i + j];
      }
      use(sum);
    });
    best = std::max(best, static_cast<double>(words) * sizeof(uint64_t) * threads / s * 1e-9);
  }
  return best;
}

constexpr int kChains = 12;  // covers latency times throughput of every core that we know
constexpr int64_t kFmaSteps = 400'000;

// Each returns flops done by one thread.
#if defined(__x86_64__)
__attribute__((target("avx512f"))) double fma_avx512() {
  __m512 a[kChains];
  for (auto& v : a) v = _mm512_set1_ps(1.0F);
  const __m512 x = _mm512_set1_ps(0.999F);
  for (int64_t i = 0; i < kFmaSteps; ++i) {
    for (auto& v : a) v = _mm512_fmadd_ps(v, x, x);
  }
  use(a);
  return 2.0 * 16 * kChains * kFmaSteps;
}
__attribute__((target("avx2,fma"))) double fma_avx2() {
  __m256 a[kChains];
  for (auto& v : a) v = _mm256_set1_ps(1.0F);
  const __m256 x = _mm256_set1_ps(0.999F);
  for (int64_t i = 0; i < kFmaSteps; ++i) {
    for (auto& v : a) v = _mm256_fmadd_ps(v, x, x);
  }
  use(a);
  return 2.0 * 8 * kChains * kFmaSteps;
}
double fma_flops() {
  if (__builtin_cpu_supports("avx512f")) return fma_avx512();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return fma_avx2();
  return 0.0;
}
#elif defined(__aarch64__)
double fma_flops() {
  float32x4_t a[kChains];
  for (auto& v : a) v = vdupq_n_f32(1.0F);
  const float32x4_t x = vdupq_n_f32(0.999F);
  for (int64_t i = 0; i < kFmaSteps; ++i) {
    for (auto& v : a) v = vfmaq_f32(x, v, x);
  }
  use(a);
  return 2.0 * 4 * kChains * kFmaSteps;
}
#else
double fma_flops() { return 0.0; }
#endif

double fma_gflops(int32_t threads) {
  double best = 0.0;
  for (int repeat = 0; repeat < 4; ++repeat) {
    std::atomic<double> flops{0.0};
    const double s = timed_together(threads, [&](int32_t) {
      const double done = fma_flops();
      double total = flops.load();
      while (!flops.compare_exchange_weak(total, total + done)) {
      }
    });
    best = std::max(best, flops.load() / s * 1e-9);
  }
  return best;
}

}  // namespace

int32_t usable_cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(CPU_COUNT(&set), 1);
  return std::max<int32_t>(static_cast<int32_t>(std::thread::hardware_concurrency()), 1);
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("model name", 0) == 0) {
      if (const size_t at = line.find(": "); at != std::string::npos) return line.substr(at + 2);
    }
  }
#if defined(__x86_64__)
  return "x86-64";
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "unknown";
#endif
}

int64_t last_cache_bytes() {
  int64_t bytes = 0;
  for (int index = 0; index < 8; ++index) {  // what this core sees; sysconf adds up all sockets on some machines
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
    int64_t size = 0;
    char unit = ' ';
    if (!(file >> size)) break;
    file >> unit;
    bytes = std::max(bytes, size << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0));
  }
  return bytes > 0 ? bytes : int64_t{32} << 20;
}

std::string busy_machine() {
  double load = 0.0;
  const int32_t cpus = usable_cpus();
  if (getloadavg(&load, 1) != 1 || load <= cpus + 0.5) return {};
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "load %.1f on %d CPUs", load, cpus);
  return text.data();
}

Roofline measured_roofline(int32_t threads) {
  static std::map<int32_t, Roofline> measured;
  const auto it = measured.find(threads);
  if (it != measured.end()) return it->second;
  return measured[threads] = {read_gbs(threads), fma_gflops(threads)};
}

void CacheFlusher::flush() {
  if (buffer_.empty())
    buffer_.resize(static_cast<size_t>(std::min<int64_t>(2 * last_cache_bytes(), int64_t{512} << 20)) / sizeof(uint64_t));
  for (uint64_t& word : buffer_) ++word;
  use(buffer_);
}

Timing summarize(std::vector<double> seconds) {
  if (seconds.empty()) return {};
  std::sort(seconds.begin(), seconds.end());
  const size_t n = seconds.size();
  return {seconds[n / 2], seconds[n / 4], seconds[n - 1 - n / 4], static_cast<int64_t>(n)};
}

}  // namespace headwater::cli
