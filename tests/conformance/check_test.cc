// `headwater check` as a test: random problems on every ISA of this machine, and the generator's own promises.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cli/check/runner.h"
#include "cli/check/tolerance.h"

namespace headwater::conformance {
namespace {

void expect_passes(const CheckOptions& options) {
  const Report report = run_cases(options);
  ASSERT_EQ(report.error, "");
  for (const CaseResult& failure : report.failures) {
    ADD_FAILURE() << failure.message << "\n  " << failure.description << "\n  again: " << reproduction(options, failure);
  }
  for (const std::string& refusal : report.unlisted_refusals)
    ADD_FAILURE() << "refused, and docs/unsupported.txt does not list it: " << refusal;
  EXPECT_EQ(report.refused, 0) << "the CPU takes everything";
  if (report.enforced) {
    for (const std::string& line : report.shortfalls) ADD_FAILURE() << "coverage: " << line;
  }
}

TEST(CheckFast, RandomProblems) {
  CheckOptions options;
  options.cases = 240;
  options.seed = 20260830;
  expect_passes(options);
}

class CheckSlow : public testing::TestWithParam<std::string> {};
TEST_P(CheckSlow, TwoThousandRandomProblems) {
  CheckOptions options;
  options.cases = 2000;
  options.seed = 4;
  options.isa = GetParam();
  expect_passes(options);
}
INSTANTIATE_TEST_SUITE_P(EveryIsa, CheckSlow, testing::ValuesIn(usable_isas()), [](const auto& info) { return info.param; });

TEST(CheckGenerator, AnySeedMeetsEveryLegalPairWithin2000Cases) {
  for (const uint64_t seed : {1ULL, 99ULL, 0xffffffffffffffffULL}) {
    SpecStream stream(seed);
    Coverage coverage;
    Facts facts;
    facts.is_long = facts.boundary = facts.split = true;
    for (int64_t i = 0; i < kEnforcedFrom; ++i) coverage.add(stream.next(), facts);
    EXPECT_TRUE(stream.unreachable().empty());
    for (const std::string& line : coverage.shortfalls({})) ADD_FAILURE() << "seed " << seed << ": " << line;
  }
}

TEST(CheckGenerator, ACaseIsAFunctionOfSeedAndIndex) {
  SpecStream a(5);
  SpecStream b(5);
  for (int64_t i = 0; i < 12; ++i) {
    const Spec spec = a.next();
    ASSERT_EQ(spec.shared, b.next().shared);
    const auto one = build_case(spec, 5, i);
    const auto two = build_case(spec, 5, i);
    ASSERT_EQ(one->describe(), two->describe());
    const Reference first = run_reference(one->problem);
    const Reference second = run_reference(two->problem);
    ASSERT_EQ(first.visible, second.visible);
    for (size_t r = 0; r < first.lse.size(); ++r)
      ASSERT_TRUE(first.lse[r] == second.lse[r] || (std::isnan(first.lse[r]) && std::isnan(second.lse[r])));
  }
}

// The problem really has what its spec says.
TEST(CheckGenerator, TensorsShowTheirFeatures) {
  SpecStream stream(8);
  for (int64_t i = 0; i < 150; ++i) {
    const Spec spec = stream.next();
    const auto made = build_case(spec, 8, i);
    ASSERT_TRUE(made->status.ok()) << made->status.message() << "\n" << made->describe();
    const Problem& p = made->problem;
    ASSERT_EQ(static_cast<int32_t>(p.sources.size()), spec.num_sources());
    EXPECT_EQ(p.sinks != nullptr, spec.at(kSinks) != choice::kNoSinks);
    EXPECT_EQ(p.q_tail.data != nullptr, spec.at(kQTail) == 1);
    EXPECT_EQ(p.lse.data != nullptr, spec.at(kLse) != choice::kNoLse);
    EXPECT_EQ(p.context_lens != nullptr, spec.at(kContext) == choice::kGiven);
    EXPECT_EQ(p.q.total > made->live_rows(), spec.at(kPadRows) == 1);
    for (int32_t s = 0; s < spec.num_sources(); ++s) {
      const Source& source = p.sources[static_cast<size_t>(s)];
      EXPECT_EQ(static_cast<int32_t>(source.k.format), spec.at(kKFormat, s));
      EXPECT_EQ(source.shared, spec.at(kVFormat, s) == choice::kShared);
      EXPECT_EQ(source.rule.kind == RuleKind::kGathered, spec.at(kRule, s) >= choice::kSlot32);
      EXPECT_EQ(source.position_stride != nullptr, spec.at(kPositions, s) >= choice::kStride);
      EXPECT_EQ(p.q.heads / source.heads, kRatios[static_cast<size_t>(spec.at(kRatio, s))]);
      EXPECT_EQ(source.k.scale.count > 0, spec.at(kKScale, s) != choice::kNoScale);
      EXPECT_EQ(source.rule.topk_lens != nullptr, spec.at(kList, s) == choice::kTopkLens);
      if (spec.at(kKvLayout, s) == choice::kExpanded) {
        EXPECT_TRUE(source.k.row_stride_bytes == 0 || source.k.head_stride_bytes == 0 || source.k.page_stride_bytes == 0 ||
                    source.k.page_stride_bytes == kDense);
      }
    }
  }
}

// The tolerance sees what it must see: each of these would pass a mean error with a slack count.
TEST(CheckTolerance, FindsWrongAnswers) {
  const auto spec_of = [] {
    SpecStream stream(3);
    for (;;) {
      const Spec spec = stream.next();
      if (spec.at(kOutType) == choice::kOutF32 && spec.at(kNonFinite) == 0 && spec.at(kSinkValue) == 0 &&
          spec.at(kLse) == choice::kTokensHeads && spec.at(kBatch) == choice::kFewRequests && spec.at(kOutLayout) == 0 &&
          spec.num_sources() == 1 && spec.at(kLens) == choice::kUsual && spec.at(kDV) >= 3) {
        return spec;
      }
    }
  };
  const auto made = build_case(spec_of(), 3, 0);
  const Problem& p = made->problem;
  const Reference reference = run_reference(p);
  const auto width = static_cast<size_t>(p.d_v());
  auto* const out = static_cast<float*>(p.out.data);
  int64_t row = 0;  // one that sees something
  while (reference.visible[static_cast<size_t>(row * p.q.heads)] == 0) ++row;
  const auto at = static_cast<size_t>(row * p.q.heads) * width;
  const auto good = [&] {
    ASSERT_TRUE(attend(p).ok());
    ASSERT_EQ(judge(p, reference).fault, "");
  };
  good();
  for (size_t i = 0; i < width; ++i) out[at + i] = 0.0F;
  EXPECT_NE(judge(p, reference).fault, "") << "a row of zeros";
  good();
  for (size_t i = 0; i < width; ++i) out[at + i] *= 1.0001F;
  EXPECT_NE(judge(p, reference).fault, "") << "a factor of 1.0001";
  good();
  out[at + 1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(judge(p, reference).fault, "") << "a NaN";
  good();
  p.lse.data[row * (p.lse.token_stride == kDense ? p.q.heads : p.lse.token_stride)] += 0.01F;
  EXPECT_NE(judge(p, reference).fault, "") << "an lse off by 0.01";
}

TEST(CheckOptionsTest, WrongOptionsAreNamed) {
  CheckOptions options;
  options.isa = "vax";
  EXPECT_NE(run_cases(options).error.find("vax"), std::string::npos);
  options = {};
  options.backend = "tpu";
  EXPECT_NE(run_cases(options).error.find("tpu"), std::string::npos);
  options = {};
  options.kernel = "nothing";
  EXPECT_NE(run_cases(options).error.find("nothing"), std::string::npos);
}

}  // namespace
}  // namespace headwater::conformance
