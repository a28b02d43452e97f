#include "src/cpu/workers.h"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <thread>

#ifndef HEADWATER_HAS_OPENMP
#include <atomic>
#include <vector>
#endif

#include "src/core/float_env.h"

namespace headwater::cpu {
namespace {

struct Call {
  void (*body)(void* arg, int32_t task);
  void* arg;
};

// Not inlined into the loops below: see ScopedFloatEnv's hazard.
[[gnu::noinline]] void run_task(void* call_arg, int32_t task) {
  const Call& call = *static_cast<const Call*>(call_arg);
  const ScopedFloatEnv float_env;
  call.body(call.arg, task);
}

#ifdef HEADWATER_HAS_OPENMP
void run_default(int32_t tasks, int32_t threads, Call* call) {
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (int32_t task = 0; task < tasks; ++task) run_task(call, task);
}
#else
void run_default(int32_t tasks, int32_t threads, Call* call) {
  std::atomic<int32_t> next{0};
  auto loop = [&] {
    for (int32_t task = next.fetch_add(1); task < tasks; task = next.fetch_add(1)) run_task(call, task);
  };
  std::vector<std::thread> others;
  others.reserve(static_cast<size_t>(threads) - 1);
  for (int32_t i = 1; i < threads; ++i) others.emplace_back(loop);
  loop();
  for (std::thread& other : others) other.join();
}
#endif

}  // namespace

int32_t available_workers() {
#ifdef __linux__
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()));
}

void parallel_for(const ParallelFor& hook, int32_t tasks, void (*body)(void* arg, int32_t task), void* arg) {
  Call call{body, arg};
  if (hook.run != nullptr) {
    if (tasks > 0) hook.run(hook.context, tasks, &run_task, &call);
    return;
  }
  const int32_t threads = tasks > 1 ? std::min(tasks, available_workers()) : 1;
  if (threads > 1) {
    run_default(tasks, threads, &call);
    return;
  }
  for (int32_t task = 0; task < tasks; ++task) run_task(&call, task);
}

}  // namespace headwater::cpu
