// Misuse that the compiler must catch, each line beside its correct twin. check.cmake compiles this file once and wants an error with
// the words of the remark on every marked line, and none anywhere else.
#include <memory>
#include <utility>

#include "headwater/headwater.h"

namespace headwater {

void ignored(const Problem& problem, const Bounds& bounds, const Plan& plan, Buffer buffer, const State& state) {
  attend(problem);                               // ERROR: ignoring return
  make_plan(bounds);                             // ERROR: ignoring return
  plan.check(buffer);                            // ERROR: ignoring return
  plan.run(problem, buffer, buffer);             // ERROR: ignoring return
  merge_states({}, state, state, state);         // ERROR: ignoring return
  append(problem.sources[0], {}, nullptr);       // ERROR: ignoring return
  static_cast<void>(attend(problem).ok());       // asked for
  static_cast<void>(plan.check(buffer).code());  // asked for
}

bool status_as_bool(const Status& status, bool ask) {
  if (ask) return status.ok();
  return status;  // ERROR: (cannot convert|no viable conversion)
}

Plan result_as_value(const Bounds& bounds, bool ask) {
  if (ask) return make_plan(bounds).value();
  return make_plan(bounds);  // ERROR: (could not convert|no viable conversion)
}

Plan plan_from_pointer(std::shared_ptr<const PlanImpl> impl, bool ask) {
  if (ask) return Plan(std::move(impl));
  return impl;  // ERROR: (could not convert|no viable conversion)
}

Format names(int choice) {
  if (choice == 0) return Format::kBf16;
  if (choice == 1) return 2;  // ERROR: (cannot convert|cannot initialize)
  return Type::kBf16;         // ERROR: (cannot convert|cannot initialize)
}

void pointers(const int64_t* wide, const int32_t* narrow, const double* doubles, const float* floats, const void* read, void* written) {
  Addressing addressing;
  addressing.seq_lens = narrow;
  addressing.seq_lens = wide;     // ERROR: (cannot convert|incompatible pointer types)
  addressing.block_table = wide;  // ERROR: (cannot convert|incompatible pointer types)
  Problem problem;
  problem.sinks = floats;
  problem.sinks = doubles;  // ERROR: (cannot convert|incompatible pointer types)
  problem.out.data = written;
  problem.out.data = read;  // ERROR: (invalid conversion|incompatible pointer types|discards qualifiers|assigning to)
  problem.lse.data = nullptr;
}

void gathered(const int64_t* wide, const int32_t* narrow) {
  static_cast<void>(Rule::gathered(narrow, 8, nullptr, IndexSpace::kPosition));
  static_cast<void>(Rule::gathered(wide, 8));                // ERROR: (cannot convert|cannot initialize|no matching function)
  static_cast<void>(Rule::gathered(narrow, 8, nullptr, 1));  // ERROR: (cannot convert|cannot initialize|no matching function)
}

void plans(const Plan& plan, const Problem& problem, Buffer buffer) {
  static_cast<void>(plan.bounds().heads);
  plan.bounds().heads = 8;                       // ERROR: (assignment of member|cannot assign)
  static_cast<void>(plan.run(problem, buffer));  // ERROR: (no matching function|too few arguments)
}

}  // namespace headwater
