// headwater bench: times shapes against this machine's measured ceilings.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <memory>

#include "cli/bench/plain.h"
#include "cli/bench/report.h"
#include "cli/json_file.h"
#include "cli/machine.h"
#include "cli/verb.h"

namespace headwater::cli {
namespace {

struct Options {
  std::string shapes = "bench/shapes/cpu.txt";
  std::string json;
  std::string baseline;
  std::string filter;
  std::string results = "bench/results";
  std::vector<int32_t> threads;
  bool ceilings = false;
  MeasureOptions measure;
};

int show_ceilings(const std::string& results, int32_t most) {
  std::vector<int32_t> counts;
  for (int32_t n = 1; n < most; n *= 2) counts.push_back(n);
  counts.push_back(most);
  for (const int32_t threads : counts) {
    CeilingMeter meter(threads);
    for (int i = 0; i < 10; ++i) meter.sample();
    fmt::print("{}\n", ceilings_line({meter.best(), meter.steadiness(), best_known(results, meter.best()), 0}));
  }
  return kDone;
}

int run_bench(Options o) {
  if (o.threads.size() > 2) return fail("--threads: at most two counts");
  o.measure.threads = o.threads.empty() ? usable_cpus() : o.threads.back();
  if (o.threads.size() == 2) o.measure.fewer_threads = o.threads.front();
  if (o.ceilings) return show_ceilings(o.results, o.measure.threads);
  nlohmann::json baseline;
  if (!o.baseline.empty()) {  // before the long work
    std::ifstream file(o.baseline, std::ios::binary);
    if (!file) return fail("--baseline " + o.baseline + ": cannot be read");
    baseline = nlohmann::json::parse(file, nullptr, false);
    if (baseline.is_discarded()) return fail("--baseline " + o.baseline + ": is no JSON");
  }
  const Result<std::vector<Shape>> all = read_shapes(o.shapes);
  if (!all.ok()) return fail(all.status());
  std::vector<Shape> shapes = *all;
  if (!o.filter.empty()) {
    std::erase_if(shapes, [&](const Shape& s) { return s.name.find(o.filter) == std::string::npos; });
    if (shapes.empty()) return fail("--filter " + o.filter + ": is part of no shape's name in " + o.shapes);
  }
  CeilingMeter meter(o.measure.threads);
  const std::vector<Row> rows = measure(shapes, o.measure, &meter);
  const Conditions conditions{meter.best(), meter.steadiness(), best_known(o.results, meter.best()), o.measure.fewer_threads};
  if (o.json != "-") fmt::print("{}", report_text(rows, conditions));
  if (o.json != "-" && o.measure.plain_rounds > 0 && !PlainAttention::available()) {
    fmt::print("no OpenBLAS baseline: libopenblas.so.0 is not installed\n");
  }
  if (!o.json.empty()) {
    if (const Status status = write_json(o.json, bench_json(rows, conditions)); !status.ok()) return fail(status);
  }
  const bool wrong = std::any_of(rows.begin(), rows.end(), [](const Row& r) { return r.wrong; });
  const bool refused = std::any_of(rows.begin(), rows.end(), [](const Row& r) { return !r.fault.empty() && !r.wrong; });
  int64_t slower = 0;
  if (!o.baseline.empty()) {
    const Result<Comparison> comparison = compare(rows, baseline);
    if (!comparison.ok()) return fail("--baseline " + o.baseline + ": " + comparison.status().message());
    if (o.json != "-") fmt::print("{}", comparison->text);
    slower = comparison->slower;
  }
  return wrong || slower > 0 ? kCheckFailed : refused ? kBadInput : kDone;
}

}  // namespace

void register_bench(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("bench", "Time shapes against this machine's measured ceilings");
  verb->add_option("SHAPES", o->shapes, "Shape file")->capture_default_str();
  verb->add_option("--json", o->json, "Write the results as JSON (- = standard output)")->check(check_output_path);
  verb->add_option("--baseline", o->baseline, "Compare with an earlier --json file; exit code 1 if a shape is slower past the noise");
  verb->add_flag("--ceilings", o->ceilings, "Measure multiply-add peak and memory bandwidth by thread count, and stop");
  verb->add_option("--threads", o->threads, "Threads (default: all that this process may use); 1,2 also times with 1, for the scaling")
      ->delimiter(',')
      ->check(CLI::Range(1, 4096));
  verb->add_option("--filter", o->filter, "Only shapes whose name contains this");
  verb->add_option("--rounds", o->measure.rounds, "Rounds; each times every shape, short ones several times")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  verb->add_option("--plain-rounds", o->measure.plain_rounds, "Rounds of them that time OpenBLAS GEMMs and a softmax too (0: none)")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  verb->add_flag("!--small-pages", o->measure.huge_pages, "Do not ask for huge pages for the KV");
  verb->add_option("--results", o->results, "Directory of earlier results, searched for the best ceilings known of this machine")
      ->capture_default_str();
  verb->add_option("--kernel", o->measure.plan.kernel, "Force a kernel by name");
  verb->add_option("--isa", o->measure.plan.isa, "Force an ISA level: scalar, avx2, avx512, neon");
  verb->add_flag("--batch-invariant", o->measure.plan.batch_invariant, "Plan so that a request's bits depend on that request alone");
  verb->callback([o, &action] { action = [o] { return run_bench(*o); }; });
}

}  // namespace headwater::cli
