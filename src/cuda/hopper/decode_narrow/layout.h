// Where everything stands in shared memory and in registers: index functions for the kernel, and for a host test that walks the same data
// path (tests/cuda/hopper/decode_narrow/layout_test.cc).
//
// A tile of kTile entries is stored as 8 groups of kTile / 8 neighbouring entries. A group is contiguous, so that one bulk copy can bring
// it; groups are kGroupPitch bytes apart, 16 more than they hold. A *slot* is an entry's place in the order that products use: slot s
// is entry s / 8 of group s % 8. Eight neighbouring slots thus lie in eight groups, 16 bytes further each modulo 128: the eight rows of
// an ldmatrix never share a bank.
#pragma once

#include <cstdint>

#include "src/core/hd.h"

namespace headwater::cuda::narrow {

inline constexpr int kConsumerWarps = 8;
inline constexpr int kDepthHalves = 2;  // warps w and w + 4 share entries, each half of d_qk
inline constexpr int kEntryWarps = kConsumerWarps / kDepthHalves;
inline constexpr int kRows = 16;  // query rows: M of the product

template <int kRowBytes_, int kTile_>
struct TileLayout {
  static constexpr int kRowBytes = kRowBytes_;
  static constexpr int kTile = kTile_;
  static constexpr int kGroup = kTile / 8;  // entries of a group
  static constexpr int kGroupPitch = kGroup * kRowBytes + 16;
  static constexpr int kBytes = 8 * kGroupPitch;
  static_assert(kGroup * kRowBytes % 128 == 0, "groups must start 16 bytes apart modulo 128");

  HEADWATER_HD static constexpr unsigned entry_of_slot(unsigned slot) { return slot % 8 * kGroup + slot / 8; }
  HEADWATER_HD static constexpr unsigned offset_of_slot(unsigned slot) { return slot % 8 * kGroupPitch + slot / 8 * kRowBytes; }
  HEADWATER_HD static constexpr unsigned offset_of_entry(unsigned entry) {
    return entry / kGroup * kGroupPitch + entry % kGroup * kRowBytes;
  }

  // ldmatrix, x4: lane gives the address of row lane % 8 of matrix lane / 8. A block of 8 slots, four neighbouring 16-byte chunks.
  HEADWATER_HD static constexpr unsigned four_chunks(unsigned lane) { return offset_of_slot(lane % 8) + lane / 8 * 16; }
  // Two blocks of 8 slots, two neighbouring chunks: matrices (block 0, chunk 0), (0, 1), (1, 0), (1, 1).
  HEADWATER_HD static constexpr unsigned blocks_then_chunks(unsigned lane) {
    return offset_of_slot(lane % 8 + lane / 16 * 8) + lane / 8 % 2 * 16;
  }
  // The same four as (block 0, chunk 0), (1, 0), (0, 1), (1, 1): both halves of k of one product side by side.
  HEADWATER_HD static constexpr unsigned chunks_then_blocks(unsigned lane) {
    return offset_of_slot(lane % 8 + lane / 8 % 2 * 8) + lane / 16 * 16;
  }
};

// Queries as 16-bit operands, kRows rows: read once an item.
template <int kDqk>
struct QueryLayout {
  static constexpr int kPitch = 2 * kDqk + 16;
  static constexpr int kBytes = kRows * kPitch;
  // One-byte formats: columns are stored so that a matrix load finds depth_in_step's order. Of the 8 columns of a chunk, pairs 0 and 2
  // (half 0) or 1 and 3 (half 1) stand side by side at this byte of the row.
  HEADWATER_HD static constexpr unsigned one_byte_offset(unsigned chunk, unsigned half) {
    return chunk / 2 * 32 + half * 16 + chunk % 2 * 8;
  }
};

// Partial scores: [half of d_qk][block of 8 slots][lane] float4, the accumulator of one product. Written by one warp, read by all: lane
// l of every warp wants lane l's values, for they are also where P stands as the left operand of O += P V.
template <int kTile>
struct ScoreLayout {
  static constexpr int kBlocks = kTile / 8;
  static constexpr int kBytes = kDepthHalves * kBlocks * 32 * 16;
  HEADWATER_HD static constexpr unsigned offset(unsigned half, unsigned block, unsigned lane) {
    return ((half * kBlocks + block) * 32 + lane) * 16;
  }
};

// Column of d_v that element i (0: c0 or c2, 1: c1 or c3) of a lane's accumulator holds. Product n of a warp covers 8 columns. One-byte
// formats: products 2c and 2c + 1 take the even and the odd columns of 16-byte chunk c.
template <bool kOneByte>
HEADWATER_HD constexpr unsigned output_column(unsigned product, unsigned lane, unsigned i) {
  const unsigned t = lane % 4;
  if (kOneByte) return product / 2 * 16 + 4 * t + 2 * i + product % 2;
  return product * 8 + 2 * t + i;
}

// Depth of one QK step as it meets the lanes: element i of half h (b0 or b1; a0/a1 or a2/a3) at depth ... of 16.
template <bool kOneByte>
HEADWATER_HD constexpr unsigned depth_in_step(unsigned lane, unsigned half, unsigned i) {
  const unsigned t = lane % 4;
  return kOneByte ? 4 * t + 2 * half + i : 8 * half + 2 * t + i;
}

}  // namespace headwater::cuda::narrow
