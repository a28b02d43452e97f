// Valid problems that use every field once, to be broken one field at a time.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "headwater/headwater.h"

namespace headwater::test {

inline constexpr int32_t kGarbage = 2147480000;  // in table entries that nobody may read

inline KvTensor tensor(const void* data, Format format, int32_t width) {
  KvTensor t;
  t.data = data;
  t.format = format;
  t.width = width;
  return t;
}

// Three requests (the second is padding: q_len 0, kv_len 0) of 2, 0 and 3 query tokens, and one row of padding behind them. Queries in
// two parts, e4m3, scaled by row and head. Six sources, every addressing and rule among them.
struct ValidProblem {
  static constexpr int32_t kHeads = 4;
  static constexpr int32_t kWidth = 64;
  static constexpr int32_t kValueWidth = 32;

  std::vector<uint8_t> q = std::vector<uint8_t>(6 * 4 * 48, 0x38);
  std::vector<uint8_t> q_tail = std::vector<uint8_t>(6 * 4 * 16, 0x38);
  std::vector<float> q_scale = std::vector<float>(6 * 4, 0.5F);
  std::vector<int32_t> qo_indptr{0, 2, 2, 5};
  std::vector<int32_t> context_lens{9, 0, 4};
  std::vector<float> sinks{0.0F, 1.0F, 2.0F, 3.0F};
  std::vector<uint16_t> out = std::vector<uint16_t>(6 * 4 * 32, 0xabcd);
  std::vector<float> lse = std::vector<float>(6 * 4, 12345.0F);

  // One page pool of bytes for every source: zeros decode to 0 in all formats used here.
  std::vector<uint64_t> cache = std::vector<uint64_t>(8192, 0);
  std::vector<int32_t> ragged_indptr{0, 5, 5, 9};
  std::vector<float> k_scale{0.25F, 0.75F};
  std::vector<int32_t> window_table{kGarbage, 0, 3, kGarbage, kGarbage, kGarbage, 1, kGarbage, -7};
  std::vector<int32_t> window_lens{9, 0, 4};
  std::vector<int32_t> list_indptr{0, 2, 2, 3};
  std::vector<int32_t> list_indices{4, 1, 2};
  std::vector<int32_t> list_lens{7, 0, 2};
  std::vector<int32_t> list_last{3, 99, 2};
  std::vector<int64_t> slots{0, 7, -1, 3, 3, 8, int64_t{1} << 40, 2, 2, 1, 1, 1, 0, 0, 0, -5, -5, -5};
  std::vector<int32_t> topk_lens{3, 2, 99, -4, 1, kGarbage};
  std::vector<int32_t> position_table{1, kGarbage, -3, -3, 2, 0};
  std::vector<int32_t> position_lens{3, 0, 3};
  std::vector<int32_t> positions{0, 1, 1, 50, 0, -1, 2, 1, 0, 0, kGarbage, -kGarbage};
  std::vector<int32_t> compressed_indptr{0, 2, 2, 3};
  std::vector<int32_t> first_position{0, 0, -1};
  std::vector<int32_t> position_stride{1, 3, 2};
  std::array<Source, 6> sources;
  Problem p;

  ValidProblem() {
    sources[0] = Source::separate_kv(tensor(cache.data(), Format::kBf16, kWidth), tensor(cache.data(), Format::kF16, kValueWidth), 2,
                                     {.kind = AddressingKind::kRagged, .num_pages = 10, .kv_indptr = ragged_indptr.data()}, Rule::causal());
    sources[1] = Source::separate_kv(tensor(cache.data(), Format::kE4m3, kWidth), tensor(cache.data(), Format::kE4m3, kValueWidth), 2,
                                     {.kind = AddressingKind::kBlockTable,
                                      .page_size = 4,
                                      .num_pages = 6,
                                      .block_table = window_table.data(),
                                      .max_pages = 3,
                                      .seq_lens = window_lens.data()},
                                     Rule::window(3));
    sources[1].k.scale = Scale::array(k_scale.data(), 2);
    sources[1].v.scale = Scale::constant(0.5F);
    sources[2] = Source::separate_kv(tensor(cache.data(), Format::kMxfp4, kWidth), tensor(cache.data(), Format::kInt8, kValueWidth), 1,
                                     {.kind = AddressingKind::kPageList,
                                      .page_size = 4,
                                      .num_pages = 5,
                                      .kv_indptr = list_indptr.data(),
                                      .kv_indices = list_indices.data(),
                                      .num_indices = 3,
                                      .seq_lens = list_lens.data(),
                                      .kv_last_page_len = list_last.data()},
                                     Rule::full());
    sources[2].k.scales = cache.data();
    sources[2].v.scales = cache.data();
    sources[3] =
        Source::shared_kv(tensor(cache.data(), Format::kBf16, kWidth), kValueWidth,
                          {.kind = AddressingKind::kPool, .page_size = 2, .num_pages = 4}, Rule::gathered(nullptr, 3, topk_lens.data()));
    sources[3].rule.indices = slots.data();
    sources[3].rule.index_type = Type::kI64;
    sources[4] = Source::shared_kv(tensor(cache.data(), Format::kE4m3, kWidth), kValueWidth,
                                   {.kind = AddressingKind::kBlockTable,
                                    .page_size = 2,
                                    .num_pages = 3,
                                    .block_table = position_table.data(),
                                    .max_pages = 2,
                                    .seq_lens = position_lens.data()},
                                   Rule::gathered(positions.data(), 2, nullptr, IndexSpace::kPosition));
    sources[4].k.scale = Scale::constant(0.5F);
    sources[5] = Source::separate_kv(tensor(cache.data(), Format::kF32, kWidth), tensor(cache.data(), Format::kF32, kValueWidth), 4,
                                     {.num_pages = 3, .kv_indptr = compressed_indptr.data()}, Rule::compressed(4));
    sources[5].first_position = first_position.data();
    sources[5].position_stride = position_stride.data();

    p.q = {q.data(), Type::kE4m3, 6, kHeads, 48};
    p.q_tail = {q_tail.data(), 16};
    p.q_scale = {q_scale.data(), true};
    p.requests = 3;
    p.qo_indptr = qo_indptr.data();
    p.context_lens = context_lens.data();
    p.sources = sources;
    p.sinks = sinks.data();
    p.sm_scale = 0.125F;
    p.logits_soft_cap = 30.0F;
    p.out.data = out.data();
    p.lse.data = lse.data();
  }
  ValidProblem(const ValidProblem&) = delete;
  ValidProblem& operator=(const ValidProblem&) = delete;

  [[nodiscard]] bool outputs_untouched() const {
    return out == std::vector<uint16_t>(6 * 4 * 32, 0xabcd) && lse == std::vector<float>(6 * 4, 12345.0F);
  }
};

// DeepSeek-V4's shape: 584-byte records, planar scales, one latent head, a window and no explicit context lengths.
struct PlanarProblem {
  std::vector<uint16_t> q = std::vector<uint16_t>(2 * 2 * 512, 0);
  std::vector<int32_t> qo_indptr{0, 2};
  std::vector<int32_t> table{1};
  std::vector<int32_t> lens{2};
  std::vector<uint8_t> cache = std::vector<uint8_t>(2 * 1728, 0);
  std::vector<float> out = std::vector<float>(2 * 2 * 512, -1.0F);
  std::array<Source, 1> sources;
  Problem p;

  PlanarProblem() {
    sources[0] = Source::shared_kv(tensor(cache.data(), Format::kFp8Ds584, 512), 512,
                                   {.kind = AddressingKind::kBlockTable,
                                    .page_size = 2,
                                    .num_pages = 2,
                                    .block_table = table.data(),
                                    .max_pages = 1,
                                    .seq_lens = lens.data()},
                                   Rule::window(127));
    p.q = {q.data(), Type::kBf16, 2, 2, 512};
    p.requests = 1;
    p.qo_indptr = qo_indptr.data();
    p.sources = sources;
    p.sm_scale = 0.04F;
    p.out = {out.data(), Type::kF32};
  }
  PlanarProblem(const PlanarProblem&) = delete;
  PlanarProblem& operator=(const PlanarProblem&) = delete;
};

}  // namespace headwater::test
