// headwater explain: which kernels accept a problem and why the others refuse, the plan, and how evenly its work is dealt.
#include "cli/explain.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/json_file.h"
#include "cli/terminal.h"
#include "cli/verb.h"
#include "headwater/headwater.h"
#include "src/io/problem_file.h"

namespace headwater::cli {
namespace {

struct Options {
  std::string file;
  std::string svg;
  std::string json;
  int64_t layer = -1;
  PlanOptions plan;
};

nlohmann::ordered_json to_json(const Options& o, const io::OwnedProblem& owned, const Explanation& e) {
  nlohmann::ordered_json out;
  out["file"] = printable(o.file);
  out["problem"] = printable(owned.name);
  out["kernel"] = e.kernel;
  for (const KernelVerdict& v : e.verdicts) {
    out["verdicts"].push_back({{"kernel", v.kernel}, {"accepted", v.accepted}, {"reason", v.reason}});
  }
  out["plan"] = e.plan;
  out["items"] = e.items;
  out["split_blocks"] = e.split_blocks;
  out["worker_load"] = e.worker_load;
  out["load_bound"] = e.load_bound;
  out["timeline"] = nlohmann::ordered_json::array();
  for (const TimelineItem& item : e.timeline) {
    out["timeline"].push_back({{"worker", item.worker},
                               {"request", item.request},
                               {"token_begin", item.token_begin},
                               {"token_count", item.token_count},
                               {"head_block", item.head_block},
                               {"begin", item.begin},
                               {"end", item.end},
                               {"cut", item.cut}});
  }
  return out;
}

std::string headline(const io::OwnedProblem& owned) {
  const Problem& p = owned.problem;
  return fmt::format("{} request{}, {} query rows, {} heads, d {}/{}, {} source{}", p.requests, p.requests == 1 ? "" : "s",
                     p.requests > 0 ? p.qo_indptr[p.requests] : 0, p.q.heads, p.d_qk(), p.d_v(), p.sources.size(),
                     p.sources.size() == 1 ? "" : "s");
}

void print(const Options& o, const io::OwnedProblem& owned, const Explanation& e) {
  const std::string name = owned.name.empty() ? "" : " " + printable(owned.name);
  fmt::print("{}{}: {}\n\n", printable(o.file), name, headline(owned));
  Table table({"kernel", "verdict"});
  bool chosen = false;
  for (const KernelVerdict& v : e.verdicts) {
    const bool first = v.accepted && !chosen && v.kernel == e.kernel;
    chosen = chosen || first;
    table.add({v.kernel, first ? "runs" : v.accepted ? "would run; an earlier row does" : "refuses: " + printable(v.reason)});
  }
  fmt::print("{}", table.text(2));
  if (e.kernel.empty()) return;
  fmt::print("\nplan\n");
  for (const std::string& line : e.plan) fmt::print("  {}\n", line);
  fmt::print(
      "\nwork dealt (letters: requests, capitals: cut row blocks; 1.000 = an equal share; at most {:.3f} by the planner's bound)\n{}",
      e.load_bound, timeline_text(e, 64, 16));
}

int explain_file(const Options& o) {
  const Result<io::ProblemFile> file = io::ProblemFile::open(o.file);
  if (!file.ok()) return fail(file.status());
  const Result<std::vector<size_t>> chosen = io::choose_problems(*file, o.layer);
  if (!chosen.ok()) return fail(chosen.status());
  const Result<io::OwnedProblem> owned = file->load(chosen->front());
  if (!owned.ok()) return fail(owned.status());
  const Result<Explanation> explanation = explain(owned->problem, o.plan);
  if (!explanation.ok()) return fail(explanation.status());
  if (!o.svg.empty() && !explanation->kernel.empty()) {
    std::ofstream svg(o.svg, std::ios::binary);
    svg << timeline_svg(*explanation, o.file + " " + owned->name);
    svg.flush();
    if (!svg) return fail("--svg " + o.svg + ": cannot be written");
  }
  if (!o.json.empty()) {
    if (const Status status = write_json(o.json, to_json(o, *owned, *explanation)); !status.ok()) return fail(status);
  }
  if (o.json != "-") {
    print(o, *owned, *explanation);
    if (o.layer < 0 && file->size() > 1) fmt::print("\n{} problems in the file: --layer N explains another\n", file->size());
  }
  return explanation->kernel.empty() ? fail("no kernel of this build and machine takes the problem") : kDone;
}

}  // namespace

void register_explain(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("explain", "Which kernel runs and why, the plan, and how evenly work is dealt");
  verb->add_option("FILE", o->file, "Problem file (safetensors)")->required();
  verb->add_option("--layer", o->layer, "Explain layers.N of the file (default: the first problem)")->check(CLI::NonNegativeNumber);
  verb->add_option("--workers", o->plan.workers, "Threads to plan for (default: all that this process may use)")
      ->check(CLI::Range(1, 65536));
  verb->add_option("--kernel", o->plan.kernel, "Force a kernel by name");
  verb->add_option("--isa", o->plan.isa, "Force an ISA level: scalar, avx2, avx512, neon");
  verb->add_flag("--batch-invariant", o->plan.batch_invariant, "Plan so that a request's bits depend on that request alone");
  verb->add_option("--svg", o->svg, "Write the time line of the workers as an SVG file");
  verb->add_option("--json", o->json, "Write the explanation as JSON to this file (- : standard output, and no text)")
      ->check(check_output_path);
  verb->callback([o, &action] { action = [o] { return explain_file(*o); }; });
}

}  // namespace headwater::cli
