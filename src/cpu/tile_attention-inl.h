// A work item from queries to stored rows: passes over its tiles, each tile converted once and shared by all rows of the pass. Included by
// one file per ISA, which defines HEADWATER_CPU_ISA. Everything is in an unnamed namespace inside that ISA's own: nothing compiled with the
// ISA's flags can be picked by the linker for anyone else (tools/check_isa_symbols.sh).
#pragma once

#include "src/cpu/gang-inl.h"
#include "src/cpu/panel-inl.h"

namespace headwater::cpu::HEADWATER_CPU_ISA {
namespace {

// Lanes of the panel that begins at `panel_row` of a pass of `rows` rows.
HWY_INLINE int panel_width(int rows, int panel_row) { return rows - panel_row > 8 ? 16 : 8; }

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

void run_pass(const ItemArgs& args, int row_begin) {
  const ResolvedProblem& problem = *args.problem;
  Workspace w;
  carve_workspace(*args.shape, problem.d_qk, problem.d_v, args.workspace, &w);
  PassContext context;
  context.pass = make_pass(args, row_begin);
  context.workspace = &w;
  context.softcap = problem.softcap;
  const int rows = context.pass.row_end - row_begin;
  const float factor = static_cast<float>(double{problem.sm_scale} * (problem.softcap == 0.0F ? 1.4426950408889634 : 1.0));
  fill(w.m, rows + 15, -__builtin_inff());
  fill(w.l, rows + 15, 0.0F);
  walk_begin(context.pass, &w.walk);
  int current = 0;
  bool more = walk_next(&w.walk, &w.tiles[0]);
  if (more) TilePrefetcher(&w.tiles[0], 1).step();
  begin_panels(context, rows, factor);
  while (more) {
    const Tile& tile = w.tiles[current];
    current ^= 1;
    more = walk_next(&w.walk, &w.tiles[current]);
    const Tile* const next = more ? &w.tiles[current] : nullptr;
    panels_tile(context, tile, next, rows);
  }
  end_panels(context, rows);
}

void run_items(const ItemArgs* args, int32_t count) {
  const int rows = item_rows(*args);
  if (rows <= kFewRows) return run_gang(args, count);
  for (int row = 0; row < rows; row += kMaxPassRows) run_pass(*args, row);
}

}  // namespace
}  // namespace headwater::cpu::HEADWATER_CPU_ISA
