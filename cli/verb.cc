#include "cli/verb.h"

#include <cstdio>

#include "cli/terminal.h"

namespace headwater::cli {

int fail(const std::string& message) {
  std::fflush(stdout);
  std::fprintf(stderr, "headwater: %s\n", printable(message).c_str());
  return kBadInput;
}

int fail(const Status& status) { return fail(status.message()); }

}  // namespace headwater::cli
