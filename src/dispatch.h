// Choosing a backend and a kernel from a list of backends. headwater.cc passes the list of this build; tests pass their own.
#pragma once

#include <span>

#include "headwater/backend.h"
#include "src/plan/impl.h"

namespace headwater::dispatch {

// A backend that this build knows of. `entry` is null where it was left out, for the reason given.
struct Backend {
  const char* name;
  DeviceKind device;
  const BackendEntry* entry;
  const char* absent;  // "not built (nvcc not found at build time)"
};
using Backends = std::span<const Backend>;

[[nodiscard]] std::vector<BackendInfo> backends(Backends list);
[[nodiscard]] std::vector<KernelInfo> kernels(Backends list);
[[nodiscard]] Result<Plan> make_plan(Backends list, const Bounds& bounds, const PlanOptions& options);
[[nodiscard]] Result<Explanation> explain(Backends list, const Problem& problem, const PlanOptions& options);
[[nodiscard]] Status attend(Backends list, const Problem& problem, const PlanOptions& options, Stream stream);

}  // namespace headwater::dispatch
