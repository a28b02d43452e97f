// A validated problem with every default filled in: concrete strides, group sizes, record layouts. What backends and kernels read.
// Plain data: the CUDA backend copies it into kernel parameters.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headwater/problem.h"
#include "src/core/hd.h"
#include "src/formats/record.h"

namespace headwater {

struct ResolvedTensor {
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;
  int64_t row_stride = 0;  // bytes, all of them
  int64_t head_stride = 0;
  int64_t page_stride = 0;
  int64_t scale_row_stride = 0;
  int64_t scale_head_stride = 0;
  int64_t scale_page_stride = 0;
  int64_t scale_block_stride = 0;
  const float* scale = nullptr;  // k_scale / v_scale values; nullptr = scale_value for all heads
  int32_t scale_count = 0;       // 1 or heads, with `scale`
  float scale_value = 1.0F;
  formats::RecordLayout layout;
};

struct ResolvedSource {
  ResolvedTensor k;
  ResolvedTensor v;  // shared: a copy of k whose layout is cut to nothing; read V from k
  bool shared = false;
  int32_t heads = 1;
  int32_t group = 1;  // query heads per KV head
  AddressingKind addressing = AddressingKind::kRagged;
  int32_t page_size = 1;
  int64_t num_slots = 0;  // num_pages * page_size, or ragged rows
  const int32_t* kv_indptr = nullptr;
  const int32_t* block_table = nullptr;
  int64_t block_table_stride = 0;
  int64_t max_pages = 0;
  const int32_t* kv_indices = nullptr;
  const int32_t* seq_lens = nullptr;
  const int32_t* kv_last_page_len = nullptr;
  RuleKind rule = RuleKind::kFull;
  int32_t window_left = -1;
  int32_t ratio = 0;
  const void* indices = nullptr;
  bool indices_are_64 = false;
  int32_t topk = 0;
  int64_t indices_stride = 0;
  const int32_t* topk_lens = nullptr;
  IndexSpace index_space = IndexSpace::kSlot;
  const int32_t* first_position = nullptr;
  const int32_t* position_stride = nullptr;
};

struct ResolvedProblem {
  Device device;
  const std::byte* q = nullptr;
  const std::byte* q_tail = nullptr;
  Type q_type = Type::kBf16;
  Type out_type = Type::kBf16;
  int64_t total_q = 0;
  int32_t heads = 0;
  int32_t q_width = 0;  // columns from q
  int32_t q_tail_width = 0;
  int32_t d_qk = 0;
  int32_t d_v = 0;
  int64_t q_row_stride = 0;  // bytes
  int64_t q_head_stride = 0;
  int64_t q_tail_row_stride = 0;
  int64_t q_tail_head_stride = 0;
  const float* q_scale = nullptr;  // nullptr: q_scale_value
  bool q_scale_per_row = false;
  float q_scale_value = 1.0F;
  int64_t q_scale_row_stride = 0;  // floats
  int64_t q_scale_head_stride = 0;
  int64_t requests = 0;
  const int32_t* qo_indptr = nullptr;
  const int32_t* context_lens = nullptr;  // nullptr: derived from context_source, or not needed
  int32_t context_source = -1;            // source whose first_position + kv_len is the context length
  bool needs_context = false;
  const float* sinks = nullptr;
  int64_t sinks_request_stride = 0;
  float sm_scale = 0.0F;
  float softcap = 0.0F;
  std::byte* out = nullptr;
  int64_t out_row_stride = 0;  // bytes
  int64_t out_head_stride = 0;
  float* lse = nullptr;
  int64_t lse_token_stride = 0;  // floats
  int64_t lse_head_stride = 0;
  int64_t lse_request_stride = 0;
  bool lse_per_request = false;
  // Query heads that share one KV head in every source: gcd of the groups. Row blocks hold this many heads of each token.
  int32_t head_block = 1;
  int32_t num_sources = 0;
  ResolvedSource sources[kMaxSources];
};

// Checks everything the host can check (lengths and tables too when the problem is on the CPU) and fills `resolved`.
// Outputs are untouched. Error messages: docs/design.md, "Errors".
[[nodiscard]] Status validate(const Problem& problem, ResolvedProblem* resolved);

// Entries of request b in a source (not for gathered rules in slot space, which have no length: 0).
HEADWATER_HD int64_t source_kv_len(const ResolvedSource& s, int64_t request) {
  if (s.addressing == AddressingKind::kRagged) return s.kv_indptr ? int64_t{s.kv_indptr[request + 1]} - s.kv_indptr[request] : 0;
  if (s.seq_lens) return s.seq_lens[request];
  if (s.addressing == AddressingKind::kPageList && s.kv_last_page_len) {
    const int64_t pages = int64_t{s.kv_indptr[request + 1]} - s.kv_indptr[request];
    return pages == 0 ? 0 : (pages - 1) * s.page_size + s.kv_last_page_len[request];
  }
  return 0;
}

// Physical slot of entry j of a request; j must be below the request's length.
HEADWATER_HD int64_t source_slot(const ResolvedSource& s, int64_t request, int64_t j) {
  if (s.addressing == AddressingKind::kRagged) return int64_t{s.kv_indptr[request]} + j;
  const int64_t page_index = j / s.page_size;
  const int64_t page = s.addressing == AddressingKind::kBlockTable ? int64_t{s.block_table[request * s.block_table_stride + page_index]}
                                                                   : int64_t{s.kv_indices[int64_t{s.kv_indptr[request]} + page_index]};
  return page * s.page_size + (j - page_index * s.page_size);
}

// Physical slot of list position i of query row `row` (global row index) of a gathered source, or -1: skipped.
HEADWATER_HD int64_t gathered_slot(const ResolvedSource& s, int64_t request, int64_t row, int64_t i) {
  const int64_t at = row * s.indices_stride + i;
  const int64_t index = s.indices_are_64 ? static_cast<const int64_t*>(s.indices)[at] : int64_t{static_cast<const int32_t*>(s.indices)[at]};
  if (index < 0) return -1;
  if (s.index_space == IndexSpace::kPosition) return index < source_kv_len(s, request) ? source_slot(s, request, index) : -1;
  return index < s.num_slots ? index : -1;
}

HEADWATER_HD int64_t topk_len(const ResolvedSource& s, int64_t row) {
  if (!s.topk_lens) return s.topk;
  const int64_t n = s.topk_lens[row];
  return n < 0 ? 0 : n > s.topk ? s.topk : n;
}

// Bytes of the record in `slot` for KV head `head`. A page's planar scales stand behind its records.
HEADWATER_HD formats::RowRef record_at(const ResolvedSource& s, const ResolvedTensor& t, int64_t slot, int32_t head) {
  const bool paged = s.addressing != AddressingKind::kRagged;
  const int64_t page = paged ? slot / s.page_size : 0;
  const int64_t r = paged ? slot - page * s.page_size : slot;
  formats::RowRef ref;
  const std::byte* base = t.data + page * t.page_stride;
  ref.row = base + r * t.row_stride + head * t.head_stride;
  if (t.layout.tail_bytes > 0) {
    ref.scales = base + int64_t{s.page_size} * t.layout.row_bytes + r * t.layout.tail_bytes;
  } else if (t.scales) {
    ref.scales = t.scales + page * t.scale_page_stride + r * t.scale_row_stride + head * t.scale_head_stride;
    ref.scale_block_stride = t.scale_block_stride;
  }
  return ref;
}

HEADWATER_HD float tensor_scale(const ResolvedTensor& t, int32_t head) {
  return t.scale ? t.scale[t.scale_count == 1 ? 0 : head] : t.scale_value;
}

HEADWATER_HD int64_t context_len(const ResolvedProblem& p, int64_t request) {
  if (p.context_lens) return p.context_lens[request];
  if (p.context_source < 0) return 0;
  const ResolvedSource& s = p.sources[p.context_source];
  return (s.first_position ? int64_t{s.first_position[request]} : 0) + source_kv_len(s, request);
}

HEADWATER_HD int64_t lse_offset(const ResolvedProblem& p, int64_t request, int64_t token_in_request, int64_t row, int32_t head) {
  const int64_t token =
      p.lse_per_request ? request * p.lse_request_stride + token_in_request * p.lse_token_stride : row * p.lse_token_stride;
  return token + head * p.lse_head_stride;
}

}  // namespace headwater
