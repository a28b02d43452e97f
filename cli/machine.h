// The machine that times are taken on. What it can do at best: cli/bench/ceilings.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace headwater::cli {

[[nodiscard]] int32_t usable_cpus();       // this process's affinity
[[nodiscard]] std::string cpu_name();      // "AMD EPYC", or the architecture
[[nodiscard]] int64_t last_cache_bytes();  // largest cache level; 32 MiB where the system does not tell

// Others at work here: "load 7.3 on 2 CPUs", or empty when times can be trusted.
[[nodiscard]] std::string busy_machine();

// Makes the next run find its data in memory: writes a buffer of twice the last cache level.
class CacheFlusher {
 public:
  void flush();

 private:
  std::vector<uint64_t> buffer_;
};

// Seconds of several runs.
struct Timing {
  double median = 0.0;
  double low = 0.0;   // first quartile
  double high = 0.0;  // third quartile
  int64_t runs = 0;
};
[[nodiscard]] Timing summarize(std::vector<double> seconds);

}  // namespace headwater::cli
