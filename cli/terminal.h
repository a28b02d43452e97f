// Text for people: aligned tables, a progress bar on a terminal, printable strings.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headwater::cli {

// Control characters and bytes that are not UTF-8 as \xNN, so that a hostile name cannot drive the terminal or add lines.
[[nodiscard]] std::string printable(std::string_view text);

// A table with a header row; columns whose cells are all numbers (or empty) stand right-aligned.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  [[nodiscard]] bool empty() const { return rows_.empty(); }
  // Each line starts with `indent` spaces and has no trailing ones.
  [[nodiscard]] std::string text(int indent = 0) const;
  [[nodiscard]] std::string markdown() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

// "[=====>    ] 41/200 label" on stderr, redrawn at most ten times a second; nothing at all when stderr is not a terminal.
class Progress {
 public:
  Progress(std::string label, int64_t total);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // clears the line
  void advance(int64_t steps = 1) { set(done_ + steps); }
  void set(int64_t done);
  void note(std::string label) { label_ = std::move(label); }

 private:
  std::string label_;
  int64_t total_;
  int64_t done_ = 0;
  bool terminal_;
  std::chrono::steady_clock::time_point drawn_;
};

[[nodiscard]] std::string human_bytes(double bytes);   // "3.2 MiB"
[[nodiscard]] std::string human_time(double seconds);  // "12.3 us"

}  // namespace headwater::cli
