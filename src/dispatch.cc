#include "src/dispatch.h"

#include <cstdlib>
#include <memory>
#include <new>

#include "src/core/bounds.h"
#include "src/core/check.h"
#include "src/core/resolved.h"

namespace headwater::dispatch {
namespace {

// Options with the environment filled in: an explicit option wins over it.
PlanOptions with_environment(PlanOptions options) {
  if (const char* kernel = std::getenv("HEADWATER_FORCE_KERNEL"); options.kernel.empty() && kernel != nullptr) options.kernel = kernel;
  if (const char* isa = std::getenv("HEADWATER_FORCE_ISA"); options.isa.empty() && isa != nullptr) options.isa = isa;
  return options;
}

struct Choice {
  const BackendEntry* entry = nullptr;
  std::vector<KernelVerdict> verdicts;
  std::string kernel;  // empty: all refused
};

// The device's backend, or why there is none.
Result<const BackendEntry*> usable_backend(Backends list, DeviceKind device) {
  for (const Backend& backend : list) {
    if (backend.device != device) continue;
    if (backend.entry == nullptr) return unsupported(std::string(backend.name) + ": " + backend.absent);
    const BackendInfo info = backend.entry->info();
    if (!info.usable) return unsupported(std::string(backend.name) + ": " + info.detail);
    return backend.entry;
  }
  return check::bad("device.kind", static_cast<int32_t>(device), "no such backend");
}

// A forced name must exist; then it must belong to the device's backend.
Status check_forced(Backends list, const BackendEntry& entry, const std::string& kernel) {
  std::string names;
  for (const KernelInfo& info : kernels(list)) {
    if (info.name == kernel) {
      if (info.backend == entry.name) return {};
      return unsupported("options.kernel = " + kernel + ": a kernel of the " + info.backend + " backend, but the problem is on " +
                         entry.name);
    }
    names += names.empty() ? info.name : ", " + info.name;
  }
  return invalid("options.kernel = " + kernel + ": no such kernel in this build; there are: " + names);
}

Result<Choice> choose(Backends list, const Bounds& bounds, const PlanOptions& options) {
  HEADWATER_TRY(validate_bounds(bounds, options));
  const Result<const BackendEntry*> entry = usable_backend(list, bounds.device.kind);
  if (!entry.ok()) return entry.status();
  Choice choice;
  choice.entry = *entry;
  if (!options.kernel.empty()) HEADWATER_TRY(check_forced(list, *choice.entry, options.kernel));
  choice.verdicts = choice.entry->select(bounds, options);
  for (KernelVerdict& verdict : choice.verdicts) {
    if (!options.kernel.empty() && verdict.kernel != options.kernel) {
      if (verdict.accepted) verdict.reason = "not the forced kernel";
      verdict.accepted = false;
    }
    if (verdict.accepted && choice.kernel.empty()) choice.kernel = verdict.kernel;
  }
  return choice;
}

Status refusal(const Choice& choice, const std::string& forced) {
  std::string message = "no kernel of the " + std::string(choice.entry->name) + " backend takes this problem";
  if (!forced.empty()) message += " (options.kernel = " + forced + ")";
  const char* separator = ": ";
  for (const KernelVerdict& verdict : choice.verdicts) {
    message += separator + verdict.kernel + ": " + verdict.reason;
    separator = "; ";
  }
  return unsupported(std::move(message));
}

// Memory for one call. 256-byte aligned; device backends bring their own allocator.
class OwnedBuffer {
 public:
  OwnedBuffer(const BackendEntry& entry, const Device& device) : entry_(entry), device_(device) {}
  OwnedBuffer(const OwnedBuffer&) = delete;
  OwnedBuffer& operator=(const OwnedBuffer&) = delete;
  ~OwnedBuffer() {
    if (buffer_.data == nullptr) return;
    if (entry_.release != nullptr) {
      entry_.release(device_, buffer_.data);
    } else {
      ::operator delete (buffer_.data, std::align_val_t{kAlignment}, std::nothrow);
    }
  }
  [[nodiscard]] Status allocate(const char* what, size_t bytes) {
    buffer_.bytes = bytes;
    if (bytes == 0) return {};
    if (bytes <= static_cast<size_t>(check::kMaxSpan))
      buffer_.data =
          entry_.allocate != nullptr ? entry_.allocate(device_, bytes) : ::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
    if (buffer_.data != nullptr) return {};
    return {StatusCode::kBuffer, std::string(what) + " = " + std::to_string(bytes) + ": out of memory"};
  }
  [[nodiscard]] Buffer get() const { return buffer_; }

 private:
  static constexpr size_t kAlignment = 256;
  const BackendEntry& entry_;
  Device device_;
  Buffer buffer_;
};

Result<Plan> plan_of(const Choice& choice, const Bounds& bounds, PlanOptions options) {
  if (choice.kernel.empty()) return refusal(choice, options.kernel);
  options.kernel = choice.kernel;
  return choice.entry->make_plan(bounds, options);
}

}  // namespace

std::vector<BackendInfo> backends(Backends list) {
  std::vector<BackendInfo> infos;
  for (const Backend& backend : list) {
    if (backend.entry != nullptr) {
      infos.push_back(backend.entry->info());
    } else {
      infos.push_back({backend.name, false, false, std::string(backend.name) + ": " + backend.absent});
    }
  }
  return infos;
}

std::vector<KernelInfo> kernels(Backends list) {
  std::vector<KernelInfo> infos;
  for (const Backend& backend : list) {
    if (backend.entry == nullptr) continue;
    for (KernelInfo& info : backend.entry->kernels()) infos.push_back(std::move(info));
  }
  return infos;
}

Result<Plan> make_plan(Backends list, const Bounds& bounds, const PlanOptions& options) {
  const PlanOptions full = with_environment(options);
  const Result<Choice> choice = choose(list, bounds, full);
  if (!choice.ok()) return choice.status();
  return plan_of(*choice, bounds, full);
}

Result<Explanation> explain(Backends list, const Problem& problem, const PlanOptions& options) {
  const PlanOptions full = with_environment(options);
  const Result<Bounds> bounds = Bounds::of(problem);
  if (!bounds.ok()) return bounds.status();
  const Result<Choice> choice = choose(list, *bounds, full);
  if (!choice.ok()) return choice.status();
  Explanation explanation;
  explanation.kernel = choice->kernel;
  explanation.verdicts = choice->verdicts;
  if (choice->kernel.empty()) return explanation;
  const Result<Plan> plan = plan_of(*choice, *bounds, full);
  if (!plan.ok()) return plan.status();
  OwnedBuffer schedule(*choice->entry, bounds->device);
  HEADWATER_TRY(schedule.allocate("schedule_bytes", plan->schedule_bytes()));
  HEADWATER_TRY(plan->schedule(Lengths::of(problem), schedule.get()));
  plan->impl().describe(schedule.get(), &explanation);
  return explanation;
}

Status attend(Backends list, const Problem& problem, const PlanOptions& options, Stream stream) {
  const PlanOptions full = with_environment(options);
  const Result<Bounds> bounds = Bounds::of(problem);
  if (!bounds.ok()) return bounds.status();
  if (problem.requests == 0) return {};  // nothing to plan for
  const Result<Choice> choice = choose(list, *bounds, full);
  if (!choice.ok()) return choice.status();
  const Result<Plan> plan = plan_of(*choice, *bounds, full);
  if (!plan.ok()) return plan.status();
  OwnedBuffer schedule(*choice->entry, bounds->device);
  OwnedBuffer scratch(*choice->entry, bounds->device);
  HEADWATER_TRY(schedule.allocate("schedule_bytes", plan->schedule_bytes()));
  HEADWATER_TRY(scratch.allocate("scratch_bytes", plan->scratch_bytes()));
  HEADWATER_TRY(plan->schedule(Lengths::of(problem), schedule.get(), stream));
  HEADWATER_TRY(plan->run(problem, schedule.get(), scratch.get(), stream));
  return plan->check(schedule.get(), stream);  // a device's work must be over before its buffers go
}

}  // namespace headwater::dispatch
