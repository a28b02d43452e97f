// Everything measured, for programs.
#include <nlohmann/json.hpp>

#include "cli/formats/study.h"

namespace headwater::cli::formats {
namespace {

using json = nlohmann::ordered_json;

json errors_json(const Errors& e) {
  return {{"rows", e.rows},
          {"k_nats_rms", e.k_rms},
          {"k_nats_p99", e.k_p99},
          {"v_relative_rms", e.v_rms},
          {"v_relative_p99", e.v_p99},
          {"out_relative_p50", e.out_p50},
          {"out_relative_p99", e.out_p99},
          {"out_relative_worst", e.out_worst}};
}

json result_json(const Study& study, const ChoiceResult& r) {
  json j = {{"name", r.choice.name},
            {"k_format", format_info(r.choice.k).name},
            {"v_format", format_info(r.choice.v).name},
            {"recent_bf16", r.choice.recent},
            {"scales", r.scales},
            {"bytes_per_token", r.bytes_per_token},
            {"tokens_per_gib", r.tokens_in_gib}};
  if (!r.refused.empty()) {
    j["refused"] = r.refused;
    return j;
  }
  j["errors"] = errors_json(r.all);
  j["worst_at"] = r.worst_at;
  j["saturated_values"] = r.saturated;
  for (size_t i = 0; i < r.by_layer.size(); ++i) {
    j["by_layer"].push_back(errors_json(r.by_layer[i]));
    j["by_layer"].back()["layer"] = study.layers[i].name;
  }
  for (size_t i = 0; i < r.by_context.size(); ++i) {
    j["by_context"].push_back(errors_json(r.by_context[i]));
    j["by_context"].back()["entries"] = study.contexts[i];
  }
  if (r.centred_k_rms) j["k_nats_rms_centred"] = *r.centred_k_rms;
  if (r.time.context > 0) {
    j["decode"] = {{"context", r.time.context},
                   {"kv_bytes", r.time.bytes},
                   {"kernel", r.time.kernel},
                   {"median_us", r.time.median_s * 1e6},
                   {"fastest_us", r.time.fastest_s * 1e6},
                   {"quartile_1_us", r.time.low_s * 1e6},
                   {"quartile_3_us", r.time.high_s * 1e6}};
  }
  return j;
}

json study_json(const Study& study) {
  json j = {{"file", study.file},           {"origin", study.origin},           {"text", study.text},
            {"synthetic", study.synthetic}, {"stored_as", study.stored_as},     {"machine", study.machine},
            {"busy", study.busy},           {"scales_from", study.scales_from}, {"centred", study.centred}};
  if (!study.centring_refused.empty()) j["center_k_refused"] = study.centring_refused;
  for (const Layer& layer : study.layers) {
    j["layers"].push_back(
        {{"name", layer.name}, {"queries", layer.queries}, {"queries_in_file", layer.all_queries}, {"heads", layer.heads}});
  }
  for (const ChoiceResult& r : study.results) j["formats"].push_back(result_json(study, r));
  j["loud_factor"] = study.loud_factor;
  j["loud_channels"] = json::array();
  for (const LoudChannel& c : study.loud) {
    j["loud_channels"].push_back({{"layer", c.layer},
                                  {"source", c.source},
                                  {"head", c.head},
                                  {"channel", c.channel},
                                  {"rms", c.rms},
                                  {"times_median", c.times_median},
                                  {"mean_share", c.mean_share}});
  }
  return j;
}

}  // namespace

json report_json(const std::vector<Study>& studies, const Options& options) {
  json j = {{"headwater", version()}, {"center_k", options.center_k}, {"files", json::array()}};
  for (const Study& study : studies) j["files"].push_back(study_json(study));
  return j;
}

}  // namespace headwater::cli::formats
