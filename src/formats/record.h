// The one truth about KV records: a constexpr table of column segments. Oracle, CPU backend, converters and the codecs of the GPU
// kernels all follow it. docs/formats.md draws the bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headwater/format.h"
#include "src/core/hd.h"

namespace headwater::formats {

enum class ScalePlace : uint8_t {
  kNone,
  kInRow,     // in the record
  kPageTail,  // after the page's records: page + page_size * row_bytes + slot * tail_bytes
  kApart,     // a tensor of its own
};

// Order of the block scales of a segment.
enum class ScaleOrder : uint8_t {
  kLinear,
  kBy4Groups,  // scale of block s at byte 8 * (s & 3) + (s >> 2)   (nvfp4_ds_352)
};

// Columns [column_begin, column_end) of a record: where their bytes and their block scales are. Resolved for one width.
struct Segment {
  int32_t column_begin = 0;
  int32_t column_end = 0;
  Type element = Type::kNone;
  Type scale = Type::kNone;
  ScalePlace place = ScalePlace::kNone;
  ScaleOrder order = ScaleOrder::kLinear;
  bool global = false;            // k_scale / v_scale multiplies
  int32_t block = 0;              // columns per scale
  int32_t data_offset = 0;        // bytes from the row to column_begin
  int32_t data_block_stride = 0;  // bytes from a block's data to the next one's where scales interleave (q8_0); 0 = packed
  int32_t scale_offset = 0;       // kInRow: from the row; kPageTail, kApart: from the slot's scales
  int32_t scale_stride = 0;       // bytes from scale to scale (kApart: the tensor's block stride rules instead)
};

inline constexpr int kMaxSegments = 2;

// A record of a format at one width.
struct RecordLayout {
  Format format = Format::kF32;
  int32_t width = 0;
  int32_t row_bytes = 0;    // dense row stride
  int32_t tail_bytes = 0;   // bytes per slot at the page's end (planar formats)
  int32_t apart_bytes = 0;  // dense bytes of a row's scales held apart
  int32_t page_align = 1;   // dense page stride is rounded up to a multiple of it
  int32_t num_segments = 0;
  Segment segments[kMaxSegments];
};

// Layout of `format` at `width` (1..576, or the format's fixed width). Undefined for a width the format does not take.
[[nodiscard]] RecordLayout resolve(Format format, int32_t width);

// Where one record's bytes are.
struct RowRef {
  const std::byte* row = nullptr;
  const std::byte* scales = nullptr;  // kPageTail: the slot's scales; kApart: block 0's scale
  int64_t scale_block_stride = 0;     // kApart: bytes from block to block
};

// fl32(fl32(element x block scale) x global): the contract's decoded value of one column. Slow and plain.
[[nodiscard]] float decode_column(const RecordLayout& layout, const RowRef& ref, int32_t column, float global);
// Whole record, same bits.
void decode_row(const RecordLayout& layout, const RowRef& ref, float global, float* values);
// Quantises a record. `row` and `scales` as in RowRef; padding bytes are written 0.
void encode_row(const RecordLayout& layout, const float* values, float global, BlockScaleRule rule, std::byte* row, std::byte* scales,
                int64_t scale_block_stride);

}  // namespace headwater::formats
