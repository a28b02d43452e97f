// headwater info: what this build and machine can run.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/verb.h"
#include "headwater/headwater.h"

namespace headwater::cli {
namespace {

int info() {
  fmt::print("headwater {}\n", version());
  return kDone;
}

}  // namespace

void register_info(CLI::App& app, Action& action) {
  CLI::App* verb = app.add_subcommand("info", "What this build and this machine can run");
  verb->callback([&action] { action = [] { return info(); }; });
}

}  // namespace headwater::cli
