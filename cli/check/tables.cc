// Where entries are: page tables, page lists, offsets, gathered lists; with garbage wherever nobody may look.
#include <algorithm>
#include <limits>
#include <numeric>

#include "cli/check/problem.h"

namespace headwater::conformance {
namespace {

using namespace choice;

constexpr int64_t kMax32 = std::numeric_limits<int32_t>::max();

int32_t garbage(Random* random) {
  static const std::vector<int32_t> kGarbage = {-1, 2147480000, std::numeric_limits<int32_t>::min(), 999999, -77};
  return random->pick(kGarbage);
}

int32_t draw_page_size(Random* random, int32_t choice) {
  switch (choice) {
    case kPage1:
      return 1;
    case kPage2:
      return 2;
    case kPageOdd:
      return static_cast<int32_t>(random->integer(1, 30) * 2 + 1);
    case kPage16:
      return 16;
    case kPage64:
      return 64;
    default:
      return 256;
  }
}

void draft_ragged(Draft* d, const Draft::Entries& e, Addressing* a) {
  Random& random = d->random;
  std::vector<int32_t> indptr = {
      static_cast<int32_t>(random.one_in(4) ? random.integer(1, 3) : 0)};  // rows before the first request are legal
  for (const int64_t length : e.kv_len) indptr.push_back(static_cast<int32_t>(indptr.back() + length));
  a->kind = AddressingKind::kRagged;
  a->num_pages = indptr.back() + random.integer(0, 3);
  a->kv_indptr = d->made->arena.copy(indptr);
}

// Pages of every request, in a shuffled cache with some pages of nobody's.
std::vector<std::vector<int32_t>> draw_pages(Draft* d, const Draft::Entries& e, bool share, Addressing* a) {
  Random& random = d->random;
  int64_t needed = 0;
  for (const int64_t length : e.kv_len) needed += (length + a->page_size - 1) / a->page_size;
  a->num_pages = needed + random.integer(0, a->page_size > 100 ? 1 : 3);
  std::vector<int32_t> free(static_cast<size_t>(a->num_pages));
  std::iota(free.begin(), free.end(), 0);
  random.shuffle(&free);
  std::vector<std::vector<int32_t>> pages;
  for (const int64_t length : e.kv_len) {
    std::vector<int32_t> own;
    for (int64_t i = 0; i < (length + a->page_size - 1) / a->page_size; ++i) {
      if (share && i == 0 && !pages.empty() && !pages[0].empty()) {  // a common prefix
        own.push_back(pages[0][0]);
        continue;
      }
      own.push_back(free.back());
      free.pop_back();
    }
    pages.push_back(std::move(own));
  }
  return pages;
}

void draft_block_table(Draft* d, const std::vector<std::vector<int32_t>>& pages, Addressing* a) {
  Random& random = d->random;
  size_t widest = 0;
  for (const auto& own : pages) widest = std::max(widest, own.size());
  a->kind = AddressingKind::kBlockTable;
  a->max_pages = static_cast<int64_t>(widest) + random.integer(0, 2);
  const int64_t stride = a->max_pages + (random.one_in(3) ? random.integer(1, 4) : 0);
  std::vector<int32_t> table(pages.size() * static_cast<size_t>(stride));
  for (auto& entry : table) entry = garbage(&random);
  for (size_t b = 0; b < pages.size(); ++b)
    std::copy(pages[b].begin(), pages[b].end(), table.begin() + static_cast<std::ptrdiff_t>(b) * stride);
  a->block_table = d->made->arena.copy(table);
  a->block_table_stride = stride == a->max_pages && random.one_in(2) ? kDense : stride;
}

void draft_page_list(Draft* d, const std::vector<std::vector<int32_t>>& pages, bool spare, Addressing* a) {
  Random& random = d->random;
  std::vector<int32_t> indptr = {0};
  std::vector<int32_t> indices;
  if (random.one_in(4)) {
    indices.push_back(garbage(&random));
    indptr[0] = 1;
  }
  for (const auto& own : pages) {
    indices.insert(indices.end(), own.begin(), own.end());
    if (spare && random.one_in(3)) indices.push_back(garbage(&random));  // a page reserved ahead of its tokens
    indptr.push_back(static_cast<int32_t>(indices.size()));
  }
  if (random.one_in(2)) indices.push_back(garbage(&random));
  a->kind = AddressingKind::kPageList;
  a->kv_indptr = d->made->arena.copy(indptr);
  a->kv_indices = d->made->arena.copy(indices);
  a->num_indices = static_cast<int64_t>(indices.size());
}

void draft_addressing(Draft* d, int32_t s) {
  const Spec& spec = d->spec();
  Draft::Entries& e = d->entries[static_cast<size_t>(s)];
  Addressing& a = d->made->sources[static_cast<size_t>(s)].addressing;
  const int32_t kind = spec.at(kAddressing, s);
  if (kind == kRagged) return draft_ragged(d, e, &a);
  a.page_size = draw_page_size(&d->random, spec.at(kPageSize, s));
  if (kind == kSlotPool) {
    a.kind = AddressingKind::kPool;
    const int64_t slots = e.kv_len.empty() ? 3 : e.kv_len[0];
    a.num_pages = (slots + a.page_size - 1) / a.page_size + d->random.integer(0, 1);
    return;
  }
  const auto pages = draw_pages(d, e, spec.at(kSharing, s) == kSharedPages, &a);
  std::vector<int32_t> lens(e.kv_len.begin(), e.kv_len.end());
  std::vector<int32_t> last;
  for (const int64_t length : e.kv_len) last.push_back(length == 0 ? 0 : static_cast<int32_t>((length - 1) % a.page_size + 1));
  if (kind == kBlockTable) {
    draft_block_table(d, pages, &a);
  } else {
    draft_page_list(d, pages, kind == kPagesLens, &a);
  }
  if (kind != kPagesLast) a.seq_lens = d->made->arena.copy(lens);
  if (kind == kPagesLast || kind == kPagesBoth) a.kv_last_page_len = d->made->arena.copy(last);
}

// Indices that one row may name, in random order.
std::vector<int64_t> candidates(Draft* d, int32_t s, size_t request) {
  const Source& source = d->made->sources[static_cast<size_t>(s)];
  const Draft::Entries& e = d->entries[static_cast<size_t>(s)];
  const Addressing& a = source.addressing;
  int64_t count = a.num_pages * (a.kind == AddressingKind::kRagged ? 1 : a.page_size);
  if (source.rule.index_space == IndexSpace::kPosition) count = e.kv_len[request];
  if (source.rule.index_space == IndexSpace::kSlot && a.kind == AddressingKind::kPool) count = std::min(count, e.kv_len[0] + 2);
  std::vector<int64_t> all(static_cast<size_t>(std::min<int64_t>(count, 700)));
  std::iota(all.begin(), all.end(), 0);
  d->random.shuffle(&all);
  return all;
}

int64_t wild_index(Draft* d, const Source& source, size_t request, const Draft::Entries& e) {
  const Addressing& a = source.addressing;
  int64_t limit = a.num_pages * (a.kind == AddressingKind::kRagged ? 1 : a.page_size);
  if (source.rule.index_space == IndexSpace::kPosition) limit = e.kv_len[request];
  const std::vector<int64_t> wild = {limit, limit + 1, limit + 64, kMax32, kMax32 - 1};
  if (source.rule.index_type == Type::kI64 && d->random.one_in(2))
    return d->random.one_in(2) ? int64_t{1} << 40 : std::numeric_limits<int64_t>::max();
  return d->random.pick(wild);
}

// One row's list: `live` entries that count, garbage behind them.
std::vector<int64_t> draw_list(Draft* d, int32_t s, size_t request, int64_t topk, int64_t live) {
  Random& random = d->random;
  const Source& source = d->made->sources[static_cast<size_t>(s)];
  const int32_t kind = d->spec().at(kList, s);
  std::vector<int64_t> from = candidates(d, s, request);
  std::vector<int64_t> list;
  for (int64_t i = 0; i < topk; ++i) {
    const auto at = static_cast<size_t>(i);
    int64_t index = at < from.size() ? from[at] : -1;
    const bool edge = i == 0 || i == topk - 1;
    if (kind == kHoles && random.one_in(edge ? 2 : 4)) index = random.one_in(2) ? -1 : -random.integer(2, kMax32);
    if (kind == kDuplicates && i > 0 && random.one_in(3)) index = list[static_cast<size_t>(random.integer(0, i - 1))];
    if (kind == kOutOfRange && random.one_in(edge ? 2 : 4)) index = wild_index(d, source, request, d->entries[static_cast<size_t>(s)]);
    if (i >= live && random.one_in(3)) index = random.one_in(2) ? -1 : wild_index(d, source, request, d->entries[static_cast<size_t>(s)]);
    list.push_back(index);
  }
  return list;
}

void draft_lists(Draft* d, int32_t s) {
  Random& random = d->random;
  const Spec& spec = d->spec();
  Source& source = d->made->sources[static_cast<size_t>(s)];
  const Draft::Entries& e = d->entries[static_cast<size_t>(s)];
  Rule& rule = source.rule;
  int64_t longest = 1;
  for (const int64_t length : e.kv_len) longest = std::max(longest, length);
  rule.topk = static_cast<int32_t>(spec.at(kLens, s) == kLong ? longest : random.integer(1, std::min<int64_t>(longest + 3, 100)));
  const int64_t stride = rule.topk + (random.one_in(3) ? random.integer(1, 5) : 0);
  rule.indices_stride = stride == rule.topk && random.one_in(2) ? kDense : stride;
  std::vector<int64_t> lists(static_cast<size_t>(d->total_q * stride));
  std::vector<int32_t> lens;
  for (auto& index : lists) index = random.one_in(2) ? kMax32 - 7 : -5;
  const int64_t long_row = random.integer(0, std::max<int64_t>(d->made->live_rows(), 1) - 1);
  for (size_t b = 0; b < d->q_lens.size(); ++b) {
    for (int32_t row = d->made->qo_indptr[b]; row < d->made->qo_indptr[b + 1]; ++row) {
      int64_t live = rule.topk;
      if (spec.at(kList, s) == kTopkLens) {
        live = random.one_in(8)   ? -random.integer(0, 3)
               : random.one_in(6) ? rule.topk + random.integer(1, 1000)
                                  : random.integer(0, rule.topk);
        lens.push_back(static_cast<int32_t>(live));
      }
      auto list = draw_list(d, s, b, rule.topk, live);
      // One row sees a long list, the others the start of theirs.
      if (spec.at(kLens, s) == kLong && row != long_row) std::fill(list.begin() + std::min<int64_t>(rule.topk, 20), list.end(), -1);
      std::copy(list.begin(), list.end(), lists.begin() + row * stride);
    }
  }
  if (rule.index_type == Type::kI64) {
    rule.indices = d->made->arena.copy(lists);
  } else {
    rule.indices = d->made->arena.copy(std::vector<int32_t>(lists.begin(), lists.end()));
  }
  if (spec.at(kList, s) != kTopkLens) return;
  while (static_cast<int64_t>(lens.size()) < d->total_q) lens.push_back(garbage(&random));
  rule.topk_lens = d->made->arena.copy(lens);
}

}  // namespace

void draft_tables(Draft* d) {
  const Spec& spec = d->spec();
  for (int32_t s = 0; s < spec.num_sources(); ++s) {
    const auto at = static_cast<size_t>(s);
    Source& source = d->made->sources[at];
    const Draft::Entries& e = d->entries[at];
    source.heads = e.kv_heads;
    source.shared = spec.at(kVFormat, s) == kShared;
    source.k.format = static_cast<Format>(spec.at(kKFormat, s));
    source.k.width = d->d_qk;
    if (source.shared) {
      source.value_width = d->d_v;
    } else {
      source.v.format = static_cast<Format>(spec.at(kVFormat, s) - 1);
      source.v.width = d->d_v;
    }
    if (spec.at(kPositions, s) == kFirst || spec.at(kPositions, s) == kFirstAndStride) source.first_position = d->made->arena.copy(e.first);
    if (spec.at(kPositions, s) >= kStride) source.position_stride = d->made->arena.copy(e.stride);
    draft_addressing(d, s);
    if (source.rule.kind == RuleKind::kGathered) draft_lists(d, s);
  }
  Problem& p = d->made->problem;
  p.requests = d->requests;
  p.qo_indptr = d->made->arena.copy(d->made->qo_indptr);
  if (spec.at(kContext) == kGiven) {
    std::vector<int32_t> context(d->context.begin(), d->context.end());
    p.context_lens = d->made->arena.copy(context);
  }
  p.sources = d->made->sources;
}

}  // namespace headwater::conformance
