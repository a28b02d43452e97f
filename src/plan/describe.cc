#include "src/plan/describe.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include "src/plan/balance.h"

namespace headwater::plan {

namespace {

std::string count(int64_t n, const char* noun) { return std::to_string(n) + " " + noun + (n == 1 ? "" : "s"); }

std::string percent(int64_t part, int64_t whole) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f %%", whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0);
  return text;
}

int64_t item_units(const PlanShape& shape, const WorkItem& item) {
  return (item.tile_end - item.tile_begin) * tile_units(shape, item.token_count) + shape.block_cost;
}

// `unit`: equal shares in a cost unit.
void add_timeline(const PlanShape& shape, const ScheduleView& view, double unit, std::vector<TimelineItem>* timeline) {
  for (int32_t w = 0; w < shape.workers; ++w) {
    int64_t at = 0;
    for (int32_t i = view.worker_begin[w]; i < view.worker_begin[w + 1]; ++i) {
      const WorkItem& item = view.items[i];
      const int64_t end = at + item_units(shape, item);
      timeline->push_back({w, item.request, item.token_begin, item.token_count, item.head_block, static_cast<double>(at) * unit,
                           static_cast<double>(end) * unit, item.partial >= 0});
      at = end;
    }
  }
}

void describe_shape(const PlanShape& shape, std::vector<std::string>* lines) {
  lines->push_back("tiles of " + std::to_string(shape.tile_entries) + " entries (a one-token tile = " + std::to_string(kUnitsPerTile) +
                   " cost units)");
  lines->push_back("row blocks of up to " + count(shape.tokens_per_block, "token") + " x " + count(shape.head_block, "query head") + ", " +
                   count(shape.num_head_blocks, "head block") + " to a token block");
  lines->push_back("costs: " + std::to_string(shape.tile_cost) + " a tile, at least " + std::to_string(shape.tile_token_cost) +
                   " a tile and token; " + std::to_string(shape.block_cost) + " a fragment; " + std::to_string(shape.partial_cost) +
                   " to write or read a token's partial");
  if (shape.batch_invariant) {
    lines->push_back("batch invariant: up to " + count(shape.max_splits, "fragment") + " a row block, cut by its own length alone");
  }
  lines->push_back(count(shape.workers, "worker") + "; room for " + count(shape.max_items, "item") + ", " +
                   count(shape.max_merges, "merge") + ", " + count(shape.max_partials, "partial"));
}

}  // namespace

std::vector<int64_t> worker_loads(const PlanShape& shape, const ScheduleView& view) {
  std::vector<int64_t> loads(static_cast<size_t>(shape.workers), 0);
  for (int32_t w = 0; w < shape.workers; ++w) {
    for (int32_t i = view.worker_begin[w]; i < view.worker_begin[w + 1]; ++i)
      loads[static_cast<size_t>(w)] += item_units(shape, view.items[i]);
  }
  return loads;
}

int64_t load_bound(const PlanShape& shape, const ScheduleView& view) {
  const int64_t token_blocks = view.token_block_begin[view.header->requests];
  const int64_t total = view.unit_begin[token_blocks];
  int64_t longest = 0;
  for (int64_t b = 0; b < token_blocks; ++b) {
    const TokenBlock block = find_token_block(shape, view, b);
    const int64_t tiles = shape.batch_invariant ? (block.tiles + block.fragments - 1) / block.fragments
                                                : std::min(block.tiles, 2 * latency_fragment_tiles(shape, block.token_count, block.tiles));
    longest = std::max(longest, tiles * tile_units(shape, block.token_count));
  }
  return (total + shape.workers - 1) / shape.workers + 2 * (longest + shape.block_cost);
}

void describe(const PlanShape& shape, const ScheduleView* view, Explanation* explanation) {
  describe_shape(shape, &explanation->plan);
  if (view == nullptr || view->header->magic != kScheduleMagic) return;
  explanation->items = view->header->num_items;
  explanation->split_blocks = view->header->num_merges;
  const std::vector<int64_t> loads = worker_loads(shape, *view);
  int64_t total = 0;
  int64_t most = 0;
  for (const int64_t load : loads) {
    total += load;
    most = std::max(most, load);
  }
  if (total > 0) {
    const double unit = shape.workers / static_cast<double>(total);
    for (const int64_t load : loads) explanation->worker_load.push_back(static_cast<double>(load) * unit);
    explanation->load_bound = static_cast<double>(load_bound(shape, *view)) * unit;
    add_timeline(shape, *view, unit, &explanation->timeline);
  }
  int64_t partials = 0;
  for (int32_t m = 0; m < view->header->num_merges; ++m) partials += view->merges[m].num_partials;
  explanation->plan.push_back(count(view->header->num_items, "item") + "; " + count(view->header->num_merges, "row block") + " cut into " +
                              count(partials, "fragment"));
  explanation->plan.push_back("an equal share is " + percent(total / shape.workers, most) + " of the longest worker's load");
}

}  // namespace headwater::plan
