#include "tests/plan/support.h"

#include <algorithm>
#include <numeric>

namespace headwater::plan {

namespace {

constexpr size_t kGuard = 512;
constexpr std::byte kGuardByte{0xa5};

struct Dice {
  std::mt19937 engine;
  int32_t operator()(int32_t low, int32_t high) { return std::uniform_int_distribution<int32_t>(low, high)(engine); }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[(*this)(0, static_cast<int32_t>(values.size()) - 1)];
  }
};

SourceBounds random_source(Dice& dice, int32_t heads) {
  SourceBounds s;
  s.k_format = dice.pick({Format::kBf16, Format::kE4m3, Format::kMxfp4});
  s.v_format = s.k_format;
  s.shared = dice(0, 1) == 1;
  std::vector<int32_t> divisors;
  for (int32_t h = 1; h <= heads; ++h) {
    if (heads % h == 0) divisors.push_back(h);
  }
  s.heads = divisors[static_cast<size_t>(dice(0, static_cast<int32_t>(divisors.size()) - 1))];
  s.rule = dice.pick({RuleKind::kFull, RuleKind::kCausal, RuleKind::kWindow, RuleKind::kCompressed, RuleKind::kGathered});
  s.addressing = s.rule == RuleKind::kGathered ? dice.pick({AddressingKind::kPool, AddressingKind::kBlockTable, AddressingKind::kRagged})
                                               : dice.pick({AddressingKind::kRagged, AddressingKind::kBlockTable});
  s.index_space = s.addressing != AddressingKind::kPool && dice(0, 1) == 1 ? IndexSpace::kPosition : IndexSpace::kSlot;
  s.window_left = dice.pick({-1, 0, 1, 7, 127});
  s.ratio = dice.pick({1, 4, 128});
  s.topk = dice.pick({1, 64, 100, 640});
  return s;
}

int32_t random_len(Dice& dice, int32_t longest) {
  switch (dice(0, 5)) {
    case 0:
      return 0;
    case 1:
      return 1;
    case 2:
      return dice(0, longest);
    case 3:
      return dice.pick({15, 16, 17, 63, 64, 65});
    default:
      return dice(0, std::min(longest, 200));
  }
}

void add_request(Dice& dice, int32_t q_len, int32_t longest, Case* c) {
  Batch& batch = c->batch;
  batch.qo_indptr.push_back(batch.qo_indptr.back() + q_len);
  int32_t context = 0;
  for (size_t s = 0; s < c->bounds.sources.size(); ++s) {
    Batch::Lens& lens = batch.sources[s];
    const int32_t kv_len = random_len(dice, longest);
    lens.kv_indptr.push_back(lens.kv_indptr.back() + kv_len);
    lens.seq_lens.push_back(kv_len);
    lens.first_position.push_back(dice(0, 3) == 0 ? dice(0, 50) : 0);
    lens.position_stride.push_back(dice(0, 3) == 0 ? dice(1, 4) : 1);
    context = std::max(context, lens.first_position.back() + kv_len * lens.position_stride.back());
    for (int32_t t = 0; t < q_len; ++t) lens.topk_lens.push_back(dice(-3, c->bounds.sources[s].topk + 3));
  }
  // Bottom-right, short of it, and beyond all entries.
  batch.context_lens.push_back(dice.pick({context, context, dice(0, context + 10), context + 300}));
}

}  // namespace

Lengths Batch::lengths(const Bounds& bounds) const {
  Lengths out;
  out.requests = requests();
  out.total_q = qo_indptr.back();
  out.qo_indptr = qo_indptr.data();
  out.context_lens = context_lens.empty() ? nullptr : context_lens.data();
  out.num_sources = static_cast<int32_t>(sources.size());
  for (size_t s = 0; s < sources.size(); ++s) {
    const Lens& lens = sources[s];
    SourceLengths& to = out.sources[s];
    if (bounds.sources[s].addressing == AddressingKind::kRagged) {
      to.kv_indptr = lens.kv_indptr.data();
    } else if (bounds.sources[s].addressing != AddressingKind::kPool) {
      to.seq_lens = lens.seq_lens.data();
    }
    if (!lens.first_position.empty()) to.first_position = lens.first_position.data();
    if (!lens.position_stride.empty()) to.position_stride = lens.position_stride.data();
    if (!lens.topk_lens.empty()) to.topk_lens = lens.topk_lens.data();
  }
  return out;
}

void Batch::append_request(const Batch& from, int64_t r) {
  const auto i = static_cast<size_t>(r);
  const int32_t q_begin = from.qo_indptr[i];
  const int32_t q_len = from.qo_indptr[i + 1] - q_begin;
  qo_indptr.push_back(qo_indptr.back() + q_len);
  if (!from.context_lens.empty()) context_lens.push_back(from.context_lens[i]);
  sources.resize(from.sources.size());
  for (size_t s = 0; s < sources.size(); ++s) {
    const Lens& lens = from.sources[s];
    sources[s].kv_indptr.push_back(sources[s].kv_indptr.back() + lens.seq_lens[i]);
    sources[s].seq_lens.push_back(lens.seq_lens[i]);
    if (!lens.first_position.empty()) sources[s].first_position.push_back(lens.first_position[i]);
    if (!lens.position_stride.empty()) sources[s].position_stride.push_back(lens.position_stride[i]);
    if (lens.topk_lens.empty()) continue;
    for (int32_t t = 0; t < q_len; ++t) sources[s].topk_lens.push_back(lens.topk_lens[static_cast<size_t>(q_begin + t)]);
  }
}

void tighten(Case* c) {
  Bounds& b = c->bounds;
  b.max_requests = c->batch.requests();
  b.max_total_q = c->batch.qo_indptr.back();
  b.max_q_len = 0;
  for (size_t r = 0; r + 1 < c->batch.qo_indptr.size(); ++r) {
    b.max_q_len = std::max(b.max_q_len, c->batch.qo_indptr[r + 1] - c->batch.qo_indptr[r]);
  }
  for (size_t s = 0; s < b.sources.size(); ++s) {
    const std::vector<int32_t>& lens = c->batch.sources[s].seq_lens;
    b.sources[s].max_len = lens.empty() ? 0 : *std::max_element(lens.begin(), lens.end());
    b.sources[s].max_total_len = std::accumulate(lens.begin(), lens.end(), int64_t{0});
    // 0 would mean "requests * max_len", which is 0 as well then.
  }
}

Case random_case(uint32_t seed) {
  Dice dice{std::mt19937(seed)};
  Case c;
  c.bounds.heads = dice.pick({1, 2, 6, 8, 16, 128});
  c.bounds.d_qk = dice.pick({32, 64, 128, 576});
  c.bounds.d_v = c.bounds.d_qk == 576 ? 512 : c.bounds.d_qk;
  const int32_t sources = dice.pick({1, 1, 1, 2, 3});
  for (int32_t s = 0; s < sources; ++s) c.bounds.sources.push_back(random_source(dice, c.bounds.heads));
  c.batch.sources.resize(static_cast<size_t>(sources));
  c.traits.tile_entries = dice.pick({16, 48, 64});
  c.traits.max_rows = dice.pick({1, 16, 128});
  c.traits.fragment_us = dice.pick({0.01, 0.5, 4.0});
  c.traits.merge_bytes_per_us = dice.pick({1e2, 10e3, 1e6});
  c.traits.flops_per_us = dice.pick({1e4, 80e3, 1e7});
  c.traits.max_splits = dice.pick({1, 2, 8, 32});
  c.options.workers = dice.pick({1, 2, 3, 7, 16, 132});
  c.options.batch_invariant = dice(0, 2) == 0;
  const int32_t requests = dice.pick({0, 1, 1, 2, 5, 40});
  const int32_t huge = dice(0, 2) == 0 ? dice(0, requests) : -1;  // one huge among many small
  for (int32_t r = 0; r < requests; ++r) {
    const int32_t q_len = dice.pick({0, 1, 1, 1, 2, 5, dice(1, 70)});
    add_request(dice, q_len, r == huge ? 20000 : 500, &c);
  }
  tighten(&c);
  return c;
}

Case decode_case(const std::vector<int32_t>& kv_lens, int32_t heads, int32_t kv_heads, int32_t workers) {
  Case c;
  c.bounds.heads = heads;
  c.bounds.d_qk = 128;
  c.bounds.d_v = 128;
  SourceBounds source;
  source.heads = kv_heads;
  source.addressing = AddressingKind::kBlockTable;
  source.page_size = 64;
  c.bounds.sources.push_back(source);
  c.options.workers = workers;
  c.batch.sources.resize(1);
  for (const int32_t len : kv_lens) {
    c.batch.qo_indptr.push_back(c.batch.qo_indptr.back() + 1);
    c.batch.sources[0].seq_lens.push_back(len);
  }
  tighten(&c);
  return c;
}

Schedule::Schedule(const Case& c) : shape_(make_shape(c.bounds, c.traits, c.options)) {
  bytes_ = schedule_bytes(shape_);
  memory_.assign(bytes_ + 2 * kGuard + 256, kGuardByte);
  const auto address = reinterpret_cast<uintptr_t>(memory_.data() + kGuard);
  buffer_ = memory_.data() + kGuard + (256 - address % 256) % 256;
  view_ = view_schedule(shape_, buffer_);
  status_ = schedule_host(shape_, c.batch.lengths(c.bounds), buffer_);
}

bool Schedule::guards_intact() const {
  const auto intact = [](std::byte b) { return b == kGuardByte; };
  const std::byte* const begin = memory_.data();
  return std::all_of(begin, static_cast<const std::byte*>(buffer_), intact) &&
         std::all_of(static_cast<const std::byte*>(buffer_) + bytes_, begin + memory_.size(), intact);
}

std::vector<std::vector<int32_t>> Schedule::cuts_of(int64_t request) const {
  std::vector<std::vector<int32_t>> cuts;
  for (const WorkItem& item : items()) {
    if (item.request != request) continue;
    cuts.push_back({item.token_begin, item.token_count, item.head_block, item.tile_begin, item.tile_end, item.partial >= 0 ? 1 : 0});
  }
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

}  // namespace headwater::plan
