// What a run of cases has met, and whether that is enough.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/check/features.h"

namespace headwater::conformance {

// What is known of a case after it ran.
struct Facts {
  std::string isa;
  bool is_long = false;   // a row saw more than three of its plan's tiles
  bool boundary = false;  // a key on an edge dominated
  bool split = false;     // a row block was cut and its partials merged
  bool refused = false;   // the library had no kernel for it
};

class Coverage {
 public:
  void add(const Spec& spec, const Facts& facts);

  [[nodiscard]] int64_t cases() const { return cases_; }
  [[nodiscard]] int64_t mixed() const { return mixed_; }
  [[nodiscard]] int64_t longer() const { return long_; }
  [[nodiscard]] int64_t boundary() const { return boundary_; }
  [[nodiscard]] int64_t split() const { return split_; }
  [[nodiscard]] const std::map<std::string, int64_t>& isas() const { return isas_; }
  // Cases with the feature in any source; formats count as K or as V.
  [[nodiscard]] int64_t count(Group group, int32_t choice) const;
  [[nodiscard]] int64_t format_count(int32_t format) const { return formats_[static_cast<size_t>(format)]; }
  [[nodiscard]] int64_t pairs_met() const;
  [[nodiscard]] std::vector<std::string> pairs_missing() const;

  // What a run of at least 2,000 cases must have met and did not, one line each. `isas`: those that had to be run.
  [[nodiscard]] std::vector<std::string> shortfalls(const std::vector<std::string>& isas) const;

 private:
  int64_t cases_ = 0;
  int64_t mixed_ = 0;
  int64_t long_ = 0;
  int64_t boundary_ = 0;
  int64_t split_ = 0;
  std::map<std::string, int64_t> isas_;
  std::vector<int64_t> counts_ = std::vector<int64_t>(kMaxFeatures);
  std::vector<int64_t> formats_ = std::vector<int64_t>(32);
  PairSet met_ = PairSet(kMaxFeatures);
};

inline constexpr int64_t kEnforcedFrom = 2000;

}  // namespace headwater::conformance
