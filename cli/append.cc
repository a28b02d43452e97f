// headwater append: new rows quantised into the caches of a problem file.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "cli/reencode.h"
#include "cli/terminal.h"
#include "cli/verb.h"
#include "src/io/problem_file.h"

namespace headwater::cli {
namespace {

struct AppendOptions {
  std::string file;
  std::string rows;
  std::string out;
  std::string rule = "up";
  int64_t layer = -1;
  int64_t source = 0;
};

// Rows to append: tensors k (or latent), k_tail, v in one float type, and slots.
struct RowsFile {
  AppendRows rows;
  std::vector<int64_t> slots;
  std::vector<io::AlignedBytes> storage;
};

class RowsReader {
 public:
  RowsReader(const io::Safetensors& file, const Source& cache) : file_(file), cache_(cache) {}

  Result<RowsFile> read() {
    for (const io::TensorInfo& t : file_.tensors()) {
      if (t.name != "k" && t.name != "k_tail" && t.name != "v" && t.name != "slots") {
        return refuse(t.name, "unknown name: the rows of a cache are k, k_tail, v and slots");
      }
    }
    const io::TensorInfo* k = file_.find("k");
    if (k == nullptr || k->shape.size() != 3) return refuse("k", "missing, or not of shape [rows, heads, d]");
    result_.rows.count = k->shape[0];
    const io::TensorInfo* tail = file_.find("k_tail");
    const int64_t tail_width = tail != nullptr && tail->shape.size() == 3 ? tail->shape[2] : 0;
    if (tail_width < 0 || tail_width >= cache_.k.width)
      return refuse("k_tail", "its columns must be fewer than K's " + std::to_string(cache_.k.width));
    result_.rows.k_tail_width = static_cast<int32_t>(tail_width);
    type_ = k->type;
    if (!set_type()) return refuse("k", "type " + std::string(io::dtype_name(type_)) + ": must be F32, F16 or BF16");
    result_.rows.k = part("k", cache_.k.width - tail_width);
    if (tail != nullptr) result_.rows.k_tail = part("k_tail", tail_width);
    if (!cache_.shared) {
      if (file_.find("v") == nullptr) return refuse("v", "missing: the cache keeps V in storage of its own");
      result_.rows.v = part("v", cache_.v.width);
    } else if (file_.find("v") != nullptr) {
      return refuse("v", "the cache keeps V inside K");
    }
    slots();
    if (!status_.ok()) return status_;
    return std::move(result_);
  }

 private:
  Status refuse(const std::string& name, const std::string& why) const { return invalid(file_.file_name() + ": " + name + ": " + why); }

  bool set_type() {
    if (type_ == io::DType::kF32) result_.rows.type = Type::kF32;
    if (type_ == io::DType::kF16) result_.rows.type = Type::kF16;
    if (type_ == io::DType::kBf16) result_.rows.type = Type::kBf16;
    return type_ == io::DType::kF32 || type_ == io::DType::kF16 || type_ == io::DType::kBf16;
  }

  const std::byte* bytes(const io::TensorInfo& t) {
    result_.storage.emplace_back(t.bytes());
    io::AlignedBytes& data = result_.storage.back();
    if (data.data() == nullptr) status_ = refuse(t.name, "no memory");
    if (status_.ok()) status_ = file_.read(t, data.span());
    return data.data();
  }

  const std::byte* part(const char* name, int64_t width) {
    if (!status_.ok()) return nullptr;
    const io::TensorInfo& t = *file_.find(name);
    const std::vector<int64_t> shape{result_.rows.count, cache_.heads, width};
    if (t.type != type_) {
      status_ = refuse(name, "type " + std::string(io::dtype_name(t.type)) + ": must be that of k");
    } else if (t.shape != shape) {
      status_ = refuse(name, "shape " + io::shape_text(t.shape) + ": must be [rows, heads, d] = " + io::shape_text(shape));
    }
    return status_.ok() ? bytes(t) : nullptr;
  }

  void slots() {
    if (!status_.ok()) return;
    const io::TensorInfo* t = file_.find("slots");
    if (t == nullptr) {
      status_ = refuse("slots", "missing: the physical slot of each row, negative to skip it");
    } else if (t->type != io::DType::kI32 && t->type != io::DType::kI64) {
      status_ = refuse("slots", "type " + std::string(io::dtype_name(t->type)) + ": must be I32 or I64");
    } else if (t->shape != std::vector<int64_t>{result_.rows.count}) {
      status_ = refuse("slots", "shape " + io::shape_text(t->shape) + ": must be [rows] = [" + std::to_string(result_.rows.count) + "]");
    }
    if (!status_.ok()) return;
    const std::byte* data = bytes(*t);
    result_.slots.reserve(static_cast<size_t>(result_.rows.count));
    for (int64_t i = 0; status_.ok() && i < result_.rows.count; ++i) {
      result_.slots.push_back(t->type == io::DType::kI64 ? reinterpret_cast<const int64_t*>(data)[i]
                                                         : reinterpret_cast<const int32_t*>(data)[i]);
    }
  }

  const io::Safetensors& file_;
  const Source& cache_;
  io::DType type_ = io::DType::kF32;
  RowsFile result_;
  Status status_;
};

int append_rows(const AppendOptions& o) {
  const Result<io::ProblemFile> file = io::ProblemFile::open(o.file);
  if (!file.ok()) return fail(file.status());
  if (o.layer < 0 && file->size() > 1) return fail(o.file + ": --layer: the file has several problems, say which one takes the rows");
  const auto chosen = io::choose_problems(*file, o.layer);
  if (!chosen.ok()) return fail(chosen.status());
  std::vector<io::OwnedProblem> problems;
  for (size_t i = 0; i < file->size(); ++i) {
    Result<io::OwnedProblem> problem = file->load(i);
    if (!problem.ok()) return fail(problem.status());
    problems.push_back(std::move(problem).value());
  }
  const io::OwnedProblem& target = problems[chosen->front()];
  if (o.source >= static_cast<int64_t>(target.sources.size())) {
    return fail(o.file + ": --source = " + std::to_string(o.source) + ": the problem has " + std::to_string(target.sources.size()));
  }
  const Source& cache = target.sources[static_cast<size_t>(o.source)];
  const Result<io::Safetensors> rows_file = io::Safetensors::open(o.rows);
  if (!rows_file.ok()) return fail(rows_file.status());
  const Result<RowsFile> rows = RowsReader(*rows_file, cache).read();
  if (!rows.ok()) return fail(rows.status());
  if (const Status status = append(cache, rows->rows, rows->slots.data(), *block_scale_rule(o.rule)); !status.ok())
    return fail(o.rows + ": " + status.message());
  std::vector<io::ProblemToSave> to_save;
  to_save.reserve(problems.size());
  for (const io::OwnedProblem& p : problems) to_save.push_back({p.name, &p.problem, p.notes});
  if (const Status status = io::save_problems(o.out, to_save, file->layers().empty() ? io::Notes{} : file->notes()); !status.ok())
    return fail(status);
  int64_t written = 0;
  for (const int64_t slot : rows->slots) written += slot >= 0 ? 1 : 0;
  fmt::print("{}: {} rows written as {}, {} skipped\n", printable(o.out), written, format_info(cache.k.format).name,
             rows->rows.count - written);
  return kDone;
}

}  // namespace

void register_append(CLI::App& app, Action& action) {
  auto o = std::make_shared<AppendOptions>();
  CLI::App* verb = app.add_subcommand("append", "Quantise new rows into the cache of a problem file");
  verb->add_option("FILE", o->file, "Problem file whose cache takes the rows")->required();
  verb->add_option("ROWS", o->rows, "Safetensors file: k [rows, heads, d] (k_tail), v, slots [rows]; negative slot = skip")->required();
  verb->add_option("OUT", o->out, "Problem file to write")->check(check_output_path)->required();
  verb->add_option("--layer", o->layer, "Which layers.N takes the rows")->check(CLI::NonNegativeNumber);
  verb->add_option("--source", o->source, "Which kv.I takes the rows")->check(CLI::NonNegativeNumber)->capture_default_str();
  verb->add_option("--rule", o->rule, "How block scales are chosen: up, even or floor")
      ->check(CLI::IsMember({"up", "even", "floor"}))
      ->capture_default_str();
  verb->callback([o, &action] { action = [o] { return append_rows(*o); }; });
}

}  // namespace headwater::cli
