// What is visible to whom, and from it: keys on edges that dominate, and values that are not finite.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/check/problem.h"
#include "src/core/visibility.h"

namespace headwater::conformance {
namespace {

using namespace choice;

struct Row {
  size_t request;
  int64_t row;
  int64_t t;
};

std::vector<Row> live_rows(const Draft& d) {
  std::vector<Row> rows;
  for (size_t b = 0; b < d.q_lens.size(); ++b) {
    for (int64_t i = 0; i < d.q_lens[b]; ++i) rows.push_back({b, d.made->qo_indptr[b] + i, d.context[b] - d.q_lens[b] + i});
  }
  return rows;
}

// What one row sees.
struct Seen {
  std::vector<int64_t> slots;
  int64_t first = 0;  // entry index of slots[0]; list position for gathered sources
};

int64_t slot_of(const Addressing& a, size_t request, int64_t j) {
  if (a.kind == AddressingKind::kRagged) return a.kv_indptr[request] + j;
  const int64_t stride = a.block_table_stride == kDense ? a.max_pages : a.block_table_stride;
  const int64_t page = a.kind == AddressingKind::kBlockTable ? a.block_table[static_cast<int64_t>(request) * stride + j / a.page_size]
                                                             : a.kv_indices[a.kv_indptr[request] + j / a.page_size];
  return page * a.page_size + j % a.page_size;
}

Seen listed(const Source& source, const Draft::Entries& e, const Row& row) {
  const Rule& rule = source.rule;
  const Addressing& a = source.addressing;
  const bool position = rule.index_space == IndexSpace::kPosition;
  const int64_t limit = position ? e.kv_len[row.request] : a.num_pages * (a.kind == AddressingKind::kRagged ? 1 : a.page_size);
  const int64_t live = std::min<int64_t>(rule.topk, rule.topk_lens ? rule.topk_lens[row.row] : rule.topk);
  Seen seen;
  for (int64_t i = 0; i < live; ++i) {
    const int64_t at = row.row * (rule.indices_stride == kDense ? rule.topk : rule.indices_stride) + i;
    const int64_t index =
        rule.index_type == Type::kI64 ? static_cast<const int64_t*>(rule.indices)[at] : static_cast<const int32_t*>(rule.indices)[at];
    if (index >= 0 && index < limit) seen.slots.push_back(position ? slot_of(a, row.request, index) : index);
  }
  return seen;
}

Seen see(const Source& source, const Draft::Entries& e, const Row& row) {
  if (source.rule.kind == RuleKind::kGathered) return listed(source, e, row);
  const auto b = row.request;
  const EntryRange range =
      visible_range(source.rule.kind, source.rule.window_left, source.rule.ratio, e.first[b], e.stride[b], e.kv_len[b], row.t);
  Seen seen;
  seen.first = range.begin;
  for (int64_t j = range.begin; j < range.end; ++j) seen.slots.push_back(slot_of(source.addressing, b, j));
  return seen;
}

// Places of a row's visible entries where implementations lose or invent keys: first, last, on both sides of page and tile edges.
std::vector<int64_t> edge_places(const Source& source, const Seen& seen) {
  const auto count = static_cast<int64_t>(seen.slots.size());
  std::vector<int64_t> places = {0, count - 1, 0, count - 1, count - 2, 1};
  for (const int64_t step :
       {int64_t{source.addressing.page_size}, int64_t{16}, int64_t{48}, int64_t{64}, int64_t{72}, int64_t{96}, int64_t{128}}) {
    for (int64_t at = step; step > 1 && at < seen.first + count; at += step) {
      places.push_back(at - seen.first - 1);
      places.push_back(at - seen.first);
    }
  }
  places.erase(std::remove_if(places.begin(), places.end(), [count](int64_t p) { return p < 0 || p >= count; }), places.end());
  return places;
}

float bad_value(Random* random, bool infinite_only) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  if (!infinite_only && random->one_in(2)) return std::numeric_limits<float>::quiet_NaN();
  return random->one_in(2) ? kInf : -kInf;
}

}  // namespace

void draft_edges(Draft* d) {
  const Spec& spec = d->spec();
  Random& random = d->random;
  const std::vector<Row> rows = live_rows(*d);
  for (int32_t s = 0; s < spec.num_sources(); ++s) {
    const Source& source = d->made->sources[static_cast<size_t>(s)];
    Draft::Entries& e = d->entries[static_cast<size_t>(s)];
    const Addressing& a = source.addressing;
    const auto slots = static_cast<size_t>(a.num_pages * (a.kind == AddressingKind::kRagged ? 1 : a.page_size));
    e.visible.assign(slots, false);
    e.loud.assign(slots, false);
    std::vector<Seen> seen;
    for (const Row& row : rows) {
      seen.push_back(see(source, e, row));
      for (const int64_t slot : seen.back().slots) e.visible[static_cast<size_t>(slot)] = true;
      if (seen.back().slots.empty()) seen.pop_back();
    }
    if (seen.empty()) continue;
    for (int64_t i = 0; spec.at(kBoundary) == 1 && i < 3; ++i) {
      const Seen& row = random.pick(seen);
      const std::vector<int64_t> places = edge_places(source, row);
      e.loud[static_cast<size_t>(row.slots[static_cast<size_t>(random.pick(places))])] = true;
      d->made->boundary_placed = true;
    }
    const int32_t bad = spec.at(kNonFinite);
    for (int64_t i = 0; (bad == kKNan || bad == kKInf || bad == kVNonFinite) && i < 2; ++i) {
      const Seen& row = random.pick(seen);
      const std::vector<int64_t>& list = row.slots;
      const int64_t place =
          random.one_in(2) ? random.pick(edge_places(source, row)) : random.integer(0, static_cast<int64_t>(list.size()) - 1);
      float value = bad == kKNan ? std::numeric_limits<float>::quiet_NaN() : bad_value(&random, bad == kKInf);
      // Elsewhere infinity is stored as a huge number, which would only test the range of the output type.
      const Format format = bad == kVNonFinite && !source.shared ? source.v.format : source.k.format;
      if (!format_info(format).is_float && format != Format::kE5m2) value = std::numeric_limits<float>::quiet_NaN();
      e.faults.push_back({list[static_cast<size_t>(place)], bad == kVNonFinite, value});
    }
  }
}

}  // namespace headwater::conformance
