// Stored elements to float32, a vector at a time. Compiled per ISA. No load crosses the end of a record: whole vectors, then single
// columns. All conversions are exact and immune to FTZ/DAZ: no float32 subnormal is ever an operand (but a value that is one).
#pragma once

#include "src/cpu/decode_tables.h"
#include "src/cpu/row_block.h"
#include "src/cpu/vector-inl.h"

namespace headwater::cpu::HEADWATER_CPU_ISA {
namespace {

constexpr int kStep = 16;  // columns of one conversion step
constexpr int kStepVectors = kStep / kLanes;

// Unaligned: records stand at odd addresses in packed caches.
template <class D>
HWY_INLINE hn::Vec<D> load_bytes(D d, const std::byte* p) {
#if HWY_TARGET == HWY_SCALAR
  hn::TFromD<D> value;
  __builtin_memcpy(&value, p, sizeof(value));
  return hn::Set(d, value);
#else
  return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(p));
#endif
}

template <class T>
HWY_INLINE T read_as(const std::byte* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof(value));
  return value;
}

HWY_INLINE float canonical_nan(float x) { return x != x ? __builtin_nanf("") : x; }

// One column of an unscaled element array.
template <Type kType>
HWY_INLINE float decode_one(const std::byte* data, int column) {
  if constexpr (kType == Type::kF32) return canonical_nan(read_as<float>(data + 4 * column));
  if constexpr (kType == Type::kF16) return f16_value(read_as<uint16_t>(data + 2 * column));
  if constexpr (kType == Type::kBf16) {
    return __builtin_bit_cast(float, static_cast<uint32_t>(read_as<uint16_t>(data + 2 * column)) << 16);
  }
  if constexpr (kType == Type::kI8) return static_cast<float>(read_as<int8_t>(data + column));
  if constexpr (kType == Type::kE4m3) return decode_tables.e4m3[static_cast<uint8_t>(data[column])];
  if constexpr (kType == Type::kE5m2) return decode_tables.e5m2[static_cast<uint8_t>(data[column])];
  if constexpr (kType == Type::kE2m1) {
    const auto byte = static_cast<uint8_t>(data[column / 2]);
    return decode_tables.e2m1[column % 2 == 0 ? byte & 15 : byte >> 4];
  }
}

// Vector loaders of the types that stand alone in a lane: used by the conversion below and, without any scratch, by the few-row form.
template <Type kType>
struct Element;

template <>
struct Element<Type::kF32> {
  // exp2 needs NaNs whose low mantissa bits are zero, as every narrower type gives them.
  static HWY_INLINE VF load(const std::byte* p) {
    const DF df;
    const VF v = load_bytes(df, p);
    return hn::IfThenElse(hn::IsNaN(v), hn::Set(df, __builtin_nanf("")), v);
  }
};

template <>
struct Element<Type::kBf16> {
  static HWY_INLINE VF load(const std::byte* p) {
    const hn::Rebind<uint16_t, DF> d16;
    const hn::Rebind<uint32_t, DF> d32;
    return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(d32, load_bytes(d16, p))));
  }
};

template <>
struct Element<Type::kF16> {
  static HWY_INLINE VF load(const std::byte* p) {
#if HWY_TARGET == HWY_SCALAR
    return hn::Set(DF(), f16_value(read_as<uint16_t>(p)));
#else
    const hn::Rebind<uint16_t, DF> d16;
    const hn::Rebind<hwy::float16_t, DF> dh;
    return hn::PromoteTo(DF(), hn::BitCast(dh, load_bytes(d16, p)));
#endif
  }
};

template <>
struct Element<Type::kI8> {
  static HWY_INLINE VF load(const std::byte* p) {
    const hn::Rebind<int8_t, DF> d8;
    const hn::Rebind<int32_t, DF> d32;
    return hn::ConvertTo(DF(), hn::PromoteTo(d32, load_bytes(d8, p)));
  }
};

#if HWY_TARGET != HWY_SCALAR
using D8 = hn::CappedTag<uint8_t, 16>;
using D16 = hn::CappedTag<uint16_t, 16>;
using V8 = hn::Vec<D8>;
using V16 = hn::Vec<D16>;
constexpr int kLanes16 = HWY_LANES(uint16_t) < 16 ? HWY_LANES(uint16_t) : 16;

// f16 bits -> float32.
template <class V>
HWY_INLINE void widen_f16(V bits, VF* v) {
  const DF df;
  const hn::Rebind<hwy::float16_t, DF> dh;
  if constexpr (kLanes16 == kLanes) {
    v[0] = hn::PromoteTo(df, hn::BitCast(dh, bits));
  } else {
    const hn::Half<hn::DFromV<V>> half;
    v[0] = hn::PromoteTo(df, hn::BitCast(dh, hn::LowerHalf(half, bits)));
    v[1] = hn::PromoteTo(df, hn::BitCast(dh, hn::UpperHalf(half, bits)));
  }
}

// 16 bytes, each a function of 16 bits that is an f16 -> 16 columns.
template <class V, class Func>
HWY_INLINE void widen_bytes(V bytes, VF* v, Func to_f16) {
  const D16 d16;
  if constexpr (kLanes16 == 16) {
    widen_f16(to_f16(hn::PromoteTo(d16, bytes)), v);
  } else {
    const hn::Half<hn::DFromV<V>> d8h;
    widen_f16(to_f16(hn::PromoteTo(d16, hn::LowerHalf(d8h, bytes))), v);
    widen_f16(to_f16(hn::PromoteTo(d16, hn::UpperHalf(d8h, bytes))), v + kStepVectors / 2);
  }
}

// e4m3 as f16 is the same fields one place lower, 2^8 too small. 0x7f would read as 480: it is made an f16 NaN.
HWY_INLINE V16 e4m3_to_f16(V16 u) {
  const D16 d16;
  const hn::RebindToSigned<D16> di16;
  const V16 spread = hn::BitCast(d16, hn::ShiftRight<1>(hn::BitCast(di16, hn::ShiftLeft<8>(u))));
  const V16 bits = hn::And(spread, hn::Set(d16, 0xbf80));
  const V16 top = hn::Set(d16, 0x3f80);
  const V16 nan = hn::VecFromMask(d16, hn::Eq(hn::And(spread, top), top));
  return hn::Or(bits, hn::And(nan, hn::Set(d16, 0x7c00)));
}
#endif

// Bytes of `columns` packed elements (even, if they are half bytes).
template <Type kType>
constexpr int element_bytes(int columns) {
  if (kType == Type::kE2m1) return columns / 2;
  if (kType == Type::kF32) return 4 * columns;
  return kType == Type::kF16 || kType == Type::kBf16 ? 2 * columns : columns;
}

// 16 columns of an unscaled element array, the first at `data`.
template <Type kType>
HWY_INLINE void load_step(const std::byte* data, VF* v) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < kStep; ++i) v[i] = hn::Set(DF(), decode_one<kType>(data, i));
#else
  if constexpr (kType == Type::kE4m3) {
    widen_bytes(load_bytes(D8(), data), v, [](V16 u) { return e4m3_to_f16(u); });
    for (int i = 0; i < kStepVectors; ++i) v[i] = hn::Mul(v[i], hn::Set(DF(), 256.0F));
  } else if constexpr (kType == Type::kE5m2) {
    widen_bytes(load_bytes(D8(), data), v, [](V16 u) { return hn::ShiftLeft<8>(u); });
  } else if constexpr (kType == Type::kE2m1) {
    // The upper byte of the f16 of each code; the lower one is always 0.
    alignas(16) static constexpr uint8_t kTable[16] = {0x00, 0x38, 0x3c, 0x3e, 0x40, 0x42, 0x44, 0x46,
                                                       0x80, 0xb8, 0xbc, 0xbe, 0xc0, 0xc2, 0xc4, 0xc6};
    const D8 d8;
    const hn::Half<D8> d8h;
    const auto pairs = load_bytes(d8h, data);
    const V8 low = hn::ZeroExtendVector(d8, hn::And(pairs, hn::Set(d8h, 15)));
    const V8 high = hn::ZeroExtendVector(d8, hn::ShiftRight<4>(pairs));
    const V8 codes = hn::InterleaveLower(d8, low, high);
    widen_bytes(hn::TableLookupBytes(hn::Load(d8, kTable), codes), v, [](V16 u) { return hn::ShiftLeft<8>(u); });
  } else {
    for (int i = 0; i < kStepVectors; ++i) v[i] = Element<kType>::load(data + element_bytes<kType>(i * kLanes));
  }
#endif
}

// How the columns of one block become values: fl(fl(element x block scale) x global), factors of 1 left out.
struct BlockFactors {
  float scale = 1.0F;
  float global = 1.0F;
  bool scaled = false;
  bool has_global = false;
};

template <Type kType>
HWY_INLINE void convert_block(const std::byte* data, int columns, const BlockFactors& factors, float* dst) {
  const DF df;
  const VF scale = hn::Set(df, factors.scale);
  const VF global = hn::Set(df, factors.global);
  int c = 0;
  for (; c + kStep <= columns; c += kStep) {
    VF v[kStepVectors];
    load_step<kType>(data + element_bytes<kType>(c), v);
    for (int i = 0; i < kStepVectors; ++i) {
      if (factors.scaled) v[i] = hn::Mul(v[i], scale);
      if (factors.has_global) v[i] = hn::Mul(v[i], global);
      hn::StoreU(v[i], df, dst + c + i * kLanes);
    }
  }
  for (; c < columns; ++c) {
    float x = decode_one<kType>(data, c);
    if (factors.scaled) x = x * factors.scale;
    if (factors.has_global) x = x * factors.global;
    dst[c] = x;
  }
}

constexpr int kMaxBlocks = kMaxWidth / 16;

// The block scales of one record.
HWY_INLINE void decode_scales(const formats::Segment& segment, const std::byte* from, int64_t stride, int blocks, float* scales) {
  for (int b = 0; b < blocks; ++b) {
    const int64_t at = segment.order == formats::ScaleOrder::kBy4Groups ? 8 * (b & 3) + (b >> 2) : b;
    const std::byte* const p = from + at * stride;
    switch (segment.scale) {
      case Type::kE8m0:
        scales[b] = decode_tables.e8m0[static_cast<uint8_t>(*p)];
        break;
      case Type::kE4m3:
        scales[b] = decode_tables.e4m3[static_cast<uint8_t>(*p)];
        break;
      case Type::kF16:
        scales[b] = f16_value(read_as<uint16_t>(p));
        break;
      default:
        scales[b] = canonical_nan(read_as<float>(p));
    }
  }
}

template <Type kType>
void convert_segment(const TileRecords& records, const formats::Segment& segment, int count, float* dst, int row_floats) {
  const int columns = segment.column_end - segment.column_begin;
  const int blocks = (columns + segment.block - 1) / segment.block;
  const int64_t block_bytes = segment.data_block_stride > 0 ? segment.data_block_stride : element_bytes<kType>(segment.block);
  const bool in_row = segment.place == formats::ScalePlace::kInRow;
  const int64_t scale_stride = segment.place == formats::ScalePlace::kApart ? records.scale_block_stride : segment.scale_stride;
  BlockFactors factors;
  factors.scaled = segment.place != formats::ScalePlace::kNone;
  factors.global = records.global;
  factors.has_global = segment.global && records.global != 1.0F;
  float scales[kMaxBlocks];
  for (int i = 0; i < count; ++i) {
    if (factors.scaled) {
      decode_scales(segment, (in_row ? records.row[i] : records.scales[i]) + segment.scale_offset, scale_stride, blocks, scales);
    }
    for (int b = 0; b < blocks; ++b) {
      if (factors.scaled) factors.scale = scales[b];
      const int begin = b * segment.block;
      const int n = columns - begin < segment.block ? columns - begin : segment.block;
      convert_block<kType>(records.row[i] + segment.data_offset + b * block_bytes, n, factors,
                           dst + int64_t{i} * row_floats + segment.column_begin + begin);
    }
  }
}

// Decodes records [begin, end) of a tile into dst [end - begin][row_floats]; columns from the width to the next multiple of 16 become 0.
void convert_records(const TileRecords& all, int begin, int end, float* dst, int row_floats) {
  TileRecords records = all;
  records.row += begin;
  records.scales += begin;
  const int count = end - begin;
  const int width = records.layout->width;
  for (int s = 0; s < records.layout->num_segments; ++s) {
    const formats::Segment& segment = records.layout->segments[s];
    switch (segment.element) {
      case Type::kF32:
        convert_segment<Type::kF32>(records, segment, count, dst, row_floats);
        break;
      case Type::kF16:
        convert_segment<Type::kF16>(records, segment, count, dst, row_floats);
        break;
      case Type::kBf16:
        convert_segment<Type::kBf16>(records, segment, count, dst, row_floats);
        break;
      case Type::kE4m3:
        convert_segment<Type::kE4m3>(records, segment, count, dst, row_floats);
        break;
      case Type::kE5m2:
        convert_segment<Type::kE5m2>(records, segment, count, dst, row_floats);
        break;
      case Type::kI8:
        convert_segment<Type::kI8>(records, segment, count, dst, row_floats);
        break;
      default:
        convert_segment<Type::kE2m1>(records, segment, count, dst, row_floats);
    }
  }
  for (int i = 0; width % kStep != 0 && i < count; ++i) {
    for (int c = width; c < (width + kStep - 1) / kStep * kStep; ++c) dst[int64_t{i} * row_floats + c] = 0.0F;
  }
}

// Part of a query row, decoded and multiplied by `factor`.
void convert_query(Type type, const std::byte* data, int columns, float scale, float factor, float* dst) {
  BlockFactors factors;
  factors.scale = scale;
  factors.scaled = type == Type::kE4m3;
  factors.global = factor;
  factors.has_global = true;
  switch (type) {
    case Type::kF32:
      return convert_block<Type::kF32>(data, columns, factors, dst);
    case Type::kF16:
      return convert_block<Type::kF16>(data, columns, factors, dst);
    case Type::kBf16:
      return convert_block<Type::kBf16>(data, columns, factors, dst);
    default:
      return convert_block<Type::kE4m3>(data, columns, factors, dst);
  }
}

}  // namespace
}  // namespace headwater::cpu::HEADWATER_CPU_ISA
