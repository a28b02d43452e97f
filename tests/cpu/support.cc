#include "tests/cpu/support.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>

#include "src/cpu/select.h"
#include "src/formats/bf16.h"
#include "src/formats/e4m3.h"
#include "src/formats/f16.h"

namespace headwater::cpu {
namespace {

constexpr size_t kGuard = 64;

size_t type_bytes(Type type) { return static_cast<size_t>(type_bits(type)) / 8; }

void store(Type type, float x, std::byte* to) {
  if (type == Type::kF32) std::memcpy(to, &x, 4);
  const uint16_t half = type == Type::kF16 ? formats::encode_f16(x) : formats::encode_bf16(x);
  if (type == Type::kF16 || type == Type::kBf16) std::memcpy(to, &half, 2);
  if (type == Type::kE4m3) *to = static_cast<std::byte>(formats::encode_e4m3(x));
}

double load(Type type, const std::byte* from) {
  float x = 0;
  if (type == Type::kF32) {
    std::memcpy(&x, from, 4);
    return x;
  }
  uint16_t half = 0;
  std::memcpy(&half, from, 2);
  return type == Type::kF16 ? formats::decode_f16(half) : formats::decode_bf16(half);
}

}  // namespace

OwnedProblem::OwnedProblem(const ProblemCase& c) : case_(c) {
  const auto requests = c.q_lens.size();
  qo_indptr_.push_back(0);
  for (const int32_t n : c.q_lens) qo_indptr_.push_back(qo_indptr_.back() + n);
  problem.requests = static_cast<int64_t>(requests);
  problem.qo_indptr = qo_indptr_.data();
  fill_queries();
  bool needs_context = false;
  for (const SourceCase& s : c.sources) {
    needs_context = needs_context || (s.rule != RuleKind::kFull && s.rule != RuleKind::kGathered);
    sources.push_back(make_source(s, c.seed + 17 * static_cast<uint32_t>(sources.size() + 1)));
  }
  problem.sources = sources;
  if (needs_context && c.sources.size() > 1) {
    for (size_t r = 0; r < requests; ++r) {
      int32_t context = 0;
      for (const SourceCase& s : c.sources) {
        if (s.rule == RuleKind::kGathered) continue;
        context = std::max(context, s.lens[r] * (s.rule == RuleKind::kCompressed ? s.ratio : 1));
      }
      context_lens_.push_back(context);
    }
    problem.context_lens = context_lens_.data();
  } else if (needs_context && c.sources[0].rule == RuleKind::kCompressed) {
    for (size_t r = 0; r < requests; ++r) context_lens_.push_back(c.sources[0].lens[r] * c.sources[0].ratio);
    problem.context_lens = context_lens_.data();
  }
  if (c.sinks) {
    for (int32_t h = 0; h < c.heads; ++h) sinks_.push_back(static_cast<float>(h % 7) - 3.0F);
    problem.sinks = sinks_.data();
  }
  problem.sm_scale = c.sm_scale != 0.0F ? c.sm_scale : 1.0F / std::sqrt(static_cast<float>(c.d_qk));
  problem.logits_soft_cap = c.softcap;
  const auto rows = static_cast<size_t>(problem.q.total * c.heads);
  out.resize(rows * static_cast<size_t>(c.d_v) * type_bytes(c.out_type) + 2 * kGuard);
  lse.resize(rows + 2 * kGuard);
  poison_outputs();
  problem.out.data = out.data() + kGuard;
  problem.out.type = c.out_type;
  problem.lse.data = lse.data() + kGuard;
}

void OwnedProblem::poison_outputs() {
  std::fill(out.begin(), out.end(), std::byte{0xff});
  std::fill(lse.begin(), lse.end(), 12345.0F);
}

bool OwnedProblem::guards_intact() const {
  bool intact = true;
  for (size_t i = 0; i < kGuard; ++i) {
    intact = intact && out[i] == std::byte{0xff} && out[out.size() - 1 - i] == std::byte{0xff};
    intact = intact && lse[i] == 12345.0F && lse[lse.size() - 1 - i] == 12345.0F;
  }
  return intact;
}

std::vector<std::byte> OwnedProblem::output_bytes() const {
  std::vector<std::byte> bytes = out;
  const auto* const from = reinterpret_cast<const std::byte*>(lse.data());
  bytes.insert(bytes.end(), from, from + lse.size() * sizeof(float));
  return bytes;
}

void OwnedProblem::fill_queries() {
  std::mt19937 random(case_.seed);
  std::normal_distribution<float> normal;
  const int64_t total = qo_indptr_.back();
  const size_t size = type_bytes(case_.q_type);
  const auto fill = [&](int32_t width) {
    const GuardedBytes& bytes = bytes_.emplace_back(static_cast<size_t>(total * case_.heads * width) * size);
    for (size_t i = 0; i < bytes.size(); i += size) store(case_.q_type, normal(random), bytes.data() + i);
    return bytes.data();
  };
  problem.q.data = fill(case_.d_qk - case_.q_tail);
  problem.q.type = case_.q_type;
  problem.q.total = total;
  problem.q.heads = case_.heads;
  problem.q.width = case_.d_qk - case_.q_tail;
  if (case_.q_tail > 0) {
    problem.q_tail.data = fill(case_.q_tail);
    problem.q_tail.width = case_.q_tail;
  }
  if (case_.q_type == Type::kE4m3) {
    for (int64_t i = 0; i < total * case_.heads; ++i) q_scales_.push_back(0.5F + 0.125F * static_cast<float>(i % 5));
    problem.q_scale.data = q_scales_.data();
    problem.q_scale.per_row = true;
  }
}

KvTensor OwnedProblem::make_tensor(const SourceCase& c, Format format, int32_t width, int64_t pages, int32_t page_size, float scale) {
  KvTensor t;
  t.format = format;
  t.width = width;
  const int64_t row = record_row_bytes(format, width);
  const FormatInfo& info = format_info(format);
  // The least that validation allows: whole elements.
  const int64_t unit = format == Format::kF32 ? 4 : format == Format::kF16 || format == Format::kBf16 || format == Format::kQ8_0 ? 2 : 1;
  const int64_t odd = info.planar ? 0 : c.odd_bytes * unit;
  t.head_stride_bytes = odd > 0 ? row + odd : kDense;
  t.row_stride_bytes = odd > 0 ? (row + odd) * c.heads + odd : kDense;
  t.page_stride_bytes = odd > 0 ? t.row_stride_bytes * page_size + odd : kDense;
  const int64_t dense_page = info.planar ? record_page_bytes(format, width, page_size) : row * c.heads * page_size;
  const int64_t page_bytes = odd > 0 ? t.page_stride_bytes : dense_page;
  // What stands after the last record is not part of the tensor.
  bytes_.emplace_back(static_cast<size_t>(pages * page_bytes - (odd > 0 ? 3 * odd : 0) + odd));
  t.data = bytes_.back().data() + odd;
  if (info.scales_apart) {
    bytes_.emplace_back(static_cast<size_t>(pages * page_size * c.heads * record_scale_bytes(format, width)));
    t.scales = bytes_.back().data();
  }
  if (info.takes_scale && scale != 1.0F) {
    floats_.emplace_back();
    for (int32_t h = 0; h < c.heads; ++h) floats_.back().push_back(scale * static_cast<float>(h + 1));
    t.scale = Scale::array(floats_.back().data(), c.heads);
  }
  return t;
}

void OwnedProblem::write_rows(const Source& source, const SourceCase& c, const std::vector<int64_t>& slots, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const auto count = slots.size();
  std::vector<float> k(count * static_cast<size_t>(c.heads * source.k.width));
  std::vector<float> v(source.shared ? 0 : count * static_cast<size_t>(c.heads * source.v.width));
  for (float& x : k) x = normal(random);
  for (float& x : v) x = normal(random) + 0.25F;
  AppendRows rows;
  rows.k = k.data();
  rows.v = source.shared ? nullptr : v.data();
  rows.type = Type::kF32;
  rows.count = static_cast<int64_t>(count);
  const Status status = append(source, rows, slots.data());
  if (!status.ok()) {
    std::fprintf(stderr, "append: %s\n", status.message().c_str());
    std::abort();
  }
}

Source OwnedProblem::make_source(const SourceCase& c, uint32_t seed) {
  std::mt19937 random(seed);
  const auto requests = static_cast<int64_t>(case_.q_lens.size());
  const bool paged = c.addressing != AddressingKind::kRagged;
  const int32_t page_size = paged ? c.page_size : 1;
  int64_t max_pages = 1;
  int64_t pages = paged ? 3 : 0;  // spare ones
  for (const int32_t n : c.lens) {
    max_pages = std::max<int64_t>(max_pages, (n + page_size - 1) / page_size);
    pages += (n + page_size - 1) / page_size;
  }
  // Physical pages in random order; what stays 0xff is unread: page tails, spare pages and table entries.
  std::vector<int32_t> order(static_cast<size_t>(pages));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  if (paged) std::shuffle(order.begin(), order.end(), random);
  Source s;
  s.k = make_tensor(c, c.k_format, case_.d_qk, pages, page_size, c.k_scale);
  if (!c.shared) s.v = make_tensor(c, c.v_format, case_.d_v, pages, page_size, c.v_scale);
  s.shared = c.shared;
  s.value_width = case_.d_v;
  s.heads = c.heads;
  Addressing& a = s.addressing;
  a.kind = c.addressing;
  a.page_size = page_size;
  a.num_pages = pages;
  a.max_pages = max_pages;
  ints_.emplace_back(static_cast<size_t>(requests * max_pages), 2147480000);
  std::vector<int32_t>& table = ints_.back();
  std::vector<int32_t> list;
  std::vector<int32_t> indptr{0};
  std::vector<int64_t> slots;
  size_t next = 0;
  for (int64_t r = 0; r < requests; ++r) {
    const int32_t n = c.lens[static_cast<size_t>(r)];
    for (int32_t j = 0; j < n; ++j) {
      if (j % page_size == 0) {
        table[static_cast<size_t>(r * max_pages + j / page_size)] = order[next];
        list.push_back(order[next++]);
      }
      slots.push_back(int64_t{list.back()} * page_size + j % page_size);
    }
    indptr.push_back(c.addressing == AddressingKind::kRagged ? indptr.back() + n : static_cast<int32_t>(list.size()));
  }
  if (c.addressing == AddressingKind::kBlockTable) a.block_table = table.data();
  if (c.addressing == AddressingKind::kBlockTable || c.addressing == AddressingKind::kPageList) {
    ints_.push_back(c.lens);
    a.seq_lens = ints_.back().data();
  }
  if (c.addressing == AddressingKind::kPageList) {
    ints_.push_back(list);
    a.kv_indices = ints_.back().data();
    a.num_indices = static_cast<int64_t>(list.size());
  }
  if (c.addressing == AddressingKind::kPageList || c.addressing == AddressingKind::kRagged) {
    ints_.push_back(indptr);
    a.kv_indptr = ints_.back().data();
  }
  s.rule.kind = c.rule;
  if (c.rule == RuleKind::kWindow) s.rule.window_left = c.window_left;
  if (c.rule == RuleKind::kCompressed) s.rule.ratio = c.ratio;
  if (c.rule == RuleKind::kGathered) {
    // Live slots, duplicates, padding and slots that do not exist.
    const auto total = static_cast<size_t>(qo_indptr_.back());
    std::vector<int64_t> indices;
    std::vector<int32_t> topk_lens;
    for (size_t row = 0; row < total; ++row) {
      for (int32_t i = 0; i < c.topk; ++i) {
        int64_t index = slots.empty() ? -1 : slots[random() % slots.size()];
        if (c.index_space == IndexSpace::kPosition) index = static_cast<int64_t>(random() % 64);
        if (random() % 6 == 0) index = -1;
        if (random() % 9 == 0) index = 2147480000;
        indices.push_back(index);
      }
      topk_lens.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(c.topk + 2)));
    }
    s.rule.topk = c.topk;
    s.rule.index_space = c.index_space;
    ints_.push_back(topk_lens);
    s.rule.topk_lens = ints_.back().data();
    if (c.slots_64) {
      longs_.push_back(indices);
      s.rule.indices = longs_.back().data();
      s.rule.index_type = Type::kI64;
    } else {
      ints_.emplace_back(indices.begin(), indices.end());
      s.rule.indices = ints_.back().data();
    }
  }
  write_rows(s, c, slots, seed + 1);
  return s;
}

std::string compare_with_oracle(const OwnedProblem& owned) {
  const Problem& p = owned.problem;
  const auto rows = static_cast<size_t>(p.q.total * p.q.heads);
  const auto d_v = static_cast<size_t>(p.d_v());
  std::vector<double> out(rows * d_v);
  std::vector<double> lse(rows);
  std::vector<double> spread(rows);
  std::vector<double> term(rows);
  std::vector<int64_t> visible(rows);
  const Status status = reference_attention(p, {out.data(), lse.data(), spread.data(), term.data(), visible.data()});
  if (!status.ok()) return "oracle: " + status.message();
  if (!owned.guards_intact()) return "a guard was touched";
  for (size_t row = 0; row < rows; ++row) {
    const auto at = [&](size_t i) {
      return load(p.out.type, static_cast<const std::byte*>(p.out.data) + (row * d_v + i) * type_bytes(p.out.type));
    };
    const std::string name = "row " + std::to_string(row) + ": ";
    const double rounding = 4.0 * std::ldexp(1.0, -24) * term[row];
    const float got = p.lse.data[row];
    if (std::isnan(lse[row]) || std::isinf(lse[row])) {
      if (std::isnan(lse[row]) != std::isnan(got) || (std::isinf(lse[row]) && static_cast<double>(got) != lse[row])) {
        return name + "lse " + std::to_string(got) + ", oracle " + std::to_string(lse[row]);
      }
    } else if (!(std::abs(got - lse[row]) <= 1e-5 + 1e-5 * std::abs(lse[row]) + rounding)) {
      return name + "lse " + std::to_string(got) + ", oracle " + std::to_string(lse[row]);
    }
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < d_v; ++i) {
      const double want = out[row * d_v + i];
      const double x = at(i);
      if (std::isfinite(want) != std::isfinite(x) || (visible[row] == 0 && x != 0)) {
        return name + "out[" + std::to_string(i) + "] = " + std::to_string(x) + ", oracle " + std::to_string(want);
      }
      if (!std::isfinite(want)) continue;
      error += (x - want) * (x - want);
      norm += want * want;
    }
    const double t = (p.out.type == Type::kF32 ? 2e-6 + 3e-8 * std::sqrt(static_cast<double>(visible[row])) : 3e-3) + rounding;
    const double allowed = 2 * t * std::max(std::sqrt(norm), std::isfinite(spread[row]) ? spread[row] : 0.0);
    if (!(std::sqrt(error) <= allowed)) return name + "error " + std::to_string(std::sqrt(error)) + " of " + std::to_string(allowed);
  }
  return {};
}

std::vector<std::string> usable_isas() {
  std::vector<std::string> isas;
  for (const Kernel* kernel : kernels()) {
    if (kernel->supported()) isas.emplace_back(kernel->isa);
  }
  return isas;
}

}  // namespace headwater::cpu
