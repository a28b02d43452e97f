// What the machine can do at best, measured in the same run as what is judged by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace headwater::cli {

// One instruction set's loops, compiled with that set's flags (ceilings_<isa>.cc).
struct CeilingKernel {
  const char* isa;
  bool (*supported)();
  double (*multiply_add)(int64_t steps);                // float32 multiply-adds in registers; returns the operations done
  double (*read)(const std::byte* data, size_t bytes);  // loads every byte (a multiple of 1024); returns a sum, so that none is left out
  // row[i] = 2^(scale * (row[i] - largest)); returns their sum. The softmax of the plain baseline (plain.h).
  float (*exponentials)(float* row, int64_t count, float scale);
};
// Of the highest level that this machine runs.
[[nodiscard]] const CeilingKernel& best_kernel();

struct Ceilings {
  int32_t threads = 0;
  double fma_gflops = 0.0;
  double dram_gbps = 0.0;
  const char* isa = "";
};
inline constexpr double kValidShare = 0.95;  // a run whose ceilings are below this share of the best known is not judged

// Holds `bytes` of memory (0: 256 MiB, at least eight times the last cache level), in huge pages where the system gives them.
class CeilingMeter {
 public:
  explicit CeilingMeter(int32_t threads, size_t bytes = 0);
  ~CeilingMeter();
  CeilingMeter(const CeilingMeter&) = delete;
  CeilingMeter& operator=(const CeilingMeter&) = delete;

  // About 40 ms. Machines drift: sample between the rows and keep the best.
  void sample();
  [[nodiscard]] Ceilings best() const { return best_; }
  // Worst sample over best, of the two ceilings: how much the machine drifted.
  [[nodiscard]] double steadiness() const;

 private:
  struct Memory;
  Ceilings best_;
  std::vector<Ceilings> samples_;
  std::vector<const CeilingKernel*> kernels_;  // that this machine runs
  std::unique_ptr<Memory> memory_;
};

}  // namespace headwater::cli
