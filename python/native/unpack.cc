#include "python/native/unpack.h"

#include <cmath>
#include <limits>

#include "headwater/c_api.h"
#include "src/formats/record.h"

namespace headwater::python {
namespace {

#define TRY(expression)                                                        \
  do {                                                                         \
    if (Status try_status = (expression); !try_status.ok()) return try_status; \
  } while (false)

std::string device_name(int32_t kind, int32_t index) { return kind == HEADWATER_CPU ? "cpu" : "cuda:" + std::to_string(index); }

int64_t stride_bytes(const headwater_array& a, int32_t axis) { return a.strides[axis] * type_bytes(a.type); }

// Tensor number `index` of the call; null where the descriptor says -1.
Status pick(const Arrays& arrays, int64_t index, const std::string& name, const headwater_array** array) {
  *array = nullptr;
  if (index == -1) return {};
  if (index < 0 || index >= static_cast<int64_t>(arrays.tensors.size())) {
    return wrong("descriptor." + name, std::to_string(index), "must be -1 or the number of a tensor");
  }
  *array = &arrays.tensors[static_cast<size_t>(index)];
  return {};
}

// An int32 table; rows >= 0 fixes its first axis.
Status table(const Arrays& arrays, int64_t index, const std::string& name, int32_t ndim, int64_t rows, const headwater_array** array,
             const int32_t** data) {
  TRY(pick(arrays, index, name, array));
  *data = nullptr;
  if (*array == nullptr) return {};
  const headwater_array& a = **array;
  TRY(check_array(name, a, *arrays.q, ndim, ndim));
  if (a.type != HEADWATER_I32) return wrong(name + ".dtype", array_type_name(a.type), "must be int32");
  if (ndim == 1 && a.shape[0] > 1 && a.strides[0] != 1) return wrong(name + ".stride(0)", std::to_string(a.strides[0]), "must be 1");
  if (rows >= 0 && a.shape[0] != rows) return wrong(name + ".shape[0]", std::to_string(a.shape[0]), "must be " + std::to_string(rows));
  // An empty table is legal; the library wants a pointer where a table is meant.
  static const int32_t kEmpty = 0;
  *data = a.data != nullptr ? static_cast<const int32_t*>(a.data) : &kEmpty;
  return {};
}

Status scale(const Arrays& arrays, int64_t index, double value, const std::string& name, Scale* to) {
  const headwater_array* a = nullptr;
  TRY(pick(arrays, index, name, &a));
  if (a == nullptr) {
    if (!std::isnan(value)) *to = Scale::constant(static_cast<float>(value));
    return {};
  }
  TRY(check_array(name, *a, *arrays.q, 0, 1));
  if (a->type != HEADWATER_F32) return wrong(name + ".dtype", array_type_name(a->type), "must be float32");
  if (a->ndim == 1 && a->shape[0] > 1 && a->strides[0] != 1) return wrong(name + ".stride(0)", std::to_string(a->strides[0]), "must be 1");
  *to = Scale::array(static_cast<const float*>(a->data), a->ndim == 0 ? 1 : static_cast<int32_t>(a->shape[0]));
  return {};
}

Status check_format_type(const std::string& name, const headwater_array& a, Format format) {
  const auto is = [&](int32_t type) { return a.type == type; };
  bool fits = type_bytes(a.type) == 1;
  const char* rule = "a type of one byte";
  if (format == Format::kF32) fits = is(HEADWATER_F32), rule = "float32";
  if (format == Format::kF16) fits = is(HEADWATER_F16), rule = "float16";
  if (format == Format::kBf16) fits = is(HEADWATER_BF16), rule = "bfloat16";
  if (format == Format::kE4m3) fits = is(HEADWATER_E4M3) || is(HEADWATER_TYPE_U8), rule = "float8_e4m3fn or uint8";
  if (format == Format::kE5m2) fits = is(HEADWATER_E5M2) || is(HEADWATER_TYPE_U8), rule = "float8_e5m2 or uint8";
  if (fits) return {};
  return wrong(name + ".dtype", array_type_name(a.type), std::string("must be ") + rule + " for " + std::string(format_info(format).name));
}

// Columns of a record of `bytes`; 0 where they cannot be told.
int64_t width_of(Format format, int64_t bytes) {
  const FormatInfo& info = format_info(format);
  if (info.fixed_width > 0) return info.fixed_width;
  switch (format) {
    case Format::kF32:
      return bytes / 4;
    case Format::kF16:
    case Format::kBf16:
      return bytes / 2;
    case Format::kE4m3:
    case Format::kE5m2:
    case Format::kInt8:
      return bytes;
    case Format::kMxfp4:
    case Format::kNvfp4:
      return 2 * bytes;
    case Format::kQ8_0:
      return bytes % 34 == 0 ? bytes / 34 * 32 : 0;
    case Format::kMxfp4RopeBf16:
      return (bytes - 128) % 17 == 0 ? (bytes - 128) / 17 * 32 + 64 : 0;
    default:
      return 0;
  }
}

struct Storage {
  bool ragged = false;
  int64_t pages = 0;
  int64_t page_size = 1;
  int64_t heads = 1;
};

// Block scales held apart must cover every record: what lies outside is never read.
Status block_scales(const Arrays& arrays, int64_t index, const std::string& name, const Storage& storage, KvTensor* t) {
  const headwater_array* a = nullptr;
  TRY(pick(arrays, index, name, &a));
  const formats::RecordLayout layout = formats::resolve(t->format, t->width);
  if (a == nullptr) {
    if (layout.apart_bytes > 0 && storage.pages > 0) {
      return wrong(name, "None", std::string("must be given for ") + std::string(format_info(t->format).name));
    }
    return {};
  }
  if (layout.apart_bytes == 0) {
    return wrong(name, shape_text(*a), std::string(format_info(t->format).name) + " holds no block scales apart, leave None");
  }
  const int32_t ndim = storage.ragged ? 3 : 4;
  if (a->ndim != ndim)
    return wrong(name + ".shape", shape_text(*a),
                 storage.ragged ? "must be [rows, heads, blocks]" : "must be [pages, page_size, heads, blocks]");
  if (a->device_kind != arrays.q->device_kind || a->device_index != arrays.q->device_index) {
    return check_array(name, *a, *arrays.q, ndim, ndim);
  }
  const int64_t item = type_bits(layout.segments[0].scale) / 8;
  if (type_bytes(a->type) != item) {
    return wrong(name + ".dtype", array_type_name(a->type), "must be a type of " + std::to_string(item) + " bytes");
  }
  const int64_t blocks = layout.apart_bytes / item;
  const int64_t need[4] = {storage.pages, storage.page_size, storage.heads, blocks};
  for (int32_t axis = 0; axis < ndim; ++axis) {
    const int64_t least = storage.ragged && axis > 0 ? need[axis + 1] : need[axis];
    if (a->shape[axis] >= least) continue;
    return wrong(name + ".shape[" + std::to_string(axis) + "]", std::to_string(a->shape[axis]),
                 "must be at least " + std::to_string(least));
  }
  t->scales = a->data;
  int32_t axis = 0;
  t->scale_page_stride_bytes = storage.ragged ? kDense : stride_bytes(*a, axis++);
  t->scale_row_stride_bytes = stride_bytes(*a, axis++);
  t->scale_head_stride_bytes = stride_bytes(*a, axis++);
  t->scale_block_stride_bytes = stride_bytes(*a, axis);
  return {};
}

Status kv_tensor(const Arrays& arrays, int64_t index, int64_t format, int64_t width, const std::string& name, Storage* storage,
                 KvTensor* t) {
  const headwater_array* a = nullptr;
  TRY(pick(arrays, index, name, &a));
  if (a == nullptr) return wrong(name, "None", "must be given");
  if (format < 0 || format >= kNumFormats) return wrong(name + ".format", std::to_string(format), "no such format");
  t->format = static_cast<Format>(format);
  const int32_t ndim = storage->ragged ? 3 : 4;
  TRY(check_array(name, *a, *arrays.q, ndim, ndim));
  TRY(check_format_type(name, *a, t->format));
  storage->pages = a->shape[0];
  storage->page_size = storage->ragged ? 1 : a->shape[1];
  storage->heads = a->shape[ndim - 2];
  const FormatInfo& info = format_info(t->format);
  const int64_t bytes = a->shape[ndim - 1] * type_bytes(a->type);
  const int64_t columns = width > 0 ? width : width_of(t->format, bytes);
  if (columns < 1 || columns > kMaxWidth || (info.fixed_width > 0 && columns != info.fixed_width)) {
    return wrong(name + ".shape[-1]", std::to_string(a->shape[ndim - 1]),
                 "is no record of " + std::string(info.name) + " of 1 to 576 columns");
  }
  t->width = static_cast<int32_t>(columns);
  const int64_t record = record_row_bytes(t->format, t->width);
  if (bytes < record) {
    return wrong(name + ".shape[-1]", std::to_string(a->shape[ndim - 1]),
                 "must hold the " + std::to_string(record) + " bytes of a record of " + std::string(info.name));
  }
  t->data = a->data;
  if (storage->ragged) {
    t->row_stride_bytes = stride_bytes(*a, 0);
    t->head_stride_bytes = stride_bytes(*a, 1);
    return {};
  }
  t->page_stride_bytes = stride_bytes(*a, 0);
  if (info.planar) return {};  // rows are nominal: a slice of one is not a record
  t->row_stride_bytes = stride_bytes(*a, 1);
  t->head_stride_bytes = stride_bytes(*a, 2);
  return {};
}

Status unpack_addressing(const Arrays& arrays, std::span<const int64_t> f, const std::string& name, int64_t requests, Addressing* to) {
  const headwater_array* a = nullptr;
  TRY(table(arrays, f[kBlockTable], name + ".block_table", 2, requests, &a, &to->block_table));
  if (a != nullptr) {
    if (a->shape[1] > 1 && a->strides[1] != 1) return wrong(name + ".block_table.stride(1)", std::to_string(a->strides[1]), "must be 1");
    to->max_pages = a->shape[1];
    to->block_table_stride = a->strides[0];
  }
  TRY(table(arrays, f[kKvIndptr], name + ".kv_indptr", 1, requests < 0 ? -1 : requests + 1, &a, &to->kv_indptr));
  TRY(table(arrays, f[kKvIndices], name + ".kv_indices", 1, -1, &a, &to->kv_indices));
  if (a != nullptr) to->num_indices = a->shape[0];
  TRY(table(arrays, f[kSeqLens], name + ".seq_lens", 1, requests, &a, &to->seq_lens));
  return table(arrays, f[kLastPageLen], name + ".kv_last_page_len", 1, requests, &a, &to->kv_last_page_len);
}

Status unpack_rule(const Arrays& arrays, std::span<const int64_t> f, const std::string& name, Rule* to) {
  if (f[kRule] < 0 || f[kRule] > HEADWATER_GATHERED) return wrong(name + ".rule", std::to_string(f[kRule]), "no such rule");
  to->kind = static_cast<RuleKind>(f[kRule]);
  constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
  if (f[kWindowLeft] < -1 || f[kWindowLeft] > kMaxInt)
    return wrong(name + ".window_left", std::to_string(f[kWindowLeft]), "must be from -1 to 2^31 - 1");
  if (f[kRatio] < 0 || f[kRatio] > kMaxInt) return wrong(name + ".ratio", std::to_string(f[kRatio]), "must be from 0 to 2^31 - 1");
  to->window_left = static_cast<int32_t>(f[kWindowLeft]);
  to->ratio = static_cast<int32_t>(f[kRatio]);
  to->index_space = f[kIndexSpace] == 1 ? IndexSpace::kPosition : IndexSpace::kSlot;
  const headwater_array* a = nullptr;
  TRY(pick(arrays, f[kIndices], name + ".indices", &a));
  if (to->kind == RuleKind::kGathered) {
    if (a == nullptr) return wrong(name + ".indices", "None", "must be given for the gathered rule");
    TRY(check_array(name + ".indices", *a, *arrays.q, 2, 2));
    if (a->type != HEADWATER_I32 && a->type != HEADWATER_I64)
      return wrong(name + ".indices.dtype", array_type_name(a->type), "must be int32 or int64");
    if (arrays.q->ndim == 3 && a->shape[0] != arrays.q->shape[0]) {
      return wrong(name + ".indices.shape[0]", std::to_string(a->shape[0]),
                   "must be the " + std::to_string(arrays.q->shape[0]) + " query rows");
    }
    if (a->shape[1] > kMaxInt) return wrong(name + ".indices.shape[1]", std::to_string(a->shape[1]), "must be below 2^31");
    static const int64_t kEmpty = -1;
    to->indices = a->data != nullptr ? a->data : &kEmpty;
    to->index_type = static_cast<Type>(a->type);
    to->topk = static_cast<int32_t>(a->shape[1]);
    to->indices_stride = a->shape[1] > 0 ? a->strides[0] : 0;
  }
  return table(arrays, f[kTopkLens], name + ".topk_lens", 1, arrays.q->ndim == 3 ? arrays.q->shape[0] : -1, &a, &to->topk_lens);
}

Status source_of(const Arrays& arrays, std::span<const int64_t> f, const double* scales, const std::string& name, int64_t requests,
                 Source* s) {
  if (f[kAddressing] < 0 || f[kAddressing] > HEADWATER_POOL)
    return wrong(name + ".addressing", std::to_string(f[kAddressing]), "no such addressing");
  s->addressing.kind = static_cast<AddressingKind>(f[kAddressing]);
  Storage k;
  k.ragged = s->addressing.kind == AddressingKind::kRagged;
  Storage v = k;
  TRY(kv_tensor(arrays, f[kK], f[kKFormat], f[kKWidth], name + ".k", &k, &s->k));
  TRY(block_scales(arrays, f[kKBlockScales], name + ".k_block_scales", k, &s->k));
  TRY(scale(arrays, f[kKScale], scales[0], name + ".k_scale", &s->k.scale));
  s->shared = f[kShared] != 0;
  if (s->shared) {
    if (f[kValueWidth] < 1 || f[kValueWidth] > s->k.width) {
      return wrong(name + ".value_width", std::to_string(f[kValueWidth]), "must be from 1 to the record's " + std::to_string(s->k.width));
    }
    s->value_width = static_cast<int32_t>(f[kValueWidth]);
  } else {
    TRY(kv_tensor(arrays, f[kV], f[kVFormat], f[kVWidth], name + ".v", &v, &s->v));
    TRY(block_scales(arrays, f[kVBlockScales], name + ".v_block_scales", v, &s->v));
    TRY(scale(arrays, f[kVScale], scales[1], name + ".v_scale", &s->v.scale));
    if (v.pages != k.pages || v.page_size != k.page_size || v.heads != k.heads) {
      const headwater_array& a = arrays.tensors[static_cast<size_t>(f[kV])];
      return wrong(name + ".v.shape", shape_text(a),
                   "must be that of k, " + shape_text(arrays.tensors[static_cast<size_t>(f[kK])]) + ", but for the last axis");
    }
  }
  if (k.heads < 1 || k.heads > std::numeric_limits<int32_t>::max())
    return wrong(name + ".k heads", std::to_string(k.heads), "must be at least 1");
  if (k.page_size > std::numeric_limits<int32_t>::max())
    return wrong(name + ".page_size", std::to_string(k.page_size), "must be below 2^31");
  s->heads = static_cast<int32_t>(k.heads);
  s->addressing.page_size = static_cast<int32_t>(k.page_size);
  s->addressing.num_pages = k.pages;
  TRY(unpack_addressing(arrays, f, name, requests, &s->addressing));
  TRY(unpack_rule(arrays, f, name, &s->rule));
  const headwater_array* a = nullptr;
  TRY(table(arrays, f[kFirstPosition], name + ".first_position", 1, requests, &a, &s->first_position));
  return table(arrays, f[kPositionStride], name + ".position_stride", 1, requests, &a, &s->position_stride);
}

Status unpack_queries(const Arrays& arrays, std::span<const int64_t> d, Problem* p) {
  const headwater_array& q = *arrays.q;
  TRY(check_array("q", q, q, 3, 3));
  if (q.type >= HEADWATER_TYPE_U8) return wrong("q.dtype", array_type_name(q.type), "must be bfloat16, float16, float32 or float8_e4m3fn");
  if (q.shape[1] > 65536 || q.shape[2] > kMaxWidth) return wrong("q.shape", shape_text(q), "at most 65536 heads and width 576");
  p->device = {static_cast<DeviceKind>(q.device_kind), q.device_index};
  p->q = {q.data,
          static_cast<Type>(q.type),
          q.shape[0],
          static_cast<int32_t>(q.shape[1]),
          static_cast<int32_t>(q.shape[2]),
          stride_bytes(q, 0),
          stride_bytes(q, 1)};
  const headwater_array* a = nullptr;
  TRY(pick(arrays, d[kQTail], "q_tail", &a));
  if (a != nullptr) {
    TRY(check_array("q_tail", *a, q, 3, 3));
    if (a->type != q.type) return wrong("q_tail.dtype", array_type_name(a->type), "must be that of q, " + array_type_name(q.type));
    if (a->shape[0] != q.shape[0] || a->shape[1] != q.shape[1] || a->shape[2] > kMaxWidth) {
      return wrong("q_tail.shape", shape_text(*a), "must be that of q, " + shape_text(q) + ", but for the last axis");
    }
    p->q_tail = {a->data, static_cast<int32_t>(a->shape[2]), stride_bytes(*a, 0), stride_bytes(*a, 1)};
  }
  TRY(pick(arrays, d[kQScale], "q_scale", &a));
  if (a == nullptr) return {};
  if (a->type != HEADWATER_F32) return wrong("q_scale.dtype", array_type_name(a->type), "must be float32");
  if (a->ndim != 0 && a->ndim != 2 && !(a->ndim == 1 && a->shape[0] == 1))
    return wrong("q_scale.shape", shape_text(*a), "must be one value, or [total, heads]");
  p->q_scale.data = static_cast<const float*>(a->data);
  if (a->ndim == 2) {
    if (a->shape[0] != q.shape[0] || a->shape[1] != q.shape[1])
      return wrong("q_scale.shape", shape_text(*a), "must be one value, or [total, heads]");
    p->q_scale.per_row = true;
    p->q_scale.row_stride = a->strides[0];
    p->q_scale.head_stride = a->strides[1];
  }
  return {};
}

Status unpack_sinks(const Arrays& arrays, int64_t index, Problem* p) {
  const headwater_array* a = nullptr;
  TRY(pick(arrays, index, "sinks", &a));
  if (a == nullptr) return {};
  TRY(check_array("sinks", *a, *arrays.q, 1, 2));
  if (a->type != HEADWATER_F32) return wrong("sinks.dtype", array_type_name(a->type), "must be float32");
  if (a->shape[a->ndim - 1] != p->q.heads)
    return wrong("sinks.shape", shape_text(*a), "must be [heads] or [requests, heads], heads = " + std::to_string(p->q.heads));
  if (a->ndim == 2 && a->shape[0] != p->requests)
    return wrong("sinks.shape", shape_text(*a), "must be [heads] or [requests, heads], requests = " + std::to_string(p->requests));
  p->sinks = static_cast<const float*>(a->data);
  p->sinks_request_stride = a->ndim == 2 ? a->strides[0] : 0;
  return {};
}

Status unpack_outputs(const headwater_call& call, const Arrays& arrays, Problem* p) {
  const headwater_array& out = *call.out;
  TRY(check_array("out", out, *arrays.q, 3, 3));
  if (out.shape[0] != p->q.total || out.shape[1] != p->q.heads || out.shape[2] != p->d_v()) {
    return wrong("out.shape", shape_text(out),
                 "must be [" + std::to_string(p->q.total) + ", " + std::to_string(p->q.heads) + ", " + std::to_string(p->d_v()) + "]");
  }
  if (out.type >= HEADWATER_TYPE_U8) return wrong("out.dtype", array_type_name(out.type), "must be bfloat16, float16 or float32");
  p->out = {out.data, static_cast<Type>(out.type), stride_bytes(out, 0), stride_bytes(out, 1)};
  if (call.lse == nullptr) return {};
  const headwater_array& lse = *call.lse;
  if (lse.type != HEADWATER_F32) return wrong("lse.dtype", array_type_name(lse.type), "must be float32");
  if (lse.device_kind != arrays.q->device_kind || lse.device_index != arrays.q->device_index) {
    return wrong("lse.device", device_name(lse.device_kind, lse.device_index),
                 "must be that of q, " + device_name(arrays.q->device_kind, arrays.q->device_index));
  }
  if (lse.ndim != 2 || lse.shape[0] != p->q.total || lse.shape[1] != p->q.heads) {
    return wrong("lse.shape", shape_text(lse), "must be [" + std::to_string(p->q.total) + ", " + std::to_string(p->q.heads) + "]");
  }
  p->lse = {static_cast<float*>(lse.data), lse.strides[0], lse.strides[1], kDense};
  return {};
}

}  // namespace

Status wrong(const std::string& field, const std::string& value, const std::string& rule) {
  return invalid(field + " = " + value + ": " + rule);
}

int64_t type_bytes(int32_t type) {
  switch (type) {
    case HEADWATER_F32:
    case HEADWATER_I32:
      return 4;
    case HEADWATER_F16:
    case HEADWATER_BF16:
      return 2;
    case HEADWATER_I64:
      return 8;
    case HEADWATER_E4M3:
    case HEADWATER_E5M2:
    case HEADWATER_I8:
    case HEADWATER_E8M0:
    case HEADWATER_E2M1:  // torch's float4_e2m1fn_x2: two to a byte
    case HEADWATER_TYPE_U8:
      return 1;
    default:
      return 0;
  }
}

std::string array_type_name(int32_t type) {
  if (type == HEADWATER_TYPE_U8) return "uint8";
  if (type < 0 || type > HEADWATER_I64) return "another type";
  return std::string(type_name(static_cast<Type>(type)));
}

std::string shape_text(const headwater_array& a) {
  std::string text = "[";
  for (int32_t i = 0; i < a.ndim && i < HEADWATER_MAX_DIMS; ++i) text += (i > 0 ? ", " : "") + std::to_string(a.shape[i]);
  return text + "]";
}

Status check_array(const std::string& name, const headwater_array& a, const headwater_array& like, int32_t min_ndim, int32_t max_ndim) {
  if (a.device_kind != like.device_kind || a.device_index != like.device_index) {
    return wrong(name + ".device", device_name(a.device_kind, a.device_index),
                 "must be that of q, " + device_name(like.device_kind, like.device_index));
  }
  if (a.ndim < min_ndim || a.ndim > max_ndim) {
    return wrong(name + ".dim()", std::to_string(a.ndim),
                 "must be " + std::to_string(min_ndim) + (min_ndim == max_ndim ? "" : " or " + std::to_string(max_ndim)));
  }
  if (type_bytes(a.type) == 0) return wrong(name + ".dtype", array_type_name(a.type), "not a type of this library");
  if (a.ndim > 1 && a.shape[a.ndim - 1] > 1 && a.strides[a.ndim - 1] != 1) {
    return wrong(name + ".stride(-1)", std::to_string(a.strides[a.ndim - 1]), "must be 1");
  }
  return {};
}

Status unpack_source(const Arrays& arrays, std::span<const int64_t> fields, const double* scales, const std::string& name, Source* source) {
  if (fields.size() != kSourceSize)
    return wrong("descriptor", std::to_string(fields.size()) + " integers", "a source has " + std::to_string(kSourceSize));
  return source_of(arrays, fields, scales, name, -1, source);
}

Status unpack(const headwater_call& call, Unpacked* u) {
  const Arrays arrays{{call.tensors, static_cast<size_t>(call.num_tensors)}, call.q};
  const std::span<const int64_t> d(call.descriptor, static_cast<size_t>(call.descriptor_size));
  if (d.size() < kHeaderSize || d[kVersion] != kDescriptorVersion || d[kNumSources] < 1 || d[kNumSources] > kMaxSources ||
      d.size() != kHeaderSize + static_cast<size_t>(d[kNumSources]) * kSourceSize ||
      call.numbers_size != kNumbersHeader + 2 * d[kNumSources]) {
    return wrong("descriptor", std::to_string(d.size()) + " integers", "not one that this version of headwater wrote");
  }
  Problem& p = u->problem;
  TRY(unpack_queries(arrays, d, &p));
  const headwater_array* a = nullptr;
  TRY(table(arrays, d[kQoIndptr], "qo_indptr", 1, -1, &a, &p.qo_indptr));
  if (a == nullptr || a->shape[0] < 1) return wrong("qo_indptr", a == nullptr ? "None" : "[0]", "must hold requests + 1 offsets");
  p.requests = a->shape[0] - 1;
  TRY(table(arrays, d[kContextLens], "context_lens", 1, p.requests, &a, &p.context_lens));
  p.sm_scale = static_cast<float>(call.numbers[kSmScale]);
  p.logits_soft_cap = static_cast<float>(call.numbers[kSoftcap]);
  u->sources.resize(static_cast<size_t>(d[kNumSources]));
  for (size_t s = 0; s < u->sources.size(); ++s) {
    TRY(source_of(arrays, d.subspan(kHeaderSize + s * kSourceSize, kSourceSize), call.numbers + kNumbersHeader + 2 * s,
                  "kv[" + std::to_string(s) + "]", p.requests, &u->sources[s]));
  }
  p.sources = u->sources;
  TRY(unpack_sinks(arrays, d[kSinks], &p));
  if (d[kOutType] < 0 || d[kOutType] > HEADWATER_I64) return wrong("out.dtype", std::to_string(d[kOutType]), "no such type");
  p.out.type = static_cast<Type>(d[kOutType]);
  u->options.batch_invariant = (d[kFlags] & kBatchInvariant) != 0;
  u->options.checked = (d[kFlags] & kChecked) != 0;
  if (call.out != nullptr) return unpack_outputs(call, arrays, &p);
  return {};
}

}  // namespace headwater::python
