#include "cli/verb.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "cli/terminal.h"

namespace headwater::cli {

int fail(const std::string& message) {
  std::fflush(stdout);
  std::fprintf(stderr, "headwater: %s\n", printable(message).c_str());
  return kBadInput;
}

int fail(const Status& status) { return fail(status.message()); }

std::string check_output_path(const std::string& path) {
  if (path == "-") return {};
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return path + ": " + std::strerror(EISDIR);
  if (access(path.c_str(), W_OK) == 0) return {};
  if (errno != ENOENT) return path + ": " + std::strerror(errno);
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return access(parent.empty() ? "." : parent.c_str(), W_OK) == 0 ? std::string() : path + ": " + std::strerror(errno);
}

}  // namespace headwater::cli
