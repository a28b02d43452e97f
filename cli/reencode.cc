#include "cli/reencode.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "src/core/resolved.h"

namespace headwater::cli {
namespace {

constexpr int64_t kChunk = 512;  // rows decoded at a time

// Slots that some query of the problem can reach by its tables, ascending.
std::vector<int64_t> live_slots(const ResolvedProblem& p, const ResolvedSource& s) {
  std::vector<bool> live(static_cast<size_t>(s.num_slots));
  const auto mark = [&](int64_t slot) {
    if (slot >= 0 && slot < s.num_slots) live[static_cast<size_t>(slot)] = true;
  };
  for (int64_t b = 0; b < p.requests; ++b) {
    if (s.rule == RuleKind::kGathered) {
      for (int64_t row = p.qo_indptr[b]; row < p.qo_indptr[b + 1]; ++row) {
        for (int64_t i = 0; i < topk_len(s, row); ++i) mark(gathered_slot(s, b, row, i));
      }
    } else {
      for (int64_t j = 0; j < source_kv_len(s, b); ++j) mark(source_slot(s, b, j));
    }
  }
  std::vector<int64_t> slots;
  for (size_t i = 0; i < live.size(); ++i) {
    if (live[i]) slots.push_back(static_cast<int64_t>(i));
  }
  return slots;
}

// Largest magnitude that the format holds with scale 1; 0: it needs no scale of the tensor.
float format_max(Format format) {
  switch (format) {
    case Format::kE4m3:
      return 448.0F;
    case Format::kE5m2:
      return 57344.0F;
    case Format::kNvfp4:
      return 448.0F * 6.0F;  // largest block scale times largest element
    default:
      return 0.0F;
  }
}

class Reencoder {
 public:
  Reencoder(io::OwnedProblem* problem, const Reencoding& to) : problem_(*problem), to_(to) {}

  Status run(std::string* said) {
    ResolvedProblem resolved;
    Status status = validate(problem_.problem, &resolved);
    for (size_t i = 0; status.ok() && i < problem_.sources.size(); ++i) status = source(i, resolved);
    if (status.ok() && scaled_) *said = "scales calibrated on this very data (its largest magnitudes): optimistic";
    problem_.problem.sources = problem_.sources;
    return status;
  }

 private:
  Status source(size_t index, const ResolvedProblem& resolved);
  Status tensor(size_t index, const char* part, const Source& s, Format format, int32_t width, KvTensor* t);
  Status calibrate(const Source& old, const std::vector<int64_t>& slots, Source* s);
  Status copy(const Source& old, const std::vector<int64_t>& slots, const Source& s) const;
  void set_scale(KvTensor* t, std::vector<float> amax, bool shared);
  // Decodes slots [begin, begin + n).
  static Status rows(const Source& old, const std::vector<int64_t>& slots, int64_t begin, int64_t n, std::vector<float>* k,
                     std::vector<float>* v);

  io::OwnedProblem& problem_;
  const Reencoding& to_;
  bool scaled_ = false;
};

Status Reencoder::tensor(size_t index, const char* part, const Source& s, Format format, int32_t width, KvTensor* t) {
  const FormatInfo& info = format_info(format);
  const std::string where = fmt::format("kv[{}].{}: cannot be stored as {}: ", index, part, info.name);
  if (info.fixed_width != 0 && width != info.fixed_width) {
    return invalid(where + fmt::format("its {} columns are not the {} of these records", width, info.fixed_width));
  }
  if (format == Format::kMxfp4RopeBf16 && width <= 64)
    return invalid(where + fmt::format("{} columns, these records have more than 64", width));
  const bool ragged = s.addressing.kind == AddressingKind::kRagged;
  if (info.planar && ragged) return invalid(where + "these records live in pages, and the source is ragged");
  if (info.planar && s.heads != 1) return invalid(where + fmt::format("these records have one head, the source has {}", s.heads));
  *t = KvTensor{};
  t->format = format;
  t->width = width;
  const int64_t pages = s.addressing.num_pages;
  const int32_t page_size = ragged ? 1 : s.addressing.page_size;
  const int64_t per_page =
      info.planar ? record_page_bytes(format, width, page_size) : record_row_bytes(format, width) * page_size * s.heads;
  const auto allocate = [&](int64_t bytes_per_page) -> std::byte* {
    int64_t bytes = 0;
    if (__builtin_mul_overflow(pages, bytes_per_page, &bytes)) return nullptr;
    problem_.storage.emplace_back(static_cast<size_t>(bytes));
    return problem_.storage.back().data();
  };
  t->data = allocate(per_page);
  if (info.scales_apart) t->scales = allocate(record_scale_bytes(format, width) * page_size * s.heads);
  if (t->data == nullptr || (info.scales_apart && t->scales == nullptr)) return invalid(where + "no memory");
  return {};
}

Status Reencoder::rows(const Source& old, const std::vector<int64_t>& slots, int64_t begin, int64_t n, std::vector<float>* k,
                       std::vector<float>* v) {
  k->resize(static_cast<size_t>(n * old.heads * old.k.width));
  if (!old.shared) v->resize(static_cast<size_t>(n * old.heads * old.v.width));
  return gather(old, slots.data() + begin, n, k->data(), old.shared ? nullptr : v->data());
}

void Reencoder::set_scale(KvTensor* t, std::vector<float> amax, bool shared) {
  const float most = format_max(t->format);
  if (most == 0.0F) return;
  if (shared) amax = {*std::max_element(amax.begin(), amax.end())};
  scaled_ = true;
  problem_.storage.emplace_back(amax.size() * sizeof(float));
  auto* const values = reinterpret_cast<float*>(problem_.storage.back().data());
  for (size_t h = 0; h < amax.size(); ++h) values[h] = std::max(amax[h] / most, std::numeric_limits<float>::min());
  for (size_t h = 0; h < amax.size(); ++h) values[h] = amax[h] == 0.0F ? 1.0F : values[h];
  t->scale = Scale::array(values, static_cast<int32_t>(amax.size()));
}

Status Reencoder::calibrate(const Source& old, const std::vector<int64_t>& slots, Source* s) {
  if (format_max(s->k.format) == 0.0F && (s->shared || format_max(s->v.format) == 0.0F)) return {};
  std::vector<float> k_amax(static_cast<size_t>(s->heads));
  std::vector<float> v_amax(static_cast<size_t>(s->heads));
  std::vector<float> k;
  std::vector<float> v;
  const auto widen = [&](const std::vector<float>& values, int32_t width, std::vector<float>* amax) {
    for (size_t i = 0; i < values.size(); ++i) {
      float& most = (*amax)[i / static_cast<size_t>(width) % amax->size()];
      if (std::isfinite(values[i])) most = std::max(most, std::fabs(values[i]));
    }
  };
  for (int64_t begin = 0; begin < static_cast<int64_t>(slots.size()); begin += kChunk) {
    const int64_t n = std::min<int64_t>(kChunk, static_cast<int64_t>(slots.size()) - begin);
    Status status = rows(old, slots, begin, n, &k, &v);
    if (!status.ok()) return status;
    widen(k, old.k.width, &k_amax);
    if (!s->shared) widen(v, old.v.width, &v_amax);
  }
  set_scale(&s->k, std::move(k_amax), s->shared);
  if (!s->shared) set_scale(&s->v, std::move(v_amax), false);
  return {};
}

Status Reencoder::copy(const Source& old, const std::vector<int64_t>& slots, const Source& s) const {
  std::vector<float> k;
  std::vector<float> v;
  for (int64_t begin = 0; begin < static_cast<int64_t>(slots.size()); begin += kChunk) {
    const int64_t n = std::min<int64_t>(kChunk, static_cast<int64_t>(slots.size()) - begin);
    Status status = rows(old, slots, begin, n, &k, &v);
    if (!status.ok()) return status;
    AppendRows from;
    from.k = k.data();
    from.v = s.shared ? nullptr : v.data();
    from.type = Type::kF32;
    from.count = n;
    status = append(s, from, slots.data() + begin, to_.rule);
    if (!status.ok()) return status;
  }
  return {};
}

Status Reencoder::source(size_t index, const ResolvedProblem& resolved) {
  const Source old = problem_.sources[index];
  Source s = old;
  Status status = tensor(index, "k", s, to_.k, old.k.width, &s.k);
  if (s.shared && to_.v.value_or(to_.k) != to_.k)
    return invalid(fmt::format("kv[{}].v: has no format of its own, V is kept inside K", index));
  if (status.ok() && !s.shared) status = tensor(index, "v", s, to_.v.value_or(to_.k), old.v.width, &s.v);
  if (!status.ok()) return status;
  const std::vector<int64_t> slots = live_slots(resolved, resolved.sources[index]);
  status = calibrate(old, slots, &s);
  if (status.ok()) status = copy(old, slots, s);
  if (status.ok()) problem_.sources[index] = s;
  return status;
}

}  // namespace

Status reencode(io::OwnedProblem* problem, const Reencoding& to, std::string* said) { return Reencoder(problem, to).run(said); }

std::optional<BlockScaleRule> block_scale_rule(const std::string& name) {
  if (name == "up") return BlockScaleRule::kRoundUp;
  if (name == "even") return BlockScaleRule::kEven;
  if (name == "floor") return BlockScaleRule::kFloor;
  return std::nullopt;
}

Result<Format> format_option(const std::string& option, const std::string& name) {
  if (const auto format = format_by_name(name)) return *format;
  std::string names;
  for (const FormatInfo& info : all_formats()) names += (names.empty() ? "" : ", ") + std::string(info.name);
  return invalid(option + " = " + name + ": must be one of " + names);
}

}  // namespace headwater::cli
