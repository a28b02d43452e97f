// The same bits: run to run, and in batch_invariant mode whatever the workers, the plan's bounds and the other requests.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/cpu/support.h"
#include "tests/cpu/thread_pool.h"

namespace headwater::cpu {
namespace {

struct Output {
  std::vector<std::byte> out;
  std::vector<float> lse;
};

// Request r of a problem.
Output request_output(const OwnedProblem& owned, const ProblemCase& c, size_t r) {
  size_t begin = 0;
  for (size_t i = 0; i < r; ++i) begin += static_cast<size_t>(c.q_lens[i]);
  const size_t rows = static_cast<size_t>(c.heads);
  const size_t row_bytes = static_cast<size_t>(c.d_v) * static_cast<size_t>(type_bits(c.out_type)) / 8;
  const auto* const out = static_cast<const std::byte*>(owned.problem.out.data);
  const float* const lse = owned.problem.lse.data;
  const size_t n = static_cast<size_t>(c.q_lens[r]) * rows;
  return {{out + begin * rows * row_bytes, out + (begin * rows + n) * row_bytes}, {lse + begin * rows, lse + begin * rows + n}};
}

void expect_same(const Output& a, const Output& b, const std::string& what) {
  EXPECT_EQ(a.out, b.out) << what;
  ASSERT_EQ(a.lse.size(), b.lse.size());
  EXPECT_EQ(std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float)), 0) << what;
}

ProblemCase mixed(int32_t heads) {
  ProblemCase c;
  c.heads = heads;
  c.d_qk = 128;
  c.d_v = 96;
  c.out_type = Type::kF32;
  c.sinks = true;
  c.q_lens = {1, 1, 6, 33};
  SourceCase s;
  s.lens = {3000, 10, 257, 600};
  s.addressing = AddressingKind::kRagged;
  c.sources = {s};
  return c;
}

class CpuInvariance : public testing::TestWithParam<std::string> {};

TEST_P(CpuInvariance, RunToRun) {
  for (const int32_t heads : {4, 16}) {
    const ProblemCase c = mixed(heads);
    OwnedProblem owned(c);
    PlanOptions options;
    options.isa = GetParam();
    options.workers = 3;
    options.parallel_for = thread_hook(3);
    ASSERT_TRUE(attend(owned.problem, options).ok());
    const std::vector<std::byte> first = owned.output_bytes();
    for (int i = 0; i < 5; ++i) {
      owned.poison_outputs();
      ASSERT_TRUE(attend(owned.problem, options).ok());
      EXPECT_EQ(owned.output_bytes(), first);
    }
  }
}

TEST_P(CpuInvariance, WorkersAndBounds) {
  for (const int32_t heads : {4, 16}) {
    const ProblemCase c = mixed(heads);
    OwnedProblem owned(c);
    PlanOptions options;
    options.isa = GetParam();
    options.batch_invariant = true;
    options.workers = 1;
    ASSERT_TRUE(attend(owned.problem, options).ok());
    EXPECT_EQ(compare_with_oracle(owned), "");
    const std::vector<std::byte> first = owned.output_bytes();
    for (const int32_t workers : {2, 3, 8}) {
      options.workers = workers;
      Bounds bounds = Bounds::of(owned.problem).value();
      bounds.max_requests += 5;
      bounds.max_total_q += 100;
      bounds.max_q_len += 64;
      bounds.sources[0].max_len *= 4;
      bounds.sources[0].max_total_len = 0;
      const Result<Plan> plan = make_plan(bounds, options);
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      const AlignedBuffer schedule(plan->schedule_bytes());
      const AlignedBuffer scratch(plan->scratch_bytes());
      ASSERT_TRUE(plan->schedule(Lengths::of(owned.problem), schedule.buffer()).ok());
      owned.poison_outputs();
      const Status status = plan->run(owned.problem, schedule.buffer(), scratch.buffer());
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(owned.output_bytes(), first) << workers << " workers";
      EXPECT_TRUE(schedule.guard_intact() && scratch.guard_intact());
    }
  }
}

TEST_P(CpuInvariance, AloneOrInCompany) {
  for (const int32_t heads : {4, 16}) {
    const ProblemCase c = mixed(heads);
    OwnedProblem all(c);
    PlanOptions options;
    options.isa = GetParam();
    options.batch_invariant = true;
    options.workers = 2;
    ASSERT_TRUE(attend(all.problem, options).ok());
    int32_t q_begin = 0;
    int32_t kv_begin = 0;
    for (size_t r = 0; r < c.q_lens.size(); ++r) {
      // The same tensors, one request of them.
      Problem one = all.problem;
      const int32_t qo_indptr[] = {q_begin, q_begin + c.q_lens[r]};
      const int32_t kv_indptr[] = {kv_begin, kv_begin + c.sources[0].lens[r]};
      q_begin = qo_indptr[1];
      kv_begin = kv_indptr[1];
      Source source = all.sources[0];
      source.addressing.kv_indptr = kv_indptr;
      const int32_t from_zero[] = {0, c.q_lens[r]};
      one.q.data = static_cast<const std::byte*>(one.q.data) + int64_t{qo_indptr[0]} * heads * c.d_qk * 2;
      one.q.total = c.q_lens[r];
      one.qo_indptr = from_zero;
      one.requests = 1;
      one.sources = {&source, 1};
      const size_t rows = static_cast<size_t>(c.q_lens[r] * heads);
      Output alone{std::vector<std::byte>(rows * static_cast<size_t>(c.d_v) * 4), std::vector<float>(rows)};
      one.out.data = alone.out.data();
      one.lse.data = alone.lse.data();
      const Status status = attend(one, options);
      ASSERT_TRUE(status.ok()) << status.message();
      expect_same(alone, request_output(all, c, r), "request " + std::to_string(r));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, CpuInvariance, testing::ValuesIn(usable_isas()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace headwater::cpu
