#include "src/io/problem_load.h"

#include <limits>
#include <optional>

#include "src/formats/record.h"
#include "src/io/problem_fields.h"
#include "src/io/problem_names.h"

namespace headwater::io {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// Records of one tensor: [pages, page_size, heads, item], or rows of ragged storage (page_size 1).
struct Grid {
  int64_t pages = 0;
  int64_t page_size = 1;
  int64_t heads = 1;
  int64_t item = 0;  // last axis
};

// A stored tensor of a source and the fields that go with it.
struct Stored {
  const TensorInfo* info = nullptr;
  std::string name;        // "kv.0.v"
  std::string scales;      // "kv.0.v_scales"
  std::string format_key;  // "kv.0.v_format", or "kv.0.format" where V takes K's
  bool own_format = true;  // the key speaks of this tensor: its type must agree
};

class Loader {
 public:
  Loader(const Safetensors& file, const std::string& name) : f_(file, name, &out_.storage) { out_.name = name; }

  Result<OwnedProblem> load() {
    if (!(load_query() && load_requests() && load_scalars() && load_sources() && make_outputs() && f_.refuse_unread())) return f_.status();
    collect_notes();
    out_.problem.sources = out_.sources;
    return std::move(out_);
  }

 private:
  std::string kv(const char* field) const { return "kv." + std::to_string(source_) + "." + field; }

  bool load_query();
  bool load_requests();
  bool load_scalars();
  bool load_sources();
  bool load_source(Source* s);
  bool load_rule(Source* s);
  bool load_addressing(Source* s);
  bool load_records(Source* s);
  bool load_scale(const std::string& name, Source* s, KvTensor* t);
  bool make_outputs();
  void collect_notes();

  std::optional<Type> query_type(std::string_view local, const TensorInfo& t);
  std::optional<Format> stored_format(const Stored& from);
  bool typed_tensor(const Stored& from, KvTensor* t);
  bool bytes_tensor(const Stored& from, std::optional<int64_t> width, KvTensor* t);
  bool place(const Stored& from, int64_t item, KvTensor* t);
  bool place_planar(const Stored& from, int64_t page_bytes, KvTensor* t, Grid* g);
  bool place_scales(const Stored& from, KvTensor* t);
  std::optional<Grid> grid_of(const std::string& name, const TensorInfo& info);
  bool width_fits(const std::string& name, Format format, int64_t width);

  OwnedProblem out_;
  Fields f_;
  int32_t source_ = 0;
  bool paged_ = false;
  std::optional<Grid> grid_;  // of the source's first tensor: the others must agree
};

std::optional<Type> Loader::query_type(std::string_view local, const TensorInfo& t) {
  const auto said = f_.choice("q_type", {"f32", "f16", "bf16", "e4m3"});
  if (!f_.ok()) return std::nullopt;
  constexpr Type kTypes[] = {Type::kF32, Type::kF16, Type::kBf16, Type::kE4m3};
  std::optional<Type> type;
  switch (t.type) {
    case DType::kF32:
      type = Type::kF32;
      break;
    case DType::kF16:
      type = Type::kF16;
      break;
    case DType::kBf16:
      type = Type::kBf16;
      break;
    case DType::kF8E4m3:
      type = Type::kE4m3;
      break;
    case DType::kU16:  // written by something that has no bf16
      if (said && (kTypes[*said] == Type::kF16 || kTypes[*said] == Type::kBf16)) type = kTypes[*said];
      break;
    case DType::kU8:
      if (said && kTypes[*said] == Type::kE4m3) type = Type::kE4m3;
      break;
    default:
      break;
  }
  if (!type) {
    f_.refuse(local, "type " + std::string(dtype_name(t.type)) +
                         ": must be F32, F16, BF16 or F8_E4M3, or U16 with q_type bf16 or f16, or U8 with q_type e4m3");
  } else if (said && kTypes[*said] != *type) {
    f_.refuse("q_type",
              "'" + std::string(type_name(kTypes[*said])) + "', but " + std::string(local) + " is " + std::string(dtype_name(t.type)));
    type.reset();
  }
  return type;
}

bool Loader::load_query() {
  Query& q = out_.problem.q;
  const TensorInfo* t = f_.tensor("q");
  if (t == nullptr) return f_.refuse("q", "missing");
  const auto type = query_type("q", *t);
  if (!type) return false;
  const auto& shape = t->shape;
  if (shape.size() != 3) return f_.refuse("q", "shape " + shape_text(shape) + ": must be [total_q, heads, d]");
  if (shape[0] > kMaxInt32 || shape[1] < 1 || shape[1] > kMaxInt32 || shape[2] < 1 || shape[2] > kMaxWidth) {
    return f_.refuse(
        "q", "shape " + shape_text(shape) + ": rows must be below 2^31, heads at least 1, d from 1 to " + std::to_string(kMaxWidth));
  }
  q.type = *type;
  q.total = shape[0];
  q.heads = static_cast<int32_t>(shape[1]);
  q.width = static_cast<int32_t>(shape[2]);
  q.data = f_.bytes("q", *t);
  if (const TensorInfo* tail = f_.tensor("q_tail"); tail != nullptr && f_.ok()) {
    if (tail->type != t->type)
      return f_.refuse("q_tail",
                       "type " + std::string(dtype_name(tail->type)) + ": must be that of q, " + std::string(dtype_name(t->type)));
    const int64_t width = tail->shape.size() == 3 ? tail->shape[2] : 0;
    if (width < 1 || width > kMaxWidth - q.width) {
      return f_.refuse("q_tail", "shape " + shape_text(tail->shape) + ": must be [total_q, heads, d_tail], d + d_tail at most " +
                                     std::to_string(kMaxWidth));
    }
    if (!f_.has_shape("q_tail", *tail, {q.total, q.heads, width}, "[total_q, heads, d_tail]")) return false;
    out_.problem.q_tail.data = f_.bytes("q_tail", *tail);
    out_.problem.q_tail.width = static_cast<int32_t>(width);
  }
  if (const TensorInfo* scale = f_.tensor("q_scale"); scale != nullptr && f_.ok()) {
    if (q.type != Type::kE4m3) return f_.refuse("q_scale", "read for e4m3 queries only, and q is " + std::string(type_name(q.type)));
    const bool one = scale->shape.empty() || (scale->shape.size() == 1 && scale->shape[0] == 1);
    if (!one && !f_.has_shape("q_scale", *scale, {q.total, q.heads}, "[1] or [total_q, heads]")) return false;
    out_.problem.q_scale.data = f_.floats("q_scale", *scale);
    out_.problem.q_scale.per_row = !one;
  }
  return f_.ok();
}

bool Loader::load_requests() {
  Problem& p = out_.problem;
  if (const TensorInfo* t = f_.tensor("qo_indptr")) {
    if (!f_.has_type("qo_indptr", *t, {DType::kI32})) return false;
    if (t->shape.size() != 1 || t->shape[0] < 1)
      return f_.refuse("qo_indptr", "shape " + shape_text(t->shape) + ": must be [requests + 1]");
    p.requests = t->shape[0] - 1;
    p.qo_indptr = reinterpret_cast<const int32_t*>(f_.bytes("qo_indptr", *t));
  } else {
    AlignedBytes whole(2 * sizeof(int32_t));
    if (whole.data() == nullptr) return f_.refuse("qo_indptr", "no memory");
    p.requests = 1;
    p.qo_indptr = reinterpret_cast<const int32_t*>(whole.data());
    reinterpret_cast<int32_t*>(whole.data())[1] = static_cast<int32_t>(p.q.total);
    out_.storage.push_back(std::move(whole));
  }
  p.context_lens = f_.int32s("context_lens", {p.requests}, "[requests]");
  if (const TensorInfo* t = f_.tensor("sinks"); t != nullptr && f_.ok()) {
    if (t->shape.size() == 2) {
      if (!f_.has_shape("sinks", *t, {p.requests, p.q.heads}, "[requests, heads]")) return false;
      p.sinks_request_stride = p.q.heads;
    } else if (!f_.has_shape("sinks", *t, {p.q.heads}, "[heads] or [requests, heads]")) {
      return false;
    }
    p.sinks = f_.floats("sinks", *t);
  }
  return f_.ok();
}

bool Loader::load_scalars() {
  Problem& p = out_.problem;
  const auto scale = f_.number("sm_scale");
  if (!f_.ok()) return false;
  if (!scale) return f_.refuse("sm_scale", "missing from __metadata__: the factor on q * k, often head size ** -0.5, as a string");
  p.sm_scale = *scale;
  p.logits_soft_cap = f_.number("logits_soft_cap").value_or(0.0F);
  const auto out_type = f_.choice("out_type", {"f32", "f16", "bf16"});
  constexpr Type kTypes[] = {Type::kF32, Type::kF16, Type::kBf16};
  p.out.type = out_type ? kTypes[*out_type] : p.q.type == Type::kE4m3 ? Type::kBf16 : p.q.type;
  return f_.ok();
}

bool Loader::load_sources() {
  int32_t count = 0;
  for (const TensorInfo& t : f_.file().tensors()) {
    const FieldName name = parse_field_name(t.name, FieldKind::kTensor).name.value_or(FieldName{});
    const bool mine = name.layer < 0 || std::string_view(t.name).starts_with(f_.prefix());
    if (mine && (name.field == "k" || name.field == "latent" || name.field == "bytes")) count = std::max(count, name.source + 1);
  }
  if (count == 0) return f_.refuse("kv.0.k", "missing: a source has k and v, or latent, or bytes");
  out_.sources.resize(static_cast<size_t>(count));
  for (source_ = 0; source_ < count; ++source_) {
    if (!load_source(&out_.sources[static_cast<size_t>(source_)])) return false;
  }
  return true;
}

bool Loader::load_source(Source* s) {
  grid_.reset();
  if (!load_rule(s) || !load_addressing(s) || !load_records(s)) return false;
  const int64_t b = out_.problem.requests;
  s->first_position = f_.int32s(kv("first_position"), {b}, "[requests]");
  s->position_stride = f_.int32s(kv("position_stride"), {b}, "[requests]");
  Addressing& a = s->addressing;
  a.num_pages = grid_->pages;
  if (paged_ || a.kind == AddressingKind::kPool) a.page_size = static_cast<int32_t>(grid_->page_size);
  if (a.kind == AddressingKind::kRagged && a.kv_indptr == nullptr && f_.ok()) {
    if (b != 1)
      return f_.refuse(kv("kv_indptr"),
                       "missing: " + std::to_string(b) + " requests share the rows (with block_table or kv_indices the source is paged)");
    if (grid_->pages > kMaxInt32) return f_.refuse(kv("k"), std::to_string(grid_->pages) + " rows: must be below 2^31");
    AlignedBytes whole(2 * sizeof(int32_t));
    if (whole.data() == nullptr) return f_.refuse(kv("kv_indptr"), "no memory");
    a.kv_indptr = reinterpret_cast<const int32_t*>(whole.data());
    reinterpret_cast<int32_t*>(whole.data())[1] = static_cast<int32_t>(grid_->pages);
    out_.storage.push_back(std::move(whole));
  }
  return f_.ok();
}

bool Loader::load_rule(Source* s) {
  Rule& r = s->rule;
  const auto kind = f_.choice(kv("rule"), {"full", "causal", "window", "compressed", "gathered"});
  if (!f_.ok()) return false;
  if (!kind) return f_.refuse(kv("rule"), "missing from __metadata__: one of full, causal, window, compressed, gathered");
  r.kind = static_cast<RuleKind>(*kind);
  if (r.kind == RuleKind::kWindow) {
    const auto left = f_.integer(kv("window_left"), -1, kMaxInt32);
    if (f_.ok() && !left)
      return f_.refuse(kv("window_left"), "missing: rule window sees window_left + 1 entries, the query's own included");
    r.window_left = static_cast<int32_t>(left.value_or(-1));
  } else if (r.kind == RuleKind::kCompressed) {
    const auto ratio = f_.integer(kv("ratio"), 1, kMaxInt32);
    if (f_.ok() && !ratio) return f_.refuse(kv("ratio"), "missing: rule compressed needs the tokens of a block");
    r.ratio = static_cast<int32_t>(ratio.value_or(1));
  } else if (r.kind == RuleKind::kGathered) {
    const TensorInfo* t = f_.tensor(kv("indices"));
    const int64_t total = out_.problem.q.total;
    if (t == nullptr) return f_.refuse(kv("indices"), "missing: rule gathered reads its slots from [total_q, k]");
    if (!f_.has_type(kv("indices"), *t, {DType::kI32, DType::kI64})) return false;
    const int64_t k = t->shape.size() == 2 ? t->shape[1] : -1;
    if (k < 0 || k > kMaxInt32) return f_.refuse(kv("indices"), "shape " + shape_text(t->shape) + ": must be [total_q, k]");
    if (!f_.has_shape(kv("indices"), *t, {total, k}, "[total_q, k]")) return false;
    r.indices = f_.bytes(kv("indices"), *t);
    r.index_type = t->type == DType::kI64 ? Type::kI64 : Type::kI32;
    r.topk = static_cast<int32_t>(k);
    r.topk_lens = f_.int32s(kv("topk_lens"), {total}, "[total_q]");
    r.index_space = static_cast<IndexSpace>(f_.choice(kv("index_space"), {"slot", "position"}).value_or(0));
  }
  return f_.ok();
}

bool Loader::load_addressing(Source* s) {
  Addressing& a = s->addressing;
  const int64_t b = out_.problem.requests;
  const TensorInfo* table = f_.tensor(kv("block_table"));
  const TensorInfo* list = f_.tensor(kv("kv_indices"));
  if (table != nullptr && list != nullptr) return f_.refuse(kv("kv_indices"), "given beside block_table: a source has one of them");
  const bool slots = s->rule.kind == RuleKind::kGathered && s->rule.index_space == IndexSpace::kSlot;
  paged_ = table != nullptr || list != nullptr;
  if (table != nullptr) {
    a.kind = AddressingKind::kBlockTable;
    if (!f_.has_type(kv("block_table"), *table, {DType::kI32})) return false;
    const int64_t pages = table->shape.size() == 2 ? table->shape[1] : 0;
    if (!f_.has_shape(kv("block_table"), *table, {b, pages}, "[requests, max_pages]")) return false;
    a.block_table = reinterpret_cast<const int32_t*>(f_.bytes(kv("block_table"), *table));
    a.max_pages = pages;
    a.seq_lens = f_.int32s(kv("seq_lens"), {b}, "[requests]");
    if (f_.ok() && a.seq_lens == nullptr && !slots)
      return f_.refuse(kv("seq_lens"), "missing: a source with a block_table has lengths [requests]");
  } else if (list != nullptr) {
    a.kind = AddressingKind::kPageList;
    if (!f_.has_type(kv("kv_indices"), *list, {DType::kI32})) return false;
    if (list->shape.size() != 1) return f_.refuse(kv("kv_indices"), "shape " + shape_text(list->shape) + ": must be [pages in use]");
    a.kv_indices = reinterpret_cast<const int32_t*>(f_.bytes(kv("kv_indices"), *list));
    a.num_indices = list->shape[0];
    a.kv_indptr = f_.int32s(kv("kv_indptr"), {b + 1}, "[requests + 1]");
    if (f_.ok() && a.kv_indptr == nullptr)
      return f_.refuse(kv("kv_indptr"), "missing: a source with kv_indices has page offsets [requests + 1]");
    a.seq_lens = f_.int32s(kv("seq_lens"), {b}, "[requests]");
    a.kv_last_page_len = f_.int32s(kv("kv_last_page_len"), {b}, "[requests]");
    if (f_.ok() && a.seq_lens == nullptr && a.kv_last_page_len == nullptr) {
      return f_.refuse(kv("seq_lens"), "missing: a source with kv_indices has seq_lens or kv_last_page_len [requests]");
    }
  } else {
    a.kv_indptr = f_.int32s(kv("kv_indptr"), {b + 1}, "[requests + 1]");
    a.kind = slots && a.kv_indptr == nullptr ? AddressingKind::kPool : AddressingKind::kRagged;
  }
  return f_.ok();
}

bool Loader::load_records(Source* s) {
  const TensorInfo* k = f_.tensor(kv("k"));
  const TensorInfo* latent = f_.tensor(kv("latent"));
  const TensorInfo* raw = f_.tensor(kv("bytes"));
  const TensorInfo* v = f_.tensor(kv("v"));
  const TensorInfo* v_raw = f_.tensor(kv("v_bytes"));
  const int first = (k != nullptr ? 1 : 0) + (latent != nullptr ? 1 : 0) + (raw != nullptr ? 1 : 0);
  if (first != 1)
    return f_.refuse(kv("k"),
                     first == 0 ? "missing: a source has k and v, or latent, or bytes" : "a source has one of k, latent and bytes");
  if (v != nullptr && v_raw != nullptr) return f_.refuse(kv("v_bytes"), "given beside v: a source has one of them");
  const bool has_v = v != nullptr || v_raw != nullptr;
  if (latent != nullptr && has_v) return f_.refuse(kv("latent"), "given beside v: a latent holds both K and V; K alone is called k");
  if (k != nullptr && !has_v) return f_.refuse(kv("v"), "missing: K alone is called k; storage that holds both K and V is called latent");
  s->shared = !has_v;
  const auto value_width = f_.integer(kv("value_width"), 1, kMaxWidth);
  if (!f_.ok()) return false;
  if (s->shared && !value_width) return f_.refuse(kv("value_width"), "missing: V is the first value_width columns of the shared record");
  s->value_width = static_cast<int32_t>(value_width.value_or(0));
  const char* k_name = raw != nullptr ? "bytes" : k != nullptr ? "k" : "latent";
  const Stored k_from{raw != nullptr ? raw : k != nullptr ? k : latent, kv(k_name), kv("scales"), kv("format"), true};
  if (!(raw != nullptr ? bytes_tensor(k_from, out_.problem.d_qk(), &s->k) : typed_tensor(k_from, &s->k))) return false;
  if (const auto width = f_.integer(kv("width"), 1, kMaxWidth); width && *width != s->k.width) {
    return f_.refuse(kv("width"), std::to_string(*width) + ": K has " + std::to_string(s->k.width) + " columns");
  }
  if (has_v) {
    const bool own = f_.text(kv("v_format")) != nullptr;
    const Stored v_from{v != nullptr ? v : v_raw, kv(v != nullptr ? "v" : "v_bytes"), kv("v_scales"), kv(own ? "v_format" : "format"), own};
    if (!(v_raw != nullptr ? bytes_tensor(v_from, value_width, &s->v) : typed_tensor(v_from, &s->v))) return false;
    if (value_width && *value_width != s->v.width) {
      return f_.refuse(kv("value_width"), std::to_string(*value_width) + ": V has " + std::to_string(s->v.width) + " columns");
    }
  }
  s->heads = static_cast<int32_t>(grid_->heads);
  if (const auto heads = f_.integer(kv("heads"), 1, kMaxInt32); heads && *heads != s->heads) {
    return f_.refuse(kv("heads"), std::to_string(*heads) + ": the records have " + std::to_string(s->heads));
  }
  return f_.ok() && load_scale(kv("k_scale"), s, &s->k) && (s->shared || load_scale(kv("v_scale"), s, &s->v));
}

bool Loader::load_scale(const std::string& name, Source* s, KvTensor* t) {
  const TensorInfo* scale = f_.tensor(name);
  if (scale == nullptr) return f_.ok();
  const bool one = scale->shape.empty() || (scale->shape.size() == 1 && scale->shape[0] == 1);
  if (!one && !f_.has_shape(name, *scale, {s->heads}, "[1] or [kv heads]")) return false;
  t->scale = Scale::array(f_.floats(name, *scale), one ? 1 : s->heads);
  return f_.ok();
}

bool Loader::width_fits(const std::string& name, Format format, int64_t width) {
  const FormatInfo& info = format_info(format);
  const std::string records = "records of " + std::string(info.name);
  if (width < 1 || width > kMaxWidth)
    return f_.refuse(name, std::to_string(width) + " columns: must be from 1 to " + std::to_string(kMaxWidth));
  if (info.fixed_width != 0 && width != info.fixed_width) {
    return f_.refuse(name, std::to_string(width) + " columns: " + records + " have " + std::to_string(info.fixed_width));
  }
  if (format == Format::kMxfp4RopeBf16 && width <= 64)
    return f_.refuse(name, std::to_string(width) + " columns: " + records + " have more than 64");
  return true;
}

// Format of a typed tensor: what its type says, or the metadata where the type is only a carrier (U16, U8).
std::optional<Format> Loader::stored_format(const Stored& from) {
  struct Row {
    Format format;
    DType type;
    DType carrier;
  };
  constexpr Row kRows[] = {{Format::kF32, DType::kF32, DType::kF32},    {Format::kF16, DType::kF16, DType::kU16},
                           {Format::kBf16, DType::kBf16, DType::kU16},  {Format::kE4m3, DType::kF8E4m3, DType::kU8},
                           {Format::kE5m2, DType::kF8E5m2, DType::kU8}, {Format::kInt8, DType::kI8, DType::kI8}};
  const auto said = f_.format(from.format_key);
  if (!f_.ok()) return std::nullopt;
  for (const Row& row : kRows) {
    const bool by_type = from.info->type == row.type && (!said || !from.own_format || *said == row.format);
    const bool by_carrier = from.info->type == row.carrier && said == row.format;
    if (by_type || by_carrier) return row.format;
  }
  const std::string type = "type " + std::string(dtype_name(from.info->type));
  if (said) {
    f_.refuse(from.name, type + ", but " + from.format_key + " is " + std::string(format_info(*said).name) +
                             " (records that are no plain array of numbers are called bytes and v_bytes)");
  } else {
    f_.refuse(from.name, type + ": must be F32, F16, BF16, F8_E4M3, F8_E5M2 or I8; U16 and U8 need " + from.format_key);
  }
  return std::nullopt;
}

bool Loader::typed_tensor(const Stored& from, KvTensor* t) {
  const auto format = stored_format(from);
  if (!format) return false;
  const int64_t width = from.info->shape.empty() ? 0 : from.info->shape.back();
  if (!width_fits(from.name, *format, width)) return false;
  t->format = *format;
  t->width = static_cast<int32_t>(width);
  return place(from, width * dtype_bits(from.info->type) / 8, t) && place_scales(from, t);
}

bool Loader::bytes_tensor(const Stored& from, std::optional<int64_t> width, KvTensor* t) {
  const TensorInfo& info = *from.info;
  if (!f_.has_type(from.name, info, {DType::kU8, DType::kF4})) return false;
  const auto format = f_.format(from.format_key);
  if (!f_.ok()) return false;
  if (!format) return f_.refuse(from.format_key, "missing: " + from.name + " holds raw records, whose format must be said");
  const int32_t fixed = format_info(*format).fixed_width;
  if (!width && fixed != 0) width = fixed;
  if (!width) return f_.refuse(kv("value_width"), "missing: the columns of " + from.name);
  if (!width_fits(from.name, *format, *width)) return false;
  t->format = *format;
  t->width = static_cast<int32_t>(*width);
  int64_t item = info.shape.empty() ? 0 : info.shape.back();
  if (info.type == DType::kF4) {
    if (item % 2 != 0) return f_.refuse(from.name, "shape " + shape_text(info.shape) + ": an odd number of F4 columns");
    item /= 2;
  }
  return place(from, item, t) && place_scales(from, t);
}

// Pages, rows and heads of a tensor by its rank: 4 = [pages, page_size, heads, x], 3 = [rows, heads, x].
std::optional<Grid> Loader::grid_of(const std::string& name, const TensorInfo& info) {
  const auto& shape = info.shape;
  const bool pool = !paged_ && out_.sources[static_cast<size_t>(source_)].addressing.kind == AddressingKind::kPool;
  std::optional<int64_t> page_size;
  if (paged_ || pool) page_size = f_.integer(kv("page_size"), 1, kMaxInt32);
  if (!f_.ok()) return std::nullopt;
  Grid g;
  if (shape.size() == 4 && (paged_ || pool)) {
    g = {shape[0], shape[1], shape[2], shape[3]};
    if (page_size && *page_size != g.page_size) {
      f_.refuse(kv("page_size"), std::to_string(*page_size) + ": " + name + " of shape " + shape_text(shape) + " has pages of " +
                                     std::to_string(g.page_size));
      return std::nullopt;
    }
  } else if (shape.size() == 3) {
    if (paged_ && !page_size) {
      f_.refuse(kv("page_size"), "missing: " + name + " of shape " + shape_text(shape) + " is not [pages, page_size, heads, x]");
      return std::nullopt;
    }
    g = {shape[0], page_size.value_or(1), shape[1], shape[2]};
    if (g.pages % g.page_size != 0) {
      f_.refuse(name, "shape " + shape_text(shape) + ": rows must be a multiple of page_size = " + std::to_string(g.page_size));
      return std::nullopt;
    }
    g.pages /= g.page_size;
  } else {
    f_.refuse(name, "shape " + shape_text(shape) + ": must be " +
                        (paged_ || pool ? "[pages, page_size, heads, x] or [rows, heads, x]" : "[rows, heads, x]"));
    return std::nullopt;
  }
  if (g.page_size < 1 || g.page_size > kMaxInt32 || g.heads < 1 || g.heads > kMaxInt32) {
    f_.refuse(name, "shape " + shape_text(shape) + ": page_size and heads must be from 1 to 2^31 - 1");
    return std::nullopt;
  }
  return g;
}

// [pages, bytes of a page]: records, then their scales, then padding.
bool Loader::place_planar(const Stored& from, int64_t page_bytes, KvTensor* t, Grid* g) {
  const formats::RecordLayout layout = formats::resolve(t->format, t->width);
  const std::string record_name(format_info(t->format).name);
  if (from.info->shape.size() != 2) {
    return f_.refuse(from.name, "shape " + shape_text(from.info->shape) + ": " + record_name + " is stored as [pages, bytes of a page]");
  }
  if (!paged_ && out_.sources[static_cast<size_t>(source_)].addressing.kind != AddressingKind::kPool) {
    return f_.refuse(from.name, record_name + " keeps its scales at the end of pages, and this source is ragged");
  }
  const auto page_size = f_.integer(kv("page_size"), 1, kMaxInt32);
  if (!f_.ok()) return false;
  if (!page_size) return f_.refuse(kv("page_size"), "missing: the records of a page of " + from.name);
  const int64_t slot_bytes = layout.row_bytes + layout.tail_bytes;
  if (page_bytes / slot_bytes < *page_size) {
    return f_.refuse(from.name, "pages of " + std::to_string(page_bytes) + " bytes: " + std::to_string(*page_size) + " records take " +
                                    std::to_string(slot_bytes) + " each");
  }
  *g = {from.info->shape[0], *page_size, 1, page_bytes};
  t->row_stride_bytes = layout.row_bytes;
  t->head_stride_bytes = layout.row_bytes;
  t->page_stride_bytes = page_bytes;
  return true;
}

// Strides of the record tensor. `item`: bytes of its last axis, at least those of a record.
bool Loader::place(const Stored& from, int64_t item, KvTensor* t) {
  const formats::RecordLayout layout = formats::resolve(t->format, t->width);
  const std::string shape = "shape " + shape_text(from.info->shape);
  Grid g;
  if (layout.tail_bytes > 0) {
    if (!place_planar(from, item, t, &g)) return false;
  } else {
    const auto grid = grid_of(from.name, *from.info);
    if (!grid) return false;
    g = *grid;
    if (item < layout.row_bytes) {
      return f_.refuse(from.name, "records of " + std::to_string(item) + " bytes: " + std::to_string(t->width) + " columns of " +
                                      std::string(format_info(t->format).name) + " take " + std::to_string(layout.row_bytes));
    }
    t->head_stride_bytes = item;
    if (__builtin_mul_overflow(item, g.heads, &t->row_stride_bytes) ||
        __builtin_mul_overflow(t->row_stride_bytes, g.page_size, &t->page_stride_bytes)) {
      return f_.refuse(from.name, shape + " is too large");
    }
  }
  if (grid_ && (grid_->pages != g.pages || grid_->page_size != g.page_size || grid_->heads != g.heads)) {
    return f_.refuse(from.name, shape + ": rows, pages and heads must be those of K");
  }
  if (!grid_) grid_ = g;
  t->data = f_.bytes(from.name, *from.info);
  return f_.ok();
}

// Block scales held apart: [rows, heads, blocks] or [pages, page_size, heads, blocks]; blocks (and ragged rows) may be padded.
bool Loader::place_scales(const Stored& from, KvTensor* t) {
  const int64_t needed_bytes = record_scale_bytes(t->format, t->width);
  if (needed_bytes == 0) return true;
  const std::string& name = from.scales;
  const TensorInfo* info = f_.tensor(name);
  const std::string record_name(format_info(t->format).name);
  if (info == nullptr) return f_.refuse(name, "missing: " + record_name + " keeps its block scales apart");
  const Type scale = formats::resolve(t->format, t->width).segments[0].scale;
  const bool type_ok = scale == Type::kF32    ? f_.has_type(name, *info, {DType::kF32})
                       : scale == Type::kE8m0 ? f_.has_type(name, *info, {DType::kU8, DType::kF8E8m0})
                                              : f_.has_type(name, *info, {DType::kU8, DType::kF8E4m3});
  if (!type_ok) return false;
  const auto g = grid_of(name, *info);
  if (!g) return false;
  const int64_t size = dtype_bits(info->type) / 8;
  const bool rows_ok = paged_ ? g->pages == grid_->pages : g->pages >= grid_->pages;
  if (!rows_ok || g->page_size != grid_->page_size || g->heads != grid_->heads) {
    return f_.refuse(name, "shape " + shape_text(info->shape) + ": rows, pages and heads must be those of the records");
  }
  if (g->item < needed_bytes / size) {
    return f_.refuse(name, std::to_string(g->item) + " scales a record: " + std::to_string(t->width) + " columns of " + record_name +
                               " have " + std::to_string(needed_bytes / size));
  }
  t->scale_block_stride_bytes = size;
  if (__builtin_mul_overflow(size, g->item, &t->scale_head_stride_bytes) ||
      __builtin_mul_overflow(t->scale_head_stride_bytes, g->heads, &t->scale_row_stride_bytes) ||
      __builtin_mul_overflow(t->scale_row_stride_bytes, g->page_size, &t->scale_page_stride_bytes)) {
    return f_.refuse(name, "shape " + shape_text(info->shape) + " is too large");
  }
  t->scales = f_.bytes(name, *info);
  return f_.ok();
}

bool Loader::make_outputs() {
  Problem& p = out_.problem;
  const Source& s = out_.sources.front();
  const int64_t rows = p.q.total * p.q.heads;  // the tensor q has them all: no overflow
  AlignedBytes out(static_cast<size_t>(rows) * static_cast<size_t>(s.d_v()) * static_cast<size_t>(type_bits(p.out.type) / 8));
  AlignedBytes lse(static_cast<size_t>(rows) * sizeof(float));
  if (out.data() == nullptr || lse.data() == nullptr)
    return f_.refuse("q", "no memory for the output of shape " + shape_text(std::vector<int64_t>{p.q.total, p.q.heads, s.d_v()}));
  p.out.data = out.data();
  p.lse.data = reinterpret_cast<float*>(lse.data());
  out_.storage.push_back(std::move(out));
  out_.storage.push_back(std::move(lse));
  return true;
}

void Loader::collect_notes() {
  for (const auto& [key, value] : f_.file().metadata()) {
    const auto name = parse_field_name(key, FieldKind::kMetadata).name;
    if (name && is_note(*name) && key.starts_with(f_.prefix())) out_.notes.emplace(name->field, value);
  }
}

}  // namespace

Result<OwnedProblem> load_problem(const Safetensors& file, const std::string& name) { return Loader(file, name).load(); }

}  // namespace headwater::io
