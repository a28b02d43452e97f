// Small state of a decode block in static shared memory; the tiles stand in dynamic shared memory (layout.h).
#pragma once

#include "src/cuda/mma/common/cursor.cuh"
#include "src/cuda/mma/decode/layout.h"

namespace headwater::cuda::decode {

using namespace mma;  // NOLINT(google-build-using-namespace): this path's own common layer

template <class P>
struct Shared {
  Cursor cursor;
  Walk walk;  // of thread 0; registers are short
  TileDesc ring[kRing];
  OpenItem items[kRing];
  unsigned char live[kRing][P::kTile];  // the column's entry exists (gathered lists have holes)
  int32_t visible_low[P::kRows];        // entries of the current source that the row sees
  int32_t visible_high[P::kRows];
  float row_factor[P::kRows];  // score factor: sm_scale, q_scale, the power of two that Q was scaled by; log2(e) unless softcap
  float k_scale;               // of the current source
  float v_scale;
  float rescale[P::kRows];    // of O before this tile
  float row_l[P::kRows];      // epilogue: the output's factor; 1 for a partial
  float row_share[P::kRows];  // l / l_used: takes the rounding of P out of the norm
  int32_t any_redo;
};

}  // namespace headwater::cuda::decode
