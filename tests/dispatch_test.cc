// Choosing kernels and the one-call attend, with backends made up here.
#include "src/dispatch.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "headwater/headwater.h"

namespace headwater {
namespace {

// What the fake backend saw and what it should do.
struct Fake {
  std::vector<std::string> calls;
  std::vector<KernelVerdict> verdicts{{"first", false, "no such head size"}, {"second", true, ""}, {"third", true, ""}};
  bool usable = true;
  size_t schedule_bytes = 100;
  PlanOptions options;
  Status run = {};
};
Fake* fake = nullptr;

class FakePlan : public PlanImpl {
 public:
  FakePlan(Bounds bounds, std::string kernel) : bounds_(std::move(bounds)), kernel_(std::move(kernel)) {}
  [[nodiscard]] const Bounds& bounds() const override { return bounds_; }
  [[nodiscard]] std::string kernel() const override { return kernel_; }
  [[nodiscard]] size_t schedule_bytes() const override { return fake->schedule_bytes; }
  [[nodiscard]] size_t scratch_bytes() const override { return 0; }
  [[nodiscard]] Status schedule(const Lengths& lengths, Buffer buffer, Stream /*stream*/) const override {
    fake->calls.push_back("schedule");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data) % 256, 0U);
    EXPECT_EQ(buffer.bytes, fake->schedule_bytes);
    EXPECT_EQ(lengths.requests, 1);
    return {};
  }
  [[nodiscard]] Status run(const Problem& /*problem*/, Buffer /*schedule*/, Buffer scratch, Stream /*stream*/) const override {
    fake->calls.push_back("run");
    EXPECT_EQ(scratch.bytes, 0U);
    return fake->run;
  }
  [[nodiscard]] Status check(Buffer /*schedule*/, Stream /*stream*/) const override {
    fake->calls.push_back("check");
    return {};
  }
  void describe(Buffer /*schedule*/, Explanation* explanation) const override { explanation->items = 42; }

 private:
  Bounds bounds_;
  std::string kernel_;
};

const BackendEntry kFakeEntry{"cpu",
                              [] {
                                return BackendInfo{"cpu", true, fake->usable, fake->usable ? "2 threads" : "no usable instruction set"};
                              },
                              [] {
                                std::vector<KernelInfo> infos;
                                for (const char* name : {"first", "second", "third"}) infos.push_back({name, "cpu", "", "", true});
                                return infos;
                              },
                              [](const Bounds& /*bounds*/, const PlanOptions& /*options*/) { return fake->verdicts; },
                              [](const Bounds& bounds, const PlanOptions& options) -> Result<Plan> {
                                fake->options = options;
                                return Plan(std::make_shared<FakePlan>(bounds, options.kernel));
                              }};
const BackendEntry kOtherEntry{"cuda",
                               [] {
                                 return BackendInfo{"cuda", true, true, ""};
                               },
                               [] {
                                 return std::vector<KernelInfo>{{"gpu_kernel", "cuda", "", "", true}};
                               },
                               nullptr, nullptr};
const dispatch::Backend kBackends[] = {{"cpu", DeviceKind::kCpu, &kFakeEntry, ""}, {"cuda", DeviceKind::kCuda, &kOtherEntry, ""}};

class Dispatch : public ::testing::Test {
 protected:
  Dispatch() {
    fake = &fake_;
    problem_.q = {q_, Type::kF32, 1, 2, 4};
    problem_.requests = 1;
    problem_.qo_indptr = indptr_;
    kv_.data = cache_;
    kv_.format = Format::kF32;
    kv_.width = 4;
    source_ = Source::separate_kv(kv_, kv_, 1, {.num_pages = 1, .kv_indptr = indptr_}, Rule::causal());
    problem_.sources = std::span<const Source>(&source_, 1);
    problem_.out = {out_, Type::kF32};
  }
  ~Dispatch() override {
    unsetenv("HEADWATER_FORCE_KERNEL");
    unsetenv("HEADWATER_FORCE_ISA");
  }

  Fake fake_;
  float q_[8] = {};
  float cache_[4] = {};
  float out_[8] = {};
  int32_t indptr_[2] = {0, 1};
  KvTensor kv_;
  Source source_;
  Problem problem_;
};

TEST_F(Dispatch, TheFirstKernelThatAcceptsRuns) {
  const Result<Plan> plan = dispatch::make_plan(kBackends, *Bounds::of(problem_), {});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->kernel(), "second");
  EXPECT_EQ(plan->bounds().heads, 2);
}

TEST_F(Dispatch, AKernelIsForcedByOptionOrEnvironment) {
  PlanOptions options;
  options.kernel = "third";
  EXPECT_EQ(dispatch::make_plan(kBackends, *Bounds::of(problem_), options)->kernel(), "third");
  setenv("HEADWATER_FORCE_KERNEL", "third", 1);
  setenv("HEADWATER_FORCE_ISA", "scalar", 1);
  EXPECT_EQ(dispatch::make_plan(kBackends, *Bounds::of(problem_), {})->kernel(), "third");
  EXPECT_EQ(fake_.options.isa, "scalar");
  options.kernel = "second";  // the option wins
  options.isa = "avx2";
  EXPECT_EQ(dispatch::make_plan(kBackends, *Bounds::of(problem_), options)->kernel(), "second");
  EXPECT_EQ(fake_.options.isa, "avx2");
}

TEST_F(Dispatch, ForcedKernelsThatCannotRunSayWhy) {
  PlanOptions options;
  options.kernel = "first";
  Status status = dispatch::make_plan(kBackends, *Bounds::of(problem_), options).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(),
            "no kernel of the cpu backend takes this problem (options.kernel = first): first: no such head size; second: not the forced "
            "kernel; third: not the forced kernel");
  options.kernel = "nonesuch";
  status = dispatch::make_plan(kBackends, *Bounds::of(problem_), options).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_EQ(status.message(), "options.kernel = nonesuch: no such kernel in this build; there are: first, second, third, gpu_kernel");
  options.kernel = "gpu_kernel";
  status = dispatch::make_plan(kBackends, *Bounds::of(problem_), options).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), "options.kernel = gpu_kernel: a kernel of the cuda backend, but the problem is on cpu");
}

TEST_F(Dispatch, WhenAllRefuseEveryReasonIsTold) {
  fake_.verdicts = {{"first", false, "reason one"}, {"second", false, "reason two"}};
  const Status status = dispatch::attend(kBackends, problem_, {}, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), "no kernel of the cpu backend takes this problem: first: reason one; second: reason two");
  const Result<Explanation> explanation = dispatch::explain(kBackends, problem_, {});
  ASSERT_TRUE(explanation.ok());
  EXPECT_EQ(explanation->kernel, "");
  EXPECT_EQ(explanation->verdicts.size(), 2U);
}

TEST_F(Dispatch, AnAbsentBackendSaysWhatIsMissing) {
  const dispatch::Backend without[] = {{"cpu", DeviceKind::kCpu, &kFakeEntry, ""},
                                       {"cuda", DeviceKind::kCuda, nullptr, "not built (nvcc not found at build time)"}};
  problem_.device = {DeviceKind::kCuda, 0};
  const Status status = dispatch::attend(without, problem_, {}, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_EQ(status.message(), "cuda: not built (nvcc not found at build time)");
  const std::vector<BackendInfo> infos = dispatch::backends(without);
  ASSERT_EQ(infos.size(), 2U);
  EXPECT_TRUE(infos[0].built);
  EXPECT_FALSE(infos[1].built);
  EXPECT_EQ(infos[1].detail, "cuda: not built (nvcc not found at build time)");
  EXPECT_EQ(dispatch::kernels(without).size(), 3U);
  fake_.usable = false;
  problem_.device = {};
  EXPECT_EQ(dispatch::attend(without, problem_, {}, nullptr).message(), "cpu: no usable instruction set");
}

TEST_F(Dispatch, AttendSchedulesRunsAndChecks) {
  EXPECT_TRUE(dispatch::attend(kBackends, problem_, {}, nullptr).ok());
  EXPECT_EQ(fake_.calls, (std::vector<std::string>{"schedule", "run", "check"}));
  fake_.calls.clear();
  fake_.run = invalid("x = 1: no");
  EXPECT_EQ(dispatch::attend(kBackends, problem_, {}, nullptr).message(), "x = 1: no");
  EXPECT_EQ(fake_.calls, (std::vector<std::string>{"schedule", "run"}));
}

TEST_F(Dispatch, NoRequestsNeedNoKernel) {
  problem_.requests = 0;
  fake_.verdicts.clear();
  EXPECT_TRUE(dispatch::attend(kBackends, problem_, {}, nullptr).ok());
  EXPECT_TRUE(fake_.calls.empty());
}

TEST_F(Dispatch, ABufferThatCannotBeHadIsAnError) {
  fake_.schedule_bytes = size_t{1} << 60;
  const Status status = dispatch::attend(kBackends, problem_, {}, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kBuffer);
  EXPECT_EQ(status.message(), "schedule_bytes = 1152921504606846976: out of memory");
}

TEST_F(Dispatch, ExplainTellsTheChoiceAndThePlan) {
  const Result<Explanation> explanation = dispatch::explain(kBackends, problem_, {});
  ASSERT_TRUE(explanation.ok());
  EXPECT_EQ(explanation->kernel, "second");
  EXPECT_EQ(explanation->items, 42);
  ASSERT_EQ(explanation->verdicts.size(), 3U);
  EXPECT_EQ(explanation->verdicts[0].reason, "no such head size");
}

}  // namespace
}  // namespace headwater
