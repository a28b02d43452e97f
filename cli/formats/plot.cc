// The table as a picture: bytes per token across, errors up (logarithmic), one panel for K and one for V.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "cli/formats/study.h"

namespace headwater::cli::formats {
namespace {

constexpr double kWidth = 460.0;  // of a panel
constexpr double kHeight = 340.0;
constexpr double kLeft = 64.0;
constexpr double kTop = 64.0;
constexpr double kGap = 70.0;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string label(double x, double y, const std::string& text, const std::string& more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y, more, escaped(text));
}

struct Point {
  double bytes;
  double error;
  std::string name;
};

// A label moves down until it covers no earlier one.
double free_height(double x, double y, std::vector<std::pair<double, double>>* taken) {
  constexpr double kLine = 12.0;
  constexpr double kLong = 130.0;
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& [tx, ty] : *taken) {
      if (std::fabs(tx - x) < kLong && std::fabs(ty - y) < kLine) {
        y = ty + kLine + 0.1;  // past it for good: a rounded sum may fall short of kLine
        moved = true;
      }
    }
  }
  taken->emplace_back(x, y);
  return y;
}

std::string panel(double left, const std::string& title, std::vector<Point> points) {
  const auto exact = std::remove_if(points.begin(), points.end(), [](const Point& p) { return p.error <= 0.0; });
  points.erase(exact, points.end());
  std::string svg = label(left, kTop - 12, title, " font-weight=\"bold\"");
  if (points.empty()) return svg + label(left, kTop + 20, "no error above 0");
  double widest = 0.0;
  double low = points[0].error;
  double high = low;
  for (const Point& p : points) {
    widest = std::max(widest, p.bytes);
    low = std::min(low, p.error);
    high = std::max(high, p.error);
  }
  const double bottom_log = std::floor(std::log10(low));
  const double top_log = std::max(bottom_log + 1, std::ceil(std::log10(high)));
  const auto x_of = [&](double bytes) { return left + bytes / (widest * 1.25) * kWidth; };
  const auto y_of = [&](double error) { return kTop + (top_log - std::log10(error)) / (top_log - bottom_log) * kHeight; };
  for (double decade = bottom_log; decade <= top_log; ++decade) {
    const double y = y_of(std::pow(10.0, decade));
    svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ccc\"/>\n", left, y, left + kWidth, y);
    svg += label(left - 6, y + 4, fmt::format("1e{:.0f}", decade), " text-anchor=\"end\"");
  }
  for (int i = 0; i <= 4; ++i) {
    const double bytes = widest * i / 4;
    svg += label(x_of(bytes), kTop + kHeight + 16, fmt::format("{:.0f}", bytes), " text-anchor=\"middle\"");
  }
  std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.error > b.error; });
  std::vector<std::pair<double, double>> taken;
  for (const Point& p : points) {
    const double x = x_of(p.bytes);
    const double y = y_of(p.error);
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"#1668b0\"/>\n", x, y);
    svg += label(x + 7, free_height(x, y + 4, &taken), p.name);
  }
  return svg;
}

}  // namespace

std::string report_svg(const Study& study) {
  std::vector<Point> k;
  std::vector<Point> v;
  for (const ChoiceResult& r : study.results) {
    if (!r.refused.empty()) continue;
    k.push_back({r.bytes_per_token, r.all.k_rms, r.choice.name});
    v.push_back({r.bytes_per_token, r.all.v_rms, r.choice.name});
  }
  const double width = kLeft + 2 * kWidth + kGap + 40;
  const double height = kTop + kHeight + 64;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, height);
  svg += label(16, 22, study.file + (study.synthetic ? " (synthetic numbers)" : ""), " font-size=\"14\"");
  svg += panel(kLeft, "K: RMS error of the scores, nats", k);
  svg += panel(kLeft + kWidth + kGap, "V: RMS relative error of its rows", v);
  svg += label(kLeft, kTop + kHeight + 34, study.bytes_are_per_entry ? "bytes per entry" : "bytes per token, captured layers");
  svg += label(kLeft, kTop + kHeight + 50, "scales: " + study.scales_from + ". " + study.origin);
  return svg + "</svg>\n";
}

}  // namespace headwater::cli::formats
