// What must not be refused, and what validate fills in.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <numeric>
#include <string>

#include "src/core/resolved.h"
#include "tests/core/valid_problem.h"

namespace headwater {
namespace {

using test::kGarbage;
using test::PlanarProblem;
using test::tensor;
using test::ValidProblem;

// One ragged source of float32, free to be changed.
struct SmallProblem {
  std::vector<float> q = std::vector<float>(256, 0.0F);
  std::vector<float> kv = std::vector<float>(1024, 0.0F);
  std::vector<float> out = std::vector<float>(256, -1.0F);
  std::vector<int32_t> qo_indptr{0, 1};
  std::vector<int32_t> kv_indptr{0, 4};
  std::vector<int32_t> table;
  std::vector<int32_t> lens;
  std::vector<int32_t> ones{1, 1, 1};
  std::array<Source, 2> sources;
  Problem p;

  SmallProblem() {
    sources[0] = Source::separate_kv(tensor(kv.data(), Format::kF32, 8), tensor(kv.data(), Format::kF32, 8), 1,
                                     {.num_pages = 4, .kv_indptr = kv_indptr.data()}, Rule::causal());
    sources[1] = sources[0];
    p.q = {q.data(), Type::kF32, 1, 2, 8};
    p.requests = 1;
    p.qo_indptr = qo_indptr.data();
    p.sources = std::span<const Source>(sources).first(1);
    p.sm_scale = 1.0F;
    p.out = {out.data(), Type::kF32};
  }
  SmallProblem(const SmallProblem&) = delete;
  SmallProblem& operator=(const SmallProblem&) = delete;

  void page(std::vector<int32_t> block_table, std::vector<int32_t> seq_lens, int64_t max_pages, int32_t page_size, int64_t num_pages) {
    table = std::move(block_table);
    lens = std::move(seq_lens);
    sources[0].addressing = {.kind = AddressingKind::kBlockTable,
                             .page_size = page_size,
                             .num_pages = num_pages,
                             .block_table = max_pages > 0 ? table.data() : nullptr,
                             .max_pages = max_pages,
                             .seq_lens = lens.data()};
  }
};

ResolvedProblem accept(const Problem& p) {
  ResolvedProblem resolved;
  const Status status = validate(p, &resolved);
  EXPECT_TRUE(status.ok()) << status.message();
  return resolved;
}
std::string refusal(const Problem& p) {
  ResolvedProblem resolved;
  return validate(p, &resolved).message();
}

TEST(Legal, DefaultsAreFilledIn) {
  ValidProblem v;
  const ResolvedProblem r = accept(v.p);
  EXPECT_EQ(r.d_qk, 64);
  EXPECT_EQ(r.d_v, 32);
  EXPECT_EQ(r.q_row_stride, 4 * 48);
  EXPECT_EQ(r.q_head_stride, 48);
  EXPECT_EQ(r.q_tail_row_stride, 4 * 16);
  EXPECT_EQ(r.q_scale_row_stride, 4);
  EXPECT_EQ(r.q_scale_head_stride, 1);
  EXPECT_EQ(r.out_row_stride, 4 * 32 * 2);
  EXPECT_EQ(r.lse_token_stride, 4);
  EXPECT_EQ(r.lse_head_stride, 1);
  EXPECT_FALSE(r.lse_per_request);
  EXPECT_TRUE(r.needs_context);
  EXPECT_EQ(r.context_lens, v.context_lens.data());
  EXPECT_EQ(r.num_sources, 6);
  EXPECT_EQ(r.head_block, 1);  // gcd of the groups 2, 2, 4, 4, 4, 1
  EXPECT_EQ(r.sources[0].group, 2);
  EXPECT_EQ(r.sources[0].k.row_stride, 2 * 64 * 2);
  EXPECT_EQ(r.sources[0].k.head_stride, 64 * 2);
  EXPECT_EQ(r.sources[1].k.page_stride, 4 * 2 * 64);
  EXPECT_EQ(r.sources[1].k.scale_count, 2);
  EXPECT_EQ(tensor_scale(r.sources[1].k, 1), 0.75F);
  EXPECT_EQ(tensor_scale(r.sources[1].v, 1), 0.5F);
  EXPECT_EQ(tensor_scale(r.sources[0].v, 1), 1.0F);
  EXPECT_EQ(r.sources[1].block_table_stride, 3);
  EXPECT_EQ(r.sources[1].num_slots, 24);
  EXPECT_EQ(r.sources[2].k.row_stride, 32);
  EXPECT_EQ(r.sources[2].k.scale_row_stride, 2);
  EXPECT_EQ(r.sources[2].k.scale_block_stride, 1);
  EXPECT_EQ(r.sources[2].v.scale_row_stride, 4);
  EXPECT_EQ(r.sources[3].indices_stride, 3);
  EXPECT_TRUE(r.sources[3].indices_are_64);
  EXPECT_TRUE(r.sources[3].shared);
  EXPECT_EQ(r.sources[3].v.layout.num_segments, 0);
}

TEST(Legal, HeadBlockIsTheGreatestCommonDivisorOfTheGroups) {
  SmallProblem v;
  v.p.q.heads = 12;
  v.p.sources = v.sources;
  v.sources[0].heads = 2;  // group 6
  v.sources[0].rule = Rule::full();
  v.sources[1].heads = 3;  // group 4
  v.sources[1].rule = Rule::full();
  EXPECT_EQ(accept(v.p).head_block, 2);
}

TEST(Legal, PlanarPagesAreRoundedUpAndPaddedStridesHonoured) {
  PlanarProblem v;
  EXPECT_EQ(accept(v.p).sources[0].k.page_stride, 1728);  // 2 x 584 rounded up to a multiple of 576
  EXPECT_EQ(accept(v.p).sources[0].k.row_stride, 576);
  v.sources[0].k.page_stride_bytes = 1168;  // not padded at all
  EXPECT_EQ(accept(v.p).sources[0].k.page_stride, 1168);
}

TEST(Legal, NoRequests) {
  SmallProblem v;
  v.p.requests = 0;
  v.p.qo_indptr = nullptr;
  v.sources[0].addressing.kv_indptr = nullptr;
  accept(v.p);
  v.p.q.data = nullptr;
  v.p.out.data = nullptr;
  v.p.q.total = 0;
  accept(v.p);
  EXPECT_TRUE(attend(v.p).ok());
}

TEST(Legal, NoQueryRows) {
  SmallProblem v;
  v.qo_indptr = {0, 0};
  v.p.qo_indptr = v.qo_indptr.data();
  accept(v.p);
  v.p.q.total = 0;
  v.p.q.data = nullptr;
  v.p.out.data = nullptr;
  accept(v.p);
}

TEST(Legal, NoEntriesAndNoCache) {
  SmallProblem v;
  v.kv_indptr = {0, 0};
  v.sources[0].addressing = {.num_pages = 0, .kv_indptr = v.kv_indptr.data()};
  v.sources[0].k.data = nullptr;
  v.sources[0].v.data = nullptr;
  accept(v.p);
}

TEST(Legal, LengthZeroSequencesWithTablesOfWidthZeroAndOne) {  // A29
  SmallProblem v;
  v.qo_indptr = {0, 1, 1, 1};
  v.p.qo_indptr = v.qo_indptr.data();
  v.p.requests = 3;
  v.page({}, {0, 0, 0}, 0, 4, 1);
  accept(v.p);
  v.page({kGarbage, 0, kGarbage}, {0, 4, 0}, 1, 4, 1);
  accept(v.p);
  v.page({}, {0, 5, 0}, 0, 4, 1);
  EXPECT_EQ(refusal(v.p), "kv[0].seq_lens[1] = 5: must be at most 0, the 0 pages of the request times page_size");
}

TEST(Legal, TableEntriesOfPagesThatNoQuerySeesMayHoldAnything) {
  SmallProblem v;
  v.page({kGarbage, kGarbage, 1, -1}, {10}, 4, 4, 2);  // positions 0..9, the query at 9
  v.sources[0].rule = Rule::window(1);                 // sees 8 and 9: page 2 alone
  accept(v.p);
  v.sources[0].rule = Rule::window(2);  // and 7: page 1
  EXPECT_EQ(refusal(v.p), "kv[0].block_table[0][1] = 2147480000: must be from 0 to num_pages - 1 = 1 (holds entries of request 0)");
  v.sources[0].rule = Rule::causal();
  std::vector<int32_t> context{2};  // the query stands at 1: it sees page 0 alone
  v.p.context_lens = context.data();
  v.table[0] = 0;
  v.table[2] = kGarbage;
  accept(v.p);
  v.qo_indptr = {0, 0};  // padding: nothing is live
  v.table[0] = kGarbage;
  accept(v.p);
}

TEST(Legal, RowsPastTheLastOffsetAreNotLookedAt) {
  SmallProblem v;
  v.p.q.total = 8;
  v.q.resize(8 * 2 * 8);
  v.out.resize(8 * 2 * 8);
  v.p.q.data = v.q.data();
  v.p.out.data = v.out.data();
  accept(v.p);
}

TEST(Legal, ExpandedAndReversedInputsButNotOutputs) {
  SmallProblem v;
  v.p.q.total = 2;
  v.qo_indptr[1] = 2;
  v.p.q.row_stride_bytes = 0;
  v.p.q.head_stride_bytes = 0;
  v.sources[0].k.row_stride_bytes = 0;
  v.sources[0].v.data = v.kv.data() + 3 * 8;
  v.sources[0].v.row_stride_bytes = -32;
  const ResolvedProblem r = accept(v.p);
  EXPECT_EQ(r.q_row_stride, 0);
  EXPECT_EQ(r.sources[0].v.row_stride, -32);
  v.p.out.data = v.out.data() + 16;
  v.p.out.row_stride_bytes = -64;  // apart, upside down
  accept(v.p);
  v.p.out.row_stride_bytes = -60;
  EXPECT_EQ(refusal(v.p), "out.row_stride_bytes = -60: elements of an output must not overlap; at least 64 needed");
}

TEST(Legal, StridesOfAxesOfSizeOneDoNotMatter) {
  SmallProblem v;
  v.p.q.heads = 1;
  v.p.out.head_stride_bytes = 0;
  v.p.out.row_stride_bytes = 0;
  v.sources[0].k.head_stride_bytes = 12;
  v.sources[0].k.row_stride_bytes = 32;
  accept(v.p);
}

TEST(Legal, LseInEveryLayoutThatEnginesHold) {
  ValidProblem v;
  v.p.lse.token_stride = 1;  // [h, tokens]
  v.p.lse.head_stride = 6;
  accept(v.p);
  v.p.lse.request_stride = 12;  // [b, h, q], longest q 3
  v.p.lse.head_stride = 3;
  v.p.lse.token_stride = 1;
  const ResolvedProblem r = accept(v.p);
  EXPECT_TRUE(r.lse_per_request);
  EXPECT_EQ(lse_offset(r, 2, 1, 3, 2), 2 * 12 + 1 + 2 * 3);
  v.p.lse = {};
  EXPECT_EQ(accept(v.p).lse, nullptr);
}

TEST(Legal, LongestRunOfHeadsAndRequests) {  // rule 7
  SmallProblem v;
  constexpr int32_t kMany = 65536;
  v.p.q.heads = kMany;
  v.q.resize(size_t{kMany} * 8);
  v.out.resize(size_t{kMany} * 8);
  v.p.q.data = v.q.data();
  v.p.out.data = v.out.data();
  EXPECT_EQ(accept(v.p).head_block, kMany);

  SmallProblem w;
  w.qo_indptr.assign(kMany + 1, 0);
  w.kv_indptr.assign(kMany + 1, 4);
  w.kv_indptr[0] = 0;
  w.qo_indptr.back() = 1;
  w.p.qo_indptr = w.qo_indptr.data();
  w.sources[0].addressing.kv_indptr = w.kv_indptr.data();
  w.p.requests = kMany;
  accept(w.p);
}

TEST(Legal, PageIdsNearTheEndOf32Bits) {  // A32, A34: nothing of this is dereferenced by validate
  SmallProblem v;
  const int32_t last = std::numeric_limits<int32_t>::max() - 1;
  v.page({last}, {1}, 1, 64, int64_t{1} << 31);
  v.sources[0].k.page_stride_bytes = 480 * 576;
  v.sources[0].v.page_stride_bytes = 480 * 576;
  v.sources[0].k.row_stride_bytes = v.sources[0].v.row_stride_bytes = 32;
  v.sources[0].k.head_stride_bytes = v.sources[0].v.head_stride_bytes = 32;
  const ResolvedProblem r = accept(v.p);
  const int64_t slot = source_slot(r.sources[0], 0, 0);
  EXPECT_EQ(slot, int64_t{last} * 64);
  EXPECT_EQ(record_at(r.sources[0], r.sources[0].k, slot, 0).row - r.sources[0].k.data, int64_t{last} * 480 * 576);
}

TEST(Legal, NothingOfADeviceProblemIsDereferenced) {
  ValidProblem v;
  const auto away = [](const auto* pointer) {  // an address that nobody maps
    return reinterpret_cast<decltype(pointer)>(reinterpret_cast<uintptr_t>(pointer) | (uintptr_t{1} << 62));
  };
  v.p.device = {DeviceKind::kCuda, 3};
  v.p.qo_indptr = away(v.p.qo_indptr);
  v.p.context_lens = away(v.p.context_lens);
  v.p.sinks = away(v.p.sinks);
  for (Source& s : v.sources) {
    Addressing& a = s.addressing;
    if (a.kv_indptr != nullptr) a.kv_indptr = away(a.kv_indptr);
    if (a.block_table != nullptr) a.block_table = away(a.block_table);
    if (a.kv_indices != nullptr) a.kv_indices = away(a.kv_indices);
    if (a.seq_lens != nullptr) a.seq_lens = away(a.seq_lens);
    if (a.kv_last_page_len != nullptr) a.kv_last_page_len = away(a.kv_last_page_len);
    if (s.first_position != nullptr) s.first_position = away(s.first_position);
    if (s.position_stride != nullptr) s.position_stride = away(s.position_stride);
    if (s.k.scale.data != nullptr) s.k.scale.data = away(s.k.scale.data);
    if (s.rule.indices != nullptr) s.rule.indices = away(static_cast<const int64_t*>(s.rule.indices));
    if (s.rule.topk_lens != nullptr) s.rule.topk_lens = away(s.rule.topk_lens);
  }
  accept(v.p);
  v.sources[1].addressing.page_size = 0;
  EXPECT_EQ(refusal(v.p), "kv[1].page_size = 0: must be at least 1");
}

TEST(Legal, ContextLengthsAreDerivedFromTheOneCausalSource) {
  SmallProblem v;
  EXPECT_EQ(accept(v.p).context_source, 0);
  EXPECT_EQ(context_len(accept(v.p), 0), 4);
  std::vector<int32_t> first{7};
  v.sources[0].first_position = first.data();
  EXPECT_EQ(context_len(accept(v.p), 0), 11);
  v.sources[0].position_stride = v.ones.data();  // known to be 1: the CPU can look
  EXPECT_EQ(accept(v.p).context_source, 0);
  v.ones[0] = 2;
  EXPECT_EQ(refusal(v.p),
            "context_lens = null: must be given: the causal and window rules read it, and kv[0].position_stride is not known to be 1");
  v.sources[0].position_stride = nullptr;
  v.p.sources = v.sources;  // two causal sources
  EXPECT_EQ(refusal(v.p), "context_lens = null: must be given: the causal and window rules read it, and 2 sources are causal or windowed");
  v.sources[1].rule = Rule::compressed(4);
  EXPECT_EQ(accept(v.p).context_source, 0);
  v.sources[0].rule = Rule::full();
  EXPECT_EQ(refusal(v.p), "context_lens = null: must be given: the compressed rule read it, and no source is causal or windowed");
  v.sources[1].rule = Rule::full();
  const ResolvedProblem r = accept(v.p);
  EXPECT_FALSE(r.needs_context);
  std::vector<int32_t> unread{-5};  // no rule reads it
  v.p.context_lens = unread.data();
  EXPECT_EQ(accept(v.p).context_lens, nullptr);
}

TEST(Legal, SlotsNeedNoTableAndNoLengths) {
  SmallProblem v;
  std::vector<int32_t> indices{0, 5, -1};
  v.sources[0].rule = Rule::gathered(indices.data(), 3);
  v.page({}, {}, 0, 4, 1);
  v.sources[0].addressing.seq_lens = nullptr;
  const ResolvedProblem r = accept(v.p);
  EXPECT_EQ(source_kv_len(r.sources[0], 0), 0);
  EXPECT_EQ(gathered_slot(r.sources[0], 0, 0, 1), -1);  // 4 slots
}

TEST(Legal, SinksOfAnyValue) {
  ValidProblem v;
  v.sinks = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
             1e30F};
  accept(v.p);
  v.p.sinks = nullptr;
  accept(v.p);
}

TEST(Legal, E4m3QueriesWithoutAScaleHaveOne) {
  ValidProblem v;
  v.p.q_scale = {};
  const ResolvedProblem r = accept(v.p);
  EXPECT_EQ(r.q_scale, nullptr);
  EXPECT_EQ(r.q_scale_value, 1.0F);
}

}  // namespace
}  // namespace headwater
