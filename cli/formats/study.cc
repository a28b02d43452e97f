#include "cli/formats/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cli/machine.h"
#include "src/io/problem_file.h"

namespace headwater::cli::formats {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

// Raw errors of some queries of one layer.
struct Samples {
  std::vector<float> k;    // nats, magnitude
  std::vector<float> v;    // relative
  std::vector<float> out;  // relative

  void add(const Samples& other) {
    k.insert(k.end(), other.k.begin(), other.k.end());
    v.insert(v.end(), other.v.begin(), other.v.end());
    out.insert(out.end(), other.out.begin(), other.out.end());
  }
};

double rms(const std::vector<float>& x) {
  double sum = 0.0;
  for (const float e : x) sum += double{e} * e;
  return x.empty() ? 0.0 : std::sqrt(sum / static_cast<double>(x.size()));
}

// The smallest value that at least `share` of all do not exceed.
double quantile(std::vector<float>& x, double share) {
  if (x.empty()) return 0.0;
  const double rank = std::ceil(share * static_cast<double>(x.size()));
  const auto at = x.begin() + std::clamp<int64_t>(static_cast<int64_t>(rank) - 1, 0, static_cast<int64_t>(x.size()) - 1);
  std::nth_element(x.begin(), at, x.end());
  return *at;
}

Errors summarise(Samples samples) {
  Errors e;
  e.rows = static_cast<int64_t>(samples.out.size());
  e.k_rms = rms(samples.k);
  e.k_p99 = quantile(samples.k, 0.99);
  e.v_rms = rms(samples.v);
  e.v_p99 = quantile(samples.v, 0.99);
  e.out_p50 = quantile(samples.out, 0.50);
  e.out_p99 = quantile(samples.out, 0.99);
  e.out_worst = samples.out.empty() ? 0.0 : *std::max_element(samples.out.begin(), samples.out.end());
  return e;
}

double norm(const float* x, int32_t width) {
  double sum = 0.0;
  for (int32_t d = 0; d < width; ++d) sum += double{x[d]} * x[d];
  return std::sqrt(sum);
}

// |b - a| / |a| of every row and head of V.
std::vector<float> value_errors(const Rows& exact, const Rows& decoded) {
  std::vector<float> errors;
  for (int64_t r = 0; r < exact.count; ++r) {
    for (int32_t h = 0; h < exact.heads; ++h) {
      const float* a = exact.value(r, h);
      const float* b = decoded.value(r, h);
      double sum = 0.0;
      for (int32_t d = 0; d < exact.d_v; ++d) sum += (double{b[d]} - a[d]) * (double{b[d]} - a[d]);
      const double size = norm(a, exact.d_v);
      errors.push_back(size > 0.0 ? static_cast<float>(std::sqrt(sum) / size) : 0.0F);
    }
  }
  return errors;
}

// Four sums side by side, so that the compiler may use vectors: this loop is most of the verb's time.
double dot(const float* a, const float* b, int32_t width) {
  double sums[4] = {0.0, 0.0, 0.0, 0.0};
  int32_t d = 0;
  for (; d + 4 <= width; d += 4) {
    for (int32_t i = 0; i < 4; ++i) sums[i] += double{a[d + i]} * double{b[d + i]};
  }
  for (; d < width; ++d) sums[0] += double{a[d]} * double{b[d]};
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// |score of key b - score of key a|, in nats. `difference`: b - a.
float score_error(const Layer& layer, const float* q, const float* a, const float* difference) {
  const double moved = layer.sm_scale * dot(q, difference, layer.d_qk);
  if (layer.softcap == 0.0F) return static_cast<float>(std::fabs(moved));
  const double z = layer.sm_scale * dot(q, a, layer.d_qk);
  return static_cast<float>(std::fabs(layer.softcap * (std::tanh((z + moved) / layer.softcap) - std::tanh(z / layer.softcap))));
}

// A source as stored in one format and read back; `newest` is read instead for entries younger than the choice's `recent`.
struct Decoded {
  Rows difference;             // K only: read back less exact
  std::vector<float> v_error;  // [count, heads]
};

struct DecodedPair {
  Decoded old;
  Decoded newest;
};

void add_source_errors(const Layer& layer, size_t s, const DecodedPair& decoded, int32_t recent, int64_t query, Samples* to) {
  const Rows& exact = layer.sources[s];
  const Visible& visible = layer.visible[s];
  const int32_t group = layer.heads / exact.heads;
  const float* q = layer.q.data() + query * layer.heads * layer.d_qk;
  for (int64_t i = visible.begin[static_cast<size_t>(query)]; i < visible.begin[static_cast<size_t>(query) + 1]; ++i) {
    const int64_t row = visible.entry[static_cast<size_t>(i)];
    const Decoded& from = visible.age[static_cast<size_t>(i)] < recent ? decoded.newest : decoded.old;
    for (int32_t h = 0; h < layer.heads; ++h) {
      const float* q_row = q + static_cast<int64_t>(h) * layer.d_qk;
      to->k.push_back(score_error(layer, q_row, exact.key(row, h / group), from.difference.key(row, h / group)));
    }
    for (int32_t h = 0; h < exact.heads; ++h) to->v.push_back(from.v_error[static_cast<size_t>(row * exact.heads + h)]);
  }
}

// Relative error of each (query, head) row; a row whose exact output is 0 has none.
void add_output_error(const Layer& layer, const std::vector<float>& out, int64_t query, Samples* to) {
  for (int32_t h = 0; h < layer.heads; ++h) {
    const int64_t at = (query * layer.heads + h) * layer.d_v;
    double size = 0.0;
    double error = 0.0;
    for (int32_t d = 0; d < layer.d_v; ++d) {
      const double exact = layer.out[static_cast<size_t>(at + d)];
      const double difference = double{out[static_cast<size_t>(at + d)]} - exact;
      size += exact * exact;
      error += difference * difference;
    }
    to->out.push_back(size > 0.0 ? static_cast<float>(std::sqrt(error / size)) : 0.0F);
  }
}

// 64, 128, 256, ...: the bucket of a query is the first that holds all it sees.
std::vector<int64_t> context_buckets(const std::vector<Layer>& layers) {
  std::vector<int64_t> limits;
  const auto limit_of = [](int64_t seen) {
    int64_t limit = 64;
    while (limit < seen) limit *= 2;
    return limit;
  };
  for (const Layer& layer : layers) {
    for (int64_t i = 0; i < layer.queries; ++i) limits.push_back(limit_of(layer.seen(i)));
  }
  std::sort(limits.begin(), limits.end());
  limits.erase(std::unique(limits.begin(), limits.end()), limits.end());
  return limits;
}

// Stores a layer's sources as the choice says.
struct Stored {
  std::vector<Encoded> old;
  std::vector<Encoded> newest;  // only with recent > 0
  std::vector<DecodedPair> decoded;
  int64_t saturated = 0;
};

Result<Decoded> decode(const Encoded& encoded, const Rows& like) {
  Decoded decoded{like, {}};
  Rows& rows = decoded.difference;
  Status status = encoded.decode(&rows);
  if (!status.ok()) return status;
  decoded.v_error = value_errors(like, rows);
  for (size_t i = 0; i < rows.k.size(); ++i) rows.k[i] -= like.k[i];
  return decoded;
}

Result<Stored> store(const Layer& layer, const Choice& choice, const std::vector<Range>& ranges) {
  Stored stored;
  for (size_t s = 0; s < layer.sources.size(); ++s) {
    const Rows& rows = layer.sources[s];
    const ScaleValues scales = scales_for(choice, ranges[s]);
    stored.saturated += saturated(choice, scales, rows);
    stored.decoded.emplace_back();
    for (const bool young : {false, true}) {
      if (young && choice.recent == 0) continue;
      Result<Encoded> encoded =
          young ? Encoded::make(rows, Format::kBf16, Format::kBf16, {}) : Encoded::make(rows, choice.k, choice.v, scales);
      if (!encoded.ok()) return encoded.status();
      Result<Decoded> decoded = decode(*encoded, rows);
      if (!decoded.ok()) return decoded.status();
      (young ? stored.newest : stored.old).push_back(std::move(encoded).value());
      (young ? stored.decoded.back().newest : stored.decoded.back().old) = std::move(decoded).value();
    }
  }
  return stored;
}

// What all choices share.
struct Setting {
  std::vector<std::vector<Range>> ranges;  // [layer][source]
  std::vector<Layer> centred;              // empty where centring is refused
  std::vector<std::vector<Range>> centred_ranges;
  std::vector<int64_t> buckets;
};

size_t bucket_of(const Setting& setting, int64_t seen) {
  return static_cast<size_t>(std::lower_bound(setting.buckets.begin(), setting.buckets.end(), seen) - setting.buckets.begin());
}

// The worst (query, head) row so far.
struct Worst {
  float error = -1.0F;
  std::string at;
};

// Adds one layer's errors to the choice's result.
Status measure_layer(const Layer& layer, const Setting& setting, const std::vector<Range>& ranges, ChoiceResult* result,
                     std::vector<Samples>* by_context, Samples* all, Worst* worst) {
  Result<Stored> stored = store(layer, result->choice, ranges);
  if (!stored.ok()) return stored.status();
  FlatProblem flat(layer, stored->old, stored->newest, result->choice.recent);
  Status status = attend(flat.problem());
  if (!status.ok()) return status;
  Samples samples;
  for (int64_t query = 0; query < layer.queries; ++query) {
    Samples one;
    for (size_t s = 0; s < layer.sources.size(); ++s) {
      add_source_errors(layer, s, stored->decoded[s], result->choice.recent, query, &one);
    }
    add_output_error(layer, flat.out(), query, &one);
    const auto largest = std::max_element(one.out.begin(), one.out.end());
    if (largest != one.out.end() && *largest > worst->error) {
      *worst = {*largest, fmt::format("{}head {}", layer.name.empty() ? "" : layer.name + " ", largest - one.out.begin())};
    }
    (*by_context)[bucket_of(setting, layer.seen(query))].add(one);
    samples.add(one);
  }
  result->saturated += stored->saturated;
  all->add(samples);
  result->by_layer.push_back(summarise(std::move(samples)));
  return {};
}

// RMS error of the scores with the per-channel mean taken off K before it is stored.
Result<double> centred_error(const Setting& setting, const Choice& choice) {
  Samples all;
  for (size_t n = 0; n < setting.centred.size(); ++n) {
    const Layer& layer = setting.centred[n];
    Result<Stored> stored = store(layer, choice, setting.centred_ranges[n]);
    if (!stored.ok()) return stored.status();
    for (int64_t query = 0; query < layer.queries; ++query) {
      for (size_t s = 0; s < layer.sources.size(); ++s) add_source_errors(layer, s, stored->decoded[s], choice.recent, query, &all);
    }
  }
  return rms(all.k);
}

void count_bytes(const std::vector<Layer>& layers, ChoiceResult* result) {
  double token = 0.0;
  double newest = 0.0;
  for (const Layer& layer : layers) {
    for (size_t s = 0; s < layer.sources.size(); ++s) {
      token += layer.entries_per_token[s] * entry_bytes(layer.sources[s], result->choice.k, result->choice.v);
      newest += layer.entries_per_token[s] * entry_bytes(layer.sources[s], Format::kBf16, Format::kBf16);
    }
  }
  result->bytes_per_token = token;
  result->tokens_in_gib = std::floor((kGib - result->choice.recent * (newest - token)) / token);
}

std::string scale_words(const Choice& choice, const Study& study) {
  if (choice.scales == ScaleFrom::kRecord) return format_info(choice.k).is_float ? "none" : "in the record";
  if (choice.scales == ScaleFrom::kOne) return "1.0";
  return study.calibrated ? "calibrated" : "this data";
}

Result<ChoiceResult> measure(const Study& study, const Setting& setting, const Choice& choice, const Options& options, Progress* progress) {
  ChoiceResult result;
  result.choice = choice;
  result.scales = scale_words(choice, study);
  count_bytes(study.layers, &result);
  std::vector<Samples> by_context(setting.buckets.size());
  Samples all;
  Worst worst;
  Status status;
  const std::vector<Layer>& layers = study.centred ? setting.centred : study.layers;
  const auto& ranges = study.centred ? setting.centred_ranges : setting.ranges;
  for (size_t n = 0; n < layers.size() && status.ok(); ++n) {
    status = measure_layer(layers[n], setting, ranges[n], &result, &by_context, &all, &worst);
    progress->advance();
  }
  if (status.code() == StatusCode::kUnsupported) {
    result.refused = status.message();
    return result;
  }
  if (!status.ok()) return status;
  result.all = summarise(std::move(all));
  result.worst_at = worst.at;
  for (Samples& samples : by_context) result.by_context.push_back(summarise(std::move(samples)));
  if (!setting.centred.empty()) {
    const Result<double> centred = centred_error(setting, choice);
    if (!centred.ok()) return centred.status();
    result.centred_k_rms = *centred;
  }
  if (options.decode_context > 0) {
    const Result<DecodeTime> time = time_decode(study.layers[0], choice, scales_for(choice, setting.ranges[0][0]), options.decode_context);
    if (!time.ok()) return time.status();
    result.time = *time;
  }
  return result;
}

void find_loud_channels(Study* study) {
  for (const Layer& layer : study->layers) {
    for (size_t s = 0; s < layer.sources.size(); ++s) {
      const Rows& rows = layer.sources[s];
      const std::vector<float> mean = channel_mean(rows);
      for (int32_t h = 0; h < rows.heads && rows.count > 0; ++h) {
        std::vector<float> size(static_cast<size_t>(rows.d_qk));
        for (int32_t d = 0; d < rows.d_qk; ++d) {
          double sum = 0.0;
          for (int64_t r = 0; r < rows.count; ++r) sum += double{rows.key(r, h)[d]} * rows.key(r, h)[d];
          size[static_cast<size_t>(d)] = static_cast<float>(std::sqrt(sum / static_cast<double>(rows.count)));
        }
        std::vector<float> sorted = size;
        const double median = quantile(sorted, 0.5);
        for (int32_t d = 0; d < rows.d_qk && median > 0.0; ++d) {
          const double loud = size[static_cast<size_t>(d)];
          if (loud <= study->loud_factor * median) continue;
          const double constant = std::fabs(mean[static_cast<size_t>(h) * size.size() + static_cast<size_t>(d)]) / loud;
          study->loud.push_back({layer.name, s, h, d, loud, loud / median, constant});
        }
      }
    }
  }
  std::stable_sort(study->loud.begin(), study->loud.end(),
                   [](const LoudChannel& a, const LoudChannel& b) { return a.times_median > b.times_median; });
}

Result<std::vector<Layer>> load_layers(const io::ProblemFile& file, int64_t max_pairs) {
  std::vector<Layer> layers;
  for (size_t i = 0; i < file.size(); ++i) {
    const Result<io::OwnedProblem> owned = file.load(i);
    if (!owned.ok()) return owned.status();
    Result<Layer> layer = load_layer(owned->problem, owned->name, max_pairs);
    if (!layer.ok()) return Status(layer.status().code(), file.file_name() + ": " + owned->name + " " + layer.status().message());
    layers.push_back(std::move(layer).value());
  }
  return layers;
}

bool same_shape(const Layer& a, const Layer& b) {
  if (a.name != b.name || a.sources.size() != b.sources.size()) return false;
  for (size_t s = 0; s < a.sources.size(); ++s) {
    const Rows& x = a.sources[s];
    const Rows& y = b.sources[s];
    if (x.heads != y.heads || x.d_qk != y.d_qk || x.d_v != y.d_v || x.shared != y.shared) return false;
  }
  return true;
}

// Scales and means come from `from`, the calibration's layers or the study's own.
Status prepare(const Study& study, const std::vector<Layer>& from, Setting* setting) {
  setting->buckets = context_buckets(study.layers);
  for (const Layer& layer : study.layers) {
    const auto match = std::find_if(from.begin(), from.end(), [&](const Layer& other) { return same_shape(layer, other); });
    if (match == from.end()) {
      return invalid(fmt::format("--calibrate: no layer like {} of {}", layer.name.empty() ? "the one" : layer.name, study.file));
    }
    setting->ranges.emplace_back();
    for (const Rows& rows : match->sources) setting->ranges.back().push_back(range_of(rows));
    if (!study.centring_refused.empty()) continue;
    const std::vector<float> mean = channel_mean(match->sources[0]);
    Rows other = match->sources[0];
    subtract_mean(mean, &other);
    setting->centred_ranges.push_back({range_of(other)});
    setting->centred.push_back(layer);
    subtract_mean(mean, &setting->centred.back().sources[0]);
  }
  return {};
}

std::string note(const io::Notes& notes, const std::string& key) {
  const auto found = notes.find(key);
  return found == notes.end() ? std::string() : found->second;
}

double share_in_fp8_normal(const std::vector<Layer>& layers) {
  constexpr float kLeast = 0.015625F;  // 2^-6: below it e4m3 is subnormal
  constexpr float kMost = 448.0F;
  int64_t inside = 0;
  int64_t all = 0;
  for (const Layer& layer : layers) {
    for (const Rows& rows : layer.sources) {
      inside += std::count_if(rows.k.begin(), rows.k.end(), [](float x) { return std::fabs(x) >= kLeast && std::fabs(x) <= kMost; });
      all += static_cast<int64_t>(rows.k.size());
    }
  }
  return all == 0 ? 0.0 : static_cast<double>(inside) / static_cast<double>(all);
}

void describe(const io::ProblemFile& file, const Options& options, Study* study) {
  study->file = file.file_name();
  study->origin = note(file.notes(), "origin");
  study->text = note(file.notes(), "text");
  study->synthetic = note(file.notes(), "note.kind") == "synthetic";
  study->k_in_fp8_normal = share_in_fp8_normal(study->layers);
  study->calibrated = !options.calibrate.empty();
  study->scales_from = study->calibrated ? "amax of " + options.calibrate : "amax of this data itself, which is optimistic";
  study->mean_from = study->calibrated ? "of " + options.calibrate : "of this data itself";
  for (const Layer& layer : study->layers) {
    if (study->centring_refused.empty()) study->centring_refused = layer.centring_refused();
    study->bytes_are_per_entry = study->bytes_are_per_entry || layer.has_gathered;
    for (const Rows& rows : layer.sources) {
      std::string stored(format_info(rows.k_format).name);
      if (rows.v_format != rows.k_format) stored += fmt::format(" K, {} V", format_info(rows.v_format).name);
      study->stored_in_float = study->stored_in_float && format_info(rows.k_format).is_float && format_info(rows.v_format).is_float;
      if (study->stored_as.find(stored) == std::string::npos) study->stored_as += (study->stored_as.empty() ? "" : " and ") + stored;
    }
  }
  study->centred = options.center_k && study->centring_refused.empty();
  for (const BackendInfo& backend : backends()) {
    if (backend.name == "cpu") study->machine = backend.detail;
  }
}

}  // namespace

Result<Study> make_study(const std::string& file_name, const Options& options) {
  const Result<io::ProblemFile> file = io::ProblemFile::open(file_name);
  if (!file.ok()) return file.status();
  Result<std::vector<Layer>> layers = load_layers(*file, options.max_pairs);
  if (!layers.ok()) return layers.status();
  Study study;
  study.layers = std::move(layers).value();
  describe(*file, options, &study);
  if (options.center_k && !study.centring_refused.empty()) {
    return invalid("--center-k: not exact for " + file_name + ": " + study.centring_refused);
  }
  Setting setting;
  Status status;
  if (options.calibrate.empty()) {
    status = prepare(study, study.layers, &setting);
  } else {
    const Result<io::ProblemFile> other = io::ProblemFile::open(options.calibrate);
    if (!other.ok()) return other.status();
    const Result<std::vector<Layer>> calibration = load_layers(*other, options.max_pairs);
    if (!calibration.ok()) return calibration.status();
    status = prepare(study, *calibration, &setting);
  }
  if (!status.ok()) return status;
  int64_t shorter = 1;
  for (const int64_t limit : setting.buckets) {
    study.contexts.push_back(fmt::format("{}-{}", shorter, limit));
    shorter = limit + 1;
  }
  find_loud_channels(&study);
  const std::vector<Choice> choices = choices_for(study.layers[0].sources[0], options.recent);
  Progress progress("formats", static_cast<int64_t>(choices.size() * study.layers.size()));
  for (const Choice& choice : choices) {
    Result<ChoiceResult> result = measure(study, setting, choice, options, &progress);
    if (!result.ok()) return Status(result.status().code(), file_name + ": " + choice.name + ": " + result.status().message());
    study.results.push_back(std::move(result).value());
  }
  if (options.decode_context > 0) study.busy = busy_machine();
  return study;
}

}  // namespace headwater::cli::formats
