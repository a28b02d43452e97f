// Choice of kernels, buffers, and what run refuses by name with its outputs untouched.
#include "src/cpu/backend.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "src/cpu/select.h"
#include "tests/cpu/support.h"
#include "tests/cpu/thread_pool.h"

namespace headwater::cpu {
namespace {

ProblemCase small() {
  ProblemCase c;
  c.q_lens = {1, 2};
  SourceCase s;
  s.lens = {40, 77};
  s.rule = RuleKind::kWindow;
  s.window_left = 9;
  c.sources = {s};
  return c;
}

TEST(CpuSelect, ScalarIsLastAndAlwaysUsable) {
  ASSERT_GE(kernels().size(), 2U);
  EXPECT_STREQ(kernels().back()->isa, "scalar");
  EXPECT_TRUE(kernels().back()->supported());
}

TEST(CpuSelect, ForcedByOptionAndEnvironment) {
  const Bounds bounds = Bounds::of(OwnedProblem(small()).problem).value();
  PlanOptions options;
  options.isa = "scalar";
  EXPECT_EQ(make_plan(bounds, options)->kernel(), "panel_cpu_scalar");
  options = {};
  options.kernel = "panel_cpu_scalar";
  EXPECT_EQ(make_plan(bounds, options)->kernel(), "panel_cpu_scalar");
  setenv("HEADWATER_FORCE_ISA", "scalar", 1);
  EXPECT_EQ(make_plan(bounds, {})->kernel(), "panel_cpu_scalar");
  unsetenv("HEADWATER_FORCE_ISA");
  setenv("HEADWATER_FORCE_KERNEL", "panel_cpu_scalar", 1);
  EXPECT_EQ(make_plan(bounds, {})->kernel(), "panel_cpu_scalar");
  unsetenv("HEADWATER_FORCE_KERNEL");
  EXPECT_EQ(make_plan(bounds, {})->kernel(), std::string("panel_cpu_") + usable_isas().front());
}

TEST(CpuSelect, RefusalsNameEveryReason) {
  const Bounds bounds = Bounds::of(OwnedProblem(small()).problem).value();
  PlanOptions options;
  options.isa = "altivec";
  const Result<const Kernel*> choice = choose(bounds, options);
  ASSERT_FALSE(choice.ok());
  EXPECT_EQ(choice.status().code(), StatusCode::kUnsupported);
  for (const Kernel* kernel : kernels()) EXPECT_NE(choice.status().message().find(kernel->name), std::string::npos);
  EXPECT_NE(choice.status().message().find("\"altivec\" is forced"), std::string::npos);
}

class CpuRun : public testing::Test {
 protected:
  CpuRun()
      : owned(small()),
        plan(make_plan(Bounds::of(owned.problem).value(), {}).value()),
        schedule(plan.schedule_bytes()),
        scratch(plan.scratch_bytes()) {
    EXPECT_TRUE(plan.schedule(Lengths::of(owned.problem), schedule.buffer()).ok());
  }

  void expect_refused(StatusCode code, const std::string& message, Buffer schedule_buf, Buffer scratch_buf) {
    owned.poison_outputs();
    const std::vector<std::byte> before = owned.output_bytes();
    const Status status = plan.run(owned.problem, schedule_buf, scratch_buf);
    EXPECT_EQ(status.code(), code);
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
    EXPECT_EQ(owned.output_bytes(), before) << "outputs were touched";
  }
  void expect_refused(StatusCode code, const std::string& message) { expect_refused(code, message, schedule.buffer(), scratch.buffer()); }

  OwnedProblem owned;
  Plan plan;
  AlignedBuffer schedule;
  AlignedBuffer scratch;
};

TEST_F(CpuRun, RunsAgainAndAgainInExactBuffers) {
  for (int i = 0; i < 3; ++i) {
    owned.poison_outputs();
    const Status status = plan.run(owned.problem, schedule.buffer(), scratch.buffer());
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(compare_with_oracle(owned), "");
    EXPECT_TRUE(schedule.guard_intact() && scratch.guard_intact());
  }
  EXPECT_TRUE(plan.check(schedule.buffer()).ok());
}

TEST_F(CpuRun, Buffers) {
  const Buffer a = schedule.buffer();
  const Buffer b = scratch.buffer();
  expect_refused(StatusCode::kBuffer, "schedule_buf = null", {}, b);
  expect_refused(StatusCode::kBuffer, "scratch_buf = null", a, {});
  expect_refused(StatusCode::kBuffer, "schedule_buf.bytes", {a.data, a.bytes - 1}, b);
  expect_refused(StatusCode::kBuffer, "scratch_buf.bytes", a, {b.data, b.bytes - 1});
  expect_refused(StatusCode::kBuffer, "256", {static_cast<std::byte*>(a.data) + 8, a.bytes}, b);
  expect_refused(StatusCode::kBuffer, "256", a, {static_cast<std::byte*>(b.data) + 128, b.bytes});
  const AlignedBuffer empty(plan.schedule_bytes());
  expect_refused(StatusCode::kBuffer, "holds no schedule", empty.buffer(), b);
  EXPECT_EQ(plan.check(empty.buffer()).code(), StatusCode::kBuffer);
}

TEST_F(CpuRun, RulesAndShapes) {
  owned.sources[0].rule.window_left = 4;
  expect_refused(StatusCode::kInvalid, "kv[0].window_left = 4: planned for 9");
  owned.sources[0].rule = Rule::causal();
  expect_refused(StatusCode::kInvalid, "kv[0].rule = causal: planned for window");
  owned.sources[0].rule = Rule::window(9);
  owned.problem.logits_soft_cap = 3.0F;
  expect_refused(StatusCode::kInvalid, "logits_soft_cap = 3: planned without one");
  owned.problem.logits_soft_cap = 0.0F;
  owned.sources[0].k.format = Format::kF16;
  expect_refused(StatusCode::kInvalid, "kv[0].k.format = f16: planned for bf16");
  owned.sources[0].k.format = Format::kBf16;
  owned.problem.out.type = Type::kF16;
  expect_refused(StatusCode::kInvalid, "out.type = f16: planned for bf16");
  owned.problem.out.type = Type::kBf16;
  const std::vector<Source> twice = {owned.sources[0], owned.sources[0]};
  const int32_t context[] = {40, 77};
  owned.problem.sources = twice;
  owned.problem.context_lens = context;
  expect_refused(StatusCode::kInvalid, "sources = 2: planned for 1");
}

TEST_F(CpuRun, OtherLengthsThanScheduled) {
  const int32_t shorter[] = {40, 76};
  owned.sources[0].addressing.seq_lens = shorter;
  expect_refused(StatusCode::kInvalid, "76");
}

}  // namespace
}  // namespace headwater::cpu
