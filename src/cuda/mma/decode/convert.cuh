// Records to 16-bit operand tiles, once per tile: every codec of src/formats, eight columns at a time.
//
// What is exact where (docs/deep-dives/cuda_portable.md): in f16: f16, e4m3, e5m2. In bf16: bf16, e4m3 and e2m1 times a power of two,
// e2m1 times e4m3, int8. The rest (f16 elements, q8_0, e4m3 times an arbitrary float) is split hi + lo for K: 16 bits of mantissa. V takes
// the rounded value, as P is rounded too.
#pragma once

#include "src/cuda/common/element.cuh"
#include "src/cuda/mma/common/rows.cuh"
#include "src/cuda/mma/decode/loader.cuh"

namespace headwater::cuda::decode {

struct Eight {
  float v[8];
};

__device__ inline uint32_t read_u32(const unsigned char* p) { return *reinterpret_cast<const uint32_t*>(p); }
__device__ inline uint16_t read_u16(const unsigned char* p) { return *reinterpret_cast<const uint16_t*>(p); }

__device__ inline float e2m1_value(uint32_t code) {  // code 0..15
  // Exponent and mantissa at the top of a float32 field, rebiased by a multiplication that is exact for the subnormal 0.5 too.
  const float magnitude = __uint_as_float((code & 7U) << 22) * 0x1p126F;
  return __uint_as_float(__float_as_uint(magnitude) | (code & 8U) << 28);
}

// Eight elements from `column` on, unscaled. `row` in shared memory; blocks of 32 behind one f16 (q8_0) where block_stride > 0.
__device__ inline Eight read_elements(const formats::Segment& seg, const unsigned char* row, int32_t column) {
  Eight e;
  const unsigned char* data = row + seg.data_offset;
  switch (seg.element) {
    case Type::kBf16: {
      const uint4 w = *reinterpret_cast<const uint4*>(data + 2 * column);
      const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 f = bf16x2_to_float2(words[i]);
        e.v[2 * i] = f.x;
        e.v[2 * i + 1] = f.y;
      }
      break;
    }
    case Type::kF16: {
      const uint4 w = *reinterpret_cast<const uint4*>(data + 2 * column);
      const uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 f = half2_to_float2(words[i]);
        e.v[2 * i] = f.x;
        e.v[2 * i + 1] = f.y;
      }
      break;
    }
    case Type::kE4m3:
    case Type::kE5m2: {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint16_t pair = read_u16(data + column + 2 * i);
        const float2 f = half2_to_float2(seg.element == Type::kE4m3 ? e4m3x2_to_half2(pair) : e5m2x2_to_half2(pair));
        e.v[2 * i] = f.x;
        e.v[2 * i + 1] = f.y;
      }
      break;
    }
    case Type::kI8: {
      if (seg.data_block_stride > 0) data += column / seg.block * seg.data_block_stride - column / seg.block * seg.block;
#pragma unroll
      for (int i = 0; i < 8; ++i) e.v[i] = static_cast<float>(static_cast<int8_t>(data[column + i]));
      break;
    }
    default: {  // e2m1
      const uint32_t word = read_u32(data + column / 2);
#pragma unroll
      for (int i = 0; i < 8; ++i) e.v[i] = e2m1_value((word >> (4 * i)) & 15U);
      break;
    }
  }
  return e;
}

__device__ inline float read_scale(Type type, const unsigned char* p) {
  switch (type) {
    case Type::kF32:
      return __uint_as_float(read_u16(p) | static_cast<uint32_t>(read_u16(p + 2)) << 16);
    case Type::kF16:
      return __half2float(__ushort_as_half(read_u16(p)));
    case Type::kE4m3:
      return half2_to_float2(e4m3x2_to_half2(*p)).x;
    default:
      return formats::decode_e8m0(*p);
  }
}

// Eight e2m1 codes as bf16 pairs: magnitudes by table, high and low bytes apart, then the sign bits.
__device__ inline void e2m1x8_to_bf16(uint32_t codes, uint32_t (&out)[4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t four = codes >> (16 * i);
    const uint32_t pick = four & 0x7777U;
    const uint32_t high = __byte_perm(0x3f3f3f00U, 0x40404040U, pick);
    const uint32_t low = __byte_perm(0xc0800000U, 0xc0804000U, pick);
    out[2 * i] = __byte_perm(low, high, 0x5140) | (four & 0x0008U) << 12 | (four & 0x0080U) << 24;
    out[2 * i + 1] = __byte_perm(low, high, 0x7362) | (four & 0x0800U) << 4 | (four & 0x8000U) << 16;
  }
}

__device__ inline uint32_t times_bf16(uint32_t pair, uint32_t factor) {
  const __nv_bfloat162 r = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair), *reinterpret_cast<const __nv_bfloat162*>(&factor));
  return *reinterpret_cast<const uint32_t*>(&r);
}

// A block scale as a bf16 pair, where bf16 holds it: e8m0, e4m3.
__device__ inline uint32_t scale_pair_bf16(Type type, const unsigned char* p) {
  const float f = read_scale(type, p);
  return pack<__nv_bfloat16>(f, f);
}

struct Chunks {  // of one segment that a thread converts: first, first + step, ... below end; eight columns each
  int32_t first;
  int32_t end;
  int32_t step;
};

// Where a segment's block scale of eight columns stands.
__device__ inline const unsigned char* scale_at(const formats::Segment& seg, const unsigned char* row, const unsigned char* scales,
                                                int32_t column) {
  const int32_t block = column / seg.block;
  if (seg.place != formats::ScalePlace::kInRow) return scales + block;
  if (seg.order == formats::ScaleOrder::kBy4Groups) return row + seg.scale_offset + 8 * (block & 3) + (block >> 2);
  return row + seg.scale_offset + block * seg.scale_stride;
}

// The common codecs, whole chunks of eight; false: not one of them.
template <class T>
__device__ inline bool convert_chunks(const formats::Segment& seg, const TensorMode& mode, const unsigned char* row,
                                      const unsigned char* scales, unsigned char* out, int32_t twist, const Chunks& chunks) {
  const unsigned char* const data = row + seg.data_offset;
  const int32_t base = seg.column_begin;
  const bool scaled = seg.place != formats::ScalePlace::kNone && mode.row_scale == 0;
  if (seg.element == Type::kE4m3 && !scaled && kWeightShift<T> != 0.0F) {
#pragma unroll 3
    for (int32_t c = chunks.first; c < chunks.end; c += chunks.step) {
      const uint2 w = *reinterpret_cast<const uint2*>(data + 8 * c);
      const uint4 h = {e4m3x2_to_half2(static_cast<uint16_t>(w.x)), e4m3x2_to_half2(static_cast<uint16_t>(w.x >> 16)),
                       e4m3x2_to_half2(static_cast<uint16_t>(w.y)), e4m3x2_to_half2(static_cast<uint16_t>(w.y >> 16))};
      *reinterpret_cast<uint4*>(out + ((2 * base + 16 * c) ^ twist)) = h;
    }
    return true;
  }
  if (kWeightShift<T> != 0.0F) return false;
  if (seg.element == Type::kE2m1 && scaled) {
#pragma unroll 3
    for (int32_t c = chunks.first; c < chunks.end; c += chunks.step) {
      uint32_t v[4];
      e2m1x8_to_bf16(read_u32(data + 4 * c), v);
      const uint32_t scale = scale_pair_bf16(seg.scale, scale_at(seg, row, scales, 8 * c));
      *reinterpret_cast<uint4*>(out + ((2 * base + 16 * c) ^ twist)) =
          make_uint4(times_bf16(v[0], scale), times_bf16(v[1], scale), times_bf16(v[2], scale), times_bf16(v[3], scale));
    }
    return true;
  }
  if (seg.element == Type::kE4m3 && mode.planes == 1) {
#pragma unroll 3
    for (int32_t c = chunks.first; c < chunks.end; c += chunks.step) {
      const uint2 w = *reinterpret_cast<const uint2*>(data + 8 * c);
      const float scale = scaled ? read_scale(seg.scale, scale_at(seg, row, scales, 8 * c)) : 1.0F;
      uint32_t v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 f = half2_to_float2(e4m3x2_to_half2(static_cast<uint16_t>((i < 2 ? w.x : w.y) >> (16 * (i % 2)))));
        v[i] = pack<T>(f.x * scale, f.y * scale);
      }
      *reinterpret_cast<uint4*>(out + ((2 * base + 16 * c) ^ twist)) = make_uint4(v[0], v[1], v[2], v[3]);
    }
    return true;
  }
  if (seg.element == Type::kBf16 && mode.planes == 1) {
#pragma unroll 2
    for (int32_t c = chunks.first; c < chunks.end; c += chunks.step) {
      *reinterpret_cast<uint4*>(out + ((2 * base + 16 * c) ^ twist)) = *reinterpret_cast<const uint4*>(data + 16 * c);
    }
    return true;
  }
  return false;
}

// One chunk of any codec, rows' ends and both planes. Returns whether some lo is not 0.
template <class T>
__device__ inline bool convert_any(const formats::Segment& seg, const TensorMode& mode, const unsigned char* row,
                                   const unsigned char* scales, int32_t columns, unsigned char* out, int32_t plane, int32_t twist,
                                   int32_t chunk) {
  const int32_t c = 8 * chunk;
  Eight e = read_elements(seg, row, c);
  if (seg.place != formats::ScalePlace::kNone && mode.row_scale == 0) {
    const float scale = read_scale(seg.scale, scale_at(seg, row, scales, c));
#pragma unroll
    for (int i = 0; i < 8; ++i) e.v[i] *= scale;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) e.v[i] = c + i < columns ? e.v[i] : 0.0F;
  uint32_t high[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) high[i] = pack<T>(e.v[2 * i], e.v[2 * i + 1]);
  const int32_t at = (2 * seg.column_begin + 16 * chunk) ^ twist;
  *reinterpret_cast<uint4*>(out + at) = make_uint4(high[0], high[1], high[2], high[3]);
  if (mode.planes == 1) return false;
  uint32_t low[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 h = bf16x2_to_float2(high[i]);
    low[i] = pack<T>(e.v[2 * i] - h.x, e.v[2 * i + 1] - h.y);
  }
  *reinterpret_cast<uint4*>(out + plane + at) = make_uint4(low[0], low[1], low[2], low[3]);
  return ((low[0] | low[1] | low[2] | low[3]) & 0x7fff7fffU) != 0;
}

// All columns of the stage's rows to the operand tile at `to` (lo at to + plane, if planes = 2). Returns whether any lo is not 0.
template <class P, class T>
__device__ inline bool convert_tensor(const formats::RecordLayout& layout, const TensorMode& mode, int32_t columns,
                                      const unsigned char* stage, unsigned char* to, int32_t pitch, int32_t plane) {
  constexpr int kShare = P::kThreads / P::kTile;
  const int32_t r = static_cast<int32_t>(threadIdx.x) / kShare;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kShare;
  const unsigned char* const row = stage + mode.offset + r * mode.pitch;
  const unsigned char* const scales = stage + mode.scale_offset + r * mode.scale_pitch;
  unsigned char* const out = to + r * pitch;
  const int32_t twist = (r & 7) << 4;
  bool any_low = false;
#pragma unroll 1
  for (int32_t i = 0; i < layout.num_segments; ++i) {
    const formats::Segment& seg = layout.segments[i];
    if (seg.column_begin >= columns) break;  // V of shared storage never gets here; K is whole
    const int32_t own = min(seg.column_end, columns) - seg.column_begin;
    Chunks chunks = {lane, own / 8, kShare};
    if (!convert_chunks<T>(seg, mode, row, scales, out, twist, chunks)) {
      chunks.end = 0;
    }
    const int32_t done = chunks.end;
#pragma unroll 1
    for (int32_t c = done + lane; c < (own + 7) / 8; c += kShare) {
      if (convert_any<T>(seg, mode, row, scales, own, out, plane, twist, c)) any_low = true;
    }
  }
  const int32_t filled = (columns + 7) / 8;
  if ((filled & 1) != 0 && lane == 0) {  // a product takes 16 columns
    *reinterpret_cast<uint4*>(out + ((16 * filled) ^ twist)) = make_uint4(0, 0, 0, 0);
    if (mode.planes > 1) *reinterpret_cast<uint4*>(out + plane + ((16 * filled) ^ twist)) = make_uint4(0, 0, 0, 0);
  }
  return any_low;
}

}  // namespace headwater::cuda::decode
