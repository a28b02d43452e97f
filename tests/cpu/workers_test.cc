// The parallel loop, with the default pool and with one of std::threads (which ThreadSanitizer sees).
#include "src/cpu/workers.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/cpu/support.h"
#include "tests/cpu/thread_pool.h"
#include "tests/support/hostile_float_env.h"

namespace headwater::cpu {
namespace {

struct Counts {
  std::vector<std::atomic<int>> tasks;
  std::atomic<int> hostile{0};
  explicit Counts(size_t n) : tasks(n) {}
};

void count_task(void* arg, int32_t task) {
  auto& counts = *static_cast<Counts*>(arg);
  ++counts.tasks[static_cast<size_t>(task)];
  if ((HostileFloatEnv::read() & HostileFloatEnv::kHostile) != 0) ++counts.hostile;
}

TEST(CpuWorkers, EveryTaskOnceUnderACleanFloatEnv) {
  for (const bool threads : {false, true}) {
    for (const int32_t tasks : {0, 1, 2, 3, 17}) {
      Counts counts(17);
      const HostileFloatEnv hostile(true);
      const HostileFloatEnv::Word before = HostileFloatEnv::read();
      parallel_for(threads ? thread_hook(3) : ParallelFor{}, tasks, &count_task, &counts);
      EXPECT_EQ(HostileFloatEnv::read(), before) << "the caller's environment comes back";
      for (int32_t i = 0; i < 17; ++i) EXPECT_EQ(counts.tasks[static_cast<size_t>(i)], i < tasks ? 1 : 0);
      EXPECT_EQ(counts.hostile, 0);
    }
  }
}

TEST(CpuWorkers, AffinityMaskIsRespected) {
  cpu_set_t old;
  ASSERT_EQ(sched_getaffinity(0, sizeof(old), &old), 0);
  EXPECT_EQ(available_workers(), CPU_COUNT(&old));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &old)) {
      CPU_SET(i, &one);
      break;
    }
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(available_workers(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(old), &old), 0);
}

// The whole backend on std::threads: several workers, row blocks that are cut and merged.
TEST(CpuWorkers, AttentionOnThreads) {
  ProblemCase c;
  c.heads = 16;
  c.d_qk = 128;
  c.d_v = 128;
  c.q_lens = {1, 3, 1};
  SourceCase s;
  s.lens = {700, 90, 1500};
  s.shared = true;
  c.sources = {s};
  for (const int32_t workers : {1, 2, 5}) {
    OwnedProblem owned(c);
    PlanOptions options;
    options.workers = workers;
    options.parallel_for = thread_hook(workers);
    const Status status = attend(owned.problem, options);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(compare_with_oracle(owned), "") << workers << " workers";
  }
}

// One plan and one schedule, used by several threads at once with scratch of their own.
TEST(CpuWorkers, OnePlanManyThreads) {
  ProblemCase c;
  c.heads = 4;
  SourceCase s;
  s.lens = {333};
  c.sources = {s};
  OwnedProblem first(c);
  PlanOptions options;
  options.workers = 2;
  options.parallel_for = thread_hook(2);
  const Result<Plan> plan = make_plan(Bounds::of(first.problem).value(), options);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  AlignedBuffer schedule(plan->schedule_bytes());
  ASSERT_TRUE(plan->schedule(Lengths::of(first.problem), schedule.buffer()).ok());
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      OwnedProblem mine(c);
      AlignedBuffer scratch(plan->scratch_bytes());
      for (int n = 0; n < 3; ++n) {
        mine.poison_outputs();
        if (!plan->run(mine.problem, schedule.buffer(), scratch.buffer()).ok() || !compare_with_oracle(mine).empty()) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace headwater::cpu
