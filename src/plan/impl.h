// What a backend implements behind the public Plan.
#pragma once

#include "headwater/backend.h"
#include "headwater/plan.h"

namespace headwater {

class PlanImpl {
 public:
  PlanImpl() = default;
  PlanImpl(const PlanImpl&) = delete;
  PlanImpl& operator=(const PlanImpl&) = delete;
  virtual ~PlanImpl() = default;

  [[nodiscard]] virtual const Bounds& bounds() const = 0;
  [[nodiscard]] virtual std::string kernel() const = 0;
  [[nodiscard]] virtual size_t schedule_bytes() const = 0;
  [[nodiscard]] virtual size_t scratch_bytes() const = 0;
  [[nodiscard]] virtual Status schedule(const Lengths& lengths, Buffer schedule_buf, Stream stream) const = 0;
  [[nodiscard]] virtual Status run(const Problem& problem, Buffer schedule_buf, Buffer scratch_buf, Stream stream) const = 0;
  [[nodiscard]] virtual Status check(Buffer schedule_buf, Stream stream) const = 0;
  // Plan lines, and for a host schedule its items, splits and loads.
  virtual void describe(Buffer schedule_buf, Explanation* explanation) const = 0;
};

// The entry points of a backend, gathered by headwater.cc.
struct BackendEntry {
  const char* name;  // "cpu", "cuda"
  BackendInfo (*info)();
  std::vector<KernelInfo> (*kernels)();
  std::vector<KernelVerdict> (*select)(const Bounds& bounds, const PlanOptions& options);  // list order; first accepted runs
  Result<Plan> (*make_plan)(const Bounds& bounds, const PlanOptions& options);
  // Buffers of the one-call attend and of explain, on the device: null where out of memory. Both null: host memory.
  void* (*allocate)(const Device& device, size_t bytes) = nullptr;
  void (*release)(const Device& device, void* data) = nullptr;
};

}  // namespace headwater
