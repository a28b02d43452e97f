#include "cli/check/check.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/terminal.h"
#include "cli/verb.h"

namespace headwater::conformance {
namespace {

using nlohmann::json;

json to_json(const CheckOptions& options, const Report& report, double seconds) {
  json failures = json::array();
  for (const CaseResult& f : report.failures) {
    failures.push_back(
        {{"case", f.index}, {"isa", f.facts.isa}, {"message", f.message}, {"problem", f.description}, {"again", reproduction(options, f)}});
  }
  json features_met = json::object();
  for (int32_t g = 0; g < kNumGroups; ++g) {
    const GroupInfo& group = groups()[static_cast<size_t>(g)];
    for (size_t c = 0; c < group.choices.size(); ++c) {
      features_met[group.name][group.choices[c].name] = report.coverage.count(static_cast<Group>(g), static_cast<int32_t>(c));
    }
  }
  return {{"seed", options.seed},
          {"cases", report.coverage.cases()},
          {"failed", report.failed},
          {"refused", report.refused},
          {"seconds", seconds},
          {"worst_error_over_allowance", report.worst},
          {"isas", report.coverage.isas()},
          {"several_sources_of_mixed_formats", report.coverage.mixed()},
          {"longer_than_three_tiles", report.coverage.longer()},
          {"dominating_edge", report.coverage.boundary()},
          {"cut_and_merged", report.coverage.split()},
          {"pairs_met", report.coverage.pairs_met()},
          {"pairs_legal", legal_pairs().size()},
          {"coverage_enforced", report.enforced},
          {"coverage_shortfalls", report.shortfalls},
          {"unlisted_refusals", report.unlisted_refusals},
          {"features", features_met},
          {"failures", failures},
          {"ok", report.ok()}};
}

void print_coverage(const Report& report) {
  const Coverage& c = report.coverage;
  const auto share = [&](int64_t n) {
    return fmt::format("{:.0f} %", 100.0 * static_cast<double>(n) / static_cast<double>(std::max<int64_t>(c.cases(), 1)));
  };
  std::string isas;
  for (const auto& [isa, count] : c.isas()) isas += fmt::format("{}{} {}", isas.empty() ? "" : ", ", isa, count);
  fmt::print(
      "coverage   {} of {} legal pairs of features; mixed sources {}, longer than three tiles {}, dominating edge {}, cut and merged {}\n",
      c.pairs_met(), legal_pairs().size(), share(c.mixed()), share(c.longer()), share(c.boundary()), share(c.split()));
  fmt::print("isa        {}\n", isas);
  for (const Group group : {kAddressing, kRule}) {
    std::string line;
    for (size_t i = 0; i < groups()[group].choices.size(); ++i) {
      line += fmt::format("{}{} {}", i == 0 ? "" : ", ", groups()[group].choices[i].name, c.count(group, static_cast<int32_t>(i)));
    }
    fmt::print("{:<10} {}\n", groups()[group].name, line);
  }
  std::string formats;
  for (const FormatInfo& info : all_formats()) {
    formats += fmt::format("{}{} {}", formats.empty() ? "" : ", ", info.name, c.format_count(static_cast<int32_t>(info.format)));
  }
  fmt::print("format     {}\n", formats);
}

}  // namespace

int run_check(const CheckOptions& options, const std::string& json_path) {
  const auto begin = std::chrono::steady_clock::now();
  Report report;
  {
    cli::Progress bar("cases", options.only_case >= 0 ? 1 : options.cases);
    report = run_cases(options, [&](int64_t done) { bar.set(done); });
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!report.error.empty()) return cli::fail(report.error);
  if (!json_path.empty()) {
    std::ofstream file(json_path);
    file << to_json(options, report, seconds).dump(2) << "\n";
    if (!file) return cli::fail("--json " + json_path + ": cannot be written");
  }
  for (const CaseResult& f : report.failures) {
    fmt::print("FAILED     case {} of seed {}: {}\n           {}\n           again: {}\n", f.index, options.seed, f.message, f.description,
               reproduction(options, f));
  }
  if (report.failed > static_cast<int64_t>(report.failures.size())) {
    fmt::print("           ... and {} more\n", report.failed - static_cast<int64_t>(report.failures.size()));
  }
  for (const std::string& refusal : report.unlisted_refusals)
    fmt::print("FAILED     a refusal that docs/unsupported.txt does not list: {}\n", refusal);
  fmt::print("check      {} cases of seed {} on {}: {} failed, {} refused; largest error {:.2f} of what is allowed (case {}); {:.1f} s\n",
             report.coverage.cases(), options.seed, options.backend, report.failed, report.refused, report.worst, report.worst_case,
             seconds);
  if (options.only_case < 0) {
    print_coverage(report);
    if (report.enforced) {
      for (const std::string& line : report.shortfalls) fmt::print("FAILED     {}\n", line);
    } else if (!report.shortfalls.empty()) {
      fmt::print("           {} demands on the coverage are not met; they are enforced from {} cases on\n", report.shortfalls.size(),
                 kEnforcedFrom);
    }
  }
  return report.ok() ? cli::kDone : cli::kCheckFailed;
}

}  // namespace headwater::conformance

namespace headwater::cli {

void register_check(CLI::App& app, Action& action) {
  struct Options {
    conformance::CheckOptions check;
    std::string json;
  };
  auto o = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("check", "Random problems over the whole feature space against the float64 oracle");
  verb->add_option("--cases", o->check.cases, "How many cases; from 2000 on the coverage is enforced")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  verb->add_option("--seed", o->check.seed, "Seed of all cases")->capture_default_str();
  verb->add_option("--case", o->check.only_case, "Run this one case of the seed")->check(CLI::NonNegativeNumber);
  verb->add_option("--backend", o->check.backend, "cpu or cuda")->capture_default_str();
  verb->add_option("--isa", o->check.isa, "One instruction set level (default: each that this machine has, in turn)");
  verb->add_option("--kernel", o->check.kernel, "One kernel by name");
  verb->add_option("--with", o->check.with, "Features that every case has, NAME=CHOICE as a failure prints them: rule=causal,v=shared")
      ->delimiter(',');
  verb->add_option("--threads", o->check.threads, "Cases at a time (default: one per CPU)")->check(CLI::PositiveNumber);
  verb->add_flag("--fail-fast", o->check.fail_fast, "Stop at the first failure");
  verb->add_option("--json", o->json, "Write the report as JSON to this file")->check(check_output_path);
  verb->callback([o, &action] { action = [o] { return conformance::run_check(o->check, o->json); }; });
}

}  // namespace headwater::cli
