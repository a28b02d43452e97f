// Opening a problem file: every name checked, layers listed.
#include "src/io/problem_file.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>

#include "src/io/problem_load.h"
#include "src/io/problem_names.h"

namespace headwater::io {

AlignedBytes::AlignedBytes(size_t bytes) : size_(bytes) {
  constexpr size_t kAlignment = 256;
  const size_t rounded = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded < bytes) return;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
  if (data_) std::memset(data_.get(), 0, rounded);
}

void AlignedBytes::Free::operator()(std::byte* p) const { std::free(p); }

Result<ProblemFile> ProblemFile::open(const std::string& path) {
  Result<Safetensors> file = Safetensors::open(path);
  if (!file.ok()) return file.status();
  return from(std::move(file).value());
}

Result<ProblemFile> ProblemFile::from(Safetensors file) {
  ProblemFile result(std::move(file));
  const Safetensors& f = result.file_;
  const auto refuse = [&](const std::string& what, const std::string& why) { return invalid(f.file_name() + ": " + what + ": " + why); };
  std::set<int64_t> layers;
  int32_t last_source = -1;
  bool unprefixed_q = false;
  for (const TensorInfo& t : f.tensors()) {
    const ParsedName parsed = parse_field_name(t.name, FieldKind::kTensor);
    if (!parsed.name) return refuse("tensor '" + t.name + "'", parsed.error);
    if (parsed.name->layer >= 0) layers.insert(parsed.name->layer);
    last_source = std::max(last_source, parsed.name->source);
    unprefixed_q = unprefixed_q || t.name == "q";
  }
  if (unprefixed_q && !layers.empty()) {
    return refuse("tensor 'q'", "the file also has tensors under layers.N., so each problem's queries must be layers.N.q");
  }
  if (!unprefixed_q && layers.empty()) return refuse("tensor 'q'", "missing: a problem file has q, or layers.N.q for each layer");
  for (const auto& [key, value] : f.metadata()) {
    const std::string what = "__metadata__ key '" + key + "'";
    const ParsedName parsed = parse_field_name(key, FieldKind::kMetadata);
    if (!parsed.name) return refuse(what, parsed.error);
    if (parsed.name->layer >= 0 && layers.count(parsed.name->layer) == 0) return refuse(what, "the file has no tensor of that layer");
    if (parsed.name->source > last_source) return refuse(what, "the file has no tensor of that source");
    if (parsed.name->layer < 0 && is_note(*parsed.name)) result.notes_.emplace(key, value);
  }
  result.layers_.assign(layers.begin(), layers.end());
  return result;
}

std::string ProblemFile::name(size_t index) const { return layers_.empty() ? "" : "layers." + std::to_string(layers_[index]); }

Result<OwnedProblem> ProblemFile::load(size_t index) const {
  if (index >= size()) return invalid(file_name() + ": problem " + std::to_string(index) + ": the file has " + std::to_string(size()));
  return load_problem(file_, name(index));
}

Result<std::vector<size_t>> choose_problems(const ProblemFile& file, int64_t layer) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < file.size(); ++i) {
    if (layer < 0 || (!file.layers().empty() && file.layers()[i] == layer)) chosen.push_back(i);
  }
  if (!chosen.empty()) return chosen;
  std::string have;
  for (const int64_t n : file.layers()) have += (have.empty() ? "" : ", ") + std::to_string(n);
  return invalid(file.file_name() + ": layers." + std::to_string(layer) + ": " +
                 (have.empty() ? "the file is one problem without layers" : "the file has layers " + have));
}

}  // namespace headwater::io
