// Copies of one tensor's tile in its mode, and the block scales that stand outside of the records.
#pragma once

#include "src/cuda/common/element.cuh"
#include "src/cuda/mma/common/loader.cuh"
#include "src/cuda/mma/decode/args.h"

namespace headwater::cuda::decode {

using namespace mma;  // NOLINT(google-build-using-namespace): this path's own common layer

template <class P>
__device__ inline void copy_tensor(const ResolvedTensor& t, const TensorMode& mode, const Place& place, int32_t head, uint32_t stage,
                                   int32_t row, int32_t lane) {
  constexpr int kShare = P::kThreads / P::kTile;  // threads of a row
  const std::byte* from = record_of(t, place, head);
  const int32_t valid = place.row < 0 ? 0 : mode.row_bytes;
  const int32_t padded = mode.direct != 0 ? (mode.row_bytes + 31) & ~31 : (mode.row_bytes + 15) & ~15;
  const uint32_t to = stage + mode.offset + row * mode.pitch;
  if (mode.granule == 16) {
    copy_row<16, kShare>(to, row, mode.direct != 0, from, lane, valid, padded);
  } else if (mode.granule == 8) {
    copy_row<8, kShare>(to, row, mode.direct != 0, from, lane, valid, padded);
  } else {
    copy_row<4, kShare>(to, row, mode.direct != 0, from, lane, valid, padded);
  }
}

// Block scales that stand outside of the row: in registers while their tile's copies are under way, then to the stage.
inline constexpr int kMaxScales = 5;  // bytes a thread: 36 blocks of 16 columns over 8 threads; int8: one float in scale[0]
struct RowScales {
  uint32_t scale[kMaxScales];
};

template <class P>
__device__ inline void fetch_scales(const ResolvedSource& s, const ResolvedTensor& t, const TensorMode& mode, const Place& place,
                                    int32_t head, int32_t lane, RowScales& r) {
  constexpr int kShare = P::kThreads / P::kTile;
  if (mode.scale_blocks == 0) return;
  const std::byte* base;
  int64_t step;
  if (t.layout.tail_bytes > 0) {
    base = t.data + place.page * t.page_stride + int64_t{s.page_size} * t.layout.row_bytes + int64_t{place.row} * t.layout.tail_bytes;
    step = 1;
  } else {
    base = t.scales + place.page * t.scale_page_stride + int64_t{place.row} * t.scale_row_stride + head * t.scale_head_stride;
    step = t.scale_block_stride;
  }
  if (mode.row_scale != 0) {
    r.scale[0] = place.row >= 0 && lane == 0 ? __float_as_uint(load_f32(base)) : 0;
    return;
  }
#pragma unroll
  for (int i = 0; i < kMaxScales; ++i) {
    const int32_t block = lane + i * kShare;
    r.scale[i] = place.row >= 0 && block < mode.scale_blocks ? static_cast<uint32_t>(base[block * step]) : 0;
  }
}

template <class P>
__device__ inline void store_scales(const TensorMode& mode, unsigned char* stage, int32_t row, int32_t lane, const RowScales& r) {
  constexpr int kShare = P::kThreads / P::kTile;
  if (mode.scale_blocks == 0) return;
  unsigned char* to = stage + mode.scale_offset + row * mode.scale_pitch;
  if (mode.row_scale != 0) {
    if (lane == 0) *reinterpret_cast<uint32_t*>(to) = r.scale[0];
    return;
  }
#pragma unroll
  for (int i = 0; i < kMaxScales; ++i) {
    const int32_t block = lane + i * kShare;
    if (block < mode.scale_blocks) to[block] = static_cast<unsigned char>(r.scale[i]);
  }
}

}  // namespace headwater::cuda::decode
