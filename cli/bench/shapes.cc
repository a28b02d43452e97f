#include "cli/bench/shapes.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "cli/terminal.h"

namespace headwater::cli {
namespace {

constexpr int32_t kMaxBatch = 65536;
constexpr int64_t kMaxEntries = int64_t{1} << 26;  // of a whole shape: memory of the bench

bool parse_int(std::string_view text, int32_t low, int32_t high, int32_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && *value >= low && *value <= high;
}

bool parse_goal(std::string_view text, double* goal) {
  std::istringstream stream{std::string(text)};
  return (stream >> *goal) && stream.eof() && *goal >= 1.0 && *goal <= 1000.0;
}

bool parse_type(std::string_view text, Type* type) {
  for (const Type t : {Type::kBf16, Type::kF16, Type::kF32}) {
    if (text == type_name(t)) {
      *type = t;
      return true;
    }
  }
  return false;
}

bool parse_format(std::string_view text, Format* format) {
  const auto found = format_by_name(text);
  if (found) *format = *found;
  return found.has_value();
}

bool parse_rule(std::string_view text, Shape* shape) {
  const size_t colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  if (colon == std::string_view::npos) {
    if (kind != "full" && kind != "causal") return false;
    shape->rule = kind == "full" ? RuleKind::kFull : RuleKind::kCausal;
    return true;
  }
  if (kind != "window" && kind != "gathered") return false;
  shape->rule = kind == "window" ? RuleKind::kWindow : RuleKind::kGathered;
  return parse_int(text.substr(colon + 1), kind == "window" ? 0 : 1, 1 << 24, &shape->rule_value);
}

// Log-normal lengths of `batch` requests, the same on every run.
bool parse_lognormal(std::string_view arguments, Shape* shape) {
  const size_t comma = arguments.find(',');
  int32_t median = 0;
  if (comma == std::string_view::npos || !parse_int(arguments.substr(0, comma), 1, 1 << 24, &median)) return false;
  double sigma = 0.0;
  std::istringstream stream{std::string(arguments.substr(comma + 1))};
  if (!(stream >> sigma) || !stream.eof() || !(sigma >= 0.0 && sigma <= 4.0)) return false;
  std::mt19937 engine(1);
  for (int32_t r = 0; r < shape->batch; ++r) {
    // Box-Muller by hand: std::normal_distribution differs between libraries.
    const double u = (engine() + 0.5) / 4294967296.0;
    const double v = (engine() + 0.5) / 4294967296.0;
    const double normal = std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
    shape->kv_lens.push_back(static_cast<int32_t>(std::min(1e6, std::max(1.0, median * std::exp(sigma * normal)))));
  }
  return true;
}

bool parse_lengths(std::string_view text, Shape* shape) {
  constexpr std::string_view kLognormal = "lognormal(";
  if (text.starts_with(kLognormal) && text.ends_with(')')) {
    return parse_lognormal(text.substr(kLognormal.size(), text.size() - kLognormal.size() - 1), shape);
  }
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, comma);
    const size_t times = item.find('x');
    int32_t len = 0;
    int32_t count = 1;
    if (!parse_int(item.substr(0, times), 0, 1 << 24, &len)) return false;
    if (times != std::string_view::npos && !parse_int(item.substr(times + 1), 1, kMaxBatch, &count)) return false;
    if (shape->kv_lens.size() + static_cast<size_t>(count) > kMaxBatch) return false;
    shape->kv_lens.insert(shape->kv_lens.end(), static_cast<size_t>(count), len);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  if (shape->kv_lens.size() == 1) shape->kv_lens.assign(static_cast<size_t>(shape->batch), shape->kv_lens[0]);
  return shape->kv_lens.size() == static_cast<size_t>(shape->batch);
}

// Empty: fine. `lengths` keeps kv_len for last, since it needs the batch.
std::string set_field(std::string_view key, std::string_view value, Shape* s, std::string* lengths) {
  const auto integer = [&](int32_t low, int32_t high, int32_t* field) {
    return parse_int(value, low, high, field) ? std::string() : fmt::format("must be {} to {}", low, high);
  };
  const auto known = [](bool ok) { return ok ? std::string() : std::string("not known"); };
  int32_t flag = 0;
  if (key == "batch") return integer(1, kMaxBatch, &s->batch);
  if (key == "q_len") return integer(1, 1 << 20, &s->q_len);
  if (key == "heads") return integer(1, 65536, &s->heads);
  if (key == "kv_heads") return integer(1, 65536, &s->kv_heads);
  if (key == "d_qk") return integer(1, kMaxWidth, &s->d_qk);
  if (key == "d_v") return integer(1, kMaxWidth, &s->d_v);
  if (key == "page") return integer(0, 1 << 20, &s->page_size);
  if (key == "shared" || key == "sinks") {
    std::string fault = integer(0, 1, &flag);
    (key == "shared" ? s->shared : s->sinks) = flag == 1;
    return fault;
  }
  if (key == "d") {
    std::string fault = integer(1, kMaxWidth, &s->d_qk);
    s->d_v = s->d_qk;
    return fault;
  }
  if (key == "format") {
    const bool ok = parse_format(value, &s->k_format);
    s->v_format = s->k_format;
    return known(ok);
  }
  if (key == "k_format") return known(parse_format(value, &s->k_format));
  if (key == "v_format") return known(parse_format(value, &s->v_format));
  if (key == "q") return known(parse_type(value, &s->q_type));
  if (key == "out") return known(parse_type(value, &s->out_type));
  if (key == "rule") return known(parse_rule(value, s));
  if (key == "reach") return known(parse_goal(value, &s->reach));
  if (key == "aim") return known(parse_goal(value, &s->aim));
  if (key == "twin") {
    s->twin = value;
    return {};
  }
  if (key == "kv_len") {
    *lengths = value;
    return {};
  }
  return "no such key";
}

std::string check_shape_line(const Shape& s) {
  if (s.heads == 0) return "heads must be given";
  if (s.d_qk == 0 || s.d_v == 0) return "d, or d_qk and d_v, must be given";
  if (s.heads % s.kv_heads != 0) return fmt::format("kv_heads = {}: must divide heads = {}", s.kv_heads, s.heads);
  if (s.shared && s.d_v > s.d_qk) return "d_v must be at most d_qk where shared";
  if (s.shared && s.k_format != s.v_format) return "k_format and v_format must agree where shared";
  int64_t entries = 0;
  for (const int32_t len : s.kv_lens) entries += len;
  if (entries * s.kv_heads > kMaxEntries) return fmt::format("{} entries: at most {} a shape", entries * s.kv_heads, kMaxEntries);
  return {};
}

}  // namespace

Result<std::vector<Shape>> parse_shapes(const std::string& text, const std::string& file_name) {
  std::vector<Shape> shapes;
  std::set<std::string> names;
  std::istringstream lines(text);
  std::string line;
  std::string origin;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    const auto bad = [&](const std::string& what) { return invalid(fmt::format("{}:{}: {}", file_name, number, printable(what))); };
    std::istringstream words(line);
    std::string word;
    if (!(words >> word)) {
      origin.clear();
      continue;
    }
    if (word[0] == '#') {
      const size_t begin = line.find_first_not_of("# ");
      if (begin == std::string::npos) continue;
      if (!origin.empty()) origin += ' ';
      origin.append(line, begin);
      continue;
    }
    Shape shape;
    shape.name = word;
    shape.origin = origin;
    if (!names.insert(word).second) return bad("name " + word + " stands twice");
    std::string lengths;
    while (words >> word) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos) return bad("'" + word + "': must be key=value");
      const std::string fault = set_field(word.substr(0, equals), word.substr(equals + 1), &shape, &lengths);
      if (!fault.empty()) return bad(word.append(": ").append(fault));
    }
    if (lengths.empty() || !parse_lengths(lengths, &shape)) {
      return bad("kv_len=" + lengths + ": must be a length, as many as batch, or lognormal(MEDIAN,SIGMA)");
    }
    if (const std::string fault = check_shape_line(shape); !fault.empty()) return bad(fault);
    shapes.push_back(std::move(shape));
  }
  if (shapes.empty()) return invalid(file_name + ": holds no shape");
  for (const Shape& shape : shapes) {
    if (shape.twin.empty() || names.contains(shape.twin)) continue;
    return invalid(file_name + ": twin=" + printable(shape.twin) + " of " + printable(shape.name) + ": no such shape");
  }
  return shapes;
}

Result<std::vector<Shape>> read_shapes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return invalid(printable(path) + ": cannot be read");
  std::string text(1 << 20, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.peek() != std::char_traits<char>::eof()) return invalid(printable(path) + ": longer than a shape file may be (1 MiB)");
  return parse_shapes(text, printable(path));
}

}  // namespace headwater::cli
