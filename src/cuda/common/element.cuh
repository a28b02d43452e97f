// Decoded values, one element at a time: every codec of src/formats, and queries. Same bits as the host's decoder; slow and complete.
#pragma once

#include "src/core/resolved.h"
#include "src/formats/bf16.h"
#include "src/formats/e2m1.h"
#include "src/formats/e4m3.h"
#include "src/formats/e5m2.h"
#include "src/formats/e8m0.h"
#include "src/formats/f16.h"

namespace headwater::cuda {

__device__ inline uint32_t load_u8(const std::byte* p) { return static_cast<uint32_t>(*p); }
// Two bytes at any alignment.
__device__ inline uint16_t load_u16(const std::byte* p) { return static_cast<uint16_t>(load_u8(p) | load_u8(p + 1) << 8); }
__device__ inline float load_f32(const std::byte* p) {
  if ((reinterpret_cast<uintptr_t>(p) & 3U) == 0) return *reinterpret_cast<const float*>(p);
  return __uint_as_float(load_u16(p) | static_cast<uint32_t>(load_u16(p + 2)) << 16);
}

// Element i behind `data`. e2m1: the nibble of column i.
__device__ inline float load_element(Type type, const std::byte* data, int32_t i) {
  switch (type) {
    case Type::kF32:
      return load_f32(data + 4 * i);
    case Type::kF16:
      return formats::decode_f16(load_u16(data + 2 * i));
    case Type::kBf16:
      return formats::decode_bf16(load_u16(data + 2 * i));
    case Type::kE4m3:
      return formats::decode_e4m3(static_cast<uint8_t>(load_u8(data + i)));
    case Type::kE5m2:
      return formats::decode_e5m2(static_cast<uint8_t>(load_u8(data + i)));
    case Type::kI8:
      return static_cast<float>(static_cast<int8_t>(load_u8(data + i)));
    case Type::kE2m1:
      return formats::decode_e2m1(static_cast<uint8_t>(load_u8(data + i / 2) >> (4 * (i & 1))));
    case Type::kE8m0:
      return formats::decode_e8m0(static_cast<uint8_t>(load_u8(data + i)));
    default:
      return 1.0F;
  }
}

// Bytes from a segment's scale base (the row, or RowRef::scales) to the scale of one block.
__device__ inline int64_t scale_position(const formats::Segment& segment, int32_t block, int64_t apart_stride) {
  if (segment.place == formats::ScalePlace::kApart) return block * apart_stride;
  if (segment.order == formats::ScaleOrder::kBy4Groups) return segment.scale_offset + 8 * (block & 3) + (block >> 2);
  return segment.scale_offset + int64_t{block} * segment.scale_stride;
}

// fl32(fl32(element x block scale) x global): the contract's decoded value.
__device__ inline float decoded_column(const formats::RecordLayout& layout, const formats::RowRef& ref, int32_t column, float global) {
  const formats::Segment& segment = layout.segments[layout.num_segments > 1 && column >= layout.segments[1].column_begin ? 1 : 0];
  const int32_t c = column - segment.column_begin;
  const int32_t block = c / segment.block;
  const std::byte* data = ref.row + segment.data_offset;
  float value;
  if (segment.data_block_stride > 0) {
    value = load_element(segment.element, data + int64_t{block} * segment.data_block_stride, c - block * segment.block);
  } else {
    value = load_element(segment.element, data, c);
  }
  if (segment.place != formats::ScalePlace::kNone) {
    const std::byte* base = segment.place == formats::ScalePlace::kInRow ? ref.row : ref.scales;
    value = __fmul_rn(value, load_element(segment.scale, base + scale_position(segment, block, ref.scale_block_stride), 0));
  }
  return segment.global ? __fmul_rn(value, global) : value;
}

// One stored query element, without q_scale. `row` is the global row; column < d_qk.
__device__ inline float query_element(const ResolvedProblem& p, int64_t row, int32_t head, int32_t column) {
  if (column < p.q_width) return load_element(p.q_type, p.q + row * p.q_row_stride + head * p.q_head_stride, column);
  return load_element(p.q_type, p.q_tail + row * p.q_tail_row_stride + head * p.q_tail_head_stride, column - p.q_width);
}

__device__ inline float query_scale(const ResolvedProblem& p, int64_t row, int32_t head) {
  if (p.q_scale == nullptr) return p.q_scale_value;
  return p.q_scale_per_row ? p.q_scale[row * p.q_scale_row_stride + head * p.q_scale_head_stride] : p.q_scale[0];
}

}  // namespace headwater::cuda
