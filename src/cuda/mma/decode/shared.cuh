// Small state of a decode block in static shared memory; the tiles stand in dynamic shared memory (layout.h).
#pragma once

#include "src/cuda/mma/decode/cursor.cuh"

namespace headwater::cuda::decode {

inline constexpr int kMaxDeferred = 32;

template <class P>
struct Shared {
  Cursor cursor;
  TileDesc ring[kRing];
  unsigned char live[kRing][P::kTile];  // the column's entry exists (gathered lists have holes)
  int32_t visible_low[P::kRows];        // entries of the current source that the row sees
  int32_t visible_high[P::kRows];
  float row_factor[P::kRows];  // score factor: sm_scale, q_scale, the power of two that Q was scaled by; log2(e) unless softcap
  float rescale[P::kRows];     // of O before this tile
  float row_m[P::kRows];       // epilogue
  float row_l[P::kRows];
  int32_t deferred[kMaxDeferred];  // items for the exact path
  int32_t num_deferred;
};

}  // namespace headwater::cuda::decode
