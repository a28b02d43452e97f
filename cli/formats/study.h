// Measures every choice on every layer of a capture.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/formats/choice.h"
#include "cli/terminal.h"

namespace headwater::cli::formats {

// Errors over some (query, head, entry) triples and their (query, head) rows.
struct Errors {
  int64_t rows = 0;
  double k_rms = 0.0;  // nats: error of the score
  double k_p99 = 0.0;
  double v_rms = 0.0;  // |v' - v| / |v| of an entry's row
  double v_p99 = 0.0;
  double out_p50 = 0.0;  // |out' - out| / |out| of a (query, head) row
  double out_p99 = 0.0;
  double out_worst = 0.0;
};

// One request with one query over rows repeated to `context` entries, one layer, all threads.
struct DecodeTime {
  double median_s = 0.0;
  double fastest_s = 0.0;
  double low_s = 0.0;  // quartiles
  double high_s = 0.0;
  int64_t context = 0;
  int64_t bytes = 0;  // of KV read
  std::string kernel;
};

struct ChoiceResult {
  Choice choice;
  std::string scales;            // where they come from, in words
  std::string refused;           // why the library does not take this format here; nothing else is set then
  double bytes_per_token = 0.0;  // all layers
  double tokens_in_gib = 0.0;
  Errors all;
  std::string worst_at;  // "layers.3 head 2" of out_worst
  std::vector<Errors> by_layer;
  std::vector<Errors> by_context;
  std::optional<double> centred_k_rms;
  int64_t saturated = 0;  // stored values beyond the format's largest
  DecodeTime time;
};

struct LoudChannel {
  std::string layer;
  size_t source = 0;
  int32_t head = 0;
  int32_t channel = 0;
  double rms = 0.0;
  double times_median = 0.0;
  double mean_share = 0.0;  // |mean| / rms: 1 = constant, which --center-k removes
};

struct Options {
  std::vector<std::string> files;
  std::string calibrate;
  std::string json;
  std::string plot;
  bool center_k = false;
  int32_t recent = 128;
  int64_t decode_context = 16384;  // 0: no timing
  int64_t max_pairs = 2'000'000;   // a layer
};

struct Study {
  std::string file;
  std::string origin;
  std::string text;
  bool synthetic = false;
  bool calibrated = false;
  std::string scales_from;  // in words
  std::string stored_as;    // formats of the file's own KV
  bool stored_in_float = true;
  double k_in_fp8_normal = 0.0;  // share of K's values from 2^-6 to 448 in magnitude
  std::string busy;              // why times here say little; empty when they can be trusted
  std::string machine;           // "cpu: 2 threads, avx2"
  std::string centring_refused;  // empty: possible
  bool centred = false;          // --center-k was on
  std::string mean_from;         // as scales_from
  bool bytes_are_per_entry = false;
  std::vector<Layer> layers;
  std::vector<std::string> contexts;  // bucket labels of by_context
  std::vector<ChoiceResult> results;
  std::vector<LoudChannel> loud;  // worst first
  double loud_factor = 4.0;       // times the median channel
};

[[nodiscard]] Result<Study> make_study(const std::string& file, const Options& options);

// Median time of decoding from this format.
[[nodiscard]] Result<DecodeTime> time_decode(const Layer& layer, const Choice& choice, const ScaleValues& scales, int64_t context);

[[nodiscard]] std::string report_text(const Study& study);
[[nodiscard]] nlohmann::ordered_json report_json(const std::vector<Study>& studies, const Options& options);
[[nodiscard]] std::string report_svg(const Study& study);

}  // namespace headwater::cli::formats
