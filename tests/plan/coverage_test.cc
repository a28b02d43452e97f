// Properties of every schedule: entries covered once and in order, partial slots, loads, capacities, guard bytes, and the per-worker
// path (as a device runs it) equal to the serial one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <tuple>

#include "tests/plan/support.h"

namespace headwater::plan {
namespace {

constexpr uint32_t kSeeds = 3000;

using BlockKey = std::tuple<int32_t, int32_t, int32_t>;  // request, token_begin, head block

std::string reproduce(uint32_t seed) { return "random_case(" + std::to_string(seed) + ")"; }

// By the definitions of semantics.md, one entry at a time.
bool visible(const SourceBounds& s, int64_t j, int64_t first, int64_t stride, int64_t t) {
  const int64_t position = first + j * stride;
  switch (s.rule) {
    case RuleKind::kFull:
      return true;
    case RuleKind::kCausal:
      return position <= t;
    case RuleKind::kWindow:
      return position <= t && (s.window_left < 0 || position >= t - s.window_left);
    case RuleKind::kCompressed:
      return (position + 1) * s.ratio <= t + 1;
    case RuleKind::kGathered:
      break;
  }
  return false;
}

int64_t clamped_topk(const Case& c, size_t s, int64_t row) {
  const std::vector<int32_t>& lens = c.batch.sources[s].topk_lens;
  const int64_t topk = c.bounds.sources[s].topk;
  return lens.empty() ? topk : std::clamp<int64_t>(lens[static_cast<size_t>(row)], 0, topk);
}

// Every entry that some token of the block sees, source after source.
std::vector<std::pair<size_t, int64_t>> visible_entries(const Case& c, int32_t request, int32_t token_begin, int32_t token_count) {
  std::vector<std::pair<size_t, int64_t>> entries;
  const auto r = static_cast<size_t>(request);
  const int64_t q_begin = c.batch.qo_indptr[r];
  const int64_t q_len = c.batch.qo_indptr[r + 1] - q_begin;
  for (size_t s = 0; s < c.bounds.sources.size(); ++s) {
    const Batch::Lens& lens = c.batch.sources[s];
    if (c.bounds.sources[s].rule == RuleKind::kGathered) {
      for (int64_t j = 0; j < clamped_topk(c, s, q_begin + token_begin); ++j) entries.emplace_back(s, j);
      continue;
    }
    for (int64_t j = 0; j < lens.seq_lens[r]; ++j) {
      bool seen = false;
      for (int32_t i = token_begin; i < token_begin + token_count && !seen; ++i) {
        seen = visible(c.bounds.sources[s], j, lens.first_position[r], lens.position_stride[r], c.batch.context_lens[r] - q_len + i);
      }
      if (seen) entries.emplace_back(s, j);
    }
  }
  return entries;
}

// The entries that a kernel walks when it runs tiles [0, n) one after another, by the tile contract of work.h.
std::vector<std::pair<size_t, int64_t>> walked_entries(const PlanShape& shape, const ScheduleView& view, const WorkItem& block) {
  std::vector<std::pair<size_t, int64_t>> entries;
  RequestLengths lengths;
  load_lengths(shape, view, block.request, &lengths);
  for (int32_t s = 0; s < shape.num_sources; ++s) {
    const TileSpan span = source_tiles(shape, lengths, s, block.token_begin, block.token_count);
    for (int64_t k = 0; k < span.num_tiles; ++k) {
      const int64_t begin = std::max(span.begin, (span.tile_first + k) * shape.tile_entries);
      const int64_t end = std::min(span.end, (span.tile_first + k + 1) * shape.tile_entries);
      EXPECT_LT(begin, end) << "a tile without an entry";
      for (int64_t j = begin; j < end; ++j) entries.emplace_back(static_cast<size_t>(s), j);
    }
  }
  return entries;
}

void expect_blocks_covered(const Case& c, const Schedule& schedule, bool every_entry) {
  const PlanShape& shape = schedule.shape();
  std::map<BlockKey, std::vector<WorkItem>> blocks;
  for (const WorkItem& item : schedule.items()) blocks[{item.request, item.token_begin, item.head_block}].push_back(item);
  size_t expected = 0;
  for (int32_t r = 0; r < c.batch.requests(); ++r) {
    const auto i = static_cast<size_t>(r);
    const int32_t q_len = c.batch.qo_indptr[i + 1] - c.batch.qo_indptr[i];
    for (int32_t t = 0; t < q_len; t += shape.tokens_per_block) {
      const int32_t count = std::min(shape.tokens_per_block, q_len - t);
      const TokenBlock token_block = [&] {
        RequestLengths lengths;
        load_lengths(shape, schedule.view(), r, &lengths);
        return make_token_block(shape, lengths, r, t / shape.tokens_per_block);
      }();
      for (int32_t h = 0; h < shape.num_head_blocks; ++h, ++expected) {
        const auto found = blocks.find({r, t, h});
        ASSERT_NE(found, blocks.end()) << "no item for request " << r << " token " << t << " head block " << h;
        int32_t at = 0;
        for (const WorkItem& item : found->second) {  // in schedule order, which is tile order
          EXPECT_EQ(item.token_count, count);
          EXPECT_EQ(item.tile_begin, at);
          EXPECT_TRUE(item.tile_end > item.tile_begin || token_block.tiles == 0);
          EXPECT_EQ(item.partial >= 0, found->second.size() > 1);
          at = item.tile_end;
        }
        EXPECT_EQ(at, token_block.tiles);
        if (h > 0 || !every_entry) continue;
        const auto seen = visible_entries(c, r, t, count);
        const auto walked = walked_entries(shape, schedule.view(), found->second.front());
        EXPECT_TRUE(std::is_sorted(walked.begin(), walked.end()));
        EXPECT_EQ(std::set(walked.begin(), walked.end()).size(), walked.size());
        EXPECT_TRUE(std::includes(walked.begin(), walked.end(), seen.begin(), seen.end())) << "request " << r << " token " << t;
        for (const auto& [s, j] : walked) {  // never past the entries that exist
          EXPECT_TRUE(c.bounds.sources[s].rule == RuleKind::kGathered || j < c.batch.sources[s].seq_lens[i]);
        }
      }
    }
  }
  EXPECT_EQ(blocks.size(), expected);
}

void expect_slots_match(const Schedule& schedule) {
  std::map<BlockKey, std::vector<int32_t>> left;
  std::set<int32_t> slots;
  for (const WorkItem& item : schedule.items()) {
    if (item.partial < 0) continue;
    EXPECT_LT(item.partial, schedule.shape().max_partials);
    EXPECT_TRUE(slots.insert(item.partial).second) << "slot " << item.partial << " left twice";
    left[{item.request, item.token_begin, item.head_block}].push_back(item.partial);
  }
  for (const MergeItem& merge : schedule.merges()) {
    const auto found = left.find({merge.request, merge.token_begin, merge.head_block});
    ASSERT_NE(found, left.end()) << "a merge of a row block that left no partial";
    ASSERT_EQ(static_cast<size_t>(merge.num_partials), found->second.size());
    for (int32_t i = 0; i < merge.num_partials; ++i) {
      EXPECT_EQ(partial_slot(merge, i), found->second[static_cast<size_t>(i)]);
    }
    left.erase(found);
  }
  EXPECT_TRUE(left.empty()) << left.size() << " cut row blocks without a merge";
}

void expect_within_limits(const Schedule& schedule) {
  const PlanShape& shape = schedule.shape();
  const ScheduleView& view = schedule.view();
  EXPECT_LE(view.header->num_items, shape.max_items);
  EXPECT_LE(view.header->num_merges, shape.max_merges);
  EXPECT_LE(view.token_block_begin[view.header->requests], shape.max_token_blocks);
  EXPECT_TRUE(schedule.guards_intact());
  const std::vector<int64_t> loads = worker_loads(shape, view);
  const int64_t most = *std::max_element(loads.begin(), loads.end());
  EXPECT_LE(most, load_bound(shape, view));
  for (const WorkItem& item : schedule.items()) {
    if (shape.batch_invariant || item.partial < 0) continue;
    RequestLengths lengths;
    load_lengths(shape, view, item.request, &lengths);
    const int64_t n = count_tiles(shape, lengths, item.token_begin, item.token_count);
    const int64_t least = min_fragment_tiles(shape, item.token_count);
    EXPECT_GE(item.tile_end - item.tile_begin, (least + 1) / 2);
    EXPECT_TRUE(item.tile_begin > 0 || item.tile_end >= least);
    EXPECT_TRUE(item.tile_end < n || n - item.tile_begin >= least);
  }
}

template <class T>
bool same_bytes(const T* a, const T* b, size_t n) {
  return n == 0 || std::memcmp(a, b, n * sizeof(T)) == 0;
}

TEST(Plan, CoversEveryVisibleEntryOnceInOrder) {
  for (uint32_t seed = 0; seed < kSeeds; ++seed) {
    const Case c = random_case(seed);
    const Schedule schedule(c);
    ASSERT_TRUE(schedule.status().ok()) << schedule.status().message() << " in " << reproduce(seed);
    expect_blocks_covered(c, schedule, seed % 8 == 0);
    expect_slots_match(schedule);
    expect_within_limits(schedule);
    ASSERT_FALSE(HasFailure()) << reproduce(seed);
  }
}

TEST(Plan, IsAPureFunctionOfBoundsAndLengths) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Case c = random_case(seed);
    const Schedule a(c);
    const Schedule b(c);
    ASSERT_EQ(a.items().size(), b.items().size());
    EXPECT_TRUE(same_bytes(a.view().items, b.view().items, a.items().size())) << reproduce(seed);
    EXPECT_TRUE(same_bytes(a.view().merges, b.view().merges, a.merges().size())) << reproduce(seed);
    EXPECT_EQ(a.view().header->fingerprint, b.view().header->fingerprint);
  }
}

// Every worker measured and written on its own, in any order, between exclusive sums: what a device does.
TEST(Plan, WorkersOnTheirOwnGiveTheSerialSchedule) {
  for (uint32_t seed = 0; seed < 600; ++seed) {
    const Case c = random_case(seed);
    const Schedule serial(c);
    const PlanShape& shape = serial.shape();
    std::vector<WorkItem> items(static_cast<size_t>(shape.max_items));
    std::vector<MergeItem> merges(static_cast<size_t>(shape.max_merges));
    ScheduleView view = serial.view();
    view.items = items.data();
    view.merges = merges.data();
    std::vector<WorkerPart> parts;
    std::vector<int64_t> first(3 * static_cast<size_t>(shape.workers) + 3, 0);
    for (int32_t w = 0; w < shape.workers; ++w) {
      parts.push_back(measure_part(shape, view, worker_cut(shape, view, w), worker_cut(shape, view, w + 1)));
      const auto at = 3 * static_cast<size_t>(w);
      first[at + 3] = first[at] + parts.back().items;
      first[at + 4] = first[at + 1] + parts.back().merges;
      first[at + 5] = first[at + 2] + parts.back().partials;
    }
    std::vector<int32_t> order(static_cast<size_t>(shape.workers));
    for (int32_t w = 0; w < shape.workers; ++w) order[static_cast<size_t>(w)] = w;
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
    for (const int32_t w : order) {
      const auto at = 3 * static_cast<size_t>(w);
      write_part(shape, view, w, parts[static_cast<size_t>(w)], first[at], first[at + 1], first[at + 2]);
      EXPECT_EQ(serial.view().worker_begin[w], first[at]);
    }
    ASSERT_EQ(first[first.size() - 3], serial.view().header->num_items) << reproduce(seed);
    ASSERT_EQ(first[first.size() - 2], serial.view().header->num_merges) << reproduce(seed);
    EXPECT_TRUE(same_bytes(items.data(), serial.view().items, serial.items().size())) << reproduce(seed);
    EXPECT_TRUE(same_bytes(merges.data(), serial.view().merges, serial.merges().size())) << reproduce(seed);
    ASSERT_FALSE(HasFailure()) << reproduce(seed);
  }
}

TEST(Plan, DealsEqualWorkEvenly) {
  // 32 requests of 8192 entries on 132 workers: no fragment overhead to speak of, so loads differ by rounding to tiles.
  Case c = decode_case(std::vector<int32_t>(32, 8192), 16, 1, 132);
  c.bounds.d_qk = 576;
  c.bounds.d_v = 512;
  const Schedule schedule(c);
  ASSERT_TRUE(schedule.status().ok());
  const std::vector<int64_t> loads = worker_loads(schedule.shape(), schedule.view());
  const int64_t total = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  const int64_t most = *std::max_element(loads.begin(), loads.end());
  EXPECT_LE(static_cast<double>(most), 1.04 * static_cast<double>(total) / 132.0);
}

TEST(Plan, OneHugeAmongManySmallIsShared) {
  std::vector<int32_t> lens(31, 1024);
  lens.push_back(131072);
  const Schedule schedule(decode_case(lens, 32, 8, 16));
  ASSERT_TRUE(schedule.status().ok());
  const std::vector<int64_t> loads = worker_loads(schedule.shape(), schedule.view());
  const int64_t total = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  EXPECT_LE(static_cast<double>(*std::max_element(loads.begin(), loads.end())), 1.02 * static_cast<double>(total) / 16.0);
}

// Fault B26: splits follow true lengths, not the capacity of the cache.
TEST(Plan, SplitsFollowTrueLengthsNotCapacity) {
  Case c = decode_case({50}, 16, 1, 132);
  c.bounds.sources[0].max_len = 131072;
  c.bounds.sources[0].max_total_len = 131072;
  const Schedule schedule(c);
  ASSERT_TRUE(schedule.status().ok());
  ASSERT_EQ(schedule.items().size(), 1U);
  EXPECT_EQ(schedule.items()[0].tile_end, 1);
  EXPECT_EQ(schedule.items()[0].partial, -1);
  EXPECT_TRUE(schedule.merges().empty());
}

TEST(Plan, RowBlocksWithoutEntriesStillWriteTheirZeros) {
  const Schedule schedule(decode_case({0, 0, 0, 7, 0}, 8, 2, 3));
  ASSERT_TRUE(schedule.status().ok());
  EXPECT_EQ(schedule.items().size(), 10U);
  for (const WorkItem& item : schedule.items()) EXPECT_EQ(item.partial, -1);
}

TEST(Plan, FewBlocksSpreadOverMoreWorkersThanFragments) {
  // 8 row blocks of 64 tiles on 132 workers: many pieces, none below the minimum.
  const Schedule schedule(decode_case({4096}, 64, 8, 132));
  ASSERT_TRUE(schedule.status().ok());
  EXPECT_EQ(schedule.merges().size(), 8U);
  EXPECT_GT(schedule.items().size(), 32U);
}

TEST(Line, PositionsAreEvenAndFoundAgain) {
  for (const int64_t total : {int64_t{0}, int64_t{1}, int64_t{5}, int64_t{131}, int64_t{1000003}, int64_t{1} << 61}) {
    for (const int32_t workers : {1, 2, 7, 132, 65536}) {
      EXPECT_EQ(worker_position(total, workers, 0), 0);
      EXPECT_EQ(worker_position(total, workers, workers), total);
      for (int64_t w = 0; w < workers; w += 1 + workers / 50) {
        const int64_t position = worker_position(total, workers, w);
        const int64_t length = worker_position(total, workers, w + 1) - position;
        EXPECT_TRUE(length == total / workers || length == total / workers + 1);
        const int64_t above = first_worker_above(total, workers, position);
        EXPECT_GT(above, w);
        EXPECT_LE(worker_position(total, workers, above - 1), position);
        EXPECT_TRUE(above > workers || worker_position(total, workers, above) > position);
      }
    }
  }
}

TEST(Line, FragmentBoundariesAreFoundAgain) {
  TokenBlock block;
  for (block.tiles = 1; block.tiles < 200; block.tiles += 3) {
    for (block.fragments = 1; block.fragments <= std::min<int64_t>(block.tiles, 32); ++block.fragments) {
      for (int64_t f = 0; f <= block.fragments; ++f) {
        EXPECT_EQ(fragment_at(block, fragment_begin(block.tiles, block.fragments, f)), f);
      }
    }
  }
}

}  // namespace
}  // namespace headwater::plan
