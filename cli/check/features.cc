#include "cli/check/features.h"

#include <algorithm>
#include <numeric>

#include "headwater/format.h"

namespace headwater::conformance {
namespace {

std::vector<Choice> width_choices() {
  constexpr std::array<int32_t, 12> kWeights = {3, 6, 8, 12, 8, 10, 5, 4, 3, 12, 2, 16};
  std::vector<Choice> result;
  for (size_t i = 0; i < kWidths.size(); ++i) {
    const auto [low, high] = kWidths[i];
    result.push_back({low == high ? std::to_string(low) : std::to_string(low) + ".." + std::to_string(high), kWeights[i]});
  }
  return result;
}

std::vector<Choice> format_choices(bool with_shared) {
  std::vector<Choice> result;
  if (with_shared) result.push_back({"shared", 24});
  // Records of one width are legal for that width only: they weigh more there.
  for (const FormatInfo& info : all_formats()) result.push_back({std::string(info.name), info.fixed_width > 0 ? 10 : 4});
  return result;
}

std::vector<Choice> ratio_choices() {
  constexpr std::array<int32_t, 14> kWeights = {14, 8, 5, 8, 4, 4, 4, 8, 3, 3, 5, 2, 2, 1};
  std::vector<Choice> result;
  for (size_t i = 0; i < kRatios.size(); ++i) result.push_back({std::to_string(kRatios[i]), kWeights[i]});
  return result;
}

std::array<GroupInfo, kNumGroups> make_groups() {
  std::array<GroupInfo, kNumGroups> g;
  g[kQType] = {"q", {{"bf16", 8}, {"f16", 4}, {"f32", 5}, {"e4m3", 4}}};
  g[kQScale] = {"q_scale", {{"none", 1}, {"constant", 1}, {"one", 1}, {"per_row", 2}}};
  g[kQTail] = {"q_tail", {{"no", 3}, {"yes", 1}}};
  g[kDQk] = {"d_qk", width_choices()};
  g[kDV] = {"d_v", width_choices()};
  g[kOutType] = {"out", {{"bf16", 3}, {"f16", 2}, {"f32", 5}}};
  g[kLse] = {"lse", {{"none", 2}, {"tokens_heads", 3}, {"heads_tokens", 2}, {"requests_heads_q", 2}}};
  g[kSinks] = {"sinks", {{"none", 4}, {"per_head", 4}, {"per_request", 3}}};
  g[kSinkValue] = {"sink", {{"usual", 12}, {"-inf", 3}, {"+inf", 2}, {"nan", 2}}};
  g[kSoftcap] = {"softcap", {{"off", 4}, {"on", 1}}};
  g[kSmScale] = {"sm_scale", {{"usual", 24}, {"zero", 1, true}, {"negative", 4}}};
  g[kSources] = {"sources", {{"1", 50}, {"2", 31}, {"3", 13}, {"4", 6}}};
  g[kHeads] = {"heads", {{"x1", 4}, {"x2", 4}, {"x3", 2}}};
  g[kContext] = {"context", {{"given", 4}, {"derived", 2}, {"absent", 2}}};
  g[kQLens] = {"q_lens", {{"decode", 4}, {"few", 4}, {"many", 3}, {"some_0", 2}}};
  g[kBatch] = {"batch", {{"0", 1, true}, {"1", 12}, {"few", 20}, {"many", 8}}};
  g[kPadRows] = {"pad_rows", {{"no", 3}, {"yes", 2}}};
  g[kQLayout] = {"q_layout", {{"dense", 4}, {"padded", 2}, {"head_first", 2}, {"odd", 2}, {"expanded", 1}}};
  g[kOutLayout] = {"out_layout", {{"dense", 4}, {"padded", 2}, {"head_first", 2}, {"odd", 2}}};
  g[kBoundary] = {"boundary", {{"no", 2}, {"yes", 5}}};
  g[kScores] = {"scores", {{"usual", 14}, {"1e5", 1}, {"-1e5", 1}}};
  g[kNonFinite] = {"values", {{"finite", 14}, {"k_nan", 1}, {"k_inf", 1}, {"v_nonfinite", 1}, {"q_nonfinite", 1}}};
  g[kInvariant] = {"invariant", {{"off", 2}, {"on", 1}}};
  g[kWorkers] = {"workers", {{"1", 1}, {"2", 1}, {"3", 1}, {"4", 1}, {"5", 1}, {"6", 1}, {"7", 1}}};
  g[kPool] = {"pool", {{"sequential", 6}, {"threads", 1}, {"openmp", 1}}};
  g[kPath] = {"path", {{"attend", 2}, {"plan", 3}, {"loose_plan", 2}}};
  g[kFloatEnv] = {"caller", {{"usual", 5}, {"ftz_daz", 1}}};
  g[kKFormat] = {"k", format_choices(false)};
  g[kVFormat] = {"v", format_choices(true)};
  g[kAddressing] = {"addressing",
                    {{"ragged", 6}, {"block_table", 6}, {"pages_lens", 3}, {"pages_last", 3}, {"pages_both", 2}, {"pool", 2}}};
  g[kPageSize] = {"page_size", {{"1", 4}, {"2", 2}, {"odd", 4}, {"16", 4}, {"64", 4}, {"256", 1}}};
  g[kRule] = {
      "rule",
      {{"full", 4}, {"causal", 6}, {"window", 6}, {"window_all", 2}, {"compressed", 4}, {"slot32", 3}, {"slot64", 2}, {"position", 3}}};
  g[kKvLayout] = {"layout", {{"dense", 5}, {"padded", 3}, {"head_first", 2}, {"odd", 2}, {"expanded", 1}, {"interleaved", 3}}};
  g[kRatio] = {"ratio", ratio_choices()};
  g[kKScale] = {"k_scale", {{"none", 2}, {"constant", 2}, {"one", 2}, {"per_head", 3}}};
  g[kVScale] = {"v_scale", {{"none", 2}, {"constant", 2}, {"one", 2}, {"per_head", 3}}};
  g[kPositions] = {"positions", {{"plain", 5}, {"first", 2}, {"stride", 2}, {"first_stride", 2}}};
  g[kLens] = {"lens", {{"usual", 12}, {"some_empty", 3}, {"all_empty", 1, true}, {"short", 2}, {"long", 7}}};
  g[kList] = {"list", {{"plain", 2}, {"holes", 2}, {"duplicates", 2}, {"out_of_range", 2}, {"topk_lens", 3}}};
  g[kScaleLayout] = {"scales", {{"dense", 2}, {"padded", 2}, {"column_major", 2}}};
  g[kSharing] = {"pages", {{"own", 4}, {"shared", 1}}};
  return g;
}

// A set of choices of one group.
struct Some {
  Group group;
  uint32_t choices;
};
template <class... C>
Some only(Group group, C... choices) {
  return {group, ((1U << static_cast<uint32_t>(choices)) | ...)};
}
template <class... C>
Some except(Group group, C... choices) {
  return {group, ~only(group, choices...).choices};
}

struct Exclusion {
  Some a;
  Some b;
};

// Formats as choices of a group whose formats start at `first`.
template <class Predicate>
Some formats_where(Group group, Predicate predicate) {
  const int32_t first = group == kVFormat ? 1 : 0;
  Some some{group, 0};
  for (const FormatInfo& info : all_formats()) {
    if (predicate(info)) some.choices |= 1U << (static_cast<int32_t>(info.format) + first);
  }
  return some;
}

void exclude_widths(Group format_group, Group width_group, std::vector<Exclusion>* list) {
  for (const FormatInfo& info : all_formats()) {
    if (info.fixed_width == 0 && info.format != Format::kMxfp4RopeBf16) continue;
    Some widths{width_group, 0};
    for (size_t w = 0; w < kWidths.size(); ++w) {
      const bool fits = info.fixed_width > 0 ? kWidths[w][0] == info.fixed_width && kWidths[w][1] == info.fixed_width : kWidths[w][0] > 64;
      if (!fits) widths.choices |= 1U << w;
    }
    list->push_back({formats_where(format_group, [&](const FormatInfo& f) { return f.format == info.format; }), widths});
  }
}

// Pairs that the contract forbids, or that name the same thing twice. Within one source where both sides are a source's.
std::vector<Exclusion> make_exclusions() {
  using namespace choice;
  const auto no_scale = [](const FormatInfo& f) { return !f.takes_scale; };
  const auto planar = [](const FormatInfo& f) { return f.planar; };
  const auto no_infinity = [](const FormatInfo& f) { return !f.is_float && f.format != Format::kE5m2; };
  const Some gathered = only(kRule, kSlot32, kSlot64, kPosition);
  std::vector<Exclusion> list = {
      {except(kQScale, kNoQScale), except(kQType, kQE4m3)},  // q_scale belongs to e4m3 queries
      {only(kQTail, 1), only(kDQk, 0)},                      // two parts of one column
      {only(kSinks, kNoSinks), except(kSinkValue, kUsualSink)},
      {only(kBatch, kNoRequests), only(kBoundary, 1)},
      {only(kBatch, kNoRequests), except(kNonFinite, kFinite)},
      {only(kSmScale, kZeroScale), only(kBoundary, 1)},
      {only(kSmScale, kZeroScale), except(kScores, kUsualScores)},
      {only(kSmScale, kNegativeScale), except(kScores, kUsualScores)},  // the sign there is the scores' own
      {only(kQLens, kSomeNone), only(kBatch, kOneRequest)},
      {only(kContext, kAbsent), only(kRule, kCausal, kWindow, kWindowAll, kCompressed)},
      {except(kVScale, kNoScale), only(kVFormat, kShared)},
      {only(kKScale, kHeadScale), only(kVFormat, kShared)},  // shared storage takes one scale
      {except(kKScale, kNoScale), formats_where(kKFormat, no_scale)},
      {except(kVScale, kNoScale), formats_where(kVFormat, no_scale)},
      {except(kScaleLayout, kDenseScales), formats_where(kKFormat, [](const FormatInfo& f) { return !f.scales_apart; })},
      {formats_where(kKFormat, planar), only(kAddressing, kRagged)},
      {formats_where(kVFormat, planar), only(kAddressing, kRagged)},
      {formats_where(kKFormat, planar), only(kKvLayout, kHeadFirst, kExpanded)},  // one head, rows where the record says
      {formats_where(kVFormat, planar), only(kKvLayout, kHeadFirst, kExpanded)},
      {formats_where(kKFormat, no_infinity), only(kNonFinite, kKInf)},
      {only(kVFormat, kShared), only(kKvLayout, kInterleaved)},
      {only(kAddressing, kSlotPool), except(kRule, kSlot32, kSlot64)},
      {only(kAddressing, kRagged), except(kPageSize, kPage1)},
      {gathered, except(kPositions, kPlain)},
      {except(kList, kPlainList), except(kRule, kSlot32, kSlot64, kPosition)},
      {only(kRule, kSlot32, kSlot64), only(kLens, kSomeEmpty, kAllEmpty, kShort)},  // no lengths there
      {only(kLens, kSomeEmpty), only(kBatch, kOneRequest)},
      {only(kLens, kShort), only(kQLens, kDecode)},
      {only(kSharing, kSharedPages), only(kAddressing, kRagged, kSlotPool)},
      {only(kSharing, kSharedPages), only(kBatch, kNoRequests, kOneRequest)},
      {only(kSharing, kSharedPages), only(kLens, kAllEmpty)},
      {only(kRatio, 12, 13), only(kHeads, 1, 2)},       // 64 and 128 heads are enough
      {only(kRatio, 13), only(kKvLayout, kHeadFirst)},  // one KV head from here on
      {only(kRatio, 13), only(kKScale, kHeadScale)},
      {only(kRatio, 13), only(kVScale, kHeadScale)},
      {formats_where(kKFormat, planar), only(kHeads, 1, 2)},
      {formats_where(kVFormat, planar), only(kHeads, 1, 2)},
      {formats_where(kKFormat, planar), only(kVScale, kHeadScale)},
      {formats_where(kVFormat, planar), only(kKScale, kHeadScale)},
      {only(kNonFinite, kKInf), except(kScaleLayout, kDenseScales)},  // infinity lives in formats without scales
      {except(kPositions, kPlain), except(kList, kPlainList)},        // gathered lists know no positions
      {except(kPositions, kPlain), only(kAddressing, kSlotPool)},
      {only(kLens, kSomeEmpty, kAllEmpty, kShort), only(kAddressing, kSlotPool)},
  };
  exclude_widths(kKFormat, kDQk, &list);
  exclude_widths(kVFormat, kDV, &list);
  return list;
}

using PairMatrix = std::array<std::bitset<kMaxFeatures>, kMaxFeatures>;

const PairMatrix& excluded() {
  static const PairMatrix matrix = [] {
    PairMatrix m;
    for (const Exclusion& e : make_exclusions()) {
      for (size_t i = 0; i < groups()[e.a.group].choices.size(); ++i) {
        for (size_t j = 0; j < groups()[e.b.group].choices.size(); ++j) {
          if (((e.a.choices >> i) & (e.b.choices >> j) & 1U) == 0) continue;
          const auto a = static_cast<size_t>(feature_id(e.a.group, static_cast<int32_t>(i)));
          const auto b = static_cast<size_t>(feature_id(e.b.group, static_cast<int32_t>(j)));
          m[a].set(b);
          m[b].set(a);
        }
      }
    }
    return m;
  }();
  return matrix;
}

bool reads_context(int32_t rule) { return rule >= choice::kCausal && rule <= choice::kCompressed; }

// What no pair of choices can say.
bool consistent(const Spec& spec) {
  using namespace choice;
  const int32_t heads = spec.heads();
  if (heads > 128) return false;
  int32_t anchors = 0;
  bool reads = false;
  for (int32_t s = 0; s < spec.num_sources(); ++s) {
    const int32_t v = spec.at(kVFormat, s);
    if (v == kShared && spec.at(kDV) > spec.at(kDQk)) return false;
    const int32_t kv_heads = heads / kRatios[static_cast<size_t>(spec.at(kRatio, s))];
    const bool planar = all_formats()[static_cast<size_t>(spec.at(kKFormat, s))].planar ||
                        (v != kShared && all_formats()[static_cast<size_t>(v - 1)].planar);
    if (planar && kv_heads != 1) return false;
    if (spec.at(kKvLayout, s) == kHeadFirst && kv_heads == 1) return false;
    if (kv_heads == 1 && (spec.at(kKScale, s) == kHeadScale || spec.at(kVScale, s) == kHeadScale)) return false;
    if (kv_heads > 24) return false;
    const int32_t rule = spec.at(kRule, s);
    reads = reads || reads_context(rule);
    if (rule == kCausal || rule == kWindow || rule == kWindowAll) {
      ++anchors;
      if (spec.at(kContext) == kDerived && spec.at(kPositions, s) >= kStride) return false;
    }
  }
  if (spec.at(kContext) == kDerived && anchors != 1) return false;
  return spec.at(kContext) != kAbsent || !reads;
}

}  // namespace

const std::array<GroupInfo, kNumGroups>& groups() {
  static const std::array<GroupInfo, kNumGroups> all = make_groups();
  return all;
}

const std::vector<Feature>& features() {
  static const std::vector<Feature> all = [] {
    std::vector<Feature> list;
    for (int32_t g = 0; g < kNumGroups; ++g) {
      for (size_t c = 0; c < groups()[static_cast<size_t>(g)].choices.size(); ++c)
        list.push_back({static_cast<Group>(g), static_cast<int32_t>(c)});
    }
    return list;
  }();
  return all;
}

int32_t feature_id(Group group, int32_t choice) {
  static const std::array<int32_t, kNumGroups> first = [] {
    std::array<int32_t, kNumGroups> at{};
    int32_t next = 0;
    for (size_t g = 0; g < kNumGroups; ++g) {
      at[g] = next;
      next += static_cast<int32_t>(groups()[g].choices.size());
    }
    return at;
  }();
  return first[static_cast<size_t>(group)] + choice;
}

std::string feature_name(int32_t feature) {
  const Feature f = features()[static_cast<size_t>(feature)];
  const GroupInfo& group = groups()[static_cast<size_t>(f.group)];
  return std::string(group.name) + "=" + group.choices[static_cast<size_t>(f.choice)].name;
}

int32_t feature_by_name(const std::string& name) {
  for (int32_t f = 0; f < static_cast<int32_t>(features().size()); ++f) {
    if (feature_name(f) == name) return f;
  }
  return -1;
}

bool legal_pair(int32_t a, int32_t b) {
  return features()[static_cast<size_t>(a)].group != features()[static_cast<size_t>(b)].group &&
         !excluded()[static_cast<size_t>(a)].test(static_cast<size_t>(b));
}

const std::vector<std::array<int32_t, 2>>& legal_pairs() {
  static const std::vector<std::array<int32_t, 2>> all = [] {
    std::vector<std::array<int32_t, 2>> list;
    const auto n = static_cast<int32_t>(features().size());
    for (int32_t a = 0; a < n; ++a) {
      for (int32_t b = a + 1; b < n; ++b) {
        if (legal_pair(a, b)) list.push_back({a, b});
      }
    }
    return list;
  }();
  return all;
}

int32_t Spec::heads() const {
  int32_t common = 1;
  for (int32_t s = 0; s < num_sources(); ++s) common = std::lcm(common, kRatios[static_cast<size_t>(at(kRatio, s))]);
  return common * (at(kHeads) + 1);
}

void mark_pairs(const Spec& spec, PairSet* met) {
  met->resize(kMaxFeatures);
  const auto is_weak = [](Group g, int32_t c) { return groups()[g].choices[static_cast<size_t>(c)].weak; };
  bool weak_case = is_weak(kBatch, spec.at(kBatch)) || is_weak(kSmScale, spec.at(kSmScale));
  bool all_empty = true;
  for (int32_t s = 0; s < spec.num_sources(); ++s) all_empty = all_empty && is_weak(kLens, spec.at(kLens, s));
  weak_case = weak_case || all_empty;
  for (int32_t s = 0; s < spec.num_sources(); ++s) {
    const bool weak = weak_case || is_weak(kLens, spec.at(kLens, s));
    for (int32_t a = 0; a < kNumGroups; ++a) {
      for (int32_t b = a + 1; b < kNumGroups; ++b) {
        const auto ga = static_cast<Group>(a);
        const auto gb = static_cast<Group>(b);
        const int32_t ca = spec.at(ga, s);
        const int32_t cb = spec.at(gb, s);
        const bool concerns_source = b >= kFirstSourceGroup;
        if ((concerns_source ? weak : weak_case) && !is_weak(ga, ca) && !is_weak(gb, cb)) continue;
        (*met)[static_cast<size_t>(feature_id(ga, ca))].set(static_cast<size_t>(feature_id(gb, cb)));
      }
    }
  }
}

SpecStream::SpecStream(uint64_t seed, std::vector<int32_t> always)
    : seed_(seed),
      always_(std::move(always)),
      pending_(always_.empty() ? legal_pairs() : std::vector<std::array<int32_t, 2>>{}),
      met_(kMaxFeatures) {
  Random random(mix(seed, 1));
  random.shuffle(&pending_);
}

// One choice per group, wanted features first (a source's at a random source), then weighted among what the others leave legal.
bool SpecStream::try_fill(const std::vector<int32_t>& wanted, Random* random, Spec* spec) const {
  std::array<std::bitset<kMaxFeatures>, kMaxCaseSources> forbidden;  // features that one chosen for this source (or the case) excludes
  *spec = Spec{};
  std::array<std::array<bool, kNumGroups>, kMaxCaseSources> set{};
  const auto choose = [&](Group g, int32_t c, int32_t s) {
    const auto id = static_cast<size_t>(feature_id(g, c));
    const bool is_source = g >= kFirstSourceGroup;
    for (int32_t i = 0; i < kMaxCaseSources; ++i) {
      if (is_source && i != s) continue;
      const auto at = static_cast<size_t>(i);
      if (forbidden[at].test(id)) return false;
      if (set[at][static_cast<size_t>(g)] && (is_source ? spec->source[at] : spec->shared)[static_cast<size_t>(g)] != c) return false;
      (is_source ? spec->source[at] : spec->shared)[static_cast<size_t>(g)] = static_cast<int8_t>(c);
      set[at][static_cast<size_t>(g)] = true;
      forbidden[at] |= excluded()[id];
    }
    return true;
  };
  const auto draw = [&](Group g, int32_t s) {
    const auto& choices = groups()[static_cast<size_t>(g)].choices;
    const int32_t from = g >= kFirstSourceGroup ? s : 0;
    const int32_t to = g >= kFirstSourceGroup ? s + 1 : kMaxCaseSources;
    std::vector<int32_t> weights(choices.size());
    for (size_t c = 0; c < choices.size(); ++c) {
      bool allowed = true;
      for (int32_t i = from; i < to; ++i)
        allowed = allowed && !forbidden[static_cast<size_t>(i)].test(static_cast<size_t>(feature_id(g, static_cast<int32_t>(c))));
      weights[c] = allowed ? choices[c].weight : 0;
    }
    int64_t at = random->integer(0, std::accumulate(weights.begin(), weights.end(), int64_t{0}) - 1);
    for (size_t c = 0; c < weights.size(); ++c) {
      at -= weights[c];
      if (at < 0 && weights[c] > 0) return choose(g, static_cast<int32_t>(c), s);
    }
    return false;
  };

  for (const int32_t feature : wanted) {
    const Feature f = features()[static_cast<size_t>(feature)];
    if (f.group == kSources && !choose(kSources, f.choice, 0)) return false;
  }
  if (!set[0][kSources] && !draw(kSources, 0)) return false;
  const auto host = static_cast<int32_t>(random->integer(0, spec->num_sources() - 1));
  for (const int32_t feature : wanted) {
    const Feature f = features()[static_cast<size_t>(feature)];
    if (!choose(f.group, f.choice, host)) return false;
  }
  // Case groups are drawn against every source's wanted features at once; sources that will not exist have none.
  for (int32_t g = 0; g < kNumGroups; ++g) {
    const int32_t count = g >= kFirstSourceGroup ? spec->num_sources() : 1;
    for (int32_t s = 0; s < count; ++s) {
      if (!set[static_cast<size_t>(s)][static_cast<size_t>(g)] && !draw(static_cast<Group>(g), s)) return false;
    }
  }
  return consistent(*spec);
}

Spec SpecStream::next() {
  Random random(mix(seed_, 2, static_cast<uint64_t>(index_)));
  const auto cycle = static_cast<int32_t>(index_ / 2);
  std::vector<int32_t> wanted;
  if (!always_.empty()) {
    wanted = always_;
  } else if (index_ % 2 == 0) {
    constexpr std::array<Group, 4> kCycled = {kKFormat, kAddressing, kRule, kVFormat};
    const Group g = kCycled[static_cast<size_t>(cycle % 4)];
    wanted = {feature_id(g, cycle / 4 % static_cast<int32_t>(groups()[static_cast<size_t>(g)].choices.size()))};
  }
  ++index_;
  Spec spec;
  for (;;) {
    std::array<int32_t, 2> pair{};
    if (wanted.empty()) {
      while (!pending_.empty() && met_[static_cast<size_t>(pending_.back()[0])].test(static_cast<size_t>(pending_.back()[1])))
        pending_.pop_back();
      if (!pending_.empty()) {
        pair = pending_.back();
        wanted = {pair[0], pair[1]};
      }
    }
    bool done = false;
    for (int32_t attempt = 0; attempt < 4000 && !done; ++attempt) done = try_fill(wanted, &random, &spec);
    if (done) break;
    if (!always_.empty()) continue;  // pairwise legal: some draw is consistent
    unreachable_.push_back(pair);
    pending_.pop_back();
    wanted.clear();
  }
  mark_pairs(spec, &met_);
  return spec;
}

}  // namespace headwater::conformance
