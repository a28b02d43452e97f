// Problem files: attention problems as safetensors, one per file or one per layer. docs/problem_files.md has the table of names.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "headwater/problem.h"
#include "src/io/safetensors.h"

namespace headwater::io {

using Notes = std::map<std::string, std::string, std::less<>>;

// Zero-filled bytes aligned to 256; never null, even when empty.
class AlignedBytes {
 public:
  // Null data when the memory is not there.
  explicit AlignedBytes(size_t bytes);
  [[nodiscard]] std::byte* data() { return data_.get(); }
  [[nodiscard]] const std::byte* data() const { return data_.get(); }
  [[nodiscard]] size_t size() const { return size_; }
  [[nodiscard]] std::span<std::byte> span() { return {data_.get(), size_}; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_;
};

// A problem and everything that it points to. Moving keeps the pointers; `problem.sources` views `sources`.
struct OwnedProblem {
  std::string name;  // "layers.3"; empty in a file of one problem
  Notes notes;       // note, origin, text, note.*
  Problem problem;   // on the CPU, with dense outputs of its own: out and lse
  std::vector<Source> sources;
  std::vector<AlignedBytes> storage;
};

// An opened problem file: every name in it is known and legal. Tensors are read when a problem is loaded.
class ProblemFile {
 public:
  [[nodiscard]] static Result<ProblemFile> open(const std::string& path);
  [[nodiscard]] static Result<ProblemFile> from(Safetensors file);

  [[nodiscard]] const std::string& file_name() const { return file_.file_name(); }
  [[nodiscard]] size_t size() const { return layers_.empty() ? 1 : layers_.size(); }
  // Layer numbers in ascending order; empty in a file of one unprefixed problem.
  [[nodiscard]] const std::vector<int64_t>& layers() const { return layers_; }
  [[nodiscard]] std::string name(size_t index) const;          // "layers.3", ""
  [[nodiscard]] const Notes& notes() const { return notes_; }  // unprefixed ones
  // Reads one problem. Sizes and types are checked here, lengths and table entries by the library when it runs.
  [[nodiscard]] Result<OwnedProblem> load(size_t index) const;

 private:
  explicit ProblemFile(Safetensors file) : file_(std::move(file)) {}
  Safetensors file_;
  std::vector<int64_t> layers_;
  Notes notes_;
};

// Indices of all problems, or of layers.`layer` when it is not negative.
[[nodiscard]] Result<std::vector<size_t>> choose_problems(const ProblemFile& file, int64_t layer);

// Writes problems: dense copies of what each one points to on the host (any strides). Names are "layers.N", or empty for a
// single one. Outputs are not written.
struct ProblemToSave {
  std::string name;
  const Problem* problem = nullptr;
  Notes notes;
};
[[nodiscard]] Status save_problems(const std::string& path, std::span<const ProblemToSave> problems, const Notes& notes = {});

}  // namespace headwater::io
