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

// Float32 that convert_records left in scratch.
template <>
struct Element<Type::kNone> {
  static HWY_INLINE VF load(const std::byte* p) { return load_bytes(DF(), p); }
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

// e4m3 as f16 is the same fields one place lower, 2^8 too small. 0x7f reads as 480: mark_nans. (The fields at their place in float32,
// multiplied by 2^120, were no faster, and codes that are subnormal would be slow.)
HWY_INLINE V16 e4m3_to_f16(V16 u) {
  const D16 d16;
  const hn::RebindToSigned<D16> di16;
  const V16 spread = hn::BitCast(d16, hn::ShiftRight<1>(hn::BitCast(di16, hn::ShiftLeft<8>(u))));
  return hn::And(spread, hn::Set(d16, 0xbf80));
}
#endif

// Bytes of `columns` packed elements (even, if they are half bytes).
template <Type kType>
constexpr int element_bytes(int columns) {
  if (kType == Type::kE2m1) return columns / 2;
  if (kType == Type::kF32 || kType == Type::kNone) return 4 * columns;
  return kType == Type::kF16 || kType == Type::kBf16 ? 2 * columns : columns;
}

// What load_step's values are to be multiplied by: e4m3 stands 2^8 too small.
template <Type kType>  // NOLINTNEXTLINE(misc-redundant-expression): two macros, equal in one build of several
constexpr float kElementUnit = kType == Type::kE4m3&& HWY_TARGET != HWY_SCALAR ? 256.0F : 1.0F;

// 16 columns of an unscaled element array, the first at `data`, over kElementUnit.
template <Type kType>
HWY_INLINE void load_step(const std::byte* data, VF* v) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < kStep; ++i) v[i] = hn::Set(DF(), decode_one<kType>(data, i));
#else
  if constexpr (kType == Type::kE4m3) {
    widen_bytes(load_bytes(D8(), data), v, [](V16 u) { return e4m3_to_f16(u); });
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

// 16 columns, element x first x second (kFactors of them), at `dst`.
template <Type kType, int kFactors>
HWY_INLINE void convert_step(const std::byte* data, float first, float second, float* dst) {
  const DF df;
#if HWY_TARGET == HWY_AVX2
  if constexpr (kType == Type::kE2m1) {
    // Eight magnitudes fit one vector: the factors are multiplied into them, and a lane's nibble is its index. Half the time of bytes
    // widened through float16.
    struct Tables {
      float magnitude[8];
      uint32_t down[8];  // the index: its upper bits are not looked at
      uint32_t up[8];    // the sign
      uint32_t sign[8];
    };
    constexpr uint32_t kSign = 0x80000000U;
    alignas(32) static constexpr Tables kTables = {{0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F},
                                                   {0, 4, 8, 12, 16, 20, 24, 28},
                                                   {28, 24, 20, 16, 12, 8, 4, 0},
                                                   {kSign, kSign, kSign, kSign, kSign, kSign, kSign, kSign}};
    const hn::RebindToUnsigned<DF> du;
    VF magnitudes = hn::Load(df, kTables.magnitude);
    if (kFactors > 0) magnitudes = hn::Mul(magnitudes, hn::Set(df, first));
    if (kFactors > 1) magnitudes = hn::Mul(magnitudes, hn::Set(df, second));
    for (int i = 0; i < 2; ++i) {
      const auto nibbles = hn::Set(du, read_as<uint32_t>(data + 4 * i));
      const hn::Indices256<float> index{hn::Shr(nibbles, hn::Load(du, kTables.down)).raw};
      const auto sign = hn::And(hn::Shl(nibbles, hn::Load(du, kTables.up)), hn::Load(du, kTables.sign));
      hn::StoreU(hn::Xor(hn::TableLookupLanes(magnitudes, index), hn::BitCast(df, sign)), df, dst + 8 * i);
    }
    return;
  }
#endif
  VF v[kStepVectors];
  load_step<kType>(data, v);
  for (int i = 0; i < kStepVectors; ++i) {
    if (kFactors > 0) v[i] = hn::Mul(v[i], hn::Set(df, first));
    if (kFactors > 1) v[i] = hn::Mul(v[i], hn::Set(df, second));
    hn::StoreU(v[i], df, dst + i * kLanes);
  }
}

// load_step reads NaN codes of e4m3 as 480: makes them NaN. Looking a row through once is cheaper than a mask in every step.
HWY_INLINE void mark_nans([[maybe_unused]] const std::byte* data, [[maybe_unused]] int steps, [[maybe_unused]] float* dst) {
#if HWY_TARGET != HWY_SCALAR
  const D8 d8;
  V8 largest = hn::Zero(d8);
  for (int i = 0; i < steps; ++i) largest = hn::Max(largest, hn::And(load_bytes(d8, data + i * kStep), hn::Set(d8, 0x7f)));
  if (hn::AllFalse(d8, hn::Eq(largest, hn::Set(d8, 0x7f)))) return;
  for (int c = 0; c < steps * kStep; ++c) {
    if ((static_cast<uint8_t>(data[c]) & 0x7f) == 0x7f) dst[c] = __builtin_nanf("");
  }
#endif
}

// Columns of one block, whatever the factors.
template <Type kType>
HWY_INLINE void convert_block(const std::byte* data, int columns, const BlockFactors& factors, float* dst) {
  const DF df;
  int c = 0;
  for (; c + kStep <= columns; c += kStep) {
    float* const at = dst + c;
    convert_step<kType, kElementUnit<kType> == 1.0F ? 0 : 1>(data + element_bytes<kType>(c), kElementUnit<kType>, 1.0F, at);
    if (kType == Type::kE4m3) mark_nans(data + c, 1, at);
    for (int i = 0; i < kStep; i += kLanes) {
      VF v = hn::LoadU(df, at + i);
      if (factors.scaled) v = hn::Mul(v, hn::Set(df, factors.scale));
      if (factors.has_global) v = hn::Mul(v, hn::Set(df, factors.global));
      hn::StoreU(v, df, at + i);
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

// Whole vectors of adjacent byte scales; returns how many.
HWY_INLINE int decode_adjacent_scales([[maybe_unused]] Type type, [[maybe_unused]] const std::byte* from, [[maybe_unused]] int blocks,
                                      [[maybe_unused]] float* scales) {
  int b = 0;
#if HWY_TARGET != HWY_SCALAR
  const DF df;
  const hn::Rebind<uint8_t, DF> d8;
  const hn::RebindToUnsigned<DF> du;
  for (; type == Type::kE8m0 && b + kLanes <= blocks; b += kLanes) {  // the exponent field; 0 is 2^-127, 255 is NaN
    const auto code = hn::PromoteTo(du, load_bytes(d8, from + b));
    auto bits = hn::ShiftLeft<23>(code);
    bits = hn::IfThenElse(hn::Eq(code, hn::Zero(du)), hn::Set(du, 0x00400000), bits);
    bits = hn::IfThenElse(hn::Eq(code, hn::Set(du, 255)), hn::Set(du, 0x7fc00000), bits);
    hn::StoreU(hn::BitCast(df, bits), df, scales + b);
  }
  for (; type == Type::kE4m3 && b + kStep <= blocks; b += kStep) {
    convert_step<Type::kE4m3, 1>(from + b, kElementUnit<Type::kE4m3>, 1.0F, scales + b);
    mark_nans(from + b, 1, scales + b);
  }
#endif
  return b;
}

// The block scales of one record.
HWY_INLINE void decode_scales(const formats::Segment& segment, const std::byte* from, int64_t stride, int blocks, float* scales) {
  int b = 0;
  if (stride == 1 && segment.order == formats::ScaleOrder::kLinear) b = decode_adjacent_scales(segment.scale, from, blocks, scales);
  for (; b < blocks; ++b) {
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

// A segment of one record as steps of 16 columns: what convert_step takes, and what a microkernel can do between its multiply-adds.
struct SegmentRow {
  const std::byte* data = nullptr;
  float* dst = nullptr;
  int step_bytes = 0;
  int steps = 0;
  int block_shift = 31;  // steps of a block, as a power of two
  int factors = 0;
  float second = 1.0F;
  alignas(64) float first[kMaxBlocks];  // of each block: 0 without scales
};

HWY_INLINE BlockFactors segment_factors(const TileRecords& records, const formats::Segment& segment) {
  BlockFactors factors;
  factors.scaled = segment.place != formats::ScalePlace::kNone;
  factors.global = records.global;
  factors.has_global = segment.global && records.global != 1.0F;
  return factors;
}

HWY_INLINE int blocks_of(const formats::Segment& segment) {
  return (segment.column_end - segment.column_begin + segment.block - 1) / segment.block;
}

HWY_INLINE void decode_row_scales(const TileRecords& records, const formats::Segment& segment, int i, float* scales) {
  const bool in_row = segment.place == formats::ScalePlace::kInRow;
  const int64_t stride = segment.place == formats::ScalePlace::kApart ? records.scale_block_stride : segment.scale_stride;
  decode_scales(segment, (in_row ? records.row[i] : records.scales[i]) + segment.scale_offset, stride, blocks_of(segment), scales);
}

// Log2 of the steps of a block, 31 where there is one factor for all; -1 if the segment is no row of whole steps.
HWY_INLINE int steps_shift(const formats::Segment& segment) {
  const int columns = segment.column_end - segment.column_begin;
  if (columns % kStep != 0 || segment.data_block_stride > 0) return -1;
  if (segment.place == formats::ScalePlace::kNone) return 31;
  const int steps = segment.block / kStep;
  return segment.block % kStep == 0 && (steps & (steps - 1)) == 0 ? __builtin_ctz(static_cast<unsigned>(steps)) : -1;
}

// Row i of a segment. False where kElementUnit does not fold exactly into its factors: 256 times one of them overflows.
template <Type kType>
HWY_INLINE bool make_segment_row(const TileRecords& records, const formats::Segment& segment, int shift, int i, float* dst,
                                 SegmentRow* row) {
  const BlockFactors factors = segment_factors(records, segment);
  row->data = records.row[i] + segment.data_offset;
  row->dst = dst + segment.column_begin;
  row->step_bytes = element_bytes<kType>(kStep);
  row->steps = (segment.column_end - segment.column_begin) / kStep;
  row->block_shift = shift;
  row->second = factors.global;
  row->factors = (factors.scaled ? 1 : 0) + (factors.has_global ? 1 : 0);
  if (factors.scaled) {
    decode_row_scales(records, segment, i, row->first);
  } else if (factors.has_global || kElementUnit<kType> != 1.0F) {
    row->first[0] = factors.has_global ? factors.global : 1.0F;
    row->factors = 1;
  }
  if constexpr (kElementUnit<kType> != 1.0F) {
    float overflow = 0.0F;  // NaN once a finite factor becomes infinite
    const int count = factors.scaled ? blocks_of(segment) : 1;
    for (int b = 0; b < count; ++b) {
      const float finite = row->first[b] * 0.0F;  // NaN for NaN and infinity, which may be multiplied
      row->first[b] *= kElementUnit<kType>;
      overflow += finite == 0.0F ? row->first[b] * 0.0F : 0.0F;
    }
    return overflow == 0.0F;
  }
  return true;
}

template <Type kType, int kFactors>
HWY_INLINE void convert_row_step(const SegmentRow& row, int step) {
  convert_step<kType, kFactors>(row.data + step * row.step_bytes, kFactors > 0 ? row.first[step >> row.block_shift] : 1.0F, row.second,
                                row.dst + step * kStep);
}

template <Type kType, int kFactors>
HWY_INLINE void convert_row_blocks(const SegmentRow& row) {
  if (row.block_shift == 0) {
    for (int step = 0; step < row.steps; ++step) convert_row_step<kType, kFactors>(row, step);
    return;
  }
  const int block_steps = row.block_shift < 16 ? 1 << row.block_shift : row.steps;
  const std::byte* data = row.data;
  float* dst = row.dst;
  const float* first = row.first;
  for (int left = row.steps; left > 0; left -= block_steps) {
    const float factor = kFactors > 0 ? *first++ : 1.0F;
    for (int i = left < block_steps ? left : block_steps; i > 0; --i) {
      convert_step<kType, kFactors>(data, factor, row.second, dst);
      data += element_bytes<kType>(kStep);
      dst += kStep;
    }
  }
}

template <Type kType>
HWY_INLINE void convert_row_steps(const SegmentRow& row) {
  if (row.factors == 0) {
    convert_row_blocks<kType, 0>(row);
  } else if (row.factors == 1) {
    convert_row_blocks<kType, 1>(row);
  } else {
    convert_row_blocks<kType, 2>(row);
  }
  if (kType == Type::kE4m3) mark_nans(row.data, row.steps, row.dst);
}

template <Type kType>
void convert_segment(const TileRecords& records, const formats::Segment& segment, int begin, int end, float* dst, int row_floats) {
  const int columns = segment.column_end - segment.column_begin;
  const int blocks = blocks_of(segment);
  const int shift = steps_shift(segment);
  const int64_t block_bytes = segment.data_block_stride > 0 ? segment.data_block_stride : element_bytes<kType>(segment.block);
  BlockFactors factors = segment_factors(records, segment);
  SegmentRow row;
  for (int i = begin; i < end; ++i) {
    float* const to = dst + int64_t{i - begin} * row_floats;
    if (shift >= 0 && make_segment_row<kType>(records, segment, shift, i, to, &row)) {
      convert_row_steps<kType>(row);
      continue;
    }
    if (factors.scaled) decode_row_scales(records, segment, i, row.first);
    for (int b = 0; b < blocks; ++b) {
      if (factors.scaled) factors.scale = row.first[b];
      const int first = b * segment.block;
      const int n = columns - first < segment.block ? columns - first : segment.block;
      convert_block<kType>(records.row[i] + segment.data_offset + b * block_bytes, n, factors, to + segment.column_begin + first);
    }
  }
}

// One segment of records [begin, end).
void convert_segment_of(const TileRecords& records, const formats::Segment& segment, int begin, int end, float* dst, int row_floats) {
  switch (segment.element) {
    case Type::kF32:
      return convert_segment<Type::kF32>(records, segment, begin, end, dst, row_floats);
    case Type::kF16:
      return convert_segment<Type::kF16>(records, segment, begin, end, dst, row_floats);
    case Type::kBf16:
      return convert_segment<Type::kBf16>(records, segment, begin, end, dst, row_floats);
    case Type::kE4m3:
      return convert_segment<Type::kE4m3>(records, segment, begin, end, dst, row_floats);
    case Type::kE5m2:
      return convert_segment<Type::kE5m2>(records, segment, begin, end, dst, row_floats);
    case Type::kI8:
      return convert_segment<Type::kI8>(records, segment, begin, end, dst, row_floats);
    default:
      return convert_segment<Type::kE2m1>(records, segment, begin, end, dst, row_floats);
  }
}

// Decodes records [begin, end) of a tile into dst [end - begin][row_floats]; columns from the width to the next multiple of 16 become 0.
void convert_records(const TileRecords& records, int begin, int end, float* dst, int row_floats) {
  const int width = records.layout->width;
  for (int s = 0; s < records.layout->num_segments; ++s) {
    convert_segment_of(records, records.layout->segments[s], begin, end, dst, row_floats);
  }
  for (int i = 0; width % kStep != 0 && i < end - begin; ++i) {
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
