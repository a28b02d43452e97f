// Recipes that the contract promises in place of features of their own: chunked prefill, trees of drafts, ring buffers, context
// parallelism, cascades.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cli/check/runner.h"
#include "cli/check/tolerance.h"
#include "tests/conformance/simple.h"

namespace headwater::conformance {
namespace {

float wave(int64_t row, int32_t h, int32_t c) {
  return std::sin(0.37F * static_cast<float>(row * 13 + h * 5) + 0.9F * static_cast<float>(c));
}
Values waves(int64_t shift = 0) {
  return [shift](int64_t b, int64_t j, int32_t h, int32_t c) { return 2.0F * wave(shift + b * 1000 + j, h, c); };
}

// Rows of two results that stand for the same queries.
void expect_same(const Simple& got, int64_t got_row, const Simple& want, int64_t want_row, double tolerance, const std::string& what) {
  for (int32_t h = 0; h < got.heads; ++h) {
    EXPECT_NEAR(got.lse(got_row, h), want.lse(want_row, h), tolerance) << what << ", row " << want_row;
    for (int32_t c = 0; c < got.d_v; ++c) {
      ASSERT_NEAR(got.out(got_row, h, c), want.out(want_row, h, c), tolerance) << what << ", row " << want_row;
    }
  }
}

// ---- chunked prefill -----------------------------------------------------------------------------------------------------------

// One DeepSeek-V4 layer's sources for `tokens` tokens of context: a window over the tokens and a compressed source of the blocks.
void add_layer(Simple* s, int32_t tokens, int32_t ratio, int32_t window_left) {
  SimpleSource window;
  window.kv_lens = {tokens};
  window.page_size = 16;
  window.rule = window_left < 0 ? Rule::causal() : Rule::window(window_left);
  window.shared = true;
  window.k = waves();
  s->add(window);
  if (ratio == 0) return;
  SimpleSource blocks;
  blocks.kv_lens = {tokens / ratio};
  blocks.page_size = 2;
  blocks.rule = Rule::compressed(ratio);
  blocks.shared = true;
  blocks.k = waves(500);
  s->add(blocks);
}

TEST(Recipes, B12_B22_ChunkedPrefillEqualsOneShotForEveryLayerType) {
  constexpr int32_t kTokens = 150;
  struct Layer {
    int32_t ratio, window_left;
  };
  for (const Layer layer : {Layer{0, -1}, Layer{0, 20}, Layer{4, 20}, Layer{128, 20}}) {
    Simple whole;
    whole.heads = 2;
    whole.q_lens = {kTokens};
    whole.context_lens = {kTokens};
    whole.q = wave;
    add_layer(&whole, kTokens, layer.ratio, layer.window_left);
    whole.expect_oracle("one shot");
    for (const int32_t cut : {1, 63, 64, 127, 130, 149}) {  // 63, 127, 130: inside a compression block
      for (int32_t begin = 0, end = cut; begin < kTokens; begin = end, end = kTokens) {
        Simple chunk;
        chunk.heads = 2;
        chunk.q_lens = {end - begin};
        chunk.context_lens = {end};
        chunk.q = [begin](int64_t row, int32_t h, int32_t c) { return wave(begin + row, h, c); };
        add_layer(&chunk, end, layer.ratio, layer.window_left);
        chunk.attend_ok();
        for (int32_t i = begin; i < end; ++i) expect_same(chunk, i - begin, whole, i, 2e-5, "cut at " + std::to_string(cut));
      }
    }
  }
}

TEST(Recipes, B23_ReusedPrefixReadsBackWithTheWritersScale) {
  // 64 entries appended at once, or 32 and then 32 more, in e4m3 with a scale: the same bytes and the same answer.
  std::vector<float> rows(64 * 8);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = wave(static_cast<int64_t>(i) / 8, 0, static_cast<int32_t>(i % 8)) * 30;
  std::vector<int64_t> slots(64);
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
  std::vector<std::vector<std::byte>> results;
  for (const int64_t first : {64, 32}) {
    Simple s;
    s.q = wave;
    SimpleSource kv;
    kv.kv_lens = {64};
    kv.k_format = Format::kE4m3;
    kv.shared = true;
    kv.k_scale = Scale::constant(0.25F);
    kv.k = constant(0.0F);
    s.add(kv);
    for (int64_t at = 0; at < 64; at += first) {
      AppendRows append_rows;
      append_rows.k = rows.data() + at * 8;
      append_rows.type = Type::kF32;
      append_rows.count = first;
      ASSERT_TRUE(append(s.source(), append_rows, slots.data() + at).ok());
    }
    s.expect_oracle("after append");
    results.push_back(s.out_bytes());
  }
  EXPECT_EQ(results[0], results[1]);
}

// ---- trees of drafts -------------------------------------------------------------------------------------------------------------

TEST(Recipes, B20_TreeOfDraftsIsAFullPrefixAndAGatheredSource) {
  // Prefix of 6; drafts a, b are siblings at position 6; c is a's child. Window of 4 before the query by node position.
  constexpr int32_t kPrefix = 6;
  constexpr int32_t kNone = -1;
  struct Node {
    std::vector<int32_t> path;  // drafts it sees, itself last
  };
  const std::vector<Node> nodes = {{{0}}, {{1}}, {{0, 2}}};
  for (const int32_t window : {-1, 4}) {
    Simple tree;
    tree.heads = 2;
    tree.q_lens = {3};
    tree.q = wave;
    // The prefix as gathered positions when a window cuts it differently for each node, else as a full source.
    std::vector<int32_t> prefix_list;
    std::vector<int32_t> draft_list;
    for (const Node& node : nodes) {
      const auto position = kPrefix - 1 + static_cast<int32_t>(node.path.size());
      for (int32_t j = 0; j < kPrefix; ++j) prefix_list.push_back(window < 0 || j >= position - window ? j : kNone);
      for (size_t i = 0; i < 3; ++i) draft_list.push_back(i < node.path.size() ? node.path[i] : kNone);
    }
    SimpleSource prefix;
    prefix.kv_lens = {kPrefix};
    prefix.k = waves();
    prefix.v = waves(77);
    prefix.rule = window < 0 ? Rule::full() : Rule::gathered(prefix_list.data(), kPrefix, nullptr, IndexSpace::kPosition);
    tree.add(prefix);
    SimpleSource drafts;
    drafts.kv_lens = {3};
    drafts.k = waves(200);
    drafts.v = waves(300);
    drafts.rule = Rule::gathered(draft_list.data(), 3, nullptr, IndexSpace::kPosition);
    tree.add(drafts);
    tree.expect_oracle("tree");
    for (size_t n = 0; n < nodes.size(); ++n) {  // each node as a sequence of its own
      const auto depth = static_cast<int32_t>(nodes[n].path.size());
      Simple line;
      line.heads = 2;
      line.q_lens = {1};
      line.q = [n](int64_t, int32_t h, int32_t c) { return wave(static_cast<int64_t>(n), h, c); };
      SimpleSource kv;
      kv.kv_lens = {kPrefix + depth};
      const auto at = [&nodes, n](int64_t j, int64_t prefix_shift, int64_t draft_shift) {
        return j < kPrefix ? prefix_shift + j : draft_shift + nodes[n].path[static_cast<size_t>(j - kPrefix)];
      };
      kv.k = [at](int64_t, int64_t j, int32_t h, int32_t c) { return 2.0F * wave(at(j, 0, 200), h, c); };
      kv.v = [at](int64_t, int64_t j, int32_t h, int32_t c) { return 2.0F * wave(at(j, 77, 300), h, c); };
      kv.rule = window < 0 ? Rule::causal() : Rule::window(window);
      line.add(kv);
      line.attend_ok();
      expect_same(tree, static_cast<int64_t>(n), line, 0, 1e-5, "node " + std::to_string(n));
    }
  }
}

// ---- ring buffers ----------------------------------------------------------------------------------------------------------------

TEST(Recipes, A22_RingBufferServesTheWindowAtEveryStep) {
  constexpr int32_t kWindow = 7;
  for (const int32_t capacity : {8, 11}) {
    for (int64_t t = 0; t < 30; ++t) {
      Simple ring;
      ring.heads = 3;
      ring.q = [t](int64_t, int32_t h, int32_t c) { return wave(t, h, c); };
      std::vector<int32_t> slots(static_cast<size_t>(capacity));
      const int32_t live = ring_slots(t, kWindow, capacity, 0, slots.data(), capacity);
      ASSERT_EQ(live, std::min<int64_t>(t + 1, kWindow + 1));
      SimpleSource pool;
      pool.kv_lens = {capacity};
      pool.rule = Rule::gathered(slots.data(), capacity);
      // Position p lives at p % capacity: the newest one that has been written.
      const auto newest = [t, capacity](int64_t slot) { return t < slot ? int64_t{-1} : t - (t - slot) % capacity; };
      pool.k = [newest](int64_t, int64_t j, int32_t h, int32_t c) { return newest(j) < 0 ? kNanF : 2.0F * wave(newest(j), h, c); };
      pool.v = [newest](int64_t, int64_t j, int32_t h, int32_t c) { return newest(j) < 0 ? kNanF : 2.0F * wave(77 + newest(j), h, c); };
      ring.add(pool);
      ring.attend_ok();
      Simple line;
      line.heads = 3;
      line.q = ring.q;
      SimpleSource kv;
      kv.kv_lens = {static_cast<int32_t>(t + 1)};
      kv.k = waves();
      kv.v = waves(77);
      kv.rule = Rule::window(kWindow);
      line.add(kv);
      line.attend_ok();
      expect_same(ring, 0, line, 0, 1e-5, "t = " + std::to_string(t));
    }
  }
}

TEST(Recipes, A26_WindowIsByPositionNeverByStorageOrder) {
  // 4 sequences dealt round-robin into one cache of 40 cells (pages of 1), W = 8.
  Simple s;
  s.heads = 2;
  s.q_lens = {1, 1, 1, 1};
  s.q = wave;
  SimpleSource kv;
  kv.kv_lens = {10, 10, 10, 10};
  kv.page_size = 1;
  kv.k = waves();
  kv.v = waves(77);
  kv.rule = Rule::window(7);
  s.add(kv);
  // Cells of sequence b: b, b + 4, b + 8, ... : rewrite the table and move the bytes.
  Source& source = s.source();
  auto* const table = const_cast<int32_t*>(source.addressing.block_table);
  std::vector<float> k(40 * 8);
  std::vector<float> v(40 * 8);
  for (int64_t b = 0; b < 4; ++b) {
    for (int64_t j = 0; j < 10; ++j) {
      const int64_t cell = b + 4 * j;
      std::memcpy(k.data() + cell * 8, s.record(0, false, b, j, 0), 32);
      std::memcpy(v.data() + cell * 8, s.record(0, true, b, j, 0), 32);
    }
  }
  s.attend_ok();
  const std::vector<std::byte> before = s.out_bytes();
  for (int64_t b = 0; b < 4; ++b) {
    for (int64_t j = 0; j < 10; ++j) table[b * 10 + j] = static_cast<int32_t>(b + 4 * j);
  }
  source.k.data = k.data();
  source.v.data = v.data();
  s.expect_oracle("round-robin");
  s.attend_ok();
  EXPECT_EQ(s.out_bytes(), before);
}

// ---- context parallelism and cascades --------------------------------------------------------------------------------------------------

State state_of(Simple* s) {
  State state;
  state.out = s->problem().out.data;
  state.lse = s->problem().lse;
  return state;
}

TEST(Recipes, B21_ContextParallelRanksMergeToTheWhole) {
  constexpr int32_t kLength = 25;
  constexpr int32_t kQueries = 8;
  for (const int32_t ranks : {2, 4, 40}) {  // 40: some ranks hold no key
    Simple whole;
    whole.heads = 2;
    whole.q_lens = {kQueries};
    whole.sinks = {0.5F, -1.0F};
    whole.q = wave;
    SimpleSource kv;
    kv.kv_lens = {kLength};
    kv.k = waves();
    kv.v = waves(77);
    kv.rule = Rule::causal();
    whole.add(kv);
    whole.expect_oracle("one device");

    std::vector<std::unique_ptr<Simple>> parts;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      auto part = std::make_unique<Simple>();
      part->heads = 2;
      part->q_lens = {kQueries};
      part->context_lens = {kLength};
      part->q = wave;
      SimpleSource own;
      own.kv_lens = {std::max(0, (kLength - rank + ranks - 1) / ranks)};
      own.first_position = {rank};
      own.position_stride = {ranks};
      own.rule = Rule::causal();
      own.k = [=](int64_t, int64_t j, int32_t h, int32_t c) { return 2.0F * wave(rank + j * ranks, h, c); };
      own.v = [=](int64_t, int64_t j, int32_t h, int32_t c) { return 2.0F * wave(77 + rank + j * ranks, h, c); };
      part->add(own);
      part->expect_oracle("rank " + std::to_string(rank));
      parts.push_back(std::move(part));
    }
    const StateShape shape{.tokens = kQueries, .heads = 2, .width = 8, .indptr = nullptr, .requests = 0};
    const State total = state_of(parts[0].get());
    for (int32_t rank = 1; rank < ranks; ++rank)
      ASSERT_TRUE(merge_states(shape, total, state_of(parts[static_cast<size_t>(rank)].get()), total).ok());
    ASSERT_TRUE(finalize(shape, total, whole.problem().sinks, total).ok());
    for (int64_t row = 0; row < kQueries; ++row) expect_same(*parts[0], row, whole, row, 1e-5, std::to_string(ranks) + " ranks");
  }
}

TEST(Recipes, A10_B19_SharedPrefixMergesWithTheSuffixes) {
  // 3072 keys of prefix and 64 of suffix, all scores 0: the suffix weighs 64 / 3136 = 2.04 %.
  const std::vector<int32_t> suffixes = {64, 1, 5};
  Simple prefix;
  Simple suffix;
  for (Simple* s : {&prefix, &suffix}) {
    s->q_lens = {1, 1, 1};
    s->q = [](int64_t, int32_t, int32_t) { return 0.0F; };
    SimpleSource kv;
    kv.kv_lens = suffixes;
    kv.v = constant(s == &prefix ? 0.0F : 1.0F);
    if (s == &prefix) kv.kv_lens = {3072, 0, 0};
    s->add(kv);
  }
  // One prefix for all three requests: the same rows.
  const std::vector<int32_t> pages = {0, 0, 0};
  const std::vector<int32_t> lens = {3072, 3072, 3072};
  Addressing& a = prefix.source().addressing;
  a = {};
  a.kind = AddressingKind::kBlockTable;
  a.page_size = 3072;
  a.num_pages = 1;
  a.block_table = pages.data();
  a.max_pages = 1;
  a.seq_lens = lens.data();
  prefix.expect_oracle("shared prefix");
  suffix.expect_oracle("suffixes");
  const StateShape shape{.tokens = 3, .heads = 1, .width = 8, .indptr = nullptr, .requests = 0};
  ASSERT_TRUE(merge_states(shape, state_of(&prefix), state_of(&suffix), state_of(&prefix)).ok());
  for (size_t b = 0; b < 3; ++b) {
    const double share = suffixes[b] / (3072.0 + suffixes[b]);
    EXPECT_NEAR(prefix.out(static_cast<int64_t>(b), 0, 3), share, 1e-6);
    EXPECT_NEAR(prefix.lse(static_cast<int64_t>(b), 0), std::log(3072.0 + suffixes[b]), 1e-5);
  }
}

}  // namespace
}  // namespace headwater::conformance
