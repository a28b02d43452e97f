#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <vector>

#include "cli/explain.h"
#include "cli/terminal.h"

namespace headwater::cli {
namespace {

double longest_load(const Explanation& e) {
  return e.worker_load.empty() ? 0.0 : *std::max_element(e.worker_load.begin(), e.worker_load.end());
}

// Workers to draw: all, or the first ones with the longest and the shortest put in.
std::vector<int32_t> chosen_workers(const Explanation& e, int max_workers) {
  const auto count = static_cast<int32_t>(e.worker_load.size());
  std::vector<int32_t> chosen;
  if (count <= max_workers) {
    for (int32_t w = 0; w < count; ++w) chosen.push_back(w);
    return chosen;
  }
  const auto [shortest, longest] = std::minmax_element(e.worker_load.begin(), e.worker_load.end());
  for (const auto& at : {shortest, longest}) chosen.push_back(static_cast<int32_t>(at - e.worker_load.begin()));
  for (int32_t w = 0; static_cast<int>(chosen.size()) < max_workers; ++w) {
    if (std::find(chosen.begin(), chosen.end(), w) == chosen.end()) chosen.push_back(w);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

char letter(const TimelineItem& item) { return static_cast<char>((item.cut ? 'A' : 'a') + item.request % 26); }

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    out += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  }
  return out;
}

}  // namespace

std::string timeline_text(const Explanation& e, int columns, int max_workers) {
  const double longest = longest_load(e);
  if (longest <= 0.0) return "  no work\n";
  std::string out;
  for (const int32_t w : chosen_workers(e, max_workers)) {
    std::string bar(static_cast<size_t>(columns), '.');
    for (const TimelineItem& item : e.timeline) {
      if (item.worker != w) continue;
      const auto begin = static_cast<size_t>(std::floor(item.begin / longest * columns));
      const auto end = static_cast<size_t>(std::ceil(item.end / longest * columns - 1e-9));
      for (size_t c = begin; c < std::min(end, bar.size()); ++c) bar[c] = letter(item);
      if (begin > 0 && end > begin + 2) bar[begin] = '|';
    }
    out += fmt::format("  worker {:>4} |{}| {:.3f}\n", w, bar, e.worker_load[static_cast<size_t>(w)]);
  }
  if (static_cast<int>(e.worker_load.size()) > max_workers) {
    out += fmt::format("  {} of {} workers shown, the longest and the shortest among them\n", max_workers, e.worker_load.size());
  }
  return out;
}

std::string timeline_svg(const Explanation& e, const std::string& title) {
  constexpr int kLeft = 60;
  constexpr int kTop = 44;
  constexpr int kWidth = 900;
  constexpr std::array<const char*, 8> kColours{"#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#88aa55", "#bbbbbb"};
  const auto workers = static_cast<int>(e.worker_load.size());
  const int row = workers > 64 ? 8 : 18;
  const double scale = longest_load(e) > 0.0 ? kWidth / longest_load(e) : 0.0;
  const int height = kTop + workers * row + 30;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{2}\" y=\"16\" font-size=\"13\">{3}</text>\n"
      "<text x=\"{2}\" y=\"32\">kernel {4}: {5} items, {6} row blocks cut; one colour a request, hatched = a fragment</text>\n",
      kLeft + kWidth + 70, height, kLeft, escaped(title), escaped(e.kernel), e.items, e.split_blocks);
  out +=
      "<defs><pattern id=\"cut\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\"><path d=\"M0,4 L4,0\" stroke=\"black\" "
      "stroke-opacity=\"0.45\"/></pattern></defs>\n";
  for (int w = 0; w < workers; ++w) {
    const double load = e.worker_load[static_cast<size_t>(w)];
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><text x=\"{:.1f}\" y=\"{}\">{:.3f}</text>\n", kLeft - 6,
                       kTop + w * row + row - 4, w, kLeft + load * scale + 4, kTop + w * row + row - 4, load);
  }
  for (const TimelineItem& item : e.timeline) {
    const std::string place = fmt::format("x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\"", kLeft + item.begin * scale,
                                          kTop + item.worker * row, (item.end - item.begin) * scale, row - 2);
    const char* const colour = kColours[static_cast<size_t>(item.request) % kColours.size()];
    out += fmt::format(
        "<rect {} fill=\"{}\" stroke=\"white\" stroke-width=\"0.5\"><title>request {}, tokens {}..{}, head block {}{}</title></rect>\n",
        place, colour, item.request, item.token_begin, item.token_begin + item.token_count, item.head_block, item.cut ? ", fragment" : "");
    if (item.cut) out += fmt::format("<rect {} fill=\"url(#cut)\" pointer-events=\"none\"/>\n", place);
  }
  const double mean = kLeft + scale;
  out += fmt::format(
      "<line x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"black\" stroke-dasharray=\"3,3\"/>"
      "<text x=\"{0:.2f}\" y=\"{3}\" text-anchor=\"middle\">an equal share</text>\n</svg>\n",
      mean, kTop - 2, height - 24, height - 10);
  return out;
}

}  // namespace headwater::cli
