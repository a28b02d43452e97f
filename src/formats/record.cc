// The table of records, and what follows from it without touching a record's bytes.
#include "src/formats/record.h"

#include <array>

namespace headwater::formats {
namespace {

constexpr int32_t kFollows = -1;  // placed right behind what stands before it

// A segment before the width is known.
struct SegmentEntry {
  int32_t columns = 0;  // 0: what the other segments leave of the width
  Type element = Type::kNone;
  Type scale = Type::kNone;
  ScalePlace place = ScalePlace::kNone;
  int32_t block = 0;               // columns per scale; 0 with a scale: the whole segment
  int32_t data_offset = kFollows;  // bytes from the row
  int32_t data_align = 1;          // of a data offset that follows
  int32_t scale_offset = kFollows;
  int32_t data_block_stride = 0;  // scales interleaved with blocks: bytes from block to block, the scale first
  ScaleOrder order = ScaleOrder::kLinear;
};

struct RecordEntry {
  FormatInfo info;
  int32_t num_segments = 1;
  SegmentEntry segments[kMaxSegments];
  int32_t tail_bytes = 0;  // planar scales of a slot, padding included
  int32_t page_align = 1;
};

constexpr FormatInfo float_info(Format format, const char* name) { return {format, name, 0, false, false, false, true}; }
// Quantised, one kind of segment, any width: takes a k_scale / v_scale.
constexpr FormatInfo scaled_info(Format format, const char* name, bool scales_apart) {
  return {format, name, 0, true, scales_apart, false, false};
}
// Quantised records with columns of their own kinds: no k_scale / v_scale.
constexpr FormatInfo mixed_info(Format format, const char* name, int32_t width, bool planar = false) {
  return {format, name, width, false, false, planar, false};
}

// In the order of Format.
constexpr std::array<RecordEntry, kNumFormats> kRecords = {{
    {.info = float_info(Format::kF32, "f32"), .segments = {{.element = Type::kF32}}},
    {.info = float_info(Format::kF16, "f16"), .segments = {{.element = Type::kF16}}},
    {.info = float_info(Format::kBf16, "bf16"), .segments = {{.element = Type::kBf16}}},
    {.info = scaled_info(Format::kE4m3, "e4m3", false), .segments = {{.element = Type::kE4m3}}},
    {.info = scaled_info(Format::kE5m2, "e5m2", false), .segments = {{.element = Type::kE5m2}}},
    {.info = scaled_info(Format::kInt8, "int8", true),
     .segments = {{.element = Type::kI8, .scale = Type::kF32, .place = ScalePlace::kApart}}},
    {.info = scaled_info(Format::kQ8_0, "q8_0", false),
     .segments = {{.element = Type::kI8,
                   .scale = Type::kF16,
                   .place = ScalePlace::kInRow,
                   .block = 32,
                   .data_offset = 2,
                   .scale_offset = 0,
                   .data_block_stride = 34}}},
    {.info = mixed_info(Format::kFp8Ds656, "fp8_ds_656", 576),
     .num_segments = 2,
     .segments = {{.columns = 512, .element = Type::kE4m3, .scale = Type::kF32, .place = ScalePlace::kInRow, .block = 128},
                  {.columns = 64, .element = Type::kBf16}}},
    {.info = mixed_info(Format::kFp8Ds584, "fp8_ds_584", 512, true),
     .num_segments = 2,
     .segments = {{.columns = 448, .element = Type::kE4m3, .scale = Type::kE8m0, .place = ScalePlace::kPageTail, .block = 64},
                  {.columns = 64, .element = Type::kBf16}},
     .tail_bytes = 8,
     .page_align = 576},
    {.info = scaled_info(Format::kMxfp4, "mxfp4", true),
     .segments = {{.element = Type::kE2m1, .scale = Type::kE8m0, .place = ScalePlace::kApart, .block = 32}}},
    {.info = scaled_info(Format::kNvfp4, "nvfp4", true),
     .segments = {{.element = Type::kE2m1, .scale = Type::kE4m3, .place = ScalePlace::kApart, .block = 16}}},
    {.info = mixed_info(Format::kMxfp4RopeBf16, "mxfp4_rope_bf16", 0),
     .num_segments = 2,
     .segments = {{.element = Type::kE2m1, .scale = Type::kE8m0, .place = ScalePlace::kInRow, .block = 32},
                  {.columns = 64, .element = Type::kBf16, .data_align = 16}}},
    {.info = mixed_info(Format::kNvfp4Ds352, "nvfp4_ds_352", 576),
     .num_segments = 2,
     .segments = {{.columns = 512,
                   .element = Type::kE2m1,
                   .scale = Type::kE4m3,
                   .place = ScalePlace::kInRow,
                   .block = 16,
                   .scale_offset = 320,
                   .order = ScaleOrder::kBy4Groups},
                  {.columns = 64, .element = Type::kE4m3, .data_offset = 256}}},
    {.info = mixed_info(Format::kNvfp4Ds384, "nvfp4_ds_384", 512, true),
     .num_segments = 2,
     .segments = {{.columns = 448, .element = Type::kE2m1, .scale = Type::kE4m3, .place = ScalePlace::kPageTail, .block = 16},
                  {.columns = 64, .element = Type::kBf16}},
     .tail_bytes = 32},
    {.info = mixed_info(Format::kNvfp4Ds432, "nvfp4_ds_432", 576),
     .num_segments = 2,
     .segments = {{.columns = 512, .element = Type::kE2m1, .scale = Type::kE4m3, .place = ScalePlace::kInRow, .block = 16},
                  {.columns = 64, .element = Type::kBf16, .data_offset = 304}}},
}};

constexpr std::array<FormatInfo, kNumFormats> make_infos() {
  std::array<FormatInfo, kNumFormats> infos{};
  for (size_t i = 0; i < kRecords.size(); ++i) infos[i] = kRecords[i].info;
  return infos;
}
constexpr std::array<FormatInfo, kNumFormats> kInfos = make_infos();

constexpr bool in_enum_order() {
  for (size_t i = 0; i < kRecords.size(); ++i) {
    if (static_cast<size_t>(kRecords[i].info.format) != i) return false;
  }
  return true;
}
static_assert(in_enum_order());

constexpr int32_t bits_of(Type type) {
  switch (type) {
    case Type::kNone:
      return 0;
    case Type::kE2m1:
      return 4;
    case Type::kE4m3:
    case Type::kE5m2:
    case Type::kI8:
    case Type::kE8m0:
      return 8;
    case Type::kF16:
    case Type::kBf16:
      return 16;
    case Type::kF32:
    case Type::kI32:
      return 32;
    case Type::kI64:
      return 64;
  }
  return 0;
}

constexpr int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }

// Columns of a segment at one width: its own, or what the others leave.
constexpr int32_t segment_columns(const RecordEntry& entry, int32_t index, int32_t width) {
  if (entry.segments[index].columns > 0) return entry.segments[index].columns;
  for (int32_t i = 0; i < entry.num_segments; ++i) width -= entry.segments[i].columns;
  return width;
}

constexpr RecordLayout resolve_entry(const RecordEntry& entry, int32_t width) {
  RecordLayout layout;
  layout.format = entry.info.format;
  layout.width = width;
  layout.tail_bytes = entry.tail_bytes;
  layout.page_align = entry.page_align;
  layout.num_segments = entry.num_segments;
  int32_t column = 0;
  int32_t end = 0;  // of the bytes placed so far
  for (int32_t i = 0; i < entry.num_segments; ++i) {
    const SegmentEntry& from = entry.segments[i];
    Segment& to = layout.segments[i];
    const int32_t columns = segment_columns(entry, i, width);
    to.column_begin = column;
    to.column_end = column += columns;
    to.element = from.element;
    to.scale = from.scale;
    to.place = from.place;
    to.order = from.order;
    to.global = entry.info.takes_scale;
    to.block = from.block > 0 ? from.block : columns;
    to.data_block_stride = from.data_block_stride;
    to.data_offset = from.data_offset != kFollows ? from.data_offset : ceil_div(end, from.data_align) * from.data_align;
    const int32_t blocks = ceil_div(columns, to.block);
    const int32_t scale_bytes = bits_of(from.scale) / 8;
    if (from.data_block_stride > 0) {
      end = blocks * from.data_block_stride;
    } else {
      end = to.data_offset + ceil_div(columns * bits_of(from.element), 8);
    }
    if (from.place == ScalePlace::kNone) continue;
    to.scale_stride = from.data_block_stride > 0 ? from.data_block_stride : scale_bytes;
    if (from.place == ScalePlace::kApart) layout.apart_bytes += blocks * scale_bytes;
    if (from.place != ScalePlace::kInRow) continue;
    to.scale_offset = from.scale_offset != kFollows ? from.scale_offset : end;
    if (from.scale_offset == kFollows) end += blocks * scale_bytes;
    if (layout.row_bytes < to.scale_offset + blocks * to.scale_stride && from.data_block_stride == 0) {
      layout.row_bytes = to.scale_offset + blocks * to.scale_stride;
    }
  }
  if (layout.row_bytes < end) layout.row_bytes = end;
  return layout;
}

constexpr RecordLayout fixed(Format format) {
  return resolve_entry(kRecords[static_cast<size_t>(format)], kRecords[static_cast<size_t>(format)].info.fixed_width);
}
static_assert(fixed(Format::kFp8Ds656).row_bytes == 656 && fixed(Format::kFp8Ds656).segments[1].data_offset == 528);
static_assert(fixed(Format::kFp8Ds584).row_bytes == 576 && fixed(Format::kFp8Ds584).segments[1].data_offset == 448);
static_assert(fixed(Format::kNvfp4Ds352).row_bytes == 352);
static_assert(fixed(Format::kNvfp4Ds384).row_bytes == 352 && fixed(Format::kNvfp4Ds384).segments[1].data_offset == 224);
static_assert(fixed(Format::kNvfp4Ds432).row_bytes == 432 && fixed(Format::kNvfp4Ds432).segments[0].scale_offset == 256);

}  // namespace

RecordLayout resolve(Format format, int32_t width) { return resolve_entry(kRecords[static_cast<size_t>(format)], width); }

}  // namespace headwater::formats

namespace headwater {

std::span<const FormatInfo> all_formats() { return formats::kInfos; }

const FormatInfo& format_info(Format format) { return formats::kInfos[static_cast<size_t>(format)]; }

std::optional<Format> format_by_name(std::string_view name) {
  for (const FormatInfo& info : formats::kInfos) {
    if (info.name == name) return info.format;
  }
  if (name == "fp16") return Format::kF16;
  if (name == "fp32") return Format::kF32;
  if (name == "fp8" || name == "fp8_e4m3") return Format::kE4m3;
  if (name == "fp8_e5m2") return Format::kE5m2;
  return std::nullopt;
}

std::string_view type_name(Type type) {
  constexpr std::string_view kNames[] = {"none", "f32", "f16", "bf16", "e4m3", "e5m2", "i8", "e2m1", "e8m0", "i32", "i64"};
  const auto index = static_cast<size_t>(type);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

int32_t type_bits(Type type) { return formats::bits_of(type); }

int64_t record_row_bytes(Format format, int32_t width) { return formats::resolve(format, width).row_bytes; }

int64_t record_scale_bytes(Format format, int32_t width) { return formats::resolve(format, width).apart_bytes; }

int64_t record_page_bytes(Format format, int32_t width, int32_t page_size) {
  const formats::RecordLayout layout = formats::resolve(format, width);
  const int64_t bytes = int64_t{page_size} * (layout.row_bytes + layout.tail_bytes);
  return (bytes + layout.page_align - 1) / layout.page_align * layout.page_align;
}

}  // namespace headwater
