// The formats verb: its arithmetic on hand-made numbers, its baseline against the oracle, its table on the captured model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/formats/study.h"
#include "src/io/problem_file.h"

namespace headwater::cli::formats {
namespace {

std::string example(const std::string& name) { return std::string(HEADWATER_EXAMPLES) + "/" + name + ".safetensors"; }

const ChoiceResult* find(const Study& study, const std::string& name) {
  const auto at = std::find_if(study.results.begin(), study.results.end(), [&](const ChoiceResult& r) { return r.choice.name == name; });
  return at == study.results.end() ? nullptr : &*at;
}

// The captured model, measured once.
const Study& captured() {
  static const Study study = [] {
    Options options;
    options.calibrate = example("smollm2_calibrate");
    options.decode_context = 300;
    Result<Study> made = make_study(example("smollm2_measure"), options);
    EXPECT_TRUE(made.ok()) << made.status().message();
    return made.ok() ? std::move(made).value() : Study{};
  }();
  return study;
}

double k_rms(const std::string& name) {
  const ChoiceResult* r = find(captured(), name);
  EXPECT_NE(r, nullptr) << name;
  return r ? r->all.k_rms : std::nan("");
}

// One request, one query head, d 2, two keys.
struct Small {
  float q[2] = {2.0F, -1.0F};
  float k[4] = {1.0F, 3.2F, 0.5F, 0.25F};
  float v[4] = {1.0F, 0.0F, 3.2F, 0.0F};
  int32_t qo_indptr[2] = {0, 1};
  int32_t kv_indptr[2] = {0, 2};
  float out[2] = {};
  std::vector<Source> sources;
  Problem problem;
  Small() {
    Source s;
    s.k.data = k;
    s.k.format = Format::kF32;
    s.k.width = 2;
    s.v.data = v;
    s.v.format = Format::kF32;
    s.v.width = 2;
    s.addressing.num_pages = 2;
    s.addressing.kv_indptr = kv_indptr;
    sources = {s};
    problem.q = {q, Type::kF32, 1, 1, 2};
    problem.requests = 1;
    problem.qo_indptr = qo_indptr;
    problem.sources = sources;
    problem.sm_scale = 0.5F;
    problem.out = {out, Type::kF32};
  }
};

TEST(FormatsArithmetic, RowsAreDecodedAndSeen) {
  Small small;
  const Result<Layer> layer = load_layer(small.problem, "layers.7", 1000);
  ASSERT_TRUE(layer.ok()) << layer.status().message();
  EXPECT_EQ(layer->seen(0), 2);
  EXPECT_EQ(layer->visible[0].age, (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(layer->sources[0].k, std::vector<float>(small.k, small.k + 4));
  const double w0 = std::exp(0.5 * (2.0 - double{3.2F}));
  const double w1 = std::exp(0.5 * (1.0 - 0.25));
  EXPECT_NEAR(layer->out[0], (w0 * 1.0 + w1 * double{3.2F}) / (w0 + w1), 1e-12);
}

TEST(FormatsArithmetic, ScalesComeFromTheRange) {
  Small small;
  const Result<Layer> layer = load_layer(small.problem, "", 1000);
  ASSERT_TRUE(layer.ok());
  const Range range = range_of(layer->sources[0]);
  EXPECT_EQ(range.k, std::vector<float>{3.2F});
  const Choice tensor{"", Format::kE4m3, Format::kNvfp4, ScaleFrom::kTensor};
  const ScaleValues scales = scales_for(tensor, range);
  EXPECT_EQ(scales.k, std::vector<float>{3.2F / 448.0F});
  EXPECT_EQ(scales.v, std::vector<float>{3.2F / 2688.0F});
  EXPECT_EQ(saturated(tensor, scales, layer->sources[0]), 0);
  EXPECT_EQ(saturated(tensor, {{1.6F / 448.0F}, {}}, layer->sources[0]), 1);
  const Choice one{"", Format::kE4m3, Format::kMxfp4, ScaleFrom::kOne};
  EXPECT_EQ(scales_for(one, range).k, std::vector<float>{1.0F});
  EXPECT_TRUE(scales_for(one, range).v.empty());
}

TEST(FormatsArithmetic, BytesOfAnEntry) {
  Rows rows;
  rows.heads = 3;
  rows.d_qk = 64;
  rows.d_v = 64;
  EXPECT_EQ(entry_bytes(rows, Format::kBf16, Format::kBf16), 768.0);
  EXPECT_EQ(entry_bytes(rows, Format::kE4m3, Format::kMxfp4), 3 * (64.0 + 34.0));
  rows.heads = 1;
  rows.shared = true;
  rows.d_qk = 512;
  EXPECT_EQ(entry_bytes(rows, Format::kFp8Ds584, Format::kFp8Ds584), 37440.0 / 64.0);
}

TEST(FormatsArithmetic, MeanIsTakenOffEachChannel) {
  Small small;
  const Result<Layer> layer = load_layer(small.problem, "", 1000);
  ASSERT_TRUE(layer.ok());
  Rows rows = layer->sources[0];
  const std::vector<float> mean = channel_mean(rows);
  EXPECT_FLOAT_EQ(mean[0], 0.75F);
  subtract_mean(mean, &rows);
  EXPECT_FLOAT_EQ(rows.k[0] + rows.k[2], 0.0F);
  EXPECT_TRUE(layer->centring_refused().empty());
}

// Every rule and addressing of the examples becomes the same plain problem: its oracle must be the file's own.
TEST(FormatsBaseline, IsTheOracleOfTheFile) {
  for (const char* name : {"smollm2_measure", "smollm2_prefill", "r1_mla_ragged_bf16", "r1_mla_ragged_fp8", "r1_mla_ragged_mxfp4",
                           "r1_mla_paged_bf16", "v4_csa", "v4_hca", "gpt_oss_gqa"}) {
    SCOPED_TRACE(name);
    const Result<io::ProblemFile> file = io::ProblemFile::open(example(name));
    ASSERT_TRUE(file.ok()) << file.status().message();
    const Result<io::OwnedProblem> owned = file->load(file->size() - 1);
    ASSERT_TRUE(owned.ok()) << owned.status().message();
    const Result<Layer> layer = load_layer(owned->problem, owned->name, 50'000'000);
    ASSERT_TRUE(layer.ok()) << layer.status().message();
    ASSERT_EQ(layer->queries, layer->all_queries);
    std::vector<double> out(layer->out.size());
    ReferenceResult result;
    result.out = out.data();
    ASSERT_TRUE(reference_attention(owned->problem, result).ok());
    for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], layer->out[i], 1e-9) << i;
  }
}

TEST(FormatsBaseline, LargeCapturesAreSampledAndKeepTheLastQuery) {
  const Result<io::ProblemFile> file = io::ProblemFile::open(example("smollm2_prefill"));
  ASSERT_TRUE(file.ok());
  const Result<io::OwnedProblem> owned = file->load(0);
  ASSERT_TRUE(owned.ok());
  const Result<Layer> layer = load_layer(owned->problem, owned->name, 50'000);
  ASSERT_TRUE(layer.ok());
  EXPECT_EQ(layer->all_queries, 320);
  EXPECT_LT(layer->queries, 64);
  EXPECT_GT(layer->queries, 16);
  EXPECT_EQ(layer->seen(layer->queries - 1), 320);
}

// A small table can name one page a thousand times: what a query sees is not bounded by the size of the file.
TEST(FormatsBaseline, RefusesWhatItCouldNotHold) {
  Small small;
  const std::vector<float> page(size_t{4096} * 2, 1.0F);
  const std::vector<int32_t> table(2048, 0);
  const int32_t seq_len = 4096 * 2048;
  Source& s = small.sources[0];
  s.k.data = page.data();
  s.v.data = page.data();
  s.addressing = {};
  s.addressing.kind = AddressingKind::kBlockTable;
  s.addressing.page_size = 4096;
  s.addressing.num_pages = 1;
  s.addressing.block_table = table.data();
  s.addressing.max_pages = 2048;
  s.addressing.seq_lens = &seq_len;
  const Result<Layer> layer = load_layer(small.problem, "", 1000);
  ASSERT_FALSE(layer.ok());
  EXPECT_NE(layer.status().message().find("sees 8388608 entries"), std::string::npos) << layer.status().message();
}

TEST(FormatsTable, HasEveryRow) {
  for (const char* name : {"bf16", "fp8, scale 1.0", "fp8 per tensor", "fp8 per head", "q8_0", "int8", "mxfp4", "nvfp4", "fp8 K, mxfp4 V",
                           "mxfp4, last 128 bf16"}) {
    const ChoiceResult* r = find(captured(), name);
    ASSERT_NE(r, nullptr) << name;
    EXPECT_EQ(r->refused, "") << name;
    EXPECT_EQ(r->by_layer.size(), 6U);
    EXPECT_EQ(r->by_context.size(), captured().contexts.size());
    EXPECT_GT(r->time.median_s, 0.0);
    EXPECT_FALSE(r->time.kernel.empty());
  }
  Rows latent;
  latent.shared = true;
  latent.d_qk = 576;
  latent.d_v = 512;
  std::string names;
  for (const Choice& choice : choices_for(latent, 128)) names += choice.name + ";";
  for (const char* name :
       {"fp8_ds_656;", "mxfp4;", "mxfp4_rope_bf16;", "nvfp4;", "nvfp4_ds_352;", "nvfp4_ds_432;", "mxfp4_rope_bf16, last 128 bf16;"}) {
    EXPECT_NE(names.find(name), std::string::npos) << name << " in " << names;
  }
}

TEST(FormatsTable, CapturedModelIsSaneAndOrdered) {
  const Study& study = captured();
  const ChoiceResult* bf16 = find(study, "bf16");
  ASSERT_NE(bf16, nullptr);
  EXPECT_EQ(bf16->bytes_per_token, 6 * 3 * 64 * 2 * 2.0);
  EXPECT_EQ(bf16->tokens_in_gib, 233016.0);
  EXPECT_EQ(bf16->all.k_rms, 0.0);  // the capture is bf16
  EXPECT_EQ(bf16->all.v_rms, 0.0);
  EXPECT_LT(bf16->all.out_worst, 1e-4);  // what the kernel itself rounds
  EXPECT_GT(k_rms("q8_0"), 0.001);
  EXPECT_LT(k_rms("q8_0"), k_rms("fp8 per tensor"));
  EXPECT_LT(k_rms("fp8 per tensor"), k_rms("nvfp4"));
  EXPECT_LT(k_rms("nvfp4"), k_rms("mxfp4"));
  EXPECT_LT(k_rms("mxfp4, last 128 bf16"), k_rms("mxfp4"));
  EXPECT_LT(k_rms("mxfp4"), 2.0);
  EXPECT_EQ(k_rms("fp8 K, mxfp4 V"), k_rms("fp8 per tensor"));
  EXPECT_EQ(find(study, "fp8 K, mxfp4 V")->all.v_rms, find(study, "mxfp4")->all.v_rms);
  for (const ChoiceResult& r : study.results) {
    EXPECT_LE(r.all.k_rms, 1.5 * r.all.k_p99 + 1e-12) << r.choice.name;
    EXPECT_LE(r.all.out_p50, r.all.out_p99) << r.choice.name;
    EXPECT_LE(r.all.out_p99, r.all.out_worst) << r.choice.name;
    EXPECT_EQ(r.worst_at.rfind("layers.", 0), 0U) << r.worst_at;
    ASSERT_TRUE(r.centred_k_rms.has_value());
    if (r.choice.name == "bf16") continue;                      // the capture itself; its difference from a mean is not a bf16 number
    EXPECT_LT(*r.centred_k_rms, r.all.k_rms) << r.choice.name;  // this model's K has loud constant channels
  }
  // A query that sees at most 128 entries reads bf16 alone.
  const ChoiceResult* recent = find(study, "mxfp4, last 128 bf16");
  ASSERT_NE(recent, nullptr);
  EXPECT_EQ(study.contexts[0], "1-64");
  EXPECT_EQ(recent->by_context[0].k_rms, 0.0);
  EXPECT_GT(recent->by_context.back().k_rms, 0.1);
  EXPECT_FALSE(study.loud.empty());
}

// Calibration helps fp8, or the report says why it does not.
TEST(FormatsTable, CalibratedScaleHelpsOrIsExplained) {
  const bool helps = k_rms("fp8 per tensor") < k_rms("fp8, scale 1.0");
  const bool explained = report_text(captured()).find("fp8 is a floating format") != std::string::npos;
  EXPECT_NE(helps, explained);
  EXPECT_LT(k_rms("fp8 per tensor"), 1.05 * k_rms("fp8, scale 1.0"));
}

TEST(FormatsReport, TextNamesColumnsScalesAndData) {
  const std::string text = report_text(captured());
  for (const char* part : {"bytes/token", "tokens/GiB", "K nats RMS", "K p99", "V rel RMS", "out p50", "out p99", "out worst", "worst at",
                           "scales: calibrated = amax of", "smollm2_calibrate", "Q4_1 GGUF", "Output error alone ranks nothing", "by layer",
                           "by entries seen", "K channels above", "--center-k would gain", "Decode step on this machine", "smoke test"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
}

TEST(FormatsReport, SyntheticDataIsCalledSo) {
  Options options;
  options.decode_context = 0;
  const Result<Study> study = make_study(example("v4_hca"), options);
  ASSERT_TRUE(study.ok()) << study.status().message();
  const std::string text = report_text(*study);
  EXPECT_NE(text.find("SYNTHETIC"), std::string::npos);
  EXPECT_NE(text.find("this data = amax of this data itself, which is optimistic"), std::string::npos);
  EXPECT_NE(text.find("--center-k would not be exact"), std::string::npos);
  EXPECT_EQ(text.find("smoke test"), std::string::npos);
  const ChoiceResult* own = find(*study, "fp8_ds_584");  // the file's own format
  ASSERT_NE(own, nullptr);
  EXPECT_EQ(own->all.k_rms, 0.0);
}

TEST(FormatsReport, JsonHoldsWhatTheStudyHolds) {
  const Study& study = captured();
  const nlohmann::ordered_json j = report_json({study}, Options{});
  const nlohmann::ordered_json& file = j.at("files").at(0);
  EXPECT_EQ(file.at("synthetic"), false);
  ASSERT_EQ(file.at("formats").size(), study.results.size());
  for (size_t i = 0; i < study.results.size(); ++i) {
    const nlohmann::ordered_json& row = file.at("formats").at(i);
    const ChoiceResult& r = study.results[i];
    EXPECT_EQ(row.at("name"), r.choice.name);
    EXPECT_EQ(row.at("bytes_per_token"), r.bytes_per_token);
    EXPECT_EQ(row.at("errors").at("k_nats_rms"), r.all.k_rms);
    EXPECT_EQ(row.at("errors").at("out_relative_worst"), r.all.out_worst);
    EXPECT_EQ(row.at("by_layer").size(), r.by_layer.size());
    EXPECT_EQ(row.at("by_context").size(), r.by_context.size());
    EXPECT_EQ(row.at("decode").at("context"), 300);
  }
  EXPECT_EQ(file.at("loud_channels").size(), study.loud.size());
}

TEST(FormatsReport, PlotNamesEveryFormatWithAnError) {
  const std::string svg = report_svg(captured());
  EXPECT_EQ(svg.rfind("<svg ", 0), 0U);
  EXPECT_NE(svg.find("</svg>"), std::string::npos);
  for (const ChoiceResult& r : captured().results) {
    if (r.all.k_rms <= 0.0) continue;
    EXPECT_NE(svg.find(">" + r.choice.name + "<"), std::string::npos) << r.choice.name;
  }
}

// Many points in one place: labels must make room for each other and come to an end.
TEST(FormatsReport, PlotOfEqualPointsEnds) {
  Study study = captured();
  for (size_t i = 0; i < study.results.size(); ++i) {
    study.results[i].all.k_rms = 0.1 + 1e-5 * static_cast<double>(i);
    study.results[i].all.v_rms = 0.1;
    study.results[i].bytes_per_token = 1000.0;
  }
  const std::vector<ChoiceResult> once = study.results;
  for (int i = 0; i < 7; ++i) study.results.insert(study.results.end(), once.begin(), once.end());
  EXPECT_NE(report_svg(study).find("</svg>"), std::string::npos);
}

TEST(FormatsOptions, CenterKKeepsTheOutputAndLowersTheError) {
  Options options;
  options.decode_context = 0;
  options.center_k = true;
  const Result<Study> study = make_study(example("smollm2_prefill"), options);
  ASSERT_TRUE(study.ok()) << study.status().message();
  EXPECT_LT(find(*study, "bf16")->all.out_p99, 0.05);  // centring is exact, storing the difference in bf16 is not
  EXPECT_LT(find(*study, "mxfp4")->all.k_rms, 0.8 * k_rms("mxfp4"));
  EXPECT_EQ(*find(*study, "mxfp4")->centred_k_rms, find(*study, "mxfp4")->all.k_rms);
}

TEST(FormatsOptions, RefusesWhatWouldBeWrong) {
  Options options;
  options.center_k = true;
  const Result<Study> sinks = make_study(example("gpt_oss_gqa"), options);
  ASSERT_FALSE(sinks.ok());
  EXPECT_NE(sinks.status().message().find("sink"), std::string::npos);
  options.center_k = false;
  options.calibrate = example("gpt_oss_gqa");
  const Result<Study> other = make_study(example("smollm2_prefill"), options);
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().message().find("--calibrate: no layer like"), std::string::npos) << other.status().message();
  EXPECT_FALSE(make_study(example("no_such_file"), {}).ok());
}

}  // namespace
}  // namespace headwater::cli::formats
