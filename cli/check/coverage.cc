#include "cli/check/coverage.h"

#include <set>

#include "headwater/format.h"

namespace headwater::conformance {
namespace {

constexpr int64_t kTimesEach = 50;

void need(int64_t got, int64_t wanted, const std::string& what, std::vector<std::string>* list) {
  if (got < wanted) list->push_back(what + ": " + std::to_string(got) + " cases, " + std::to_string(wanted) + " needed");
}

}  // namespace

void Coverage::add(const Spec& spec, const Facts& facts) {
  ++cases_;
  long_ += facts.is_long ? 1 : 0;
  boundary_ += facts.boundary ? 1 : 0;
  split_ += facts.split ? 1 : 0;
  if (!facts.isa.empty()) ++isas_[facts.isa];
  std::set<int32_t> have;
  std::set<int32_t> k_formats;
  std::set<int32_t> formats;
  for (int32_t s = 0; s < spec.num_sources(); ++s) {
    for (int32_t g = 0; g < kNumGroups; ++g) have.insert(feature_id(static_cast<Group>(g), spec.at(static_cast<Group>(g), s)));
    k_formats.insert(spec.at(kKFormat, s));
    formats.insert(spec.at(kKFormat, s));
    if (spec.at(kVFormat, s) != choice::kShared) formats.insert(spec.at(kVFormat, s) - 1);
  }
  for (const int32_t feature : have) ++counts_[static_cast<size_t>(feature)];
  for (const int32_t format : formats) ++formats_[static_cast<size_t>(format)];
  mixed_ += k_formats.size() > 1 ? 1 : 0;
  mark_pairs(spec, &met_);
}

int64_t Coverage::count(Group group, int32_t choice) const { return counts_[static_cast<size_t>(feature_id(group, choice))]; }

int64_t Coverage::pairs_met() const {
  int64_t met = 0;
  for (const auto& [a, b] : legal_pairs()) met += met_[static_cast<size_t>(a)].test(static_cast<size_t>(b)) ? 1 : 0;
  return met;
}

std::vector<std::string> Coverage::pairs_missing() const {
  std::vector<std::string> missing;
  for (const auto& [a, b] : legal_pairs()) {
    if (!met_[static_cast<size_t>(a)].test(static_cast<size_t>(b))) missing.push_back(feature_name(a) + " with " + feature_name(b));
  }
  return missing;
}

std::vector<std::string> Coverage::shortfalls(const std::vector<std::string>& isas) const {
  std::vector<std::string> list;
  for (const FormatInfo& info : all_formats()) {
    need(format_count(static_cast<int32_t>(info.format)), kTimesEach, "format " + std::string(info.name), &list);
  }
  for (const Group group : {kAddressing, kRule}) {
    for (size_t c = 0; c < groups()[group].choices.size(); ++c) {
      const auto choice = static_cast<int32_t>(c);
      need(count(group, choice), kTimesEach, feature_name(feature_id(group, choice)), &list);
    }
  }
  for (const std::string& isa : isas) {
    const auto at = isas_.find(isa);
    need(at == isas_.end() ? 0 : at->second, kTimesEach, "isa " + isa, &list);
  }
  need(mixed_, cases_ * 3 / 10, "several sources of mixed formats", &list);
  need(long_, cases_ / 5, "rows longer than three tiles", &list);
  need(boundary_, cases_ / 2, "a dominating score on an edge", &list);
  need(split_, cases_ / 20, "a row block cut and merged", &list);
  const auto missing = pairs_missing();
  if (!missing.empty()) {
    std::string line = std::to_string(missing.size()) + " legal pairs never met:";
    for (size_t i = 0; i < missing.size() && i < 8; ++i) line += (i == 0 ? " " : "; ") + missing[i];
    list.push_back(line);
  }
  return list;
}

}  // namespace headwater::conformance
