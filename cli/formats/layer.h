// One layer of a capture, decoded: what every format is measured against.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "headwater/headwater.h"

namespace headwater::cli::formats {

// The rows of one source that some measured query sees, decoded to float32.
struct Rows {
  Format k_format = Format::kBf16;  // as the file holds them
  Format v_format = Format::kBf16;
  bool shared = false;
  int32_t heads = 1;
  int32_t d_qk = 0;
  int32_t d_v = 0;
  int64_t count = 0;
  std::vector<float> k;  // [count, heads, d_qk]
  std::vector<float> v;  // [count, heads, d_v]; empty when shared

  [[nodiscard]] const float* key(int64_t row, int32_t head) const { return k.data() + (row * heads + head) * d_qk; }
  [[nodiscard]] const float* value(int64_t row, int32_t head) const {
    return shared ? key(row, head) : v.data() + (row * heads + head) * d_v;
  }
};

// Entries of one source that each measured query row sees: rows of `Rows`, in the source's order.
struct Visible {
  static constexpr int32_t kNoAge = 2147483647;  // compressed or gathered
  std::vector<int64_t> begin{0};                 // [queries + 1]
  std::vector<int32_t> entry;
  std::vector<int32_t> age;  // 0 = the newest token the query sees
};

struct Layer {
  std::string name;  // "layers.3", or empty
  int32_t heads = 0;
  int32_t d_qk = 0;
  int32_t d_v = 0;
  float sm_scale = 0.0F;
  float softcap = 0.0F;
  Type q_type = Type::kBf16;
  int64_t queries = 0;       // measured query rows
  int64_t all_queries = 0;   // in the file
  std::vector<float> q;      // [queries, heads, d_qk]
  std::vector<float> sinks;  // [queries, heads] or empty
  std::vector<Rows> sources;
  std::vector<Visible> visible;           // one per source
  std::vector<double> entries_per_token;  // one per source: 1 / ratio where the rule is compressed
  bool has_gathered = false;
  std::vector<double> out;  // [queries, heads, d_v] of the oracle, from the decoded rows

  [[nodiscard]] int64_t seen(int64_t query) const;  // visible entries of all sources
  // Why subtracting a per-channel mean from K would change the result; empty when it would not.
  [[nodiscard]] std::string centring_refused() const;
};

// Validates, decodes, and computes the baseline. At most `max_pairs` (query, head, entry) triples are measured: above that every n-th
// query row is taken.
[[nodiscard]] Result<Layer> load_layer(const Problem& problem, std::string name, int64_t max_pairs);

// Per-channel mean of K, [heads, d_qk].
[[nodiscard]] std::vector<float> channel_mean(const Rows& rows);
void subtract_mean(const std::vector<float>& mean, Rows* rows);

}  // namespace headwater::cli::formats
