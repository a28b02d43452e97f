// headwater convert: the same problems with their KV in another format.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/reencode.h"
#include "cli/terminal.h"
#include "cli/verb.h"
#include "src/io/problem_file.h"

namespace headwater::cli {
namespace {

struct ConvertOptions {
  std::string in;
  std::string out;
  std::string to;
  std::string v_to;
  std::string rule = "up";
};

double kv_bytes(const Problem& p) {
  double bytes = 0.0;
  for (const Source& s : p.sources) {
    const auto of = [&](const KvTensor& t) {
      const bool ragged = s.addressing.kind == AddressingKind::kRagged;
      const int32_t page_size = ragged ? 1 : s.addressing.page_size;
      const double page =
          format_info(t.format).planar
              ? static_cast<double>(record_page_bytes(t.format, t.width, page_size))
              : static_cast<double>(record_row_bytes(t.format, t.width) + record_scale_bytes(t.format, t.width)) * page_size * s.heads;
      return page * static_cast<double>(s.addressing.num_pages);
    };
    bytes += of(s.k) + (s.shared ? 0.0 : of(s.v));
  }
  return bytes;
}

int convert(const ConvertOptions& o) {
  const Result<Format> k = format_option("--to", o.to);
  if (!k.ok()) return fail(k.status());
  Reencoding to{.k = *k, .v = std::nullopt, .rule = *block_scale_rule(o.rule)};
  if (!o.v_to.empty()) {
    const Result<Format> v = format_option("--v-to", o.v_to);
    if (!v.ok()) return fail(v.status());
    to.v = *v;
  }
  const Result<io::ProblemFile> file = io::ProblemFile::open(o.in);
  if (!file.ok()) return fail(file.status());
  std::vector<io::OwnedProblem> problems;
  std::string scales;
  double before = 0.0;
  double after = 0.0;
  {
    Progress progress("problems", static_cast<int64_t>(file->size()));
    for (size_t i = 0; i < file->size(); ++i) {
      Result<io::OwnedProblem> problem = file->load(i);
      if (!problem.ok()) return fail(problem.status());
      before += kv_bytes(problem->problem);
      if (const Status status = reencode(&problem.value(), to, &scales); !status.ok()) {
        return fail(o.in + ": " + (file->name(i).empty() ? "" : file->name(i) + ".") + status.message());
      }
      after += kv_bytes(problem->problem);
      problems.push_back(std::move(problem).value());
      progress.advance();
    }
  }
  std::vector<io::ProblemToSave> to_save;
  to_save.reserve(problems.size());
  for (const io::OwnedProblem& p : problems) to_save.push_back({p.name, &p.problem, p.notes});
  if (const Status status = io::save_problems(o.out, to_save, file->layers().empty() ? io::Notes{} : file->notes()); !status.ok())
    return fail(status);
  bool apart = false;
  for (const io::OwnedProblem& p : problems) {
    for (const Source& source : p.sources) apart = apart || !source.shared;
  }
  fmt::print("{}: {} problem{}, {}, KV {} -> {}\n", printable(o.out), problems.size(), problems.size() == 1 ? "" : "s",
             apart ? fmt::format("K {}, V {}", format_info(to.k).name, format_info(to.v.value_or(to.k)).name)
                   : fmt::format("K and V in one as {}", format_info(to.k).name),
             human_bytes(before), human_bytes(after));
  if (!scales.empty()) fmt::print("{}\n", scales);
  return kDone;
}

}  // namespace

void register_convert(CLI::App& app, Action& action) {
  auto o = std::make_shared<ConvertOptions>();
  CLI::App* verb = app.add_subcommand("convert", "Write the same problems with K and V stored in another format");
  verb->add_option("IN", o->in, "Problem file to read")->required();
  verb->add_option("OUT", o->out, "Problem file to write")->check(check_output_path)->required();
  verb->add_option("--to", o->to, "Format of K (and of V, unless --v-to says otherwise)")->required();
  verb->add_option("--v-to", o->v_to, "Format of V where it has storage of its own");
  verb->add_option("--rule", o->rule, "How block scales are chosen: up never saturates, even rounds, floor is OCP's")
      ->check(CLI::IsMember({"up", "even", "floor"}))
      ->capture_default_str();
  verb->callback([o, &action] { action = [o] { return convert(*o); }; });
}

}  // namespace headwater::cli
