// Shapes, query lengths, entries and positions of a case.
#include <algorithm>
#include <cmath>

#include "cli/check/problem.h"

namespace headwater::conformance {
namespace {

using namespace choice;

int32_t draw_width(Random* random, int32_t width_class) {
  const auto [low, high] = kWidths[static_cast<size_t>(width_class)];
  return static_cast<int32_t>(random->integer(low, high));
}

// Multiply-adds that one case may cost the oracle, and values that it may encode.
constexpr double kScoreBudget = 5e6;
constexpr double kEncodeBudget = 5e5;

int64_t entry_work(const Draft& d) { return int64_t{d.heads} * (d.d_qk + d.d_v); }

void draft_queries(Draft* d) {
  const Spec& spec = d->spec();
  Random& random = d->random;
  const int32_t batch = spec.at(kBatch);
  d->requests = batch == kNoRequests ? 0 : batch == kOneRequest ? 1 : batch == kFewRequests ? random.integer(2, 4) : random.integer(5, 14);
  // A case with a long source or wide rows has fewer rows, so that all stay about as slow.
  bool is_long = false;
  for (int32_t s = 0; s < spec.num_sources(); ++s) is_long = is_long || spec.at(kLens, s) == kLong;
  const double entries = is_long ? 4.0 * kTile : 40.0;
  const int64_t many = std::clamp<int64_t>(static_cast<int64_t>(kScoreBudget / entries / static_cast<double>(entry_work(*d))), 4, 40);
  for (int64_t b = 0; b < d->requests; ++b) {
    int64_t length = 1;
    if (spec.at(kQLens) == kFew) length = random.integer(b == 0 ? 2 : 1, 4);
    if (spec.at(kQLens) == kMany) length = b == 0 ? random.integer(many / 2 + 2, many) : random.integer(1, 5);
    if (spec.at(kQLens) == kSomeNone) length = b == 0 ? random.integer(1, 4) : b == 1 ? 0 : random.integer(0, 3);
    d->q_lens.push_back(static_cast<int32_t>(length));
  }
  random.shuffle(&d->q_lens);
  d->made->qo_indptr = {0};
  for (const int32_t length : d->q_lens) d->made->qo_indptr.push_back(d->made->qo_indptr.back() + length);
  d->total_q = d->made->qo_indptr.back() + (spec.at(kPadRows) == 1 ? random.integer(1, 5) : 0);
}

// Entries of every request of one source.
void draft_entries(Draft* d, int32_t s) {
  const Spec& spec = d->spec();
  Random& random = d->random;
  Draft::Entries& e = d->entries[static_cast<size_t>(s)];
  const int32_t lens = spec.at(kLens, s);
  const bool pool = spec.at(kAddressing, s) == kSlotPool;
  const int64_t rows = std::max<int64_t>(d->made->live_rows(), 1);
  const int64_t requests = pool ? 1 : d->requests;
  const double sources = spec.num_sources();
  const double by_scores = kScoreBudget / sources / static_cast<double>(rows * entry_work(*d));
  const double by_bytes = kEncodeBudget / sources / static_cast<double>(std::max<int64_t>(requests, 1) * e.kv_heads * (d->d_qk + d->d_v));
  const int64_t cap = std::clamp<int64_t>(static_cast<int64_t>(std::min(by_scores, by_bytes)), 7, 110);
  for (int64_t b = 0; b < requests; ++b) e.kv_len.push_back(random.one_in(3) ? random.integer(1, 8) : random.integer(1, cap));
  if (requests == 0) return;
  const auto any = static_cast<size_t>(random.integer(0, requests - 1));
  if (lens == kAllEmpty) std::fill(e.kv_len.begin(), e.kv_len.end(), 0);
  if (lens == kSomeEmpty) {
    for (auto& length : e.kv_len) length = random.one_in(3) ? 0 : length;
    e.kv_len[any] = 0;
    e.kv_len[(any + 1) % e.kv_len.size()] = random.integer(1, cap);
  }
  if (lens == kShort) {
    for (size_t b = 0; b < e.kv_len.size(); ++b) e.kv_len[b] = random.integer(0, std::max(d->q_lens[b] - 1, 1));
  }
  if (lens == kLong) {  // one long among short ones, at a request with few rows where rows are dear
    const bool dear = entry_work(*d) > 8000;
    size_t at = any;
    for (size_t b = 0; !pool && b < e.kv_len.size(); ++b) {
      const bool better = dear ? d->q_lens[b] < d->q_lens[at] : d->q_lens[b] > d->q_lens[at];
      at = d->q_lens[b] > 0 && (better || d->q_lens[at] == 0) ? b : at;
    }
    for (auto& length : e.kv_len) length = std::min<int64_t>(length, 12);
    e.kv_len[at] = 3 * kTile + random.integer(2, dear ? 20 : random.one_in(4) ? 330 : 80);
  }
}

bool has_first(const Spec& spec, int32_t s) { return spec.at(kPositions, s) == kFirst || spec.at(kPositions, s) == kFirstAndStride; }
bool is_causal(int32_t rule) { return rule == kCausal || rule == kWindow || rule == kWindowAll; }

// First token position that sees all entries of request b: its own position for causal rules, the block's last token for compressed.
int64_t complete_at(const Draft& d, int32_t s, size_t b) {
  const Draft::Entries& e = d.entries[static_cast<size_t>(s)];
  const int64_t last = e.first[b] + std::max<int64_t>(e.kv_len[b] - 1, 0) * e.stride[b];
  const int32_t rule = d.spec().at(kRule, s);
  return rule == kCompressed ? (last + 1) * d.made->sources[static_cast<size_t>(s)].rule.ratio - 1 : last;
}

// Positions of source s so that its last entry is near position t, where the spec leaves that open.
void fit_source(Draft* d, int32_t s, size_t b, int64_t t) {
  Draft::Entries& e = d->entries[static_cast<size_t>(s)];
  const int32_t rule = d->spec().at(kRule, s);
  const int64_t unit = rule == kCompressed ? d->made->sources[static_cast<size_t>(s)].rule.ratio : 1;
  const int64_t target = (t + 1) / unit - 1 + d->random.integer(-2, 3);  // position of the last entry
  if (has_first(d->spec(), s)) {
    const int64_t first = target - std::max<int64_t>(e.kv_len[b] - 1, 0) * e.stride[b];
    e.first[b] = static_cast<int32_t>(d->random.one_in(20) ? first : std::max<int64_t>(first, 0));
    return;
  }
  const int64_t wanted = target / e.stride[b] + 1;
  if (e.kv_len[b] > 0 && wanted >= 1 && wanted < e.kv_len[b] && d->spec().at(kLens, s) != kLong && d->random.one_in(2))
    e.kv_len[b] = wanted;
}

// The context length of request b: an edge of one source that reads it, give or take a little; the others follow where they can.
void draft_context(Draft* d, size_t b) {
  const Spec& spec = d->spec();
  std::vector<int32_t> readers;
  for (int32_t s = 0; s < spec.num_sources(); ++s) {
    if (is_causal(spec.at(kRule, s)) || spec.at(kRule, s) == kCompressed) readers.push_back(s);
  }
  if (readers.empty()) {
    d->context.push_back(d->random.integer(0, 50));
    return;
  }
  int32_t anchor = d->random.pick(readers);
  for (const int32_t s : readers) {  // a window that cannot move must not end far behind the context
    if (spec.at(kRule, s) == kWindow && !has_first(spec, s)) anchor = s;
    if (spec.at(kContext) == kDerived && is_causal(spec.at(kRule, s))) anchor = s;
  }
  const Draft::Entries& e = d->entries[static_cast<size_t>(anchor)];
  int64_t context = 0;
  if (spec.at(kContext) == kDerived) {
    context = e.first[b] + e.kv_len[b];
  } else {
    const int64_t late = d->random.one_in(3) ? d->random.integer(-3, 3) : d->random.one_in(3) ? d->random.integer(0, d->q_lens[b]) : 0;
    context = std::max<int64_t>(complete_at(*d, anchor, b) + 1 + late, 0);
  }
  d->context.push_back(context);
  for (const int32_t s : readers) {
    if (s != anchor) fit_source(d, s, b, context - 1);
  }
}

void draft_rule(Draft* d, int32_t s) {
  Random& random = d->random;
  Rule& rule = d->made->sources[static_cast<size_t>(s)].rule;
  const bool is_long = d->spec().at(kLens, s) == kLong;
  switch (d->spec().at(kRule, s)) {
    case kFull:
      rule = Rule::full();
      break;
    case kCausal:
      rule = Rule::causal();
      break;
    case kWindowAll:
      rule = Rule::window(-1);
      break;
    case kWindow: {
      static const std::vector<int32_t> kCommon = {0, 1, 3, 7, 15, 31, 63, 127};
      rule = Rule::window(is_long && !random.one_in(4) ? static_cast<int32_t>(3 * kTile + random.integer(0, 60))
                          : random.one_in(2)           ? random.pick(kCommon)
                                                       : static_cast<int32_t>(random.integer(0, 50)));
      break;
    }
    case kCompressed: {
      static const std::vector<int32_t> kCommon = {1, 2, 4, 4, 128, 128, 3};
      rule = Rule::compressed(random.pick(kCommon));
      break;
    }
    default:
      rule.kind = RuleKind::kGathered;
      rule.index_type = d->spec().at(kRule, s) == kSlot64 ? Type::kI64 : Type::kI32;
      rule.index_space = d->spec().at(kRule, s) == kPosition ? IndexSpace::kPosition : IndexSpace::kSlot;
  }
}

}  // namespace

void draft_lengths(Draft* d) {
  const Spec& spec = d->spec();
  Random& random = d->random;
  d->heads = spec.heads();
  d->d_qk = draw_width(&random, spec.at(kDQk));
  d->d_v = draw_width(&random, spec.at(kDV));
  for (int32_t s = 0; s < spec.num_sources(); ++s) {
    if (spec.at(kVFormat, s) == kShared) d->d_v = std::min(d->d_v, d->d_qk);  // the classes are in order already
  }
  d->made->sources.resize(static_cast<size_t>(spec.num_sources()));
  d->entries.resize(static_cast<size_t>(spec.num_sources()));
  draft_queries(d);
  for (int32_t s = 0; s < spec.num_sources(); ++s) {
    Draft::Entries& e = d->entries[static_cast<size_t>(s)];
    e.kv_heads = d->heads / kRatios[static_cast<size_t>(spec.at(kRatio, s))];
    draft_entries(d, s);
    draft_rule(d, s);
    for (int64_t b = 0; b < d->requests; ++b) {
      e.first.push_back(has_first(spec, s) ? static_cast<int32_t>(random.integer(0, 40)) : 0);
      e.stride.push_back(spec.at(kPositions, s) >= kStride ? static_cast<int32_t>(random.integer(1, 5)) : 1);
    }
  }
  for (int64_t b = 0; b < d->requests; ++b) draft_context(d, static_cast<size_t>(b));
}

}  // namespace headwater::conformance
