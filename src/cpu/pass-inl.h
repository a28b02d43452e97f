// What both compute forms do around their products: queries in, tiles converted to float32. Compiled per ISA.
#pragma once

#include "src/cpu/softmax-inl.h"

namespace headwater::cpu::HEADWATER_CPU_ISA {
namespace {

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

}  // namespace
}  // namespace headwater::cpu::HEADWATER_CPU_ISA
