// How a verb joins the command line.
//
//   1. a source file of its own (cli/<verb>.cc, or cli/<verb>/ with its own CMakeLists.txt calling target_sources(headwater_cli ...))
//   2. that defines  void headwater::cli::register_<verb>(CLI::App& app, Action& action)
//   3. one row in cli/verbs.inc.
//
// register_<verb> adds a subcommand whose callback stores what is to run; main runs it after parsing and exits with its value:
//
//   struct Options { std::string file; bool json = false; };
//   int show(const Options& o) { ...; if (!status.ok()) return fail(status); ...; return kDone; }
//   void register_show(CLI::App& app, Action& action) {
//     auto o = std::make_shared<Options>();
//     CLI::App* verb = app.add_subcommand("show", "One line that a newcomer understands");
//     verb->add_option("FILE", o->file, "Problem file (safetensors)")->required();
//     verb->callback([o, &action] { action = [o] { return show(*o); }; });
//   }
#pragma once

#include <functional>
#include <string>

#include "headwater/status.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's own
class App;
}

namespace headwater::cli {

enum ExitCode : int {
  kDone = 0,
  kCheckFailed = 1,  // the work was done and its result is wrong or over a limit
  kBadInput = 2,     // bad file, bad argument, or a problem that nothing here can run
};

using Action = std::function<int()>;

// Prints "headwater: <message>" as one line on stderr (control characters escaped) and returns kBadInput.
int fail(const std::string& message);
int fail(const Status& status);

// For CLI11's check(): why a file cannot be written at `path` ("-" is standard output), before hours go into what it would hold.
// Creates nothing.
std::string check_output_path(const std::string& path);

}  // namespace headwater::cli
