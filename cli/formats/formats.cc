// headwater formats: can this model's cache bear fp8, mxfp4, nvfp4?
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/formats/study.h"
#include "cli/json_file.h"
#include "cli/verb.h"

namespace headwater::cli {
namespace {

bool write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  return file.flush().good();
}

int judge(const formats::Options& options) {
  if (!options.plot.empty() && options.files.size() > 1) return fail("--plot takes one FILE");
  std::vector<formats::Study> studies;
  for (const std::string& file : options.files) {
    Result<formats::Study> study = formats::make_study(file, options);
    if (!study.ok()) return fail(study.status());
    if (options.json != "-") std::fputs(formats::report_text(*study).c_str(), stdout);
    studies.push_back(std::move(study).value());
  }
  if (!options.json.empty()) {
    const Status status = write_json(options.json, formats::report_json(studies, options));
    if (!status.ok()) return fail(status);
  }
  if (!options.plot.empty() && !write_file(options.plot, formats::report_svg(studies[0]))) return fail("cannot write " + options.plot);
  return kDone;
}

}  // namespace

void register_formats(CLI::App& app, Action& action) {
  auto o = std::make_shared<formats::Options>();
  CLI::App* verb = app.add_subcommand("formats", "What each KV format costs on captured tensors: score, V and output errors, bytes, time");
  verb->add_option("FILE", o->files, "Problem files (safetensors), one table each")->required();
  verb->add_option("--calibrate", o->calibrate, "Take scales and channel means from this capture of another text");
  verb->add_flag("--center-k", o->center_k, "Store K less its per-channel mean: the softmax does not notice");
  verb->add_option("--recent", o->recent, "Newest tokens kept in bf16 in the rows that do so; 0 leaves them out")
      ->check(CLI::Range(0, 1 << 20));
  verb->add_option("--context", o->decode_context, "Entries of the timed decode step; 0 times nothing")->check(CLI::Range(0, 1 << 20));
  verb->add_option("--json", o->json, "Write everything measured as JSON to this file (- : standard output, and no text)")
      ->check(check_output_path);
  verb->add_option("--plot", o->plot, "Draw the table as an SVG file")->check(check_output_path);
  verb->callback([o, &action] { action = [o] { return judge(*o); }; });
}

}  // namespace headwater::cli
