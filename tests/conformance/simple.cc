#include "tests/conformance/simple.h"

#include <cstring>
#include <new>

#include "cli/check/runner.h"
#include "cli/check/tolerance.h"
#include "src/core/resolved.h"

namespace headwater::conformance {
namespace {

void release(std::byte* p) { ::operator delete[](p, std::align_val_t{256}); }

std::unique_ptr<std::byte[], void (*)(std::byte*)> aligned_bytes(size_t bytes) {
  return {static_cast<std::byte*>(::operator new[](bytes + 1, std::align_val_t{256})), &release};
}

// Gathered sources keep no tables once validated.
ResolvedSource with_tables(ResolvedSource resolved, const Source& source) {
  resolved.kv_indptr = source.addressing.kv_indptr;
  resolved.block_table = source.addressing.block_table;
  resolved.block_table_stride = source.addressing.max_pages;
  return resolved;
}

}  // namespace

Prepared prepare(const Bounds& bounds, const PlanOptions& options) {
  Prepared prepared{make_plan(bounds, options)};
  if (!prepared.plan.ok()) return prepared;
  prepared.schedule = aligned_bytes(prepared.plan->schedule_bytes());
  prepared.scratch = aligned_bytes(prepared.plan->scratch_bytes());
  return prepared;
}

void Simple::add(const SimpleSource& from) {
  const auto keep_ints = [this](std::vector<int32_t> values) {
    ints_.push_back(std::make_unique<std::vector<int32_t>>(std::move(values)));
    return ints_.back()->data();
  };
  Source source;
  source.heads = from.heads;
  source.shared = from.shared;
  source.value_width = from.shared ? d_v : 0;
  source.rule = from.rule;
  source.k.format = from.k_format;
  source.k.width = d_qk;
  source.k.scale = from.k_scale;
  if (!from.shared) {
    source.v.format = from.v_format;
    source.v.width = d_v;
    source.v.scale = from.v_scale;
  }
  if (!from.first_position.empty()) source.first_position = keep_ints(from.first_position);
  if (!from.position_stride.empty()) source.position_stride = keep_ints(from.position_stride);
  Addressing& a = source.addressing;
  if (from.page_size == 0) {
    std::vector<int32_t> indptr = {0};
    for (const int32_t length : from.kv_lens) indptr.push_back(indptr.back() + length);
    a.num_pages = indptr.back();
    a.kv_indptr = keep_ints(indptr);
  } else {
    a.kind = AddressingKind::kBlockTable;
    a.page_size = from.page_size;
    for (const int32_t length : from.kv_lens) {
      const int64_t pages = (length + from.page_size - 1) / from.page_size;
      a.max_pages = std::max(a.max_pages, pages);
      a.num_pages += pages;
    }
    std::vector<int32_t> table;
    auto next = static_cast<int32_t>(a.num_pages);
    for (const int32_t length : from.kv_lens) {
      for (int64_t i = 0; i < a.max_pages; ++i) table.push_back(i * from.page_size < length ? --next : 2147480000);
    }
    a.block_table = keep_ints(table);
    a.seq_lens = keep_ints(from.kv_lens);
  }
  const int64_t rows = a.num_pages * (from.page_size == 0 ? 1 : from.page_size);
  for (KvTensor* t : {&source.k, &source.v}) {
    if (t == &source.v && from.shared) continue;
    const int64_t page = from.page_size == 0 ? 0 : record_page_bytes(t->format, t->width, from.page_size);
    const bool planar = format_info(t->format).planar;
    const int64_t bytes = planar ? a.num_pages * page : rows * from.heads * record_row_bytes(t->format, t->width);
    bytes_.push_back(std::make_unique<std::vector<std::byte>>(static_cast<size_t>(bytes) + 1, std::byte{0xff}));
    t->data = bytes_.back()->data();
    if (format_info(t->format).scales_apart) {
      bytes_.push_back(std::make_unique<std::vector<std::byte>>(
          static_cast<size_t>(rows * from.heads * record_scale_bytes(t->format, t->width)) + 4, std::byte{0xff}));
      t->scales = bytes_.back()->data();
    }
  }
  sources_.push_back(source);
  // Values, through the public encoder; addresses come from a problem that validates.
  build();
  ResolvedProblem resolved;
  const Status status = validate(problem_, &resolved);
  ASSERT_TRUE(status.ok()) << status.message();
  const ResolvedSource s = with_tables(resolved.sources[sources_.size() - 1], source);
  for (int64_t b = 0; b < static_cast<int64_t>(from.kv_lens.size()); ++b) {
    for (int64_t j = 0; j < from.kv_lens[static_cast<size_t>(b)]; ++j) {
      for (int32_t h = 0; h < from.heads; ++h) {
        for (const bool is_v : {false, true}) {
          if (is_v && from.shared) continue;
          const ResolvedTensor& t = is_v ? s.v : s.k;
          const Values& make = is_v ? from.v : from.k;
          std::vector<float> values(static_cast<size_t>(t.layout.width));
          for (int32_t c = 0; c < t.layout.width; ++c) values[static_cast<size_t>(c)] = make ? make(b, j, h, c) : random_value();
          const formats::RowRef ref = record_at(s, t, source_slot(s, b, j), h);
          const Status encoded = encode_record(t.layout.format, t.layout.width, values.data(), const_cast<std::byte*>(ref.row),
                                               const_cast<std::byte*>(ref.scales), tensor_scale(t, h));
          ASSERT_TRUE(encoded.ok()) << encoded.message();
        }
      }
    }
  }
}

Problem& Simple::build() {
  qo_indptr_ = {0};
  for (const int32_t length : q_lens) qo_indptr_.push_back(qo_indptr_.back() + length);
  rows_ = qo_indptr_.back();
  const auto count = static_cast<size_t>(rows_ * heads * d_qk);
  if (q_.size() != count) {
    q_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      const auto column = static_cast<int32_t>(i % static_cast<size_t>(d_qk));
      const auto head = static_cast<int32_t>(i / static_cast<size_t>(d_qk) % static_cast<size_t>(heads));
      q_[i] = q ? q(static_cast<int64_t>(i) / d_qk / heads, head, column) : random_value();
    }
  }
  out_.resize(static_cast<size_t>(rows_ * heads * d_v * type_bits(out_type) / 8) + 1);
  lse_.resize(static_cast<size_t>(rows_ * heads) + 1);
  clear_outputs();
  Problem p;
  p.q = {q_.data(), Type::kF32, rows_, heads, d_qk};
  p.requests = static_cast<int64_t>(q_lens.size());
  p.qo_indptr = qo_indptr_.data();
  p.context_lens = context_lens.empty() ? nullptr : context_lens.data();
  p.sources = sources_;
  p.sinks = sinks.empty() ? nullptr : sinks.data();
  p.sinks_request_stride = sinks.size() > static_cast<size_t>(heads) ? heads : 0;
  p.sm_scale = sm_scale;
  p.logits_soft_cap = softcap;
  p.out = {out_.data(), out_type};
  p.lse.data = lse_.data();
  problem_ = p;
  return problem_;
}

std::byte* Simple::record(size_t s, bool v, int64_t request, int64_t j, int32_t head) {
  ResolvedProblem resolved;
  if (!validate(problem_, &resolved).ok()) return nullptr;
  const ResolvedSource source = with_tables(resolved.sources[s], sources_[s]);
  return const_cast<std::byte*>(record_at(source, v ? source.v : source.k, source_slot(source, request, j), head).row);
}

float Simple::out(int64_t row, int32_t head, int32_t column) const {
  const auto at = static_cast<size_t>((row * heads + head) * d_v + column);
  float value = 0.0F;
  const Format format = out_type == Type::kF32 ? Format::kF32 : out_type == Type::kF16 ? Format::kF16 : Format::kBf16;
  const Status status = decode_record(format, 1, out_.data() + at * static_cast<size_t>(type_bits(out_type) / 8), nullptr, &value);
  EXPECT_TRUE(status.ok()) << status.message();
  return value;
}

float Simple::lse(int64_t row, int32_t head) const { return lse_[static_cast<size_t>(row * heads + head)]; }

void Simple::clear_outputs() {
  std::fill(out_.begin(), out_.end(), std::byte{0xa5});
  std::fill(lse_.begin(), lse_.end(), -777.0F);
}

void Simple::attend_ok(const PlanOptions& options) {
  clear_outputs();
  const Status status = attend(problem_, options);
  ASSERT_TRUE(status.ok()) << status.message();
}

void Simple::expect_oracle(const std::string& what, const PlanOptions& options) {
  const Reference reference = run_reference(problem_);
  ASSERT_TRUE(reference.status.ok()) << what << ": " << reference.status.message();
  for (const std::string& isa : usable_isas()) {
    PlanOptions forced = options;
    forced.isa = isa;
    attend_ok(forced);
    const Judgement verdict = judge(problem_, reference);
    EXPECT_EQ(verdict.fault, "") << what << ", isa " << isa;
  }
}

}  // namespace headwater::conformance
