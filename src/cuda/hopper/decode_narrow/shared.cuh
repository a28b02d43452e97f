// Small state of a block in static shared memory; tiles, queries and scores stand in dynamic shared memory (config.h).
#pragma once

#include "src/cuda/mma/common/cursor.cuh"

namespace headwater::cuda::narrow {

using namespace mma;  // NOLINT(google-build-using-namespace): the walk over items and tiles, and query rows

template <class C>
struct Shared {
  __align__(
      8) uint64_t told[C::kStages];  // the descriptor stands in the ring: queries of a new item load while its first tile is on its way
  __align__(8) uint64_t full[C::kStages];  // the tile has landed
  __align__(8) uint64_t empty[C::kStages];
  TileDesc ring[C::kStages];
  // Of each producer warp; consumers read the first one's. An item's place is taken again kRing items later: more than are in flight.
  OpenItem items[C::kProducerWarps][kRing];
  Cursor cursor[C::kProducerWarps];
  int32_t visible_low[kRows];  // entries that the row sees; everything where there is no such row
  int32_t visible_high[kRows];
  float row_factor[kRows];             // of scores, in log2 units
  float row_l[kConsumerWarps][kRows];  // each warp's share of a row's sum, at the end of an item
  int32_t bad;                         // the item holds a value that is not finite
  int32_t any_redo;
  static_assert(kRing > C::kStages + 3);
};

}  // namespace headwater::cuda::narrow
