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
constexpr int kPieceStep = 24;  // entries: whole blocks of 1, 2, 3, 4, 8
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
  ColumnOrder q_order = ColumnOrder::kNatural;
  ColumnOrder o_order = ColumnOrder::kNatural;

  [[nodiscard]] float* q(int member) const { return context.workspace->q + int64_t{member} * kFewRows * q_floats; }
  [[nodiscard]] float* o(int member) const { return context.workspace->o + int64_t{member} * kFewRows * o_floats; }
  [[nodiscard]] float* m(int member) const { return context.workspace->m + member * kFewRows; }
  [[nodiscard]] float* l(int member) const { return context.workspace->l + member * kFewRows; }
};

// Fetches the records of all heads of a gang in entries [begin, begin + count) of a tile, spread over calls of step.
class PiecePrefetcher {
 public:
  PiecePrefetcher(const Gang& gang, const GangTile* next, int begin, int count, int steps) {
    if (next == nullptr) return;
    begin_ = begin;
    end_ = begin + count;
    add_part(next->tile->k, next->k, gang.count);
    if (!next->tile->shared) add_part(next->tile->v, next->v, gang.count);
    int lines = 0;
    for (int i = 0; i < num_parts_; ++i) lines += count * parts_[i].runs * parts_[i].lines;
    per_step_ = lines / (steps > 0 ? steps : 1) + 1;
    row_ = begin;
    enter_run();
  }

  void step() {
    for (int i = 0; i < per_step_ && part_ < num_parts_; ++i) {
      __builtin_prefetch(at_, 0, 2);  // to L2: a piece is larger than L1
      at_ += 64;
      if (++line_ < parts_[part_].lines) continue;
      leave_run();
    }
  }

 private:
  struct Part {
    const TileRecords* records = nullptr;
    const HeadOffset* heads = nullptr;
    int runs = 0;   // of memory in an entry
    int lines = 0;  // of a run, one more than it fills if it may begin inside a line
    bool scales = false;
  };

  void add_part(const TileRecords& records, const HeadOffset* heads, int gang) {
    const int bytes = records.layout->row_bytes;
    const bool adjacent = gang == 1 || heads[1].row == bytes;
    Part& part = parts_[num_parts_++];
    part = {&records, heads, adjacent ? 1 : gang, (adjacent ? gang : 1) * bytes, records.scales[begin_] != nullptr};
    part.lines = (part.lines + 63) / 64 + (part.lines % 64 != 0 ? 1 : 0);
  }

  void enter_run() {
    const Part& part = parts_[part_];
    at_ = part.records->row[row_] + part.heads[run_].row;
    line_ = 0;
    if (part.scales) __builtin_prefetch(part.records->scales[row_] + part.heads[run_].scales, 0, 2);
  }

  void leave_run() {
    if (++run_ == parts_[part_].runs) {
      run_ = 0;
      if (++row_ == end_) {
        row_ = begin_;
        if (++part_ == num_parts_) return;
      }
    }
    enter_run();
  }

  Part parts_[2];
  int num_parts_ = 0;
  int part_ = 0;
  int begin_ = 0;
  int end_ = 0;
  int row_ = 0;
  int run_ = 0;
  int line_ = 0;
  int per_step_ = 0;
  const std::byte* at_ = nullptr;
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

bool readable_as_stored(const formats::RecordLayout& layout) {
  if (layout.num_segments != 1) return false;
  switch (layout.segments[0].element) {
    case Type::kBf16:
      return layout.width % (kOrderOf<Type::kBf16> == ColumnOrder::kNatural ? kLanes : kPair) == 0;
    case Type::kF16:
    case Type::kF32:
      return layout.width % kLanes == 0;
    default:
      return false;
  }
}

ColumnOrder order_of(const TileRecords& records) {
  const bool bf16 = readable_as_stored(*records.layout) && records.layout->segments[0].element == Type::kBf16;
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

void order_rows(const Gang& gang, bool values, ColumnOrder to, ColumnOrder* now) {
  if (to == *now) return;
  const ResolvedProblem& problem = *gang.args->problem;
  for (int i = 0; i < gang.count; ++i) {
    reorder_rows(values ? gang.o(i) : gang.q(i), gang.rows, values ? gang.o_floats : gang.q_floats, values ? problem.d_v : problem.d_qk,
                 to == ColumnOrder::kNatural);
  }
  *now = to;
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
      float* const to = gang->q(i) + row * gang->q_floats;
      for (int c = 0; c < problem.d_qk; ++c) to[c] = w.row[c];
    }
  }
}

void end_gang(Gang* gang) {
  order_rows(*gang, true, ColumnOrder::kNatural, &gang->o_order);
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

// Records of one head in a piece, ready to be multiplied.
struct HeadRecords {
  Type type = Type::kNone;  // kNone: float32 scratch
  Records records;
};

using DotTokens = void (*)(const ScoreArgs& args, int token, const float* q, float* s);
struct ScoreKernels {
  DotTokens block;  // kGroupTokens<4> records: both groups of a head block go through them while they are in L1
  DotTokens one;
};

template <Type kType, int kTokens>
DotTokens dot_of(int rows) {
  if (rows >= 3) return &dot_tokens<kType, 4, kTokens>;
  return rows == 2 ? &dot_tokens<kType, 2, kTokens> : &dot_tokens<kType, 1, kTokens>;
}

template <Type kType>
ScoreKernels score_kernels(int rows, int tokens) {
  if (tokens == kGroupTokens<4>) return {dot_of<kType, kGroupTokens<4>>(rows), dot_of<kType, 1>(rows)};
  if (tokens == kGroupTokens<2>) return {&dot_tokens<kType, 2, kGroupTokens<2>>, &dot_tokens<kType, 2, 1>};
  return {&dot_tokens<kType, 1, kGroupTokens<1>>, &dot_tokens<kType, 1, 1>};
}

ScoreKernels score_kernels_of(Type type, int rows, int tokens) {
  if (type == Type::kBf16) return score_kernels<Type::kBf16>(rows, tokens);
  if (type == Type::kF16) return score_kernels<Type::kF16>(rows, tokens);
  if (type == Type::kF32) return score_kernels<Type::kF32>(rows, tokens);
  return score_kernels<Type::kNone>(rows, tokens);
}

// s [count][stride] of a head's rows.
void head_scores(const Gang& gang, const HeadRecords& k, int begin, int count, const float* q, PiecePrefetcher* prefetcher) {
  ScoreArgs args;
  args.k = {k.records.row + begin, k.records.offset};
  args.d_qk = gang.args->problem->d_qk;
  args.row_floats = gang.q_floats;
  args.stride = gang.stride;
  float* const s = gang.context.workspace->s;
  const int rows = gang.rows;
  const int tokens = rows >= 3 ? kGroupTokens<4> : rows == 2 ? kGroupTokens<2> : kGroupTokens<1>;
  const ScoreKernels low = score_kernels_of(k.type, rows, tokens);
  const bool two = rows > kGroupRows;
  const ScoreKernels high = two ? score_kernels_of(k.type, rows - kGroupRows, tokens) : low;
  const float* const q_high = q + int64_t{kGroupRows} * gang.q_floats;
  int t = 0;
  for (; t + tokens <= count; t += tokens) {
    prefetcher->step();
    low.block(args, t, q, s + t * gang.stride);
    if (two) high.block(args, t, q_high, s + t * gang.stride + kGroupRows);
  }
  for (; t < count; ++t) {
    low.one(args, t, q, s + t * gang.stride);
    if (two) high.one(args, t, q_high, s + t * gang.stride + kGroupRows);
  }
}

using GroupValues = void (*)(const ValueArgs& args, int begin, int end, const float* p, float* o);

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

constexpr int kValueColumns = 4 * kPair;  // between two steps of the prefetcher

void head_values(const Gang& gang, const HeadRecords& v, int begin, int count, float* o, PiecePrefetcher* prefetcher) {
  ValueArgs args;
  args.v = {v.records.row + begin, v.records.offset};
  args.count = count;
  args.row_floats = gang.o_floats;
  args.stride = gang.stride;
  const float* const p = gang.context.workspace->s;
  const int d_v = gang.args->problem->d_v;
  const int padded = (d_v + kLanes - 1) / kLanes * kLanes;
  const GroupValues low = group_values_of(v.type, gang.rows);
  for (int c = 0; c < padded; c += kValueColumns) {
    const int end = padded - c < kValueColumns ? padded : c + kValueColumns;
    prefetcher->step();
    low(args, c, end, p, o);
    if (gang.rows > kGroupRows) {
      group_values_of(v.type, gang.rows - kGroupRows)(args, c, end, p + kGroupRows, o + int64_t{kGroupRows} * gang.o_floats);
    }
  }
}

int prefetch_steps(const Gang& gang, int count) {
  const int tokens = gang.rows >= 3 ? kGroupTokens<4> : gang.rows == 2 ? kGroupTokens<2> : kGroupTokens<1>;
  return gang.count * (count / tokens + (gang.args->problem->d_v + kValueColumns - 1) / kValueColumns);
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
void head_piece(const Gang& gang, int member, TileScratch* scratch, const HeadRecords& k, const HeadRecords& v,
                PiecePrefetcher* prefetcher) {
  const PassContext& context = gang.context;
  LaneRanges<kWidth> ranges;
  find_lane_ranges(context.pass, *scratch->tile, context.pass.row_begin, &ranges);
  if (ranges.begin >= ranges.end) return;
  const int count = ranges.end - ranges.begin;
  float* const o = gang.o(member);
  head_scores(gang, k, ranges.begin, count, gang.q(member), prefetcher);
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
  head_values(gang, v, ranges.begin, count, o, prefetcher);
}

// Entries [begin, begin + count) of a tile against every head of the gang.
void gang_piece(const Gang& gang, const GangTile& from, int begin, int count, PiecePrefetcher* prefetcher) {
  Workspace& w = *gang.context.workspace;
  int32_t begins[kFewRows];
  int32_t ends[kFewRows];
  const Tile common = cut_tile(*from.tile, begin, count, gang.context.pass.token_end - gang.context.pass.token_begin, begins, ends);
  const bool k_stored = readable_as_stored(*common.k.layout);
  const bool v_stored = common.shared ? k_stored : readable_as_stored(*common.v.layout);
  for (int i = 0; i < gang.count; ++i) {
    Tile tile = common;
    const std::byte* k_rows[kMaxPiece];
    const std::byte* v_rows[kMaxPiece];
    shift_records(from.k[i], count, w.k_rows, w.k_scales, &tile.k);
    if (!tile.shared) shift_records(from.v[i], count, w.v_rows, w.v_scales, &tile.v);
    TileScratch scratch;
    scratch.tile = &tile;
    HeadRecords k{Type::kNone, {k_rows, 0}};
    if (k_stored) {
      k = {tile.k.layout->segments[0].element, {tile.k.row, 0}};
    } else {
      convert_keys(gang.context, &scratch);
      point_at_scratch(scratch.k, scratch.k_row_floats, count, k_rows);
      if (tile.shared) {
        scratch.v = scratch.k;
        scratch.v_row_floats = scratch.k_row_floats;
      }
    }
    HeadRecords v{Type::kNone, {v_rows, 0}};
    if (tile.shared) {
      v = k;
    } else if (v_stored) {
      v = {tile.v.layout->segments[0].element, {tile.v.row, 0}};
    } else {
      convert_values(gang.context, &scratch);
      point_at_scratch(scratch.v, scratch.v_row_floats, count, v_rows);
    }
    if (gang.stride == 8) {
      head_piece<8>(gang, i, &scratch, k, v, prefetcher);
    } else {
      head_piece<4>(gang, i, &scratch, k, v, prefetcher);
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
  if (more) PiecePrefetcher(gang, &tiles[0], 0, length(tiles[0], 0), 1).step();
  begin_gang(&gang);
  while (more) {
    const GangTile& tile = tiles[current];
    current ^= 1;
    more = next_tile(gang, &w.tiles[current], &tiles[current]);
    order_rows(gang, false, order_of(tile.tile->k), &gang.q_order);
    order_rows(gang, true, order_of(tile.tile->shared ? tile.tile->k : tile.tile->v), &gang.o_order);
    for (int begin = 0; begin < tile.tile->count; begin += gang.piece) {
      const int n = length(tile, begin);
      const bool inside = begin + n < tile.tile->count;
      const GangTile* const next = inside ? &tile : more ? &tiles[current] : nullptr;
      const int next_begin = inside ? begin + n : 0;
      PiecePrefetcher prefetcher(gang, next, next_begin, next == nullptr ? 0 : length(*next, next_begin), prefetch_steps(gang, n));
      gang_piece(gang, tile, begin, n, &prefetcher);
    }
  }
  end_gang(&gang);
}

}  // namespace
}  // namespace headwater::cpu::HEADWATER_CPU_ISA
