#include "cli/machine.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace headwater::cli {
namespace {

// Keeps a value alive without writing it anywhere.
template <class T>
void use(const T& value) {
  asm volatile("" : : "g"(&value) : "memory");
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
