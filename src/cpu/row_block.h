// The half of a row-block kernel that knows no instruction set: which entries a tile holds, where their bytes are, and which of them each
// query token sees. Compiled once with baseline flags; the per-ISA files only call it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/core/resolved.h"
#include "src/cpu/kernel.h"
#include "src/plan/work.h"

namespace headwater::cpu {

// Rows that share one pass over the tiles of an item. A wider head block runs in several passes.
inline constexpr int32_t kMaxPassRows = 128;
// Row blocks of at most this many rows take the few-row form. At 8 rows it beats a panel of 8 lanes, which is bound by loads and pays for a
// scratch copy: docs/deep-dives/cpu.md.
inline constexpr int32_t kFewRows = 8;
// Row blocks of neighbouring heads that go through their tiles together in the few-row form: their records stand side by side in a
// [token][head][d] cache, so that the memory is read in longer runs and each of its pages is translated once.
inline constexpr int32_t kMaxGang = 4;
// Cache lines of the next piece that a gang fetches while it works on one; what is beyond waits until it is read.
inline constexpr int32_t kMaxLines = 4096;
// Floats of a scratch row of `width` columns: whole vectors of 16, and an odd number of 64-byte lines, since walking down a column at an
// even number of lines would use half of the L1 sets, or fewer.
[[gnu::always_inline]] constexpr int32_t scratch_row_floats(int32_t width) { return ((width + 15) / 16 | 1) * 16; }

// Rows [row_begin, row_end) of an item; row = token * head_block + head.
struct RowPass {
  const ItemArgs* args = nullptr;
  int32_t row_begin = 0;
  int32_t row_end = 0;
  int32_t token_begin = 0;  // tokens of the item that these rows belong to
  int32_t token_end = 0;
};

// Records of one tensor in a tile, and how to decode them.
struct TileRecords {
  const std::byte** row = nullptr;     // [count]
  const std::byte** scales = nullptr;  // [count]
  int64_t scale_block_stride = 0;
  const formats::RecordLayout* layout = nullptr;
  float global = 1.0F;  // k_scale or v_scale; a NaN is the canonical one
};

// Entries of one tile. Entries that no row of the pass sees, and skipped indices of a gathered list, are not in it.
struct Tile {
  int32_t count = 0;
  int32_t source = 0;
  bool shared = false;
  TileRecords k;
  TileRecords v;             // shared: the same rows as k
  int32_t* begin = nullptr;  // [tokens of the pass] visible entries of each token: [begin, end) of 0..count, begin <= end
  int32_t* end = nullptr;
};

// Goes through the tiles of an item.
struct TileWalk {
  RowPass pass;
  int32_t source = -1;
  int32_t next = 0;  // tile of the item's sequence
  int32_t source_begin = 0;
  int32_t source_end = 0;  // tiles of the sequence that are this source's
  plan::TileSpan span;
  int64_t* token_begin = nullptr;  // [tokens of the pass] visible entries of the source
  int64_t* token_end = nullptr;
};

// Everything an item needs beside the partial, carved from one worker's workspace.
struct Workspace {
  float* q = nullptr;  // panel form: panels [d_qk][lanes], one after another; few-row form: [kMaxGang][kFewRows][scratch_row_floats(d_qk)]
  float* o = nullptr;  // the same with d_v
  float* k = nullptr;  // [tile_entries][scratch_row_floats(d_qk)]
  float* v = nullptr;  // [tile_entries][scratch_row_floats(d_v)]
  float* s = nullptr;  // [tile_entries][16] scores, then probabilities, of one panel
  float* m = nullptr;  // [kMaxPassRows + 16]
  float* l = nullptr;
  float* row = nullptr;                // [scratch_row_floats(kMaxWidth)] one row on its way in or out
  const std::byte** k_rows = nullptr;  // [tile_entries] few-row form: records of one head of a gang, or rows of the converted tile
  const std::byte** v_rows = nullptr;
  const std::byte** k_scales = nullptr;
  const std::byte** v_scales = nullptr;
  const std::byte** lines = nullptr;  // [kMaxLines] few-row form: cache lines to fetch
  TileWalk walk;
  Tile tiles[2];
};
// Fills `workspace` (null base: measures) and returns the bytes, a multiple of 64.
size_t carve_workspace(const plan::PlanShape& shape, int32_t d_qk, int32_t d_v, std::byte* base, Workspace* workspace);
size_t workspace_bytes(const plan::PlanShape& shape, int32_t d_qk, int32_t d_v);

int32_t item_rows(const ItemArgs& args);
// The pass that starts at row_begin.
RowPass make_pass(const ItemArgs& args, int32_t row_begin);
void walk_begin(const RowPass& pass, TileWalk* walk);
// The next tile that holds a visible entry; false at the end of the item.
bool walk_next(TileWalk* walk, Tile* tile);

// Where the records of an item's head stand, in bytes from those of head block `from`, in one tensor of a source; and its global scale.
struct HeadOffset {
  int64_t row = 0;
  int64_t scales = 0;
  float global = 1.0F;
};
HeadOffset head_offset(const ItemArgs& args, int32_t source, bool value, int32_t from);

// Query row `row` of an item and its tail, in memory of type problem.q_type, and the factor that decodes it.
struct QueryRow {
  const std::byte* head = nullptr;  // [q_width]
  const std::byte* tail = nullptr;  // [q_tail_width]
  float scale = 1.0F;
};
QueryRow query_row(const ItemArgs& args, int32_t row);

// Leaves the state of row `row` (o [d_v] unnormalised, m and l in base 2) in the item's partial, or finishes it into out and lse.
void store_row(const ItemArgs& args, int32_t row, const float* o, float m, float l);

}  // namespace headwater::cpu
