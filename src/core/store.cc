// One KV store by itself: formats, widths, strides, scales. Shared by validate and by append / gather.
#include "src/core/store.h"

#include <array>
#include <cmath>

namespace headwater::check {
namespace {

Status check_scale(Where at, const KvTensor& t, const Source& s) {
  const Scale& scale = t.scale;
  const FormatInfo& info = format_info(t.format);
  if (scale.count == 0) {
    if (scale.data != nullptr) return bad(at, "scale.count", scale.count, "must be 1 or the number of KV heads where scale.data is given");
    return {};
  }
  if (!info.takes_scale) {
    return bad(at, "scale.count", scale.count, "records of " + std::string(info.name) + " take no scale, leave 0");
  }
  if (s.shared && scale.count != 1) return bad(at, "scale.count", scale.count, "shared storage takes one value");
  if (scale.count != 1 && scale.count != s.heads) {
    return bad(at, "scale.count", scale.count, "must be 1 or the number of KV heads, " + text(s.heads));
  }
  if (scale.data == nullptr) {
    if (scale.count != 1) return bad(at, "scale.data", static_cast<const void*>(nullptr), "must be given where scale.count is above 1");
    if (!std::isfinite(scale.value)) return bad(at, "scale.value", scale.value, "must be finite");
    return {};
  }
  return check_array(at, "scale.data", scale.data, false, "");
}

// Bytes of one block scale held apart: 0 when the format has none.
int64_t apart_scale_bytes(const formats::RecordLayout& layout) {
  for (int i = 0; i < layout.num_segments; ++i) {
    if (layout.segments[i].place == formats::ScalePlace::kApart) return type_bits(layout.segments[i].scale) / 8;
  }
  return 0;
}

Status resolve_planar(Where at, const KvTensor& t, const Source& s, const ResolvedTensor& out) {
  const std::string name(format_info(t.format).name);
  if (s.addressing.kind == AddressingKind::kRagged) {
    return bad({at.source}, "addressing", std::string_view("ragged"), name + " keeps its scales at the page's end: needs paged storage");
  }
  if (s.heads != 1) return bad({at.source}, "heads", s.heads, name + " keeps its scales at the page's end: one KV head only");
  if (out.row_stride != out.layout.row_bytes) {
    return bad(at, "row_stride_bytes", out.row_stride, name + " packs its records: must be " + text(out.layout.row_bytes));
  }
  const int64_t page = int64_t{s.addressing.page_size} * (int64_t{out.layout.row_bytes} + out.layout.tail_bytes);
  if (out.page_stride < page) {
    return bad(at, "page_stride_bytes", out.page_stride, "a page of " + name + " with its scales takes " + text(page));
  }
  return {};
}

Status resolve_tensor(Where at, const KvTensor& t, const Source& s, ResolvedTensor* out) {
  const Addressing& a = s.addressing;
  const bool ragged = a.kind == AddressingKind::kRagged;
  const FormatInfo& info = format_info(t.format);
  HEADWATER_TRY(check_scale(at, t, s));
  out->layout = formats::resolve(t.format, t.width);
  out->data = static_cast<const std::byte*>(t.data);
  out->scale = t.scale.count != 0 ? t.scale.data : nullptr;
  out->scale_count = t.scale.count;
  out->scale_value = t.scale.count != 0 ? t.scale.value : 1.0F;

  // Elements of the float formats are read as such; records are bytes and may stand anywhere.
  const int64_t alignment = info.is_float ? type_bits(out->layout.segments[0].element) / 8 : 1;
  HEADWATER_TRY(check_array(at, "data", t.data, a.num_pages > 0, "the cache has rows", alignment));
  out->row_stride = t.row_stride_bytes;
  out->head_stride = t.head_stride_bytes;
  out->page_stride = ragged ? 0 : t.page_stride_bytes;
  const int64_t rows = ragged ? a.num_pages : a.page_size;
  const int64_t dense_page = info.planar ? record_page_bytes(t.format, t.width, a.page_size) : kDense;
  const std::array<Axis, 3> axes{{{"page_stride_bytes", ragged ? 1 : a.num_pages, &out->page_stride, dense_page},
                                  {"row_stride_bytes", rows, &out->row_stride},
                                  {"head_stride_bytes", s.heads, &out->head_stride}}};
  HEADWATER_TRY(resolve_strides(at, std::span(axes).subspan(ragged ? 1 : 0), out->layout.row_bytes, alignment));
  if (info.planar) HEADWATER_TRY(resolve_planar(at, t, s, *out));

  const int64_t scale_bytes = apart_scale_bytes(out->layout);
  if (scale_bytes == 0) {
    if (t.scales != nullptr) return bad(at, "scales", t.scales, std::string(info.name) + " holds no scales apart, leave null");
    return {};
  }
  HEADWATER_TRY(check_array(at, "scales", t.scales, a.num_pages > 0, "the format holds its block scales apart", scale_bytes));
  out->scales = static_cast<const std::byte*>(t.scales);
  out->scale_row_stride = t.scale_row_stride_bytes;
  out->scale_head_stride = t.scale_head_stride_bytes;
  out->scale_page_stride = ragged ? 0 : t.scale_page_stride_bytes;
  out->scale_block_stride = t.scale_block_stride_bytes;
  const std::array<Axis, 4> scale_axes{{{"scale_page_stride_bytes", ragged ? 1 : a.num_pages, &out->scale_page_stride},
                                        {"scale_row_stride_bytes", rows, &out->scale_row_stride},
                                        {"scale_head_stride_bytes", s.heads, &out->scale_head_stride},
                                        {"scale_block_stride_bytes", out->layout.apart_bytes / scale_bytes, &out->scale_block_stride}}};
  return resolve_strides(at, std::span(scale_axes).subspan(ragged ? 1 : 0), scale_bytes, scale_bytes);
}

}  // namespace

Status check_record(Where at, const char* name, Format format, int32_t width) {
  if (static_cast<int32_t>(format) >= kNumFormats) return bad(at, "format", format, "no such format");
  if (width < 1) return bad(at, name, width, "must be at least 1");
  if (width > kMaxWidth) {
    return refuse(StatusCode::kUnsupported, field(at, name), text(width), "the largest supported is " + text(kMaxWidth));
  }
  const FormatInfo& info = format_info(format);
  if (info.fixed_width != 0 && width != info.fixed_width) {
    return bad(at, name, width, "records of " + std::string(info.name) + " have " + text(info.fixed_width) + " columns");
  }
  if (format == Format::kMxfp4RopeBf16 && width <= 64) {
    return bad(at, name, width, "records of " + std::string(info.name) + " have more than their 64 bf16 columns");
  }
  return {};
}

Status resolve_store(Where at, const Source& s, ResolvedSource* out) {
  const Addressing& a = s.addressing;
  const Where k_at{at.source, "k."};
  const Where v_at{at.source, "v."};
  if (a.kind < AddressingKind::kRagged || a.kind > AddressingKind::kPool) {
    return bad(at, "addressing", static_cast<int32_t>(a.kind), "no such addressing");
  }
  if (s.heads < 1) return bad(at, "heads", s.heads, "must be at least 1");
  const bool ragged = a.kind == AddressingKind::kRagged;
  if (a.page_size < 1) return bad(at, "page_size", a.page_size, "must be at least 1");
  if (a.num_pages < 0) return bad(at, "num_pages", a.num_pages, "must be at least 0");
  if (Int128{a.num_pages} * (ragged ? 1 : a.page_size) > kMaxSpan) {
    return bad(at, "num_pages", a.num_pages, "makes more than 2^58 slots");
  }
  out->shared = s.shared;
  out->heads = s.heads;
  out->addressing = a.kind;
  out->page_size = ragged ? 1 : a.page_size;
  out->num_slots = ragged ? a.num_pages : a.num_pages * a.page_size;
  HEADWATER_TRY(check_record(k_at, "width", s.k.format, s.k.width));
  HEADWATER_TRY(resolve_tensor(k_at, s.k, s, &out->k));
  if (!s.shared) {
    HEADWATER_TRY(check_record(v_at, "width", s.v.format, s.v.width));
    return resolve_tensor(v_at, s.v, s, &out->v);
  }
  if (s.value_width < 1) return bad(at, "value_width", s.value_width, "must be at least 1");
  if (s.value_width > s.k.width) return bad(at, "value_width", s.value_width, "must be at most k.width = " + text(s.k.width));
  out->v = out->k;
  out->v.layout = formats::RecordLayout{};
  return {};
}

Status check_scale_values(Where at, const ResolvedTensor& t) {
  for (int32_t h = 0; t.scale != nullptr && h < t.scale_count; ++h) {
    if (!std::isfinite(t.scale[h])) return bad(at, element("scale.data", h), t.scale[h], "must be finite");
  }
  return {};
}

}  // namespace headwater::check
