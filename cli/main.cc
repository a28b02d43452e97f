// The headwater command: parses, runs one verb, exits with its code.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "cli/verb.h"
#include "headwater/headwater.h"

namespace headwater::cli {
#define HEADWATER_VERB(name) void register_##name(CLI::App& app, Action& action);
#include "cli/verbs.inc"
#undef HEADWATER_VERB

namespace {

int run_command(int argc, char** argv) {
  CLI::App app{
      "Exact attention over long, compressed and low-precision KV caches.\n"
      "Problem files are safetensors files: docs/problem_files.md has the table of tensor names.\n"
      "Exit codes: 0 done, 1 a check failed, 2 bad input or usage.",
      "headwater"};
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("headwater ") + version());
  app.get_formatter()->column_width(34);
  Action action;
#define HEADWATER_VERB(name) register_##name(app, action);
#include "cli/verbs.inc"
#undef HEADWATER_VERB
  if (argc == 1) {
    std::fputs(app.help().c_str(), stderr);
    return kBadInput;
  }
  const auto known = app.get_subcommands([&](const CLI::App* verb) { return verb->check_name(argv[1]); });
  if (argv[1][0] != '-' && known.empty()) {
    return fail(std::string("unknown verb '") + argv[1] + "' (see headwater --help)");
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(e);  // --help, --version
    std::string verb;
    for (const CLI::App* sub : app.get_subcommands()) verb = " " + sub->get_name();
    return fail(std::string(e.what()) + " (see headwater" + verb + " --help)");
  }
  return action ? action() : fail("no verb given (see headwater --help)");
}

}  // namespace
}  // namespace headwater::cli

int main(int argc, char** argv) {
  try {
    return headwater::cli::run_command(argc, argv);
  } catch (const std::exception& e) {  // third-party code and std::bad_alloc; ours returns Status
    return headwater::cli::fail(e.what());
  }
}
