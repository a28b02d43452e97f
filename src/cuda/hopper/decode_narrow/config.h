// What an instance is, and its shared memory.
#pragma once

#include "src/cuda/hopper/decode_narrow/layout.h"

namespace headwater::cuda::narrow {

enum class Copies {
  kBulk,   // one warp and the copy engine: a group of entries a copy where the cache allows it, else an entry
  kAsync,  // four warps and cp.async, 16 bytes a copy
};

// kOneByte: e4m3 entries, f16 operands. kShared: V is the first kDv columns of the K row.
template <int kDqk_, int kDv_, bool kShared_, bool kOneByte_, int kTile_, int kStages_, Copies kCopies_>
struct Config {
  static constexpr int kDqk = kDqk_;
  static constexpr int kDv = kDv_;
  static constexpr bool kShared = kShared_;
  static constexpr bool kOneByte = kOneByte_;
  static constexpr int kTile = kTile_;
  static constexpr int kStages = kStages_;
  static constexpr Copies kCopies = kCopies_;
  static constexpr int kElement = kOneByte ? 1 : 2;

  static constexpr int kBlocks = kTile / 8;                   // of 8 slots
  static constexpr int kWarpBlocks = kBlocks / kEntryWarps;   // whose scores a warp computes
  static constexpr int kSteps = kDqk / 16 / kDepthHalves;     // of 16 along d_qk, a warp's
  static constexpr int kProducts = kDv / 8 / kConsumerWarps;  // 8 columns of O each, a warp's
  static constexpr int kProducerWarps = kCopies == Copies::kBulk ? 1 : 4;
  static constexpr int kConsumers = kConsumerWarps * 32;
  static constexpr int kThreads = kConsumers + kProducerWarps * 32;
  static_assert(kDqk % 64 == 0 && kDv % 128 == 0 && kTile % 32 == 0 && kBlocks <= kConsumerWarps);
  static_assert(!kOneByte || (kWarpBlocks == 2 && kDv % 256 == 0));

  using Keys = TileLayout<kDqk * kElement, kTile>;
  using Values = TileLayout<(kShared ? kDqk : kDv) * kElement, kTile>;
  using Queries = QueryLayout<kDqk>;
  using Scores = ScoreLayout<kTile>;
  static constexpr int kValuesAt = kShared ? 0 : Keys::kBytes;  // in a stage
  static constexpr int kStageBytes = Keys::kBytes + (kShared ? 0 : Values::kBytes);
  static constexpr int kQueriesAt = kStages * kStageBytes;
  static constexpr int kScoresAt = kQueriesAt + Queries::kBytes;  // two buffers
  static constexpr int kWeightsAt = kScoresAt + 2 * Scores::kBytes;
  static constexpr int kSharedBytes = kWeightsAt + kBlocks * 32 * 8;
};

}  // namespace headwater::cuda::narrow
