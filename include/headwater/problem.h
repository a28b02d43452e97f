// What one attention call computes: queries, a list of KV sources, sinks, scale and outputs.
//
//   z[t,h,j]   = softcap( sm_scale * <q[t,h,:], k[j, h / group, :]> )      j over the visible entries of ALL sources
//   out[t,h,:] = sum_j exp(z) v[j] / ( sum_j exp(z) + exp(sinks[h]) )
//   lse[t,h]   = log sum_j exp(z)                                          natural log, the sink left out
//
// Plain structs of pointers and strides: nothing here owns memory. All pointers of a problem live on its device.
// Strides are in bytes where the name says so, otherwise in elements; kDense means "packed, see the shape comment".
// Stride 0 is a real stride (an expanded view): honoured for inputs, refused for outputs.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "headwater/format.h"

namespace headwater {

inline constexpr int64_t kDense = std::numeric_limits<int64_t>::min();
inline constexpr int32_t kMaxSources = 16;
inline constexpr int32_t kMaxWidth = 576;  // largest d_qk and d_v

enum class DeviceKind : int32_t { kCpu = 0, kCuda = 1 };
struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int32_t index = 0;
};

// Query rows, requests packed one after another.
struct Query {
  const void* data = nullptr;  // [total, heads, width]
  Type type = Type::kBf16;     // bf16, f16, f32, e4m3
  int64_t total = 0;           // rows in memory; rows past qo_indptr[requests] are neither read nor written
  int32_t heads = 0;
  int32_t width = 0;  // without the tail
  int64_t row_stride_bytes = kDense;
  int64_t head_stride_bytes = kDense;
};

// Continues each query row: d_qk = q.width + q_tail.width. Same type, total and heads as q.
struct QueryTail {
  const void* data = nullptr;  // [total, heads, width]; nullptr = none
  int32_t width = 0;
  int64_t row_stride_bytes = kDense;
  int64_t head_stride_bytes = kDense;
};

// Float32 factors: a host constant, or `count` values in the problem's memory. count 0 = not given (1.0).
struct Scale {
  const float* data = nullptr;  // [count]
  int32_t count = 0;            // 1, or one per KV head
  float value = 1.0F;           // read when data is null and count is 1

  static Scale constant(float v) { return {nullptr, 1, v}; }
  static Scale array(const float* values, int32_t n) { return {values, n, 1.0F}; }
};

// Query dequantisation (e4m3 queries only): one value, or [total, heads].
struct QueryScale {
  const float* data = nullptr;  // nullptr: `value` for every row
  bool per_row = false;         // data is [total, heads]; otherwise data is one value
  float value = 1.0F;
  int64_t row_stride = kDense;   // floats
  int64_t head_stride = kDense;  // floats
};

// One stored tensor: K, V, or the shared latent. Dense layout: [pages, page_size, heads, record]; ragged: [rows, heads, record].
struct KvTensor {
  const void* data = nullptr;
  Format format = Format::kBf16;
  int32_t width = 0;                  // columns of a record (d_qk of K, d_v of V)
  int64_t row_stride_bytes = kDense;  // entry to entry (inside a page, or of the ragged array)
  int64_t head_stride_bytes = kDense;
  int64_t page_stride_bytes = kDense;  // ignored for ragged storage
  // Block scales of formats that hold them apart: [pages, page_size, heads, blocks], any strides.
  const void* scales = nullptr;
  int64_t scale_row_stride_bytes = kDense;
  int64_t scale_head_stride_bytes = kDense;
  int64_t scale_page_stride_bytes = kDense;
  int64_t scale_block_stride_bytes = kDense;
  Scale scale;  // k_scale / v_scale: part of the decoded value
};

enum class AddressingKind : int32_t {
  kRagged = 0,  // entries of request b are rows kv_indptr[b] .. kv_indptr[b+1] of the array
  kBlockTable,  // entry j of request b: page block_table[b, j / page_size], row j % page_size; seq_lens
  kPageList,    // pages kv_indices[kv_indptr[b] .. kv_indptr[b+1]]; seq_lens or kv_last_page_len
  kPool,        // no table: gathered slots only
};

// How entries of a source are found and how many there are. Tables and lengths are int32.
struct Addressing {
  AddressingKind kind = AddressingKind::kRagged;
  int32_t page_size = 1;                 // paged kinds and kPool
  int64_t num_pages = 0;                 // pages in the cache; ragged: rows in the array
  const int32_t* kv_indptr = nullptr;    // [b+1] ragged: tokens; page list: pages
  const int32_t* block_table = nullptr;  // [b, max_pages]
  int64_t max_pages = 0;
  int64_t block_table_stride = kDense;  // elements
  const int32_t* kv_indices = nullptr;  // [num_indices]
  int64_t num_indices = 0;
  const int32_t* seq_lens = nullptr;          // [b] entries; paged kinds
  const int32_t* kv_last_page_len = nullptr;  // [b] page list: used when seq_lens is absent; both must agree
};

enum class RuleKind : int32_t { kFull = 0, kCausal, kWindow, kCompressed, kGathered };
enum class IndexSpace : int32_t {
  kSlot = 0,     // indices are physical: page * page_size + row (ragged and pool of page size 1: the row)
  kPosition = 1  // indices are entries of the request, found through the source's own addressing
};

// Which entries a query at position t = context_len - q_len + i sees. Entry j stands at
// first_position + j * position_stride.
//   full        always
//   causal      position <= t
//   window      t - window_left <= position <= t       (window_left -1 = causal)
//   compressed  (position + 1) * ratio <= t + 1        (position = block number)
//   gathered    it stands in the query's index list before topk_lens; negative and out-of-range entries are skipped
struct Rule {
  RuleKind kind = RuleKind::kFull;
  int32_t window_left = -1;
  int32_t ratio = 0;
  const void* indices = nullptr;  // [total_q, topk] int32, or int64 in slot space
  Type index_type = Type::kI32;
  int32_t topk = 0;
  int64_t indices_stride = kDense;     // elements from one query's list to the next
  const int32_t* topk_lens = nullptr;  // [total_q], clamped to [0, topk]; nullptr = topk
  IndexSpace index_space = IndexSpace::kSlot;

  static Rule full() { return {}; }
  static Rule causal() {
    Rule r;
    r.kind = RuleKind::kCausal;
    return r;
  }
  static Rule window(int32_t window_left) {
    Rule r;
    r.kind = RuleKind::kWindow;
    r.window_left = window_left;
    return r;
  }
  static Rule compressed(int32_t ratio) {
    Rule r;
    r.kind = RuleKind::kCompressed;
    r.ratio = ratio;
    return r;
  }
  static Rule gathered(const int32_t* indices, int32_t topk, const int32_t* topk_lens = nullptr, IndexSpace space = IndexSpace::kSlot) {
    Rule r;
    r.kind = RuleKind::kGathered;
    r.indices = indices;
    r.topk = topk;
    r.topk_lens = topk_lens;
    r.index_space = space;
    return r;
  }
};

// One KV store. `shared`: V is the first value_width columns of the K record, and `v` is ignored.
struct Source {
  KvTensor k;
  KvTensor v;
  bool shared = false;
  int32_t value_width = 0;  // shared storage; otherwise v.width
  int32_t heads = 1;        // KV heads; query heads must be a multiple
  Addressing addressing;
  Rule rule;
  const int32_t* first_position = nullptr;   // [b]; nullptr = 0
  const int32_t* position_stride = nullptr;  // [b], at least 1; nullptr = 1

  [[nodiscard]] int32_t d_v() const { return shared ? value_width : v.width; }

  static Source shared_kv(const KvTensor& latent, int32_t value_width, const Addressing& addressing, const Rule& rule) {
    Source s;
    s.k = latent;
    s.shared = true;
    s.value_width = value_width;
    s.addressing = addressing;
    s.rule = rule;
    return s;
  }
  static Source separate_kv(const KvTensor& k, const KvTensor& v, int32_t heads, const Addressing& addressing, const Rule& rule) {
    Source s;
    s.k = k;
    s.v = v;
    s.heads = heads;
    s.addressing = addressing;
    s.rule = rule;
    return s;
  }
};

struct Output {
  void* data = nullptr;     // [total_q, heads, d_v]
  Type type = Type::kBf16;  // bf16, f16, f32
  int64_t row_stride_bytes = kDense;
  int64_t head_stride_bytes = kDense;
};

// Where row (token t, head h) of an lse lives, in floats. Engines hold [tokens, h], [h, tokens] or [b, h, q]:
// with request_stride given, token_stride counts from the request's first token, otherwise from row 0.
struct LseOutput {
  float* data = nullptr;            // nullptr: no lse wanted
  int64_t token_stride = kDense;    // dense: heads
  int64_t head_stride = kDense;     // dense: 1
  int64_t request_stride = kDense;  // kDense = flat
};

struct Problem {
  Device device;
  Query q;
  QueryTail q_tail;
  QueryScale q_scale;
  int64_t requests = 0;                // b; 0 succeeds and writes nothing
  const int32_t* qo_indptr = nullptr;  // [b+1]
  // [b] tokens of the request including its q_len new ones. Read by causal, window and compressed rules only. May be null when
  // exactly one source is causal or windowed, ragged or paged, without position_stride: then first_position + kv_len.
  const int32_t* context_lens = nullptr;
  std::span<const Source> sources;
  const float* sinks = nullptr;      // [h_q] or [b, h_q] logits, not multiplied by sm_scale; -inf = none
  int64_t sinks_request_stride = 0;  // floats; 0 = the same for every request
  float sm_scale = 0.0F;             // explicit; 0 is honoured
  float logits_soft_cap = 0.0F;      // cap * tanh(z / cap); 0 = off
  Output out;
  LseOutput lse;

  [[nodiscard]] int32_t d_qk() const { return q.width + (q_tail.data != nullptr || q_tail.width > 0 ? q_tail.width : 0); }
  [[nodiscard]] int32_t d_v() const { return sources.empty() ? 0 : sources[0].d_v(); }
};

}  // namespace headwater
