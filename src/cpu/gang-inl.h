// The few-row form from queries to stored rows. The row blocks of a gang (neighbouring heads) go through each piece of a tile one after
// another, while the next piece is fetched for all of them: in a [token][head][d] cache their records of a token are one run of memory.
// Compiled per ISA.
#pragma once

#include "src/cpu/few_rows-inl.h"
#include "src/cpu/pass-inl.h"

namespace headwater::cpu::HEADWATER_CPU_ISA {
namespace {

// Bytes of a piece over the heads of a gang: with the next one on its way it stays in L2, of which a strided cache reaches a part.
constexpr int64_t kPieceBytes = int64_t{96} << 10;
constexpr int kPieceStep = 2 * kScoreBlock;
constexpr int kMaxPiece = 96;

// Where the records of each head of a gang stand in a tile.
struct GangTile {
  Tile* tile = nullptr;
  HeadOffset k[kMaxGang];
  HeadOffset v[kMaxGang];
};

struct Gang {
  const ItemArgs* args = nullptr;  // [count]
  int count = 0;
  int rows = 0;
  int stride = 4;  // of scores: lanes of a softmax
  int piece = kPieceStep;
  PassContext context;
  int q_floats = 0;
  int o_floats = 0;
  ColumnOrder o_order = ColumnOrder::kNatural;

  [[nodiscard]] float* q(int member) const { return context.workspace->q + int64_t{member} * kFewRows * q_floats; }
  [[nodiscard]] float* o(int member) const { return context.workspace->o + int64_t{member} * kFewRows * o_floats; }
  [[nodiscard]] float* m(int member) const { return context.workspace->m + member * kFewRows; }
  [[nodiscard]] float* l(int member) const { return context.workspace->l + member * kFewRows; }
};

// The lines of a tensor's records, entry after entry, all heads of the gang; returns their number with those already there.
int collect_lines(const TileRecords& records, const HeadOffset* heads, int gang, int begin, int end, const std::byte** lines, int n) {
  const int bytes = records.layout->row_bytes;
  const bool adjacent = gang == 1 || heads[1].row == bytes;
  const int runs = adjacent ? 1 : gang;
  const int64_t run_bytes = int64_t{adjacent ? gang : 1} * bytes;
  const bool scales = records.scales[begin] != nullptr;
  const int most = static_cast<int>(run_bytes / 64) + 3;  // of a run, with its scales
  for (int t = begin; t < end; ++t) {
    for (int i = 0; i < runs; ++i) {
      if (n + most > kMaxLines) return n;
      const std::byte* const first = records.row[t] + heads[i].row;
      const std::byte* const last = first + run_bytes;
      for (const std::byte* at = first - reinterpret_cast<uintptr_t>(first) % 64; at < last; at += 64) lines[n++] = at;
      if (scales) lines[n++] = records.scales[t] + heads[i].scales;
    }
  }
  return n;
}

// Deals the lines of the next piece to the steps of this one's products.
class PieceFetcher {
 public:
  // `steps` in all: calls of take add up to them.
  PieceFetcher(Lines lines, int steps) : lines_(lines), steps_(steps > 0 ? steps : 1), total_(lines.count) {}

  Lines take(int steps) {
    taken_ += steps;
    const int64_t upto = (int64_t{total_} * taken_ + steps_ - 1) / steps_;
    const int n = static_cast<int>(upto < total_ ? upto : total_) - given_;
    const Lines part{lines_.at + given_, n};
    given_ += n;
    return part;
  }

 private:
  Lines lines_;
  int steps_;
  int total_;
  int taken_ = 0;
  int given_ = 0;
};

// Entries of a piece: a function of the plan's shape and the formats, so that bits do not depend on who is in the gang.
int piece_entries(const ItemArgs& args) {
  int64_t bytes = 1;
  for (int s = 0; s < args.problem->num_sources; ++s) {
    const ResolvedSource& source = args.problem->sources[s];
    const int64_t entry = source.k.layout.row_bytes + (source.shared ? 0 : source.v.layout.row_bytes);
    bytes = entry > bytes ? entry : bytes;
  }
  const int64_t heads = args.shape->num_head_blocks < kMaxGang ? args.shape->num_head_blocks : kMaxGang;
  const int64_t entries = kPieceBytes / (heads * bytes) / kPieceStep * kPieceStep;
  return static_cast<int>(entries < kPieceStep ? kPieceStep : entries > kMaxPiece ? kMaxPiece : entries);
}

// Values whose first `columns` columns are multiplied as they are stored.
bool readable_as_stored(const formats::RecordLayout& layout, int columns) {
  if (layout.num_segments != 1) return false;
  switch (layout.segments[0].element) {
    case Type::kBf16:
      return columns % (kOrderOf<Type::kBf16> == ColumnOrder::kNatural ? kLanes : kPair) == 0;
    case Type::kF16:
    case Type::kF32:
      return columns % kLanes == 0;
    default:
      return false;
  }
}

const TileRecords& value_records(const Tile& tile) { return tile.shared ? tile.k : tile.v; }

ColumnOrder order_of(const TileRecords& values, int columns) {
  const bool bf16 = readable_as_stored(*values.layout, columns) && values.layout->segments[0].element == Type::kBf16;
  return bf16 ? kOrderOf<Type::kBf16> : ColumnOrder::kNatural;
}

// Columns of `rows` rows from the natural order to even and odd, or back.
void reorder_rows(float* rows, int count, int row_floats, int width, bool back) {
  for (int r = 0; r < count; ++r) {
    for (int begin = 0; begin + kPair <= width; begin += kPair) {
      float* const at = rows + int64_t{r} * row_floats + begin;
      float old[kPair];
      for (int c = 0; c < kPair; ++c) old[c] = at[c];
      for (int c = 0; c < kPair; ++c) {
        const int place = column_place(ColumnOrder::kEvenOdd, c);
        at[back ? c : place] = old[back ? place : c];
      }
    }
  }
}

void order_values(Gang* gang, ColumnOrder to) {
  if (to == gang->o_order) return;
  for (int i = 0; i < gang->count; ++i) {
    reorder_rows(gang->o(i), gang->rows, gang->o_floats, gang->args->problem->d_v, to == ColumnOrder::kNatural);
  }
  gang->o_order = to;
}

void begin_gang(Gang* gang) {
  const ResolvedProblem& problem = *gang->args->problem;
  Workspace& w = *gang->context.workspace;
  const float factor = static_cast<float>(double{problem.sm_scale} * (problem.softcap == 0.0F ? 1.4426950408889634 : 1.0));
  for (int i = 0; i < gang->count; ++i) {
    fill(gang->q(i), int64_t{kFewRows} * gang->q_floats, 0.0F);
    fill(gang->o(i), int64_t{kFewRows} * gang->o_floats, 0.0F);
    fill(gang->m(i), kFewRows, -__builtin_inff());
    fill(gang->l(i), kFewRows, 0.0F);
    PassContext context = gang->context;
    context.pass.args = gang->args + i;
    for (int row = 0; row < gang->rows; ++row) {
      load_query(context, row, factor);
      float* const to = gang->q(i);
      if (gang->stride == 8) {
        for (int c = 0; c < problem.d_qk; ++c) to[c * 8 + row] = w.row[c];
      } else {
        for (int c = 0; c < problem.d_qk; ++c) to[c / 2 * 8 + row * 2 + c % 2] = w.row[c];
      }
    }
  }
}

void end_gang(Gang* gang) {
  order_values(gang, ColumnOrder::kNatural);
  for (int i = 0; i < gang->count; ++i) {
    for (int row = 0; row < gang->rows; ++row) {
      store_row(gang->args[i], row, gang->o(i) + row * gang->o_floats, gang->m(i)[row], gang->l(i)[row]);
    }
  }
}

// Entries [begin, begin + count) of a tile as a tile. tokens: of the pass.
Tile cut_tile(const Tile& tile, int begin, int count, int tokens, int32_t* begins, int32_t* ends) {
  Tile piece = tile;
  piece.count = count;
  for (TileRecords* records : {&piece.k, &piece.v}) {
    records->row += begin;
    records->scales += begin;
  }
  for (int t = 0; t < tokens; ++t) {
    const int first = tile.begin[t] - begin;
    const int last = tile.end[t] - begin;
    begins[t] = first < 0 ? 0 : first > count ? count : first;
    ends[t] = last < 0 ? 0 : last > count ? count : last;
  }
  piece.begin = begins;
  piece.end = ends;
  return piece;
}

// The records of one head of the gang, for code that knows no offsets.
void shift_records(const HeadOffset& head, int count, const std::byte** rows, const std::byte** scales, TileRecords* records) {
  for (int t = 0; t < count; ++t) {
    rows[t] = records->row[t] + head.row;
    scales[t] = records->scales[t] == nullptr ? nullptr : records->scales[t] + head.scales;
  }
  records->row = rows;
  records->scales = scales;
  records->global = head.global;
}

void point_at_scratch(const float* rows, int row_floats, int count, const std::byte** pointers) {
  for (int t = 0; t < count; ++t) pointers[t] = reinterpret_cast<const std::byte*>(rows + int64_t{t} * row_floats);
}

// 16-bit records of one segment and no factor, whole vectors of them.
template <Type kType>
void widen_rows(const TileRecords& records, int count, float* HWY_RESTRICT to, int row_floats) {
  const DF d;
  const int width = records.layout->width;
  for (int t = 0; t < count; ++t, to += row_floats) {
    const std::byte* const from = records.row[t];
    for (int c = 0; c < width; c += kLanes) hn::Store(Element<kType>::load(from + element_bytes<kType>(c)), d, to + c);
  }
}

// As convert_keys.
void convert_piece_keys(const PassContext& context, TileScratch* scratch) {
  const TileRecords& k = scratch->tile->k;
  const Type element = k.layout->segments[0].element;
  const bool whole = k.layout->num_segments == 1 && k.layout->width % kStep == 0 && (!k.layout->segments[0].global || k.global == 1.0F);
  if (!whole || (element != Type::kBf16 && element != Type::kF16)) return convert_keys(context, scratch);
  scratch->k_row_floats = scratch_row_floats(k.layout->width);
  scratch->k = context.workspace->k;
  if (element == Type::kBf16) {
    widen_rows<Type::kBf16>(k, scratch->tile->count, context.workspace->k, scratch->k_row_floats);
  } else {
    widen_rows<Type::kF16>(k, scratch->tile->count, context.workspace->k, scratch->k_row_floats);
  }
}

// Records of one head in a piece, ready to be multiplied.
struct HeadRecords {
  Type type = Type::kNone;  // kNone: float32 scratch
  Records records;
};

// s [count][stride] of a head's rows.
void head_scores(const Gang& gang, const TileScratch& k, int begin, int count, const float* q, PieceFetcher* fetcher) {
  ScoreArgs args;
  args.k = k.k + int64_t{begin} * k.k_row_floats;
  args.k_row_floats = k.k_row_floats;
  args.d_qk = gang.args->problem->d_qk;
  args.q = q;
  float* const s = gang.context.workspace->s;
  alignas(64) float pairs[kScoreBlock * 8 + 16];
  for (int t = 0; t < count; t += kScoreBlock) {
    const int n = count - t < kScoreBlock ? count - t : kScoreBlock;
    if (gang.stride == 8) {
      block_scores<false>(args, t, n, nullptr, s + t * 8, fetcher->take(args.d_qk));
    } else {
      block_scores<true>(args, t, n, pairs, s + t * 4, fetcher->take(args.d_qk / 2));
    }
  }
}

using GroupValues = void (*)(const ValueArgs& args, int end, const float* p, float* o);

template <Type kType>
GroupValues group_values_for(int rows) {
  if (rows >= 3) return &group_values<kType, 4>;
  return rows == 2 ? &group_values<kType, 2> : &group_values<kType, 1>;
}

GroupValues group_values_of(Type type, int rows) {
  if (type == Type::kBf16) return group_values_for<Type::kBf16>(rows);
  if (type == Type::kF16) return group_values_for<Type::kF16>(rows);
  if (type == Type::kF32) return group_values_for<Type::kF32>(rows);
  return group_values_for<Type::kNone>(rows);
}

// Steps of a group of rows in head_values: each takes two entries.
int value_steps(int rows, int count, int d_v) { return d_v / (8 / (rows >= 3 ? 4 : rows) * kLanes) * (count / 2); }

void head_values(const Gang& gang, const HeadRecords& v, int begin, int count, float* o, PieceFetcher* fetcher) {
  ValueArgs args;
  args.v = {v.records.row + begin, v.records.offset};
  args.count = count;
  args.row_floats = gang.o_floats;
  args.stride = gang.stride;
  const float* const p = gang.context.workspace->s;
  const int d_v = gang.args->problem->d_v;
  const int padded = (d_v + kLanes - 1) / kLanes * kLanes;
  args.lines = fetcher->take(value_steps(gang.rows, count, d_v));
  group_values_of(v.type, gang.rows)(args, padded, p, o);
  if (gang.rows <= kGroupRows) return;
  const int rest = gang.rows - kGroupRows;
  args.lines = fetcher->take(value_steps(rest, count, d_v));
  group_values_of(v.type, rest)(args, padded, p + kGroupRows, o + int64_t{kGroupRows} * gang.o_floats);
}

// Steps of a piece of `count` entries, all heads.
int piece_steps(const Gang& gang, int count) {
  const ResolvedProblem& problem = *gang.args->problem;
  const int scores = (count + kScoreBlock - 1) / kScoreBlock * (gang.stride == 8 ? problem.d_qk : problem.d_qk / 2);
  const int high = gang.rows > kGroupRows ? value_steps(gang.rows - kGroupRows, count, problem.d_v) : 0;
  return gang.count * (scores + value_steps(gang.rows, count, problem.d_v) + high);
}

void scale_rows(const Gang& gang, float* o, const float* alpha) {
  const DF d;
  for (int r = 0; r < gang.rows; ++r) {
    const VF factor = hn::Set(d, alpha[r]);
    float* const at = o + int64_t{r} * gang.o_floats;
    for (int c = 0; c < gang.args->problem->d_v; c += kLanes) hn::Store(hn::Mul(hn::Load(d, at + c), factor), d, at + c);
  }
}

// One head of the gang against a piece whose records are ready.
template <int kWidth>
void head_piece(const Gang& gang, int member, TileScratch* scratch, const HeadRecords& v, PieceFetcher* fetcher) {
  const PassContext& context = gang.context;
  LaneRanges<kWidth> ranges;
  find_lane_ranges(context.pass, *scratch->tile, context.pass.row_begin, &ranges);
  if (ranges.begin >= ranges.end) return;
  const int count = ranges.end - ranges.begin;
  float* const o = gang.o(member);
  head_scores(gang, *scratch, ranges.begin, count, gang.q(member), fetcher);
  alignas(64) float alpha[kWidth];
  float* const s = context.workspace->s;
  const SoftmaxResult result = softmax<kWidth>(context.softcap, ranges, count, s, gang.m(member), gang.l(member), alpha);
  if (result.grew) scale_rows(gang, o, alpha);
  if (result.unseen) {
    const int d_v = gang.args->problem->d_v;
    if (scratch->v == nullptr) convert_values(context, scratch);
    if (has_nonfinite_values(scratch, d_v)) {
      return exact_group_values(*scratch, ranges.begin, count, gang.rows, d_v, s, gang.stride, o, gang.o_floats, gang.o_order);
    }
  }
  head_values(gang, v, ranges.begin, count, o, fetcher);
}

// Entries [begin, begin + count) of a tile against every head of the gang.
void gang_piece(const Gang& gang, const GangTile& from, int begin, int count, PieceFetcher* fetcher) {
  Workspace& w = *gang.context.workspace;
  int32_t begins[kFewRows];
  int32_t ends[kFewRows];
  const Tile common = cut_tile(*from.tile, begin, count, gang.context.pass.token_end - gang.context.pass.token_begin, begins, ends);
  const bool stored = readable_as_stored(*value_records(common).layout, gang.args->problem->d_v);
  for (int i = 0; i < gang.count; ++i) {
    Tile tile = common;
    const std::byte* v_rows[kMaxPiece];
    shift_records(from.k[i], count, w.k_rows, w.k_scales, &tile.k);
    if (!tile.shared) shift_records(from.v[i], count, w.v_rows, w.v_scales, &tile.v);
    TileScratch scratch;
    scratch.tile = &tile;
    convert_piece_keys(gang.context, &scratch);
    HeadRecords v{Type::kNone, {v_rows, 0}};
    if (stored) {
      const TileRecords& records = value_records(tile);
      v = {records.layout->segments[0].element, {records.row, 0}};
    } else {
      if (tile.shared) {
        scratch.v = scratch.k;
        scratch.v_row_floats = scratch.k_row_floats;
      } else {
        convert_values(gang.context, &scratch);
      }
      point_at_scratch(scratch.v, scratch.v_row_floats, count, v_rows);
    }
    if (gang.stride == 8) {
      head_piece<8>(gang, i, &scratch, v, fetcher);
    } else {
      head_piece<4>(gang, i, &scratch, v, fetcher);
    }
  }
}

bool next_tile(const Gang& gang, Tile* tile, GangTile* from) {
  if (!walk_next(&gang.context.workspace->walk, tile)) return false;
  from->tile = tile;
  for (int i = 0; i < gang.count; ++i) {
    from->k[i] = head_offset(gang.args[i], tile->source, false, gang.args->item.head_block);
    from->v[i] = head_offset(gang.args[i], tile->source, true, gang.args->item.head_block);
  }
  return true;
}

// Lines of entries [begin, begin + count) of a tile, which may be null.
Lines piece_lines(const Gang& gang, const GangTile* from, int begin, int count) {
  const std::byte** const lines = gang.context.workspace->lines;
  if (from == nullptr) return {lines, 0};
  int n = collect_lines(from->tile->k, from->k, gang.count, begin, begin + count, lines, 0);
  if (!from->tile->shared) n = collect_lines(from->tile->v, from->v, gang.count, begin, begin + count, lines, n);
  return {lines, n};
}

void run_gang(const ItemArgs* args, int count) {
  const ResolvedProblem& problem = *args->problem;
  Workspace w;
  carve_workspace(*args->shape, problem.d_qk, problem.d_v, args->workspace, &w);
  Gang gang;
  gang.args = args;
  gang.count = count;
  gang.rows = item_rows(*args);
  gang.stride = gang.rows > kGroupRows ? 8 : 4;
  gang.piece = piece_entries(*args);
  gang.q_floats = scratch_row_floats(problem.d_qk);
  gang.o_floats = scratch_row_floats(problem.d_v);
  gang.context.pass = make_pass(*args, 0);
  gang.context.workspace = &w;
  gang.context.softcap = problem.softcap;
  walk_begin(gang.context.pass, &w.walk);
  GangTile tiles[2];
  int current = 0;
  const auto length = [&](const GangTile& t, int begin) { return t.tile->count - begin < gang.piece ? t.tile->count - begin : gang.piece; };
  bool more = next_tile(gang, &w.tiles[0], &tiles[0]);
  if (more) {
    const Lines first = piece_lines(gang, &tiles[0], 0, length(tiles[0], 0));
    for (int i = 0; i < first.count; ++i) fetch_line(first.at[i]);
  }
  begin_gang(&gang);
  while (more) {
    const GangTile& tile = tiles[current];
    current ^= 1;
    more = next_tile(gang, &w.tiles[current], &tiles[current]);
    order_values(&gang, order_of(value_records(*tile.tile), problem.d_v));
    for (int begin = 0; begin < tile.tile->count; begin += gang.piece) {
      const int n = length(tile, begin);
      const bool inside = begin + n < tile.tile->count;
      const GangTile* const next = inside ? &tile : more ? &tiles[current] : nullptr;
      const int next_begin = inside ? begin + n : 0;
      const Lines next_lines = piece_lines(gang, next, next_begin, next == nullptr ? 0 : length(*next, next_begin));
      PieceFetcher fetcher(next_lines, piece_steps(gang, n));
      gang_piece(gang, tile, begin, n, &fetcher);
    }
  }
  end_gang(&gang);
}

}  // namespace
}  // namespace headwater::cpu::HEADWATER_CPU_ISA
