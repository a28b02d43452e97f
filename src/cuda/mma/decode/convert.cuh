// Records to 16-bit operand tiles, once per tile: every codec of src/formats, eight columns at a time.
//
// What is exact where (docs/deep-dives/cuda_portable.md): in f16: f16, e4m3, e5m2. In bf16: bf16, e4m3 and e2m1 times a power of two,
// e2m1 times e4m3, int8. The rest (f16 elements, q8_0, e4m3 times an arbitrary float) is split hi + lo for K: 16 bits of mantissa. V takes
// the rounded value, as P is rounded too.
#pragma once

#include "src/cuda/common/element.cuh"
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

// Block scale of a column of the segment; 1 where there is none or where it is folded elsewhere (one scale a row).
__device__ inline float block_scale(const formats::Segment& seg, const TensorMode& mode, const unsigned char* row, const unsigned char* scales,
                                    int32_t column) {
  if (seg.place == formats::ScalePlace::kNone || mode.row_scale != 0) return 1.0F;
  const int32_t block = column / seg.block;
  if (seg.place != formats::ScalePlace::kInRow) return read_scale(seg.scale, scales + block);
  if (seg.order == formats::ScaleOrder::kBy4Groups) return read_scale(seg.scale, row + seg.scale_offset + 8 * (block & 3) + (block >> 2));
  return read_scale(seg.scale, row + seg.scale_offset + block * seg.scale_stride);
}

// All columns of the stage's rows to the operand tile at `to` (and lo at `to_low`, if planes = 2). Returns whether any lo is not 0.
template <class P, class T>
__device__ inline bool convert_tensor(const formats::RecordLayout& layout, const TensorMode& mode, int32_t columns, const unsigned char* stage,
                                      unsigned char* to, int32_t pitch, int32_t plane) {
  constexpr int kShare = kThreads / P::kTile;
  const int32_t r = static_cast<int32_t>(threadIdx.x) / kShare;
  const unsigned char* row = stage + mode.offset + r * mode.pitch;
  const unsigned char* scales = stage + mode.scale_offset + r * mode.scale_pitch;
  unsigned char* out = to + r * pitch;
  bool any_low = false;
  const int32_t chunks = (columns + 15) / 16 * 2;
  for (int32_t chunk = static_cast<int32_t>(threadIdx.x) % kShare; chunk < chunks; chunk += kShare) {
    const int32_t column = 8 * chunk;
    uint4 high = {0, 0, 0, 0};
    uint4 low = {0, 0, 0, 0};
    if (column < columns) {
      const formats::Segment& seg = layout.segments[layout.num_segments > 1 && column >= layout.segments[1].column_begin ? 1 : 0];
      const int32_t c = column - seg.column_begin;
      Eight e = read_elements(seg, row, c);
      if (seg.place != formats::ScalePlace::kNone && mode.row_scale == 0) {
        const float scale = block_scale(seg, mode, row, scales, c);
#pragma unroll
        for (int i = 0; i < 8; ++i) e.v[i] *= scale;
      }
      if (columns - column < 8) {
#pragma unroll
        for (int i = 0; i < 8; ++i) e.v[i] = column + i < columns ? e.v[i] : 0.0F;
      }
      high = {pack<T>(e.v[0], e.v[1]), pack<T>(e.v[2], e.v[3]), pack<T>(e.v[4], e.v[5]), pack<T>(e.v[6], e.v[7])};
      if (mode.planes > 1) {
        const uint32_t words[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 h = bf16x2_to_float2(words[i]);
          e.v[2 * i] -= h.x;
          e.v[2 * i + 1] -= h.y;
        }
        low = {pack<T>(e.v[0], e.v[1]), pack<T>(e.v[2], e.v[3]), pack<T>(e.v[4], e.v[5]), pack<T>(e.v[6], e.v[7])};
        any_low = any_low || ((low.x | low.y | low.z | low.w) & 0x7fff7fffU) != 0;
      }
    }
    *reinterpret_cast<uint4*>(out + swizzled(r, 16 * chunk)) = high;
    if (mode.planes > 1) *reinterpret_cast<uint4*>(out + plane + swizzled(r, 16 * chunk)) = low;
  }
  return any_low;
}

}  // namespace headwater::cuda::decode
