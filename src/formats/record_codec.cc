// Reading and writing one record's bytes by its layout.
// Everything that multiplies stands in a function that is not inlined, called under a ScopedFloatEnv (see there).
#include <array>
#include <cstring>

#include "headwater/problem.h"
#include "src/core/float_env.h"
#include "src/formats/bf16.h"
#include "src/formats/block_scale.h"
#include "src/formats/e2m1.h"
#include "src/formats/e4m3.h"
#include "src/formats/e5m2.h"
#include "src/formats/e8m0.h"
#include "src/formats/f16.h"
#include "src/formats/record.h"

#define HEADWATER_NOINLINE __attribute__((noinline))

namespace headwater::formats {
namespace {

constexpr int32_t kMaxPowerBlock = 128;  // columns behind one scale, int8 aside

template <size_t kCodes, class Decode>
constexpr std::array<float, kCodes> make_table(Decode decode) {
  std::array<float, kCodes> table{};
  for (size_t code = 0; code < kCodes; ++code) table[code] = decode(static_cast<uint8_t>(code));
  return table;
}
constexpr std::array<float, 256> kE4m3Values = make_table<256>(decode_e4m3);
constexpr std::array<float, 256> kE5m2Values = make_table<256>(decode_e5m2);
constexpr std::array<float, 16> kE2m1Values = make_table<16>(decode_e2m1);

uint8_t byte_at(const std::byte* bytes, int64_t offset) { return std::to_integer<uint8_t>(bytes[offset]); }

template <class T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

template <class T>
void store(std::byte* bytes, T value) {
  std::memcpy(bytes, &value, sizeof(value));
}

// Elements [0, count) at `data`, unscaled.
void decode_elements(Type element, const std::byte* data, int32_t count, float* values) {
  switch (element) {
    case Type::kF32:
      std::memcpy(values, data, static_cast<size_t>(count) * sizeof(float));
      break;
    case Type::kF16:
      for (int32_t i = 0; i < count; ++i) values[i] = decode_f16(load<uint16_t>(data + 2 * i));
      break;
    case Type::kBf16:
      for (int32_t i = 0; i < count; ++i) values[i] = decode_bf16(load<uint16_t>(data + 2 * i));
      break;
    case Type::kE4m3:
      for (int32_t i = 0; i < count; ++i) values[i] = kE4m3Values[byte_at(data, i)];
      break;
    case Type::kE5m2:
      for (int32_t i = 0; i < count; ++i) values[i] = kE5m2Values[byte_at(data, i)];
      break;
    case Type::kI8:
      for (int32_t i = 0; i < count; ++i) values[i] = static_cast<float>(static_cast<int8_t>(byte_at(data, i)));
      break;
    case Type::kE2m1:
      for (int32_t i = 0; i + 1 < count; i += 2) {
        const uint8_t pair = byte_at(data, i / 2);
        values[i] = kE2m1Values[pair & 15U];
        values[i + 1] = kE2m1Values[pair >> 4U];
      }
      if (count % 2 != 0) values[count - 1] = kE2m1Values[byte_at(data, count / 2) & 15U];
      break;
    default:
      break;
  }
}

float decode_scale(Type scale, const std::byte* at) {
  switch (scale) {
    case Type::kF32:
      return load<float>(at);
    case Type::kF16:
      return decode_f16(load<uint16_t>(at));
    case Type::kE4m3:
      return kE4m3Values[byte_at(at, 0)];
    case Type::kE8m0:
      return decode_e8m0(byte_at(at, 0));
    default:
      return 1.0F;
  }
}

// Bytes from the base of a segment's scales (the row, or RowRef::scales) to the scale of one block.
int64_t scale_position(const Segment& segment, int32_t block, int64_t apart_stride) {
  if (segment.place == ScalePlace::kApart) return block * apart_stride;
  if (segment.order == ScaleOrder::kBy4Groups) return segment.scale_offset + 8 * (block & 3) + (block >> 2);
  return segment.scale_offset + int64_t{block} * segment.scale_stride;
}

// Bytes from the row to the data of one block. Blocks of packed nibbles are even, so they begin on bytes.
int64_t data_position(const Segment& segment, int32_t block) {
  if (segment.data_block_stride > 0) return segment.data_offset + int64_t{block} * segment.data_block_stride;
  return segment.data_offset + int64_t{block} * segment.block * type_bits(segment.element) / 8;
}

HEADWATER_NOINLINE void decode_segment(const Segment& segment, const RowRef& ref, const float& global, float* values) {
  const int32_t columns = segment.column_end - segment.column_begin;
  for (int32_t begin = 0, block = 0; begin < columns; begin += segment.block, ++block) {
    const int32_t count = columns - begin < segment.block ? columns - begin : segment.block;
    float* out = values + segment.column_begin + begin;
    decode_elements(segment.element, ref.row + data_position(segment, block), count, out);
    if (segment.place != ScalePlace::kNone) {
      const std::byte* base = segment.place == ScalePlace::kInRow ? ref.row : ref.scales;
      const float scale = decode_scale(segment.scale, base + scale_position(segment, block, ref.scale_block_stride));
      for (int32_t i = 0; i < count; ++i) out[i] *= scale;
    }
    if (segment.global) {
      const float factor = global;
      for (int32_t i = 0; i < count; ++i) out[i] *= factor;
    }
  }
}

HEADWATER_NOINLINE void decode_one(const Segment& segment, const RowRef& ref, int32_t column, const float& global, float* value) {
  const int32_t block = (column - segment.column_begin) / segment.block;
  const int32_t in_block = (column - segment.column_begin) % segment.block;
  const std::byte* data = ref.row + data_position(segment, block);
  if (segment.element == Type::kE2m1) {
    *value = decode_e2m1(static_cast<uint8_t>(byte_at(data, in_block / 2) >> (4 * (in_block & 1))));
  } else {
    decode_elements(segment.element, data + in_block * type_bits(segment.element) / 8, 1, value);
  }
  if (segment.place != ScalePlace::kNone) {
    const std::byte* base = segment.place == ScalePlace::kInRow ? ref.row : ref.scales;
    *value *= decode_scale(segment.scale, base + scale_position(segment, block, ref.scale_block_stride));
  }
  if (segment.global) *value *= global;
}

// What an encoder must know of a block before it chooses a scale.
struct BlockAmax {
  uint32_t bits = 0;  // largest magnitude that is not NaN; infinities count as the largest finite float
  bool has_nan = false;
};

BlockAmax block_amax(const float* values, int32_t count) {
  BlockAmax amax;
  for (int32_t i = 0; i < count; ++i) {
    const uint32_t magnitude = float_bits(values[i]) & 0x7fffffffU;
    if (magnitude > kF32Inf) {
      amax.has_nan = true;
    } else if (magnitude > amax.bits) {
      amax.bits = magnitude;
    }
  }
  if (amax.bits > kF32Max) amax.bits = kF32Max;
  return amax;
}

void encode_elements(Type element, const float* values, int32_t count, std::byte* data) {
  switch (element) {
    case Type::kF32:
      std::memcpy(data, values, static_cast<size_t>(count) * sizeof(float));
      break;
    case Type::kF16:
      for (int32_t i = 0; i < count; ++i) store(data + 2 * i, encode_f16(values[i]));
      break;
    case Type::kBf16:
      for (int32_t i = 0; i < count; ++i) store(data + 2 * i, encode_bf16(values[i]));
      break;
    case Type::kE4m3:
      for (int32_t i = 0; i < count; ++i) data[i] = std::byte{encode_e4m3(values[i])};
      break;
    case Type::kE5m2:
      for (int32_t i = 0; i < count; ++i) data[i] = std::byte{encode_e5m2(values[i])};
      break;
    case Type::kE2m1:
      for (int32_t i = 0; i < count; ++i) data[i / 2] |= std::byte{encode_e2m1(values[i])} << (4 * (i & 1));
      break;
    default:
      break;
  }
}

// Nearest integer in -127 .. 127, ties to even.
int8_t round_even_i8(float x) {
  if (!(x > -127.0F)) return -127;
  if (!(x < 127.0F)) return 127;
  constexpr float kShift = 12582912.0F;  // 1.5 x 2^23: the sum has integer spacing
  return static_cast<int8_t>(static_cast<int32_t>(float_bits(x + kShift) - float_bits(kShift)));
}

// The same, ties away from zero.
int8_t round_away_i8(float x) {
  if (!(x > -127.0F)) return -127;
  if (!(x < 127.0F)) return 127;
  return static_cast<int8_t>(static_cast<double>(x) + (x < 0.0F ? -0.5 : 0.5));
}

void encode_int8_block(const float* values, int32_t count, std::byte* data, std::byte* scale_at) {
  const BlockAmax amax = block_amax(values, count);
  const float step = amax.has_nan ? bits_float(kF32Nan) : bits_float(amax.bits) / 127.0F;
  store(scale_at, step);
  if (amax.has_nan || step == 0.0F) return;
  for (int32_t i = 0; i < count; ++i) data[i] = std::byte{static_cast<uint8_t>(round_even_i8(values[i] / step))};
}

// As ggml rounds: codes from the float32 step, ties away from zero. A float16 step saturates: an infinite one would turn the block's
// zeros into NaN.
void encode_q8_block(const float* values, int32_t count, std::byte* data, std::byte* scale_at) {
  const BlockAmax amax = block_amax(values, count);
  constexpr float kMaxStep = 65504.0F;
  const float exact = bits_float(amax.bits) / 127.0F;
  const float step = exact > kMaxStep ? kMaxStep : exact;
  const uint16_t code = amax.has_nan ? uint16_t{0x7e00} : encode_f16(step);
  store(scale_at, code);
  if (amax.has_nan || code == 0) return;
  const float inverse = 1.0F / step;
  for (int32_t i = 0; i < count; ++i) data[i] = std::byte{static_cast<uint8_t>(round_away_i8(values[i] * inverse))};
}

// e2m1 behind e4m3 scales. g: the global factor (1 where the record has none).
void encode_nvfp4_block(const float* values, int32_t count, float g, std::byte* data, std::byte* scale_at) {
  const BlockAmax amax = block_amax(values, count);
  if (amax.has_nan) {
    *scale_at = std::byte{0x7f};
    return;
  }
  const float magnitude = bits_float(float_bits(g) & 0x7fffffffU);
  const uint8_t code = encode_e4m3(bits_float(amax.bits) / (6.0F * magnitude));
  *scale_at = std::byte{code};
  const float step = decode_e4m3(code) * g;
  if (step == 0.0F) return;
  float quotients[kMaxPowerBlock];
  for (int32_t i = 0; i < count; ++i) quotients[i] = values[i] / step;
  encode_elements(Type::kE2m1, quotients, count, data);
}

// e2m1 or e4m3 behind a power of two (e8m0, or float32 in the 656-byte record).
void encode_power_block(const Segment& segment, const float* values, int32_t count, BlockScaleRule rule, std::byte* data,
                        std::byte* scale_at) {
  BlockAmax amax = block_amax(values, count);
  const bool fp4 = segment.element == Type::kE2m1;
  if (amax.has_nan && fp4) {
    *scale_at = std::byte{255};
    return;
  }
  if (!fp4 && amax.bits < kE4m3AmaxFloor) amax.bits = kE4m3AmaxFloor;
  if (fp4 && rule == BlockScaleRule::kRoundUp && amax.bits < kE2m1AmaxFloor) amax.bits = kE2m1AmaxFloor;
  const uint8_t code = e8m0_from_exponent(block_exponent(amax.bits, fp4 ? kE2m1Block : kE4m3Block, rule));
  const float step = decode_e8m0(code);
  if (segment.scale == Type::kF32) {
    store(scale_at, step);
  } else {
    *scale_at = std::byte{code};
  }
  float quotients[kMaxPowerBlock];
  for (int32_t i = 0; i < count; ++i) quotients[i] = values[i] / step;
  encode_elements(segment.element, quotients, count, data);
}

HEADWATER_NOINLINE void encode_segment(const Segment& segment, const float* values, const float& global, BlockScaleRule rule,
                                       std::byte* row, std::byte* scales, int64_t scale_block_stride) {
  const int32_t columns = segment.column_end - segment.column_begin;
  const bool nvfp4 = segment.element == Type::kE2m1 && segment.scale == Type::kE4m3;
  for (int32_t begin = 0, block = 0; begin < columns; begin += segment.block, ++block) {
    const int32_t count = columns - begin < segment.block ? columns - begin : segment.block;
    const float* in = values + segment.column_begin + begin;
    float divided[kMaxWidth];
    if (segment.global && !nvfp4) {
      for (int32_t i = 0; i < count; ++i) divided[i] = in[i] / global;
      in = divided;
    }
    std::byte* data = row + data_position(segment, block);
    if (segment.place == ScalePlace::kNone) {
      encode_elements(segment.element, in, count, data);
      continue;
    }
    std::byte* scale_at = (segment.place == ScalePlace::kInRow ? row : scales) + scale_position(segment, block, scale_block_stride);
    if (segment.element == Type::kI8 && segment.scale == Type::kF16) {
      encode_q8_block(in, count, data, scale_at);
    } else if (segment.element == Type::kI8) {
      encode_int8_block(in, count, data, scale_at);
    } else if (nvfp4) {
      encode_nvfp4_block(in, count, segment.global ? global : 1.0F, data, scale_at);
    } else {
      encode_power_block(segment, in, count, rule, data, scale_at);
    }
  }
}

}  // namespace

float decode_column(const RecordLayout& layout, const RowRef& ref, int32_t column, float global) {
  const ScopedFloatEnv env;
  float value = 0.0F;
  for (int32_t i = 0; i < layout.num_segments; ++i) {
    const Segment& segment = layout.segments[i];
    if (column >= segment.column_begin && column < segment.column_end) decode_one(segment, ref, column, global, &value);
  }
  return value;
}

void decode_row(const RecordLayout& layout, const RowRef& ref, float global, float* values) {
  const ScopedFloatEnv env;
  for (int32_t i = 0; i < layout.num_segments; ++i) decode_segment(layout.segments[i], ref, global, values);
}

void encode_row(const RecordLayout& layout, const float* values, float global, BlockScaleRule rule, std::byte* row, std::byte* scales,
                int64_t scale_block_stride) {
  const ScopedFloatEnv env;
  std::memset(row, 0, static_cast<size_t>(layout.row_bytes));
  if (layout.tail_bytes > 0) std::memset(scales, 0, static_cast<size_t>(layout.tail_bytes));
  for (int32_t i = 0; i < layout.num_segments; ++i) {
    encode_segment(layout.segments[i], values, global, rule, row, scales, scale_block_stride);
  }
}

}  // namespace headwater::formats
