// A work item from queries to stored rows: passes over its tiles, each tile converted once and shared by all rows of the pass. Included by
// one file per ISA, which defines HEADWATER_CPU_ISA. Everything is in an unnamed namespace inside that ISA's own: nothing compiled with the
// ISA's flags can be picked by the linker for anyone else (tools/check_isa_symbols.sh).
#pragma once

#include "src/cpu/few_rows-inl.h"
#include "src/cpu/panel-inl.h"

namespace headwater::cpu::HEADWATER_CPU_ISA {
namespace {

// Lanes of the panel that begins at `panel_row` of a pass of `rows` rows.
HWY_INLINE int panel_width(int rows, int panel_row) { return rows - panel_row > 8 ? 16 : 8; }

// One query row, decoded and scaled, in workspace.row.
void load_query(const PassContext& context, int row, float factor) {
  const ResolvedProblem& problem = *context.pass.args->problem;
  const QueryRow query = query_row(*context.pass.args, context.pass.row_begin + row);
  float* const to = context.workspace->row;
  convert_query(problem.q_type, query.head, problem.q_width, query.scale, factor, to);
  if (problem.q_tail_width > 0) convert_query(problem.q_type, query.tail, problem.q_tail_width, query.scale, factor, to + problem.q_width);
}

void fill(float* to, int64_t count, float value) {
  for (int64_t i = 0; i < count; ++i) to[i] = value;
}

void begin_panels(const PassContext& context, int rows, float factor) {
  const ResolvedProblem& problem = *context.pass.args->problem;
  Workspace& w = *context.workspace;
  const int padded = (rows + 15) / 16 * 16;
  fill(w.q, int64_t{padded} * problem.d_qk, 0.0F);
  fill(w.o, int64_t{padded} * problem.d_v, 0.0F);
  for (int row = 0; row < rows; ++row) {
    load_query(context, row, factor);
    const int panel_row = row / 16 * 16;
    const int width = panel_width(rows, panel_row);
    float* const panel = w.q + int64_t{panel_row} * problem.d_qk + row - panel_row;
    for (int c = 0; c < problem.d_qk; ++c) panel[c * width] = w.row[c];
  }
}

void end_panels(const PassContext& context, int rows) {
  const ResolvedProblem& problem = *context.pass.args->problem;
  Workspace& w = *context.workspace;
  for (int row = 0; row < rows; ++row) {
    const int panel_row = row / 16 * 16;
    const int width = panel_width(rows, panel_row);
    const float* const panel = w.o + int64_t{panel_row} * problem.d_v + row - panel_row;
    for (int c = 0; c < problem.d_v; ++c) w.row[c] = panel[c * width];
    store_row(*context.pass.args, context.pass.row_begin + row, w.row, w.m[row], w.l[row]);
  }
}

void begin_groups(const PassContext& context, int rows, float factor) {
  const ResolvedProblem& problem = *context.pass.args->problem;
  Workspace& w = *context.workspace;
  const int64_t q_floats = scratch_row_floats(problem.d_qk);
  const int padded = (rows + kGroupRows - 1) / kGroupRows * kGroupRows;
  fill(w.q, padded * q_floats, 0.0F);
  fill(w.o, int64_t{padded} * scratch_row_floats(problem.d_v), 0.0F);
  for (int row = 0; row < rows; ++row) {
    load_query(context, row, factor);
    for (int c = 0; c < problem.d_qk; ++c) w.q[row * q_floats + c] = w.row[c];
  }
}

void end_groups(const PassContext& context, int rows) {
  const ResolvedProblem& problem = *context.pass.args->problem;
  Workspace& w = *context.workspace;
  const int64_t row_floats = scratch_row_floats(problem.d_v);
  for (int row = 0; row < rows; ++row)
    store_row(*context.pass.args, context.pass.row_begin + row, w.o + row * row_floats, w.m[row], w.l[row]);
}

// Converts the tile's values (and keys) into scratch.
void convert_values(const PassContext& context, TileScratch* scratch) {
  const Tile& tile = *scratch->tile;
  const ResolvedProblem& problem = *context.pass.args->problem;
  Workspace& w = *context.workspace;
  float* const to = tile.shared ? w.k : w.v;
  scratch->v_row_floats = scratch_row_floats(tile.shared ? problem.d_qk : problem.d_v);
  convert_records(tile.shared ? tile.k : tile.v, 0, tile.count, to, scratch->v_row_floats);
  scratch->v = to;
}

void convert_keys(const PassContext& context, TileScratch* scratch) {
  scratch->k_row_floats = scratch_row_floats(context.pass.args->problem->d_qk);
  convert_records(scratch->tile->k, 0, scratch->tile->count, context.workspace->k, scratch->k_row_floats);
  scratch->k = context.workspace->k;
}

void panels_tile(const PassContext& context, const Tile& tile, const Tile* next, int rows) {
  const ResolvedProblem& problem = *context.pass.args->problem;
  const int steps_16 = panel_steps<16>(tile.count, problem.d_qk, problem.d_v);
  const int steps_8 = panel_steps<8>(tile.count, problem.d_qk, problem.d_v);
  const bool last_is_8 = panel_width(rows, (rows - 1) / 16 * 16) == 8;
  TilePrefetcher prefetcher(next, (rows + 15) / 16 * steps_16 - (last_is_8 ? steps_16 - steps_8 : 0));
  TileScratch scratch;
  scratch.prefetcher = &prefetcher;
  scratch.tile = &tile;
  scratch.k = context.workspace->k;
  scratch.k_row_floats = scratch_row_floats(problem.d_qk);
  scratch.keys_pending = true;
  if (tile.shared) {
    scratch.v = scratch.k;
    scratch.v_row_floats = scratch.k_row_floats;
  } else {
    convert_values(context, &scratch);
  }
  for (int row = 0; row < rows; row += 16) {
    if (panel_width(rows, row) == 16) {
      panel_tile<16>(context, &scratch, row);
    } else {
      panel_tile<8>(context, &scratch, row);
    }
  }
}

// Rows that the few-row form reads as they are stored: their type; or float32 scratch.
struct GroupRows {
  Type type = Type::kF32;
  const std::byte* const* row = nullptr;
};

bool readable_as_stored(const formats::RecordLayout& layout) {
  const Type element = layout.segments[0].element;
  return layout.num_segments == 1 && layout.width % kLanes == 0 &&
         (element == Type::kBf16 || element == Type::kF16 || element == Type::kF32);
}

void point_at_scratch(const float* rows, int row_floats, int count, const std::byte** pointers) {
  for (int t = 0; t < count; ++t) pointers[t] = reinterpret_cast<const std::byte*>(rows + int64_t{t} * row_floats);
}

template <int kRows>
void dispatch_scores(const GroupRows& k, const float* q, int row_floats, int begin, int count, int d_qk, float* s,
                     TilePrefetcher* prefetcher) {
  if (k.type == Type::kBf16) return group_scores<Type::kBf16, kRows>(q, row_floats, k.row + begin, count, d_qk, s, prefetcher);
  if (k.type == Type::kF16) return group_scores<Type::kF16, kRows>(q, row_floats, k.row + begin, count, d_qk, s, prefetcher);
  group_scores<Type::kF32, kRows>(q, row_floats, k.row + begin, count, d_qk, s, prefetcher);
}

template <int kRows>
void dispatch_values(const GroupRows& v, int begin, int count, int d_v, const float* p, float* o, int row_floats) {
  if (v.type == Type::kBf16) return group_values<Type::kBf16, kRows>(v.row + begin, count, d_v, p, o, row_floats);
  if (v.type == Type::kF16) return group_values<Type::kF16, kRows>(v.row + begin, count, d_v, p, o, row_floats);
  group_values<Type::kF32, kRows>(v.row + begin, count, d_v, p, o, row_floats);
}

// kRows rows from `row` on, of a group padded to 4, against the tile.
template <int kRows>
void group_tile(const PassContext& context, TileScratch* scratch, const GroupRows& k, const GroupRows& v, int row) {
  const ResolvedProblem& problem = *context.pass.args->problem;
  Workspace& w = *context.workspace;
  LaneRanges<kGroupRows> ranges;
  find_lane_ranges(context.pass, *scratch->tile, context.pass.row_begin + row, &ranges);
  if (ranges.begin >= ranges.end) return;
  const int count = ranges.end - ranges.begin;
  const int q_floats = scratch_row_floats(problem.d_qk);
  const int o_floats = scratch_row_floats(problem.d_v);
  float* const o = w.o + int64_t{row} * o_floats;
  dispatch_scores<kRows>(k, w.q + int64_t{row} * q_floats, q_floats, ranges.begin, count, problem.d_qk, w.s, scratch->prefetcher);
  alignas(64) float alpha[kGroupRows];
  const SoftmaxResult result = softmax<kGroupRows>(context.softcap, ranges, count, w.s, w.m + row, w.l + row, alpha);
  if (result.grew) {
    const DF d;
    for (int r = 0; r < kRows; ++r) {
      float* const at = o + r * o_floats;
      for (int c = 0; c < problem.d_v; c += kLanes) hn::Store(hn::Mul(hn::Load(d, at + c), hn::Set(d, alpha[r])), d, at + c);
    }
  }
  if (result.unseen) {
    if (scratch->v == nullptr) convert_values(context, scratch);
    if (has_nonfinite_values(scratch, problem.d_v)) {
      return exact_group_values<kRows>(*scratch, ranges.begin, count, problem.d_v, w.s, o, o_floats);
    }
  }
  dispatch_values<kRows>(v, ranges.begin, count, problem.d_v, w.s, o, o_floats);
}

void groups_tile(const PassContext& context, const Tile& tile, const Tile* next, int rows) {
  Workspace& w = *context.workspace;
  TilePrefetcher prefetcher(next, (rows + 3) / 4 * (tile.count / 8 * (rows >= 3 ? 4 : rows)));
  TileScratch scratch;
  scratch.prefetcher = &prefetcher;
  scratch.tile = &tile;
  GroupRows k;
  GroupRows v;
  if (readable_as_stored(*tile.k.layout)) {
    k = {tile.k.layout->segments[0].element, tile.k.row};
  } else {
    convert_keys(context, &scratch);
    point_at_scratch(scratch.k, scratch.k_row_floats, tile.count, w.k_rows);
    k = {Type::kF32, w.k_rows};
    if (tile.shared) {
      scratch.v = scratch.k;
      scratch.v_row_floats = scratch.k_row_floats;
    }
  }
  if (tile.shared) {
    v = k;
  } else if (readable_as_stored(*tile.v.layout)) {
    v = {tile.v.layout->segments[0].element, tile.v.row};
  } else {
    convert_values(context, &scratch);
    point_at_scratch(scratch.v, scratch.v_row_floats, tile.count, w.v_rows);
    v = {Type::kF32, w.v_rows};
  }
  for (int row = 0; row < rows; row += kGroupRows) {
    const int n = rows - row;
    if (n >= 3) {
      group_tile<4>(context, &scratch, k, v, row);
    } else if (n == 2) {
      group_tile<2>(context, &scratch, k, v, row);
    } else {
      group_tile<1>(context, &scratch, k, v, row);
    }
  }
}

void run_pass(const ItemArgs& args, int row_begin) {
  const ResolvedProblem& problem = *args.problem;
  Workspace w;
  carve_workspace(*args.shape, problem.d_qk, problem.d_v, args.workspace, &w);
  PassContext context;
  context.pass = make_pass(args, row_begin);
  context.workspace = &w;
  context.softcap = problem.softcap;
  const int rows = context.pass.row_end - row_begin;
  const bool few = item_rows(args) <= kFewRows;
  const float factor = static_cast<float>(double{problem.sm_scale} * (problem.softcap == 0.0F ? 1.4426950408889634 : 1.0));
  fill(w.m, rows + 15, -__builtin_inff());
  fill(w.l, rows + 15, 0.0F);
  walk_begin(context.pass, &w.walk);
  int current = 0;
  bool more = walk_next(&w.walk, &w.tiles[0]);
  if (more) TilePrefetcher(&w.tiles[0], 1).step();
  few ? begin_groups(context, rows, factor) : begin_panels(context, rows, factor);
  while (more) {
    const Tile& tile = w.tiles[current];
    current ^= 1;
    more = walk_next(&w.walk, &w.tiles[current]);
    const Tile* const next = more ? &w.tiles[current] : nullptr;
    few ? groups_tile(context, tile, next, rows) : panels_tile(context, tile, next, rows);
  }
  few ? end_groups(context, rows) : end_panels(context, rows);
}

void run_item(const ItemArgs& args) {
  const int rows = item_rows(args);
  for (int row = 0; row < rows; row += kMaxPassRows) run_pass(args, row);
}

}  // namespace
}  // namespace headwater::cpu::HEADWATER_CPU_ISA
