// Writing and reading a KV store beside the kernels: append, gather, and single records. CPU memory.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "headwater/headwater.h"
#include "src/core/check.h"
#include "src/core/resolved.h"
#include "src/core/store.h"
#include "src/formats/bf16.h"
#include "src/formats/f16.h"
#include "src/formats/record.h"

namespace headwater {
namespace {

using check::Axis;
using check::bad;
using check::element;
using check::text;
using check::Where;

constexpr Where kCacheAt{check::kCache};
constexpr Where kKeyAt{check::kCache, "k."};
constexpr Where kValueAt{check::kCache, "v."};

// Rows to append, strides filled in.
struct RowView {
  const std::byte* data = nullptr;
  int32_t width = 0;
  int64_t row_stride = 0;  // bytes
  int64_t head_stride = 0;
};

void load_row(Type type, const std::byte* from, int32_t width, float* to) {
  for (int32_t i = 0; i < width; ++i) {
    if (type == Type::kF32) {
      std::memcpy(to + i, from + 4 * int64_t{i}, sizeof(float));
      continue;
    }
    uint16_t bits = 0;
    std::memcpy(&bits, from + 2 * int64_t{i}, sizeof bits);
    to[i] = type == Type::kF16 ? formats::decode_f16(bits) : formats::decode_bf16(bits);
  }
}

Status check_rule(BlockScaleRule rule) {
  if (rule > BlockScaleRule::kFloor) return bad("rule", static_cast<int32_t>(rule), "no such block-scale rule");
  return {};
}

Status resolve_rows(const char* part, const AppendRows& rows, const Source& cache, RowView* view) {
  const Where at{-1, part};
  const int64_t item = type_bits(rows.type) / 8;
  HEADWATER_TRY(check::check_array(at, "", view->data, rows.count > 0, "the cache stores it", item));
  const std::array<Axis, 2> axes{
      {{"_row_stride_bytes", rows.count, &view->row_stride}, {"_head_stride_bytes", cache.heads, &view->head_stride}}};
  return check::resolve_strides(at, axes, view->width * item, item);
}

// Writing needs room of its own for every record, and scales to divide by.
Status check_writable(Where at, const ResolvedSource& s, const ResolvedTensor& t, const Source& cache) {
  const bool ragged = s.addressing == AddressingKind::kRagged;
  int64_t strides[] = {t.page_stride,      t.row_stride,        t.head_stride,       t.scale_page_stride,
                       t.scale_row_stride, t.scale_head_stride, t.scale_block_stride};
  const int64_t pages = ragged ? 1 : cache.addressing.num_pages;
  const int64_t rows = ragged ? s.num_slots : s.page_size;
  const std::array<Axis, 3> axes{
      {{"page_stride_bytes", pages, &strides[0]}, {"row_stride_bytes", rows, &strides[1]}, {"head_stride_bytes", s.heads, &strides[2]}}};
  HEADWATER_TRY(check::check_disjoint(at, axes, t.layout.row_bytes));
  if (t.layout.apart_bytes > 0) {
    const int64_t item = type_bits(t.layout.segments[0].scale) / 8;
    const std::array<Axis, 4> scales{{{"scale_page_stride_bytes", pages, &strides[3]},
                                      {"scale_row_stride_bytes", rows, &strides[4]},
                                      {"scale_head_stride_bytes", s.heads, &strides[5]},
                                      {"scale_block_stride_bytes", t.layout.apart_bytes / item, &strides[6]}}};
    HEADWATER_TRY(check::check_disjoint(at, scales, item));
  }
  HEADWATER_TRY(check::check_scale_values(at, t));
  for (int32_t h = 0; h < s.heads; ++h) {
    if (tensor_scale(t, h) != 0.0F) continue;
    return bad(at, t.scale != nullptr ? element("scale.data", t.scale_count == 1 ? 0 : h) : "scale.value", 0.0F,
               "rows are divided by it: must not be 0");
  }
  return {};
}

Status check_slots(const int64_t* slots, int64_t count, int64_t num_slots, bool may_skip) {
  HEADWATER_TRY(check::check_array({}, "slots", slots, count > 0, "it says where rows live", 8));
  for (int64_t i = 0; i < count; ++i) {
    if (slots[i] < num_slots && (slots[i] >= 0 || may_skip)) continue;
    return bad(element("slots", i), slots[i],
               (may_skip ? "must be below the cache's " : "must be from 0 to below the cache's ") + text(num_slots) + " slots");
  }
  return {};
}

void write_record(const ResolvedSource& s, const ResolvedTensor& t, int64_t slot, int32_t head, const float* values, BlockScaleRule rule) {
  const formats::RowRef ref = record_at(s, t, slot, head);
  // The caller's memory: Source holds readers' pointers.
  formats::encode_row(t.layout, values, tensor_scale(t, head), rule, const_cast<std::byte*>(ref.row), const_cast<std::byte*>(ref.scales),
                      ref.scale_block_stride);
}

Status check_append(const AppendRows& rows, const Source& cache) {
  if (rows.type != Type::kBf16 && rows.type != Type::kF16 && rows.type != Type::kF32) {
    return bad("rows.type", rows.type, "must be bf16, f16 or f32");
  }
  if (rows.count < 0) return bad("rows.count", rows.count, "must be at least 0");
  if (rows.k_tail_width < 0 || rows.k_tail_width >= cache.k.width) {
    return bad("rows.k_tail_width", rows.k_tail_width, "must be from 0 to below cache.k.width = " + text(cache.k.width));
  }
  if (rows.k_tail_width == 0 && rows.k_tail != nullptr) {
    return bad("rows.k_tail_width", rows.k_tail_width, "must be at least 1 where rows.k_tail is given");
  }
  if (cache.shared && rows.v != nullptr) return bad("rows.v", rows.v, "shared storage keeps V inside K, leave null");
  return {};
}

// Width and pointers of one record.
Status check_codec(Format format, int32_t width, const void* values, const void* row, const void* scales, float scale) {
  HEADWATER_TRY(check::check_record({}, "width", format, width));
  const FormatInfo& info = format_info(format);
  HEADWATER_TRY(check::check_array({}, "values", values, true, "it holds the decoded columns"));
  HEADWATER_TRY(check::check_array({}, "row", row, true, "it holds the record", 1));
  HEADWATER_TRY(check::check_array({}, "scales", scales, info.scales_apart || info.planar, "the format holds scales outside the row", 1));
  if (!std::isfinite(scale)) return bad("scale", scale, "must be finite");
  if (scale != 1.0F && !info.takes_scale) return bad("scale", scale, "records of " + std::string(info.name) + " take no scale, leave 1");
  return {};
}

}  // namespace

Status append(const Source& cache, const AppendRows& rows, const int64_t* slots, BlockScaleRule rule) {
  ResolvedSource store;
  HEADWATER_TRY(check_rule(rule));
  HEADWATER_TRY(check::resolve_store(kCacheAt, cache, &store));
  HEADWATER_TRY(check_append(rows, cache));
  RowView k{static_cast<const std::byte*>(rows.k), cache.k.width - rows.k_tail_width, rows.k_row_stride_bytes, rows.k_head_stride_bytes};
  RowView tail{static_cast<const std::byte*>(rows.k_tail), rows.k_tail_width, rows.k_tail_row_stride_bytes, rows.k_tail_head_stride_bytes};
  RowView v{static_cast<const std::byte*>(rows.v), cache.shared ? 0 : cache.v.width, rows.v_row_stride_bytes, rows.v_head_stride_bytes};
  HEADWATER_TRY(resolve_rows("rows.k", rows, cache, &k));
  if (tail.width > 0) HEADWATER_TRY(resolve_rows("rows.k_tail", rows, cache, &tail));
  if (!cache.shared) HEADWATER_TRY(resolve_rows("rows.v", rows, cache, &v));
  HEADWATER_TRY(check_writable(kKeyAt, store, store.k, cache));
  if (!cache.shared) HEADWATER_TRY(check_writable(kValueAt, store, store.v, cache));
  HEADWATER_TRY(check_slots(slots, rows.count, store.num_slots, true));

  std::array<float, kMaxWidth> values;
  for (int64_t i = 0; i < rows.count; ++i) {
    if (slots[i] < 0) continue;
    for (int32_t h = 0; h < store.heads; ++h) {
      load_row(rows.type, k.data + i * k.row_stride + h * k.head_stride, k.width, values.data());
      if (tail.width > 0) load_row(rows.type, tail.data + i * tail.row_stride + h * tail.head_stride, tail.width, values.data() + k.width);
      write_record(store, store.k, slots[i], h, values.data(), rule);
      if (store.shared) continue;
      load_row(rows.type, v.data + i * v.row_stride + h * v.head_stride, v.width, values.data());
      write_record(store, store.v, slots[i], h, values.data(), rule);
    }
  }
  return {};
}

Status gather(const Source& cache, const int64_t* slots, int64_t count, float* k_out, float* v_out) {
  ResolvedSource store;
  HEADWATER_TRY(check::resolve_store(kCacheAt, cache, &store));
  HEADWATER_TRY(check::check_scale_values(kKeyAt, store.k));
  if (!store.shared) HEADWATER_TRY(check::check_scale_values(kValueAt, store.v));
  if (count < 0) return bad("count", count, "must be at least 0");
  HEADWATER_TRY(check::check_array({}, "k_out", k_out, false, ""));
  HEADWATER_TRY(check::check_array({}, "v_out", v_out, false, ""));
  HEADWATER_TRY(check_slots(slots, count, store.num_slots, false));

  const int32_t d_v = cache.d_v();
  std::array<float, kMaxWidth> values;
  for (int64_t i = 0; i < count; ++i) {
    for (int32_t h = 0; h < store.heads; ++h) {
      const int64_t at = i * store.heads + h;
      formats::decode_row(store.k.layout, record_at(store, store.k, slots[i], h), tensor_scale(store.k, h), values.data());
      if (k_out != nullptr) std::copy_n(values.data(), cache.k.width, k_out + at * cache.k.width);
      if (v_out == nullptr) continue;
      if (!store.shared) {
        formats::decode_row(store.v.layout, record_at(store, store.v, slots[i], h), tensor_scale(store.v, h), values.data());
      }
      std::copy_n(values.data(), d_v, v_out + at * d_v);
    }
  }
  return {};
}

Status encode_record(Format format, int32_t width, const float* values, void* row, void* scales, float scale, BlockScaleRule rule) {
  HEADWATER_TRY(check_codec(format, width, values, row, scales, scale));
  HEADWATER_TRY(check_rule(rule));
  if (scale == 0.0F) return bad("scale", scale, "values are divided by it: must not be 0");
  const formats::RecordLayout layout = formats::resolve(format, width);
  formats::encode_row(layout, values, scale, rule, static_cast<std::byte*>(row), static_cast<std::byte*>(scales),
                      layout.segments[0].scale_stride);
  return {};
}

Status decode_record(Format format, int32_t width, const void* row, const void* scales, float* values, float scale) {
  HEADWATER_TRY(check_codec(format, width, values, row, scales, scale));
  const formats::RecordLayout layout = formats::resolve(format, width);
  const formats::RowRef ref{static_cast<const std::byte*>(row), static_cast<const std::byte*>(scales), layout.segments[0].scale_stride};
  formats::decode_row(layout, ref, scale, values);
  return {};
}

}  // namespace headwater
