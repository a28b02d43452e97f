// Problems to files: dense copies through whatever strides the problem has.
#include <charconv>
#include <cstring>
#include <deque>

#include "src/formats/record.h"
#include "src/io/problem_file.h"
#include "src/io/problem_names.h"

namespace headwater::io {
namespace {

std::string number_text(float value) {
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value);
  return {buffer, result.ptr};
}

DType dtype_of(Type type) {
  switch (type) {
    case Type::kF16:
      return DType::kF16;
    case Type::kBf16:
      return DType::kBf16;
    case Type::kE4m3:
      return DType::kF8E4m3;
    case Type::kE5m2:
      return DType::kF8E5m2;
    case Type::kI8:
      return DType::kI8;
    case Type::kE8m0:
      return DType::kF8E8m0;
    case Type::kI32:
      return DType::kI32;
    case Type::kI64:
      return DType::kI64;
    case Type::kF32:
      return DType::kF32;
    default:
      return DType::kU8;
  }
}

// A strided tensor of up to four axes, item bytes contiguous.
struct View {
  const void* data = nullptr;
  int64_t n[3] = {1, 1, 1};
  int64_t stride[3] = {kDense, kDense, kDense};  // bytes
  int64_t item = 0;
};

class Saver {
 public:
  std::string add(const ProblemToSave& from);
  [[nodiscard]] std::span<const TensorToWrite> tensors() const { return tensors_; }
  [[nodiscard]] std::map<std::string, std::string, std::less<>>& metadata() { return metadata_; }

 private:
  void tensor(const std::string& name, DType type, std::vector<int64_t> shape, const View& view);
  void flat(const std::string& name, DType type, std::vector<int64_t> shape, const void* data);
  void key(const std::string& name, std::string value) { metadata_[prefix_ + name] = std::move(value); }
  void query(const Problem& p);
  std::string source(const Problem& p, const Source& s, int32_t index);
  void records(const Source& s, const KvTensor& t, bool is_v, const std::string& kv);
  void addressing(const Problem& p, const Source& s, const std::string& kv);
  void scale(const std::string& name, const Scale& scale);

  std::string prefix_;
  std::deque<AlignedBytes> storage_;
  std::vector<TensorToWrite> tensors_;
  std::map<std::string, std::string, std::less<>> metadata_;
};

void Saver::tensor(const std::string& name, DType type, std::vector<int64_t> shape, const View& view) {
  int64_t stride[3];
  int64_t dense = view.item;
  for (int a = 2; a >= 0; --a) {
    stride[a] = view.stride[a] == kDense ? dense : view.stride[a];
    dense = stride[a] * view.n[a];
  }
  const int64_t items = view.n[0] * view.n[1] * view.n[2];
  storage_.emplace_back(static_cast<size_t>(items * view.item));
  std::byte* to = storage_.back().data();
  for (int64_t i = 0; to != nullptr && i < view.n[0]; ++i) {
    for (int64_t j = 0; j < view.n[1]; ++j) {
      for (int64_t k = 0; k < view.n[2]; ++k, to += view.item) {
        std::memcpy(to, static_cast<const std::byte*>(view.data) + i * stride[0] + j * stride[1] + k * stride[2],
                    static_cast<size_t>(view.item));
      }
    }
  }
  tensors_.push_back({prefix_ + name, type, std::move(shape), storage_.back().data()});
}

void Saver::flat(const std::string& name, DType type, std::vector<int64_t> shape, const void* data) {
  if (data == nullptr) return;
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  tensor(name, type, std::move(shape), {.data = data, .n = {1, 1, n}, .item = dtype_bits(type) / 8});
}

void Saver::scale(const std::string& name, const Scale& scale) {
  if (scale.count == 0) return;
  flat(name, DType::kF32, {scale.count}, scale.data != nullptr ? scale.data : &scale.value);
}

void Saver::query(const Problem& p) {
  const int64_t item = type_bits(p.q.type) / 8;
  const DType type = dtype_of(p.q.type);
  const auto rows = [&](const char* name, const void* data, int32_t width, int64_t row, int64_t head) {
    tensor(name, type, {p.q.total, p.q.heads, width},
           {.data = data, .n = {1, p.q.total, p.q.heads}, .stride = {kDense, row, head}, .item = item * width});
  };
  rows("q", p.q.data, p.q.width, p.q.row_stride_bytes, p.q.head_stride_bytes);
  if (p.q_tail.width > 0) rows("q_tail", p.q_tail.data, p.q_tail.width, p.q_tail.row_stride_bytes, p.q_tail.head_stride_bytes);
  const QueryScale& qs = p.q_scale;
  if (p.q.type == Type::kE4m3) {
    const auto bytes = [](int64_t floats) { return floats == kDense ? kDense : floats * 4; };
    if (qs.data != nullptr && qs.per_row) {
      tensor("q_scale", DType::kF32, {p.q.total, p.q.heads},
             {.data = qs.data, .n = {1, p.q.total, p.q.heads}, .stride = {kDense, bytes(qs.row_stride), bytes(qs.head_stride)}, .item = 4});
    } else {
      flat("q_scale", DType::kF32, {1}, qs.data != nullptr ? qs.data : &qs.value);
    }
  }
  flat("qo_indptr", DType::kI32, {p.requests + 1}, p.qo_indptr);
  flat("context_lens", DType::kI32, {p.requests}, p.context_lens);
  if (p.sinks != nullptr && p.sinks_request_stride != 0) {
    tensor("sinks", DType::kF32, {p.requests, p.q.heads},
           {.data = p.sinks, .n = {1, p.requests, p.q.heads}, .stride = {kDense, p.sinks_request_stride * 4, 4}, .item = 4});
  } else {
    flat("sinks", DType::kF32, {p.q.heads}, p.sinks);
  }
  key("sm_scale", number_text(p.sm_scale));
  if (p.logits_soft_cap != 0.0F) key("logits_soft_cap", number_text(p.logits_soft_cap));
  key("out_type", std::string(type_name(p.out.type)));
}

void Saver::records(const Source& s, const KvTensor& t, bool is_v, const std::string& kv) {
  const formats::RecordLayout layout = formats::resolve(t.format, t.width);
  const Addressing& a = s.addressing;
  const bool ragged = a.kind == AddressingKind::kRagged;
  const int64_t page_size = ragged ? 1 : a.page_size;
  const bool plain = format_info(t.format).is_float || t.format == Format::kE4m3 || t.format == Format::kE5m2 || t.format == Format::kInt8;
  const std::string name = kv + (!plain ? (is_v ? "v_bytes" : "bytes") : is_v ? "v" : s.shared ? "latent" : "k");
  const auto shape = [&](int64_t last) {
    return ragged ? std::vector<int64_t>{a.num_pages, s.heads, last} : std::vector<int64_t>{a.num_pages, page_size, s.heads, last};
  };
  key(kv + (is_v ? "v_format" : "format"), std::string(format_info(t.format).name));
  if (layout.tail_bytes > 0) {
    const int64_t page_bytes = record_page_bytes(t.format, t.width, a.page_size);
    const int64_t used = page_size * (layout.row_bytes + layout.tail_bytes);
    storage_.emplace_back(static_cast<size_t>(a.num_pages * page_bytes));
    std::byte* const to = storage_.back().data();
    const int64_t stride = t.page_stride_bytes == kDense ? page_bytes : t.page_stride_bytes;
    for (int64_t i = 0; to != nullptr && i < a.num_pages; ++i) {
      std::memcpy(to + i * page_bytes, static_cast<const std::byte*>(t.data) + i * stride, static_cast<size_t>(used));
    }
    tensors_.push_back({prefix_ + name, DType::kU8, {a.num_pages, page_bytes}, to});
    return;
  }
  // Ragged storage ignores the page stride: rows are the middle axis.
  View view{.data = t.data,
            .n = {ragged ? 1 : a.num_pages, ragged ? a.num_pages : page_size, s.heads},
            .stride = {ragged ? kDense : t.page_stride_bytes, t.row_stride_bytes, t.head_stride_bytes},
            .item = layout.row_bytes};
  tensor(name, plain ? dtype_of(layout.segments[0].element) : DType::kU8, shape(plain ? t.width : layout.row_bytes), view);
  if (layout.apart_bytes == 0) return;
  const DType type = dtype_of(layout.segments[0].scale);
  const int64_t size = dtype_bits(type) / 8;
  const int64_t blocks = layout.apart_bytes / size;
  // Block by block, since blocks may be strided too: pages x rows folded is not possible, so one page (or all ragged rows) at a time.
  storage_.emplace_back(static_cast<size_t>(view.n[0] * view.n[1] * s.heads * layout.apart_bytes));
  std::byte* to = storage_.back().data();
  const auto pick = [](int64_t given, int64_t dense) { return given == kDense ? dense : given; };
  const int64_t by_block = pick(t.scale_block_stride_bytes, size);
  const int64_t by_head = pick(t.scale_head_stride_bytes, by_block * blocks);
  const int64_t by_row = pick(t.scale_row_stride_bytes, by_head * s.heads);
  const int64_t by_page = ragged ? 0 : pick(t.scale_page_stride_bytes, by_row * page_size);
  tensors_.push_back({prefix_ + kv + (is_v ? "v_scales" : "scales"), type, shape(blocks), to});
  for (int64_t page = 0; to != nullptr && page < view.n[0]; ++page) {
    for (int64_t row = 0; row < view.n[1]; ++row) {
      for (int64_t i = 0; i < s.heads * blocks; ++i, to += size) {
        const int64_t at = page * by_page + row * by_row + i / blocks * by_head + i % blocks * by_block;
        std::memcpy(to, static_cast<const std::byte*>(t.scales) + at, static_cast<size_t>(size));
      }
    }
  }
}

void Saver::addressing(const Problem& p, const Source& s, const std::string& kv) {
  const Addressing& a = s.addressing;
  const int64_t b = p.requests;
  if (a.kind == AddressingKind::kBlockTable && a.block_table != nullptr) {
    const int64_t stride = a.block_table_stride == kDense ? kDense : a.block_table_stride * 4;
    tensor(kv + "block_table", DType::kI32, {b, a.max_pages},
           {.data = a.block_table, .n = {1, b, a.max_pages}, .stride = {kDense, stride, 4}, .item = 4});
  }
  if (a.kind == AddressingKind::kPageList) flat(kv + "kv_indices", DType::kI32, {a.num_indices}, a.kv_indices);
  flat(kv + "kv_indptr", DType::kI32, {b + 1}, a.kv_indptr);
  flat(kv + "seq_lens", DType::kI32, {b}, a.seq_lens);
  flat(kv + "kv_last_page_len", DType::kI32, {b}, a.kv_last_page_len);
  if (a.kind != AddressingKind::kRagged) key(kv + "page_size", std::to_string(a.page_size));
  flat(kv + "first_position", DType::kI32, {b}, s.first_position);
  flat(kv + "position_stride", DType::kI32, {b}, s.position_stride);
}

std::string Saver::source(const Problem& p, const Source& s, int32_t index) {
  const std::string kv = "kv." + std::to_string(index) + ".";
  const Rule& r = s.rule;
  constexpr const char* kRules[] = {"full", "causal", "window", "compressed", "gathered"};
  key(kv + "rule", kRules[static_cast<size_t>(r.kind)]);
  if (r.kind == RuleKind::kWindow) key(kv + "window_left", std::to_string(r.window_left));
  if (r.kind == RuleKind::kCompressed) key(kv + "ratio", std::to_string(r.ratio));
  if (r.kind == RuleKind::kGathered) {
    const int64_t size = type_bits(r.index_type) / 8;
    const int64_t stride = r.indices_stride == kDense ? kDense : r.indices_stride * size;
    if (r.indices == nullptr && r.topk > 0) return prefix_ + kv + "indices: null";
    tensor(kv + "indices", dtype_of(r.index_type), {p.q.total, r.topk},
           {.data = r.indices, .n = {1, p.q.total, r.topk}, .stride = {kDense, stride, size}, .item = size});
    flat(kv + "topk_lens", DType::kI32, {p.q.total}, r.topk_lens);
    key(kv + "index_space", r.index_space == IndexSpace::kPosition ? "position" : "slot");
  }
  addressing(p, s, kv);
  records(s, s.k, false, kv);
  scale(kv + "k_scale", s.k.scale);
  if (s.shared) {
    key(kv + "value_width", std::to_string(s.value_width));
    return {};
  }
  records(s, s.v, true, kv);
  scale(kv + "v_scale", s.v.scale);
  key(kv + "value_width", std::to_string(s.v.width));
  return {};
}

std::string Saver::add(const ProblemToSave& from) {
  const Problem& p = *from.problem;
  prefix_ = from.name.empty() ? "" : from.name + ".";
  if (p.device.kind != DeviceKind::kCpu) return prefix_ + "device: only problems in host memory can be saved";
  query(p);
  for (size_t i = 0; i < p.sources.size(); ++i) {
    if (std::string why = source(p, p.sources[i], static_cast<int32_t>(i)); !why.empty()) return why;
  }
  for (const auto& [name, text] : from.notes) {
    const FieldName field{from.name.empty() ? -1 : 0, -1, name};
    if (!is_note(field)) return prefix_ + name + ": a note is called note, origin, text or note.anything";
    key(name, text);
  }
  for (const AlignedBytes& bytes : storage_) {
    if (bytes.data() == nullptr) return prefix_ + "q: no memory for a copy of " + std::to_string(bytes.size()) + " bytes";
  }
  return {};
}

}  // namespace

Status save_problems(const std::string& path, std::span<const ProblemToSave> problems, const Notes& notes) {
  const auto refuse = [&path](const std::string& why) { return invalid(path + ": " + why); };
  Saver saver;
  for (const auto& [name, text] : notes) {
    if (!is_note({-1, -1, name})) return refuse(name + ": a note is called note, origin, text or note.anything");
    saver.metadata()[name] = text;
  }
  for (const ProblemToSave& problem : problems) {
    const ParsedName parsed = parse_field_name(problem.name.empty() ? "q" : problem.name + ".q", FieldKind::kTensor);
    const bool legal = parsed.name && parsed.name->source < 0 && (problem.name.empty() ? problems.size() == 1 : parsed.name->layer >= 0);
    if (!legal) return refuse("problem name '" + problem.name + "': must be layers.N, or empty for a single problem");
    if (const std::string why = saver.add(problem); !why.empty()) return refuse(why);
  }
  return write_safetensors(path, saver.tensors(), saver.metadata());
}

}  // namespace headwater::io
