// Shapes and shared memory of the decode kernels: what the host fixes and the kernels read.
#pragma once

#include <cstdint>

#include "headwater/problem.h"
#include "src/core/hd.h"

namespace headwater::cuda::decode {

inline constexpr int kMaxStages = 7;  // wait_copies counts to 6
inline constexpr int kRowPad = 8;     // elements behind a row of scores and of P: no bank conflicts

// How query rows x entries x columns are cut among a block's warps. Scores: kRowWarps x kTokenWarps x kDepthWarps, each warp 16 rows (or
// kRows / kRowWarps) x 16 entries x its part of d_qk; partial scores are summed through shared memory. Output: every warp all rows x
// column pairs (16 columns) w, w + kWarps, ...
struct Latent576 {  // up to 16 rows, latent widths: 16 warps, so that a scheduler has 4 to choose from
  static constexpr int kThreads = 512;
  static constexpr int kRows = 16;
  static constexpr int kTile = 64;
  static constexpr int kRowWarps = 1;
  static constexpr bool kQueriesStay = false;
  static constexpr int kTokenWarps = 4;
  static constexpr int kDepthWarps = 4;
  static constexpr int kPairs = 3;       // d_v <= 768
  static constexpr int kDepthSteps = 9;  // of a warp: d_qk <= 576
  static constexpr int kBlocksPerSm = 1;
};
struct Narrow576 {  // the same in less shared memory
  static constexpr int kThreads = 256;
  static constexpr int kRows = 16;
  static constexpr int kTile = 32;
  static constexpr int kRowWarps = 1;
  static constexpr bool kQueriesStay = false;
  static constexpr int kTokenWarps = 2;
  static constexpr int kDepthWarps = 4;
  static constexpr int kPairs = 5;       // d_v <= 640
  static constexpr int kDepthSteps = 9;  // of a warp: d_qk <= 576
  static constexpr int kBlocksPerSm = 1;
};
struct Narrow256 {  // up to 16 rows, head sizes
  static constexpr int kThreads = 256;
  static constexpr int kRows = 16;
  static constexpr int kTile = 64;
  static constexpr int kRowWarps = 1;
  static constexpr bool kQueriesStay = false;
  static constexpr int kTokenWarps = 4;
  static constexpr int kDepthWarps = 2;
  static constexpr int kPairs = 2;
  static constexpr int kDepthSteps = 8;
  static constexpr int kBlocksPerSm = 2;
};
struct Wide512 {  // up to 64 rows: many heads of one latent, packed tokens
  static constexpr int kThreads = 256;
  static constexpr int kRows = 64;
  static constexpr int kTile = 32;
  static constexpr int kRowWarps = 4;
  static constexpr bool kQueriesStay = true;  // in shared memory
  static constexpr int kTokenWarps = 2;
  static constexpr int kDepthWarps = 1;
  static constexpr int kPairs = 4;
  static constexpr int kDepthSteps = 36;  // queries stay in shared memory
  static constexpr int kBlocksPerSm = 1;
};

template <class P>
inline constexpr int kWarps = P::kThreads / 32;

// One stored tensor of a source in a stage. Raw: the record's bytes, converted after they landed. Direct: already the operand tile.
struct TensorMode {
  int32_t row_bytes = 0;     // staged of a row
  int32_t pitch = 0;         // bytes from row to row in the stage
  int32_t offset = 0;        // in the stage
  int32_t scale_offset = 0;  // in the stage: block scales that stand outside of the row
  int32_t scale_pitch = 0;   // bytes a row
  int32_t scale_blocks = 0;  // 0: none outside of the row
  int32_t granule = 16;      // bytes a copy
  int32_t planes = 1;        // 2: hi + lo
  int32_t direct = 0;
  int32_t row_scale = 0;  // one float32 scale a row (int8): folded into scores or P
};
struct SourceMode {
  TensorMode k;
  TensorMode v;
};

// Byte offsets in dynamic shared memory.
struct Layout {
  int32_t operand = 0;
  int32_t queries = 0;
  int32_t scores = 0;
  int32_t weights = 0;
  int32_t total = 0;
};

struct Modes {
  Layout layout;  // of the launch
  SourceMode sources[kMaxSources];
  int32_t k_pitch = 0;  // operand tiles, bytes a row: a multiple of 128
  int32_t v_pitch = 0;
  int32_t operand_bytes = 0;    // of the converted tile: K planes, then V
  int32_t operand_v = 0;        // where V stands in it
  int32_t operand_k_plane = 0;  // bytes from plane to plane
  int32_t operand_v_plane = 0;
  int32_t fold_v_scale = 0;  // v_scale multiplies P (several sources); otherwise the output
};

template <class P>
HEADWATER_HD Layout make_layout(int32_t stages, int32_t stage_bytes, const Modes& modes, int32_t d_qk) {
  Layout at;
  at.operand = stages * stage_bytes;
  at.queries = at.operand + modes.operand_bytes;
  const int32_t query_bytes = P::kRows * ((d_qk + 63) / 64 * 128);
  const int32_t score_bytes = P::kDepthWarps * P::kRows * (P::kTile + kRowPad) * 4;
  if (P::kQueriesStay) {
    at.scores = at.queries + query_bytes;
    at.weights = at.scores + score_bytes;
  } else {  // read to registers before the first scores are written
    at.scores = at.queries;
    at.weights = at.scores + (query_bytes > score_bytes ? query_bytes : score_bytes);
  }
  at.total = at.weights + P::kRows * (P::kTile + kRowPad) * 2;
  return at;
}

}  // namespace headwater::cuda::decode
