#include "cli/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace headwater::cli {
namespace {

// Bytes of the UTF-8 sequence at the start of `s`, 0 if it is none. Overlong forms and surrogates count as none.
size_t utf8_length(std::string_view s) {
  const auto byte = [&](size_t i) { return i < s.size() ? static_cast<unsigned char>(s[i]) : 0U; };
  const auto tail = [&](size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned b = byte(0);
  if (b < 0x80U) return 1;
  if (b >= 0xC2U && b <= 0xDFU && tail(1)) return 2;
  if (b >= 0xE0U && b <= 0xEFU && tail(1) && tail(2)) {
    if ((b == 0xE0U && byte(1) < 0xA0U) || (b == 0xEDU && byte(1) > 0x9FU)) return 0;
    return 3;
  }
  if (b >= 0xF0U && b <= 0xF4U && tail(1) && tail(2) && tail(3)) {
    if ((b == 0xF0U && byte(1) < 0x90U) || (b == 0xF4U && byte(1) > 0x8FU)) return 0;
    return 4;
  }
  return 0;
}

// Columns on a terminal, close enough: code points.
size_t columns(std::string_view s) {
  return static_cast<size_t>(std::count_if(s.begin(), s.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

bool numeric(const std::string& cell) {
  return cell.empty() || cell == "-" ||
         (cell.find_first_of("0123456789") <= 1 && cell.find_first_not_of("0123456789.,+-e%x ") == std::string::npos);
}

std::string padded(const std::string& cell, size_t width, bool right) {
  const size_t have = columns(cell);
  const std::string pad(width > have ? width - have : 0, ' ');
  return right ? pad + cell : cell + pad;
}

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t n = utf8_length(text);
    const auto b = static_cast<unsigned char>(text[0]);
    if (n == 0 || b < 0x20U || b == 0x7FU || (n == 2 && b == 0xC2U && static_cast<unsigned char>(text[1]) < 0xA0U)) {
      for (size_t i = 0; i < std::max<size_t>(n, 1); ++i) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
    } else {
      out.append(text.substr(0, n));
    }
    text.remove_prefix(std::max<size_t>(n, 1));
  }
  return out;
}

std::string Table::text(int indent) const {
  std::vector<size_t> width(header_.size());
  std::vector<bool> right(header_.size(), true);
  for (size_t c = 0; c < header_.size(); ++c) {
    width[c] = columns(header_[c]);
    for (const auto& row : rows_) {
      if (c >= row.size()) continue;
      width[c] = std::max(width[c], columns(row[c]));
      right[c] = right[c] && numeric(row[c]);
    }
  }
  std::string out;
  const auto line = [&](const std::vector<std::string>& row) {
    std::string text(static_cast<size_t>(indent), ' ');
    for (size_t c = 0; c < header_.size(); ++c) {
      if (c > 0) text += "  ";
      text += padded(c < row.size() ? row[c] : "", width[c], right[c]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + "\n";
  };
  line(header_);
  for (const auto& row : rows_) line(row);
  return out;
}

std::string Table::markdown() const {
  std::string out;
  const auto line = [&](const std::vector<std::string>& row) {
    out += "|";
    for (size_t c = 0; c < header_.size(); ++c) out += " " + (c < row.size() ? row[c] : "") + " |";
    out += "\n";
  };
  line(header_);
  line(std::vector<std::string>(header_.size(), "---"));
  for (const auto& row : rows_) line(row);
  return out;
}

Progress::Progress(std::string label, int64_t total)
    : label_(std::move(label)), total_(std::max<int64_t>(total, 1)), terminal_(isatty(2) == 1) {}

Progress::~Progress() {
  if (terminal_) std::fputs("\r\x1b[K", stderr);
}

void Progress::set(int64_t done) {
  done_ = done;
  if (!terminal_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - drawn_ < std::chrono::milliseconds(100)) return;
  drawn_ = now;
  constexpr int64_t kWidth = 30;
  const auto filled = static_cast<size_t>(std::clamp<int64_t>(done_ * kWidth / total_, 0, kWidth));
  std::fputs(
      fmt::format("\r\x1b[K[{}{}] {}/{} {}", std::string(filled, '='), std::string(kWidth - filled, ' '), done_, total_, printable(label_))
          .c_str(),
      stderr);
  std::fflush(stderr);
}

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t u = 0;
  while (bytes >= 1024 && u + 1 < std::size(units)) {
    bytes /= 1024;
    ++u;
  }
  return u == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.3g} {}", bytes, units[u]);
}

std::string human_time(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} s", seconds);
}

}  // namespace headwater::cli
