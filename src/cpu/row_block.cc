#include "src/cpu/row_block.h"

#include <algorithm>
#include <cassert>
#include <limits>

#include "src/cpu/output.h"

namespace headwater::cpu {
namespace {

float canonical(float x) { return x != x ? std::numeric_limits<float>::quiet_NaN() : x; }

int32_t first_head(const ItemArgs& args) { return args.item.head_block * args.shape->head_block; }

// Tile `tile` (of the source) cut to what the rows of the pass see: entries [first, last), and every token's part relative to first.
bool clip_tokens(const TileWalk& walk, int64_t tile, Tile* out, int64_t* first, int64_t* last) {
  const int64_t tile_entries = walk.pass.args->shape->tile_entries;
  const int64_t low = std::max(walk.span.begin, tile * tile_entries);
  const int64_t high = std::min(walk.span.end, (tile + 1) * tile_entries);
  const int32_t tokens = walk.pass.token_end - walk.pass.token_begin;
  *first = high;
  *last = low;
  for (int32_t t = 0; t < tokens; ++t) {
    const int64_t begin = std::max(low, walk.token_begin[t]);
    const int64_t end = std::min(high, walk.token_end[t]);
    if (begin >= end) continue;
    *first = std::min(*first, begin);
    *last = std::max(*last, end);
  }
  if (*first >= *last) return false;
  for (int32_t t = 0; t < tokens; ++t) {
    const int64_t begin = std::clamp(walk.token_begin[t], *first, *last);
    out->begin[t] = static_cast<int32_t>(begin - *first);
    out->end[t] = static_cast<int32_t>(std::clamp(walk.token_end[t], begin, *last) - *first);
  }
  return true;
}

// Rows of one page follow each other by strides: one address computation a page.
void append_run(const ResolvedSource& source, const ResolvedTensor& tensor, int64_t slot, int32_t head, int32_t at, int32_t run,
                TileRecords* records) {
  const formats::RowRef ref = record_at(source, tensor, slot, head);
  records->scale_block_stride = ref.scale_block_stride;
  const int64_t scale_step = tensor.layout.tail_bytes > 0 ? tensor.layout.tail_bytes : tensor.scale_row_stride;
  for (int32_t i = 0; i < run; ++i) {
    records->row[at + i] = ref.row + i * tensor.row_stride;
    records->scales[at + i] = ref.scales == nullptr ? nullptr : ref.scales + i * scale_step;
  }
}

void append_entries(const ResolvedSource& source, int64_t slot, int32_t head, int32_t run, Tile* tile) {
  append_run(source, source.k, slot, head, tile->count, run, &tile->k);
  if (!source.shared) append_run(source, source.v, slot, head, tile->count, run, &tile->v);
  tile->count += run;
}

void collect_interval(const ResolvedSource& source, int64_t request, int32_t head, int64_t first, int64_t last, Tile* tile) {
  if (source.addressing == AddressingKind::kRagged) {
    append_entries(source, source_slot(source, request, first), head, static_cast<int32_t>(last - first), tile);
    return;
  }
  for (int64_t j = first; j < last;) {
    const int64_t run = std::min(last - j, source.page_size - j % source.page_size);
    append_entries(source, source_slot(source, request, j), head, static_cast<int32_t>(run), tile);
    j += run;
  }
}

void collect_listed(const ResolvedSource& source, int64_t request, int64_t row, int32_t head, int64_t first, int64_t last, Tile* tile) {
  for (int64_t i = first; i < last; ++i) {
    const int64_t slot = gathered_slot(source, request, row, i);
    if (slot >= 0) append_entries(source, slot, head, 1, tile);
  }
}

// Source s of the walk: what each token of the pass sees of it.
void enter_source(TileWalk* walk) {
  const ItemArgs& args = *walk->pass.args;
  const plan::RequestLengths& lengths = *args.lengths;
  const int32_t s = walk->source;
  walk->source_begin = walk->source_end;
  walk->span = plan::source_tiles(*args.shape, lengths, s, args.item.token_begin, args.item.token_count);
  walk->source_end = walk->source_begin + static_cast<int32_t>(walk->span.num_tiles);
  if (walk->source_end <= args.item.tile_begin || walk->span.num_tiles == 0) return;
  const plan::SourceRules& rules = args.shape->sources[s];
  for (int32_t t = walk->pass.token_begin; t < walk->pass.token_end; ++t) {
    EntryRange range{walk->span.begin, walk->span.end};
    if (rules.rule != RuleKind::kGathered) {
      const int64_t position = lengths.context_len - lengths.q_len + args.item.token_begin + t;
      range = visible_range(rules.rule, rules.window_left, rules.ratio, lengths.first_position[s], lengths.position_stride[s],
                            lengths.kv_len[s], position);
    }
    walk->token_begin[t - walk->pass.token_begin] = range.begin;
    walk->token_end[t - walk->pass.token_begin] = range.end;
  }
}

void describe_records(const ResolvedTensor& tensor, int32_t head, TileRecords* records) {
  records->layout = &tensor.layout;
  records->global = canonical(tensor_scale(tensor, head));
  records->scale_block_stride = 0;
}

}  // namespace

size_t carve_workspace(const plan::PlanShape& shape, int32_t d_qk, int32_t d_v, std::byte* base, Workspace* workspace) {
  size_t at = 0;
  auto take = [&](size_t bytes) {
    std::byte* const p = base == nullptr ? nullptr : base + at;
    at += (bytes + 63) / 64 * 64;
    return p;
  };
  auto floats = [&](size_t count) { return reinterpret_cast<float*>(take(count * sizeof(float))); };
  const auto tile = static_cast<size_t>(shape.tile_entries);
  const int32_t block_rows = shape.tokens_per_block * shape.head_block;
  const auto rows = static_cast<size_t>(std::max(std::min(block_rows, kMaxPassRows), kMaxGang * kFewRows) + 15) / 16 * 16;
  const auto tokens = static_cast<size_t>(shape.tokens_per_block);
  const auto q_floats = static_cast<size_t>(scratch_row_floats(d_qk));
  const auto v_floats = static_cast<size_t>(scratch_row_floats(d_v));
  workspace->q = floats(rows * q_floats);
  workspace->o = floats(rows * v_floats);
  workspace->k = floats(tile * q_floats);
  workspace->v = floats(tile * v_floats);
  workspace->s = floats(tile * 16);
  workspace->m = floats(kMaxPassRows + 16);
  workspace->l = floats(kMaxPassRows + 16);
  workspace->row = floats(static_cast<size_t>(scratch_row_floats(kMaxWidth)));
  workspace->k_rows = reinterpret_cast<const std::byte**>(take(tile * sizeof(std::byte*)));
  workspace->v_rows = reinterpret_cast<const std::byte**>(take(tile * sizeof(std::byte*)));
  workspace->k_scales = reinterpret_cast<const std::byte**>(take(tile * sizeof(std::byte*)));
  workspace->v_scales = reinterpret_cast<const std::byte**>(take(tile * sizeof(std::byte*)));
  workspace->lines = reinterpret_cast<const std::byte**>(take(kMaxLines * sizeof(std::byte*)));
  workspace->walk.token_begin = reinterpret_cast<int64_t*>(take(tokens * sizeof(int64_t)));
  workspace->walk.token_end = reinterpret_cast<int64_t*>(take(tokens * sizeof(int64_t)));
  for (Tile& t : workspace->tiles) {
    for (TileRecords* records : {&t.k, &t.v}) {
      records->row = reinterpret_cast<const std::byte**>(take(tile * sizeof(std::byte*)));
      records->scales = reinterpret_cast<const std::byte**>(take(tile * sizeof(std::byte*)));
    }
    t.begin = reinterpret_cast<int32_t*>(take(tokens * sizeof(int32_t)));
    t.end = reinterpret_cast<int32_t*>(take(tokens * sizeof(int32_t)));
  }
  return at;
}

size_t workspace_bytes(const plan::PlanShape& shape, int32_t d_qk, int32_t d_v) {
  Workspace workspace;
  return carve_workspace(shape, d_qk, d_v, nullptr, &workspace);
}

int32_t item_rows(const ItemArgs& args) { return args.item.token_count * args.shape->head_block; }

RowPass make_pass(const ItemArgs& args, int32_t row_begin) {
  RowPass pass;
  pass.args = &args;
  pass.row_begin = row_begin;
  pass.row_end = std::min(item_rows(args), row_begin + kMaxPassRows);
  pass.token_begin = row_begin / args.shape->head_block;
  pass.token_end = (pass.row_end - 1) / args.shape->head_block + 1;
  return pass;
}

void walk_begin(const RowPass& pass, TileWalk* walk) {
  walk->pass = pass;
  walk->source = -1;
  walk->source_begin = 0;
  walk->source_end = 0;
  walk->next = pass.args->item.tile_begin;
}

bool walk_next(TileWalk* walk, Tile* tile) {
  const ItemArgs& args = *walk->pass.args;
  for (; walk->next < args.item.tile_end; ++walk->next) {
    while (walk->next >= walk->source_end) {
      if (++walk->source >= args.problem->num_sources) return false;
      enter_source(walk);
    }
    int64_t first = 0;
    int64_t last = 0;
    if (!clip_tokens(*walk, walk->span.tile_first + walk->next - walk->source_begin, tile, &first, &last)) continue;
    const ResolvedSource& source = args.problem->sources[walk->source];
    const int32_t head = first_head(args) / source.group;
    tile->count = 0;
    tile->source = walk->source;
    tile->shared = source.shared;
    describe_records(source.k, head, &tile->k);
    if (!source.shared) describe_records(source.v, head, &tile->v);
    if (source.rule == RuleKind::kGathered) {
      assert(walk->pass.token_end - walk->pass.token_begin == 1);
      const int64_t row = args.lengths->q_begin + args.item.token_begin + walk->pass.token_begin;
      collect_listed(source, args.item.request, row, head, first, last, tile);
      tile->begin[0] = 0;
      tile->end[0] = tile->count;
    } else {
      collect_interval(source, args.item.request, head, first, last, tile);
    }
    if (tile->count == 0) continue;
    ++walk->next;
    return true;
  }
  return false;
}

HeadOffset head_offset(const ItemArgs& args, int32_t source, bool value, int32_t from) {
  const ResolvedSource& s = args.problem->sources[source];
  const ResolvedTensor& tensor = value && !s.shared ? s.v : s.k;
  const int32_t head = first_head(args) / s.group;
  const int64_t distance = head - from * args.shape->head_block / s.group;
  return {distance * tensor.head_stride, tensor.scales == nullptr ? 0 : distance * tensor.scale_head_stride,
          canonical(tensor_scale(tensor, head))};
}

QueryRow query_row(const ItemArgs& args, int32_t row) {
  const ResolvedProblem& p = *args.problem;
  const int64_t token = args.lengths->q_begin + args.item.token_begin + row / args.shape->head_block;
  const int64_t head = first_head(args) + row % args.shape->head_block;
  QueryRow q;
  q.head = p.q + token * p.q_row_stride + head * p.q_head_stride;
  if (p.q_tail_width > 0) q.tail = p.q_tail + token * p.q_tail_row_stride + head * p.q_tail_head_stride;
  if (p.q_scale == nullptr) {
    q.scale = canonical(p.q_scale_value);
  } else {
    q.scale = canonical(p.q_scale_per_row ? p.q_scale[token * p.q_scale_row_stride + head * p.q_scale_head_stride] : *p.q_scale);
  }
  return q;
}

void store_row(const ItemArgs& args, int32_t row, const float* o, float m, float l) {
  const int32_t token = row / args.shape->head_block;
  const int32_t head = row % args.shape->head_block;
  if (args.item.partial < 0) {
    const RowPlace place{args.item.request, args.lengths->q_begin, args.item.token_begin + token, first_head(args) + head};
    finish_row(*args.problem, place, o, m, l);
    return;
  }
  const int64_t d_v = args.problem->d_v;
  std::copy_n(o, d_v, args.partial.o + row * d_v);
  args.partial.m[row] = l != l ? l : m;  // a NaN score must survive a merge that looks at m alone
  args.partial.l[row] = l;
}

}  // namespace headwater::cpu
