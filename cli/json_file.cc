#include "cli/json_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

namespace headwater::cli {

Status write_json(const std::string& path, const nlohmann::ordered_json& json) {
  const std::string text = json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  std::FILE* const file = path == "-" ? stdout : std::fopen(path.c_str(), "wb");
  if (file == nullptr) return invalid(path + ": " + std::strerror(errno));
  bool ok = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  if (file != stdout) ok = std::fclose(file) == 0 && ok;
  return ok ? Status() : invalid(path + ": " + std::strerror(errno));
}

}  // namespace headwater::cli
