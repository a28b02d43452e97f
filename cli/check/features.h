// The feature space of the contract as data: groups of choices, the pairs that cannot meet, and a generator of specs (one choice per
// group) that meets every legal pair. A spec says what a case is like; problem.cc turns it into tensors.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/check/random.h"

namespace headwater::conformance {

// Groups of a case, then groups of each of its sources.
enum Group : int32_t {
  kQType,
  kQScale,
  kQTail,
  kDQk,
  kDV,
  kOutType,
  kLse,
  kSinks,
  kSinkValue,
  kSoftcap,
  kSmScale,
  kSources,
  kHeads,
  kContext,
  kQLens,
  kBatch,
  kPadRows,
  kQLayout,
  kOutLayout,
  kBoundary,
  kScores,
  kNonFinite,
  kInvariant,
  kWorkers,
  kPool,
  kPath,
  kFloatEnv,
  kKFormat,
  kVFormat,
  kAddressing,
  kPageSize,
  kRule,
  kKvLayout,
  kRatio,
  kKScale,
  kVScale,
  kPositions,
  kLens,
  kList,
  kScaleLayout,
  kSharing,
  kNumGroups
};
inline constexpr int32_t kFirstSourceGroup = kKFormat;
inline constexpr int32_t kMaxCaseSources = 4;

// Choices, in the order of the table in features.cc. Groups not named here are read by index: kDQk and kDV (width classes),
// kRatio (kRatios), kWorkers (index + 1), kKFormat (headwater::Format), kSources (index + 1), kHeads (index + 1).
namespace choice {
enum : int32_t { kQBf16, kQF16, kQF32, kQE4m3 };
enum : int32_t { kNoQScale, kHostQScale, kOneQScale, kRowQScale };
enum : int32_t { kOutBf16, kOutF16, kOutF32 };
enum : int32_t { kNoLse, kTokensHeads, kHeadsTokens, kRequestHeadsQ };
enum : int32_t { kNoSinks, kHeadSinks, kRequestSinks };
enum : int32_t { kUsualSink, kNegInfSink, kPosInfSink, kNanSink };
enum : int32_t { kUsualScale, kZeroScale, kNegativeScale };
enum : int32_t { kGiven, kDerived, kAbsent };
enum : int32_t { kDecode, kFew, kMany, kSomeNone };
enum : int32_t { kNoRequests, kOneRequest, kFewRequests, kManyRequests };
enum : int32_t { kDenseLayout, kPadded, kHeadFirst, kOdd, kExpanded, kInterleaved };
enum : int32_t { kUsualScores, kHugePositive, kHugeNegative };
enum : int32_t { kFinite, kKNan, kKInf, kVNonFinite, kQNonFinite };
enum : int32_t { kSequential, kThreads, kOpenMp };
enum : int32_t { kAttend, kPlan, kLoosePlan };
enum : int32_t { kUsualEnv, kFlushEnv };  // the caller's FTZ and DAZ
enum : int32_t { kShared };               // then headwater::Format + 1
enum : int32_t { kRagged, kBlockTable, kPagesLens, kPagesLast, kPagesBoth, kSlotPool };
enum : int32_t { kPage1, kPage2, kPageOdd, kPage16, kPage64, kPage256 };
enum : int32_t { kFull, kCausal, kWindow, kWindowAll, kCompressed, kSlot32, kSlot64, kPosition };
enum : int32_t { kNoScale, kHostScale, kOneScale, kHeadScale };
enum : int32_t { kPlain, kFirst, kStride, kFirstAndStride };
enum : int32_t { kUsual, kSomeEmpty, kAllEmpty, kShort, kLong };
enum : int32_t { kPlainList, kHoles, kDuplicates, kOutOfRange, kTopkLens };
enum : int32_t { kDenseScales, kPaddedScales, kColumnMajor };
enum : int32_t { kOwnPages, kSharedPages };
}  // namespace choice

inline constexpr std::array<int32_t, 14> kRatios = {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 32, 64, 128};
// Width classes [first, last], ascending and disjoint.
inline constexpr std::array<std::array<int32_t, 2>, 12> kWidths = {
    {{1, 1}, {2, 15}, {16, 63}, {64, 64}, {65, 127}, {128, 128}, {129, 255}, {256, 256}, {257, 511}, {512, 512}, {513, 575}, {576, 576}}};

struct Choice {
  std::string name;
  int32_t weight;     // relative frequency
  bool weak = false;  // makes the rest of the case say little: only pairs with this choice itself count as met
};
struct GroupInfo {
  const char* name;
  std::vector<Choice> choices;
};
[[nodiscard]] const std::array<GroupInfo, kNumGroups>& groups();

// Every choice of every group has a number, its feature id.
struct Feature {
  Group group;
  int32_t choice;
};
[[nodiscard]] const std::vector<Feature>& features();
[[nodiscard]] int32_t feature_id(Group group, int32_t choice);
[[nodiscard]] std::string feature_name(int32_t feature);
// -1: no feature of that name.
[[nodiscard]] int32_t feature_by_name(const std::string& name);
inline constexpr int32_t kMaxFeatures = 320;

// Two features of one case (of one source, when both are a source's) that the contract lets meet.
[[nodiscard]] bool legal_pair(int32_t a, int32_t b);
[[nodiscard]] const std::vector<std::array<int32_t, 2>>& legal_pairs();

struct Spec {
  std::array<int8_t, kNumGroups> shared{};                               // case groups
  std::array<std::array<int8_t, kNumGroups>, kMaxCaseSources> source{};  // source groups
  [[nodiscard]] int32_t num_sources() const { return shared[kSources] + 1; }
  [[nodiscard]] int32_t at(Group group, int32_t s = 0) const {
    const auto g = static_cast<size_t>(group);
    return group < kFirstSourceGroup ? shared[g] : source[static_cast<size_t>(s)][g];
  }
  [[nodiscard]] int32_t heads() const;  // query heads: the least common multiple of the ratios, times kHeads
};

using PairSet = std::vector<std::bitset<kMaxFeatures>>;
// Marks the pairs that a spec meets; weak choices mark only their own.
void mark_pairs(const Spec& spec, PairSet* met);

// Specs 0, 1, 2, ... of a seed: a pure function of (seed, index), though made in order. Even cases cycle through formats, addressings
// and rules; odd ones each bring a pair that no earlier case met.
class SpecStream {
 public:
  // always: features that every spec has, in some source where they are a source's. Then no pair is sought on purpose.
  explicit SpecStream(uint64_t seed, std::vector<int32_t> always = {});
  [[nodiscard]] Spec next();
  // Pairs that could not be put into any spec: a hole in the table of exclusions, and an error.
  [[nodiscard]] const std::vector<std::array<int32_t, 2>>& unreachable() const { return unreachable_; }

 private:
  [[nodiscard]] bool try_fill(const std::vector<int32_t>& wanted, Random* random, Spec* spec) const;
  uint64_t seed_;
  std::vector<int32_t> always_;
  int64_t index_ = 0;
  std::vector<std::array<int32_t, 2>> pending_;  // shuffled; the back comes next
  PairSet met_;
  std::vector<std::array<int32_t, 2>> unreachable_;
};

}  // namespace headwater::conformance
