// What this machine can do at best, measured: the roofline that `run` and `bench` compare with.
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

struct Roofline {
  double read_gbs = 0.0;    // reading memory, all threads together
  double fma_gflops = 0.0;  // float32 multiply-adds in registers; 0: not measured on this architecture
};
// Takes about a quarter of a second and four times the last cache level (at most 256 MiB) of memory; measured once per thread count.
[[nodiscard]] Roofline measured_roofline(int32_t threads);

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
