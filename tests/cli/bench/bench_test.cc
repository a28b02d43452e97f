// Shape files, the bench's floors and comparison, and drawings of a plan.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "cli/bench/plain.h"
#include "cli/bench/report.h"
#include "cli/bench/shapes.h"
#include "cli/explain.h"

namespace headwater::cli {
namespace {

Shape parse_one(const std::string& line) {
  const Result<std::vector<Shape>> shapes = parse_shapes(line, "shapes.txt");
  EXPECT_TRUE(shapes.ok()) << shapes.status().message();
  return shapes.ok() ? shapes->front() : Shape();
}

std::string fault_of(const std::string& text) {
  const Result<std::vector<Shape>> shapes = parse_shapes(text, "shapes.txt");
  return shapes.ok() ? "" : shapes.status().message();
}

TEST(Shapes, AreReadWithTheirOrigin) {
  const Result<std::vector<Shape>> shapes = parse_shapes(
      "# where it is\n# from\nmla batch=2 heads=16 d_qk=576 d_v=512 shared=1 kv_len=7,9 format=fp8_ds_656\n\n"
      "plain heads=8 kv_heads=2 d=64 kv_len=100 page=0 rule=window:127 sinks=1 q=f32 out=f32\n",
      "shapes.txt");
  ASSERT_TRUE(shapes.ok()) << shapes.status().message();
  ASSERT_EQ(shapes->size(), 2U);
  const Shape& mla = (*shapes)[0];
  EXPECT_EQ(mla.origin, "where it is from");
  EXPECT_EQ(mla.kv_lens, (std::vector<int32_t>{7, 9}));
  EXPECT_EQ(mla.k_format, Format::kFp8Ds656);
  EXPECT_TRUE(mla.shared);
  const Shape& plain = (*shapes)[1];
  EXPECT_EQ(plain.origin, "");  // a blank line ends a group
  EXPECT_EQ(plain.rule, RuleKind::kWindow);
  EXPECT_EQ(plain.rule_value, 127);
  EXPECT_EQ(plain.page_size, 0);
  EXPECT_EQ(plain.q_type, Type::kF32);
}

TEST(Shapes, LengthsMayBeListsOrADistribution) {
  EXPECT_EQ(parse_one("a batch=4 heads=1 d=8 kv_len=131072,10x3").kv_lens, (std::vector<int32_t>{131072, 10, 10, 10}));
  EXPECT_EQ(parse_one("a batch=3 heads=1 d=8 kv_len=5").kv_lens, (std::vector<int32_t>{5, 5, 5}));
  const std::string line = "a batch=256 heads=1 d=8 kv_len=lognormal(800,1.0)";
  const Shape drawn = parse_one(line);
  ASSERT_EQ(drawn.kv_lens.size(), 256U);
  EXPECT_EQ(drawn.kv_lens, parse_one(line).kv_lens);
  double log_sum = 0.0;
  for (const int32_t len : drawn.kv_lens) log_sum += std::log(static_cast<double>(len));
  EXPECT_NEAR(std::exp(log_sum / 256.0), 800.0, 200.0);
}

TEST(Shapes, FaultsNameFileLineAndField) {
  EXPECT_EQ(fault_of("\na heads=0 d=8 kv_len=1"), "shapes.txt:2: heads=0: must be 1 to 65536");
  EXPECT_EQ(fault_of("a heads=3 kv_heads=2 d=8 kv_len=1"), "shapes.txt:1: kv_heads = 2: must divide heads = 3");
  EXPECT_EQ(fault_of("a heads=1 d=8 kv_len=1 colour=red"), "shapes.txt:1: colour=red: no such key");
  EXPECT_EQ(fault_of("a heads=1 d=8 kv_len=1 format=fp3"), "shapes.txt:1: format=fp3: not known");
  EXPECT_EQ(fault_of("a heads=1 d=8 kv_len=1\na heads=1 d=8 kv_len=1"), "shapes.txt:2: name a stands twice");
  EXPECT_NE(fault_of("a batch=2 heads=1 d=8 kv_len=1,2,3"), "");
  EXPECT_NE(fault_of("a heads=1 d=8"), "");
  EXPECT_NE(fault_of("a heads=1 d=8 kv_len=9999999x9999999"), "");
  EXPECT_NE(fault_of("a heads=1 d=8 kv_len=1 rule=window:"), "");
  EXPECT_EQ(fault_of("a heads=1 d=8 kv_len=1 twin=b"), "shapes.txt: twin=b of a: no such shape");
  EXPECT_EQ(fault_of("a heads=1 d=8 kv_len=1 reach=0.5"), "shapes.txt:1: reach=0.5: not known");
  EXPECT_EQ(fault_of("# nothing\n"), "shapes.txt: holds no shape");
}

// Every shape is checked against the oracle by measure(), in each kind of addressing, rule and record.
TEST(Measure, ChecksThenTimes) {
  const Result<std::vector<Shape>> shapes = parse_shapes(
      "mla batch=2 heads=16 d_qk=576 d_v=512 shared=1 kv_len=100,0 format=fp8_ds_656\n"
      "v4 batch=2 heads=4 d=512 shared=1 kv_len=130 format=fp8_ds_584 sinks=1\n"
      "gqa heads=8 kv_heads=2 d=64 kv_len=200 page=16 rule=window:40 sinks=1 format=nvfp4 twin=mla\n"
      "ragged batch=3 heads=4 kv_heads=4 d=32 q_len=5 kv_len=50,7,3 page=0 k_format=e4m3 v_format=mxfp4\n"
      "gathered batch=2 heads=4 d=64 kv_len=90,10 rule=gathered:32 q_len=2\n",
      "shapes.txt");
  ASSERT_TRUE(shapes.ok()) << shapes.status().message();
  CeilingMeter meter(2, size_t{8} << 20);
  MeasureOptions options;
  options.threads = 2;
  options.rounds = 3;
  options.fewer_threads = 1;
  options.plain_rounds = 1;
  options.cold_bytes = 1 << 20;
  const std::vector<Row> rows = measure(*shapes, options, &meter);
  ASSERT_EQ(rows.size(), 5U);
  for (const Row& row : rows) {
    EXPECT_EQ(row.fault, "") << row.name;
    EXPECT_GT(row.worst_error, 0.0) << row.name;
    EXPECT_LE(row.worst_error, 1.0) << row.name;
    EXPECT_GE(row.runs, 3);
    EXPECT_GT(row.floor_us, 0.0);
    EXPECT_DOUBLE_EQ(row.floor_ratio, row.min_us / row.floor_us);
    EXPECT_GE(row.fewer_threads_runs, 3);
    EXPECT_GT(row.fewer_threads_us, 0.0);
  }
  EXPECT_DOUBLE_EQ(rows[2].over_twin, rows[2].floor_ratio / rows[0].floor_ratio);
  EXPECT_EQ(rows[0].over_twin, 0.0);
  // By hand: 16 heads x 100 entries x 2 x (576 + 512); 100 records of 656 bytes.
  EXPECT_DOUBLE_EQ(rows[0].flops, 16.0 * 100 * 2 * 1088);
  EXPECT_DOUBLE_EQ(rows[0].kv_bytes, 100.0 * 656);
  EXPECT_DOUBLE_EQ(rows[1].kv_bytes, 2 * 130.0 * 584);
  EXPECT_DOUBLE_EQ(rows[2].kv_bytes, 41.0 * 2 * 2 * (32 + 4));
  EXPECT_DOUBLE_EQ(rows[3].flops, 4.0 * (46 + 47 + 48 + 49 + 50 + 3 + 4 + 5 + 6 + 7 + 1 + 2 + 3) * 2 * 64);
  EXPECT_DOUBLE_EQ(rows[4].flops, 4.0 * 2 * (32 + 10) * 2 * 128);
}

// OpenBLAS is asked for at run time: where it is not installed, the baseline is left out and there is nothing to test.
TEST(Plain, AgreesWithAFloat64Loop) {
  if (!PlainAttention::available()) GTEST_SKIP() << "libopenblas.so.0 is not installed";
  const Result<std::vector<Shape>> shapes = parse_shapes(
      "mla batch=3 heads=16 d_qk=96 d_v=64 shared=1 kv_len=100,0,41\n"
      "window heads=8 kv_heads=2 d=64 kv_len=200 rule=window:40\n"
      "prompt batch=2 heads=4 kv_heads=2 d_qk=32 d_v=48 q_len=130 kv_len=150,130\n"
      "alone heads=4 d=32 kv_len=77 rule=full\n",
      "shapes.txt");
  ASSERT_TRUE(shapes.ok()) << shapes.status().message();
  PlainMemory memory(1 << 16);
  for (const Shape& shape : *shapes) {
    PlainAttention plain(shape, 2, &memory);
    for (int i = 0; i < 3; ++i) {
      plain.prepare();
      plain.run();
      EXPECT_LT(plain.worst_error(), 2e-5) << shape.name;
    }
  }
}

Ceilings ceilings_of(int32_t threads, double gflops, double gbps) { return {threads, gflops, gbps, "avx2"}; }

TEST(Report, RunsBelowTheBestKnownCeilingsAreNotValid) {
  const std::filesystem::path directory = std::filesystem::path(testing::TempDir()) / "headwater_bench_results";
  std::filesystem::create_directories(directory);
  const auto keep = [&](const char* name, const Ceilings& c) {
    nlohmann::ordered_json json = bench_json({}, {c, 1.0, c, 0});
    std::ofstream(directory / name) << json;
  };
  keep("same.json", ceilings_of(2, 190.0, 20.0));
  keep("other_threads.json", ceilings_of(1, 999.0, 999.0));
  std::ofstream(directory / "broken.json") << "{";
  std::ofstream(directory / "gpu.json") << R"({"device": "H200"})";
  const Ceilings now = ceilings_of(2, 185.0, 25.0);
  const Ceilings known = best_known(directory.string(), now);
  EXPECT_DOUBLE_EQ(known.fma_gflops, 190.0);
  EXPECT_DOUBLE_EQ(known.dram_gbps, 25.0);
  EXPECT_TRUE((Conditions{now, 1.0, known, 0}.valid()));
  const Conditions slow{ceilings_of(2, 190.0, 23.7), 1.0, known, 0};
  EXPECT_FALSE(slow.valid());
  EXPECT_NE(ceilings_line(slow).find("not valid"), std::string::npos);
  EXPECT_EQ(bench_json({}, slow)["valid"], false);
  EXPECT_DOUBLE_EQ(best_known((directory / "nowhere").string(), now).fma_gflops, 185.0);
  std::filesystem::remove_all(directory);
}

Row row_of(const std::string& name, double min_us, double spread) {
  Row row;
  row.name = name;
  row.min_us = min_us;
  row.spread = spread;
  return row;
}

TEST(Compare, JudgesPastTheNoiseOnly) {
  const nlohmann::json baseline = nlohmann::json::parse(
      R"({"rows": [{"name": "a", "min_us": 100, "spread": 0.01}, {"name": "b", "min_us": 100, "spread": 0.3}, {"name": "gone", "min_us": 1}]})");
  const Result<Comparison> calm = compare({row_of("a", 104, 0.01), row_of("b", 125, 0.01), row_of("fresh", 1, 0)}, baseline);
  ASSERT_TRUE(calm.ok());
  EXPECT_EQ(calm->slower, 0);
  EXPECT_EQ(calm->compared, 2);
  EXPECT_NE(calm->text.find("1 of its shapes not measured now"), std::string::npos);
  EXPECT_NE(calm->text.find("not in the baseline"), std::string::npos);
  const Result<Comparison> slow = compare({row_of("a", 106, 0.01), row_of("b", 131, 0.01)}, baseline);
  ASSERT_TRUE(slow.ok());
  EXPECT_EQ(slow->slower, 2);
}

TEST(Compare, RefusesWhatIsNoBaseline) {
  for (const char* text : {"[]", "{}", R"({"rows": [1]})", R"({"rows": [{"name": "a", "min_us": "x"}]})", R"({"rows": []})"}) {
    EXPECT_FALSE(compare({row_of("a", 1, 0)}, nlohmann::json::parse(text)).ok()) << text;
  }
}

TEST(Compare, MeanOfRatiosIsGeometric) {
  std::vector<Row> rows{row_of("a", 1, 0), row_of("b", 1, 0), row_of("c", 1, 0)};
  rows[0].floor_ratio = 2.0;
  rows[1].floor_ratio = 8.0;
  rows[2].fault = "refused";
  EXPECT_NEAR(geometric_mean_ratio(rows), 4.0, 1e-12);
}

Explanation two_workers() {
  Explanation e;
  e.kernel = "k<1>";
  e.worker_load = {1.25, 0.75};
  e.timeline = {{0, 0, 0, 1, 0, 0.0, 1.25, true}, {1, 0, 0, 1, 0, 0.0, 0.25, true}, {1, 10, 0, 1, 0, 0.25, 0.75, false}};
  return e;
}

TEST(Timeline, DrawsEveryWorker) {
  const std::string text = timeline_text(two_workers(), 10, 16);
  EXPECT_NE(text.find("|AAAAAAAAAA| 1.250"), std::string::npos) << text;
  EXPECT_NE(text.find("|AA|kkk....| 0.750"), std::string::npos) << text;
  EXPECT_EQ(timeline_text(Explanation(), 10, 16), "  no work\n");
}

TEST(Timeline, ShowsTheExtremesOfManyWorkers) {
  Explanation e;
  for (int32_t w = 0; w < 100; ++w) {
    e.worker_load.push_back(w == 70 ? 2.0 : w == 90 ? 0.5 : 1.0);
    e.timeline.push_back({w, w, 0, 1, 0, 0.0, e.worker_load.back(), false});
  }
  const std::string text = timeline_text(e, 20, 8);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 9);
  EXPECT_NE(text.find("worker   70"), std::string::npos);
  EXPECT_NE(text.find("worker   90"), std::string::npos);
}

TEST(Timeline, SvgEscapesAndHoldsEveryItem) {
  const std::string svg = timeline_svg(two_workers(), "a & b \x1b[2J");
  EXPECT_NE(svg.find("a &amp; b \\x1b[2J"), std::string::npos);
  EXPECT_NE(svg.find("k&lt;1&gt;"), std::string::npos);
  size_t titles = 0;
  for (size_t at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1)) ++titles;
  EXPECT_EQ(titles, 3U);
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
}

}  // namespace
}  // namespace headwater::cli
