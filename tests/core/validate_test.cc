// Every field of a valid problem broken one at a time: the code, and a message that starts "field = value: ".
#include "src/core/resolved.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "tests/core/valid_problem.h"

namespace headwater {
namespace {

using test::kGarbage;
using test::PlanarProblem;
using test::ValidProblem;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
constexpr int32_t kMax32 = std::numeric_limits<int32_t>::max();
constexpr StatusCode kInvalid = StatusCode::kInvalid;
constexpr StatusCode kUnsupported = StatusCode::kUnsupported;

template <class T>
T* misaligned(T* pointer) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(pointer) + 1);
}
const void* misaligned(const void* pointer) { return static_cast<const char*>(pointer) + 1; }
void* misaligned(void* pointer) { return static_cast<char*>(pointer) + 1; }

struct Break {
  const char* prefix;  // of the message; "*" as the value: an address
  void (*apply)(ValidProblem& v);
  StatusCode code = kInvalid;
};

// In the order of problem.h.
const Break kBreaks[] = {
    {"device.kind = 7:", [](ValidProblem& v) { v.p.device.kind = static_cast<DeviceKind>(7); }},
    {"device.index = -1:", [](ValidProblem& v) { v.p.device.index = -1; }},
    {"device.index = 1:", [](ValidProblem& v) { v.p.device.index = 1; }},
    // queries
    {"q.data = null:", [](ValidProblem& v) { v.p.q.data = nullptr; }},
    {"q.type = i8:", [](ValidProblem& v) { v.p.q.type = Type::kI8; }},
    {"q.type = Type(77):", [](ValidProblem& v) { v.p.q.type = static_cast<Type>(77); }},
    {"q.type = none:", [](ValidProblem& v) { v.p.q.type = Type::kNone; }},
    {"q.total = -1:", [](ValidProblem& v) { v.p.q.total = -1; }},
    {"q.total = 9223372036854775807:", [](ValidProblem& v) { v.p.q.total = kHuge; }},
    {"qo_indptr[3] = 5: must be at most q.total = 4", [](ValidProblem& v) { v.p.q.total = 4; }},
    {"q.heads = 0:", [](ValidProblem& v) { v.p.q.heads = 0; }},
    {"q.heads = -4:", [](ValidProblem& v) { v.p.q.heads = -4; }},
    {"kv[0].heads = 2: must divide q.heads = 5", [](ValidProblem& v) { v.p.q.heads = 5; }},
    {"q.width = 0:", [](ValidProblem& v) { v.p.q.width = 0; }},
    {"q.width = -2147483648:", [](ValidProblem& v) { v.p.q.width = std::numeric_limits<int32_t>::min(); }},
    {"kv[0].k.width = 64: must equal q.width + q_tail.width = 65", [](ValidProblem& v) { v.p.q.width = 49; }},
    {"q.width + q_tail.width = 577: the largest supported is 576", [](ValidProblem& v) { v.p.q.width = 561; }, kUnsupported},
    {"q.width + q_tail.width = 2147483663:", [](ValidProblem& v) { v.p.q.width = kMax32; }, kUnsupported},
    {"q.row_stride_bytes = 9223372036854775807: times 6 entries", [](ValidProblem& v) { v.p.q.row_stride_bytes = kHuge; }},
    {"q.row_stride_bytes = -9223372036854775807:", [](ValidProblem& v) { v.p.q.row_stride_bytes = -kHuge; }},
    {"q.head_stride_bytes = 9223372036854775807:", [](ValidProblem& v) { v.p.q.head_stride_bytes = kHuge; }},
    {"q.row_stride_bytes = dense: must be given", [](ValidProblem& v) { v.p.q.head_stride_bytes = 64; }},
    {"q.row_stride_bytes = 193: must be a multiple of 2",
     [](ValidProblem& v) {
       v.p.q.type = Type::kBf16;
       v.p.q_scale = {};
       v.p.q.row_stride_bytes = 193;
     }},
    {"q.data = *: must be aligned to 4",
     [](ValidProblem& v) {
       v.p.q.type = Type::kF32;
       v.p.q_scale = {};
       v.p.q.data = misaligned(v.p.q.data);
     }},
    {"q_tail.data = null:", [](ValidProblem& v) { v.p.q_tail.data = nullptr; }},
    {"q_tail.width = 0:", [](ValidProblem& v) { v.p.q_tail.width = 0; }},
    {"q_tail.width = -1:", [](ValidProblem& v) { v.p.q_tail.width = -1; }},
    {"q_tail.row_stride_bytes = 9223372036854775807:", [](ValidProblem& v) { v.p.q_tail.row_stride_bytes = kHuge; }},
    {"q_tail.head_stride_bytes = 4611686018427387904:", [](ValidProblem& v) { v.p.q_tail.head_stride_bytes = int64_t{1} << 62; }},
    {"q_scale.data = *: only e4m3",
     [](ValidProblem& v) {
       v.p.q.type = Type::kBf16;
       v.p.q_scale.per_row = false;
     }},
    {"q_scale.value = 2: only e4m3",
     [](ValidProblem& v) {
       v.p.q.type = Type::kBf16;
       v.p.q_scale = {nullptr, false, 2.0F};
     }},
    {"q_scale.per_row = true: only e4m3",
     [](ValidProblem& v) {
       v.p.q.type = Type::kBf16;
       v.p.q_scale = {nullptr, true};
     }},
    {"q_scale.data = null:", [](ValidProblem& v) { v.p.q_scale.data = nullptr; }},
    {"q_scale.data = *: must be aligned", [](ValidProblem& v) { v.p.q_scale.data = misaligned(v.p.q_scale.data); }},
    {"q_scale.value = nan:",
     [](ValidProblem& v) {
       v.p.q_scale = {nullptr, false, kNan};
     }},
    {"q_scale.value = inf:",
     [](ValidProblem& v) {
       v.p.q_scale = {nullptr, false, kInf};
     }},
    {"q_scale.row_stride = 9223372036854775807:", [](ValidProblem& v) { v.p.q_scale.row_stride = kHuge; }},
    {"q_scale.head_stride = -9223372036854775807:", [](ValidProblem& v) { v.p.q_scale.head_stride = -kHuge; }},
    // requests
    {"requests = -1:", [](ValidProblem& v) { v.p.requests = -1; }},
    {"requests = 9223372036854775807:", [](ValidProblem& v) { v.p.requests = kHuge; }},
    {"qo_indptr = null:", [](ValidProblem& v) { v.p.qo_indptr = nullptr; }},
    {"qo_indptr = *: must be aligned", [](ValidProblem& v) { v.p.qo_indptr = misaligned(v.p.qo_indptr); }},
    {"qo_indptr[0] = -1:", [](ValidProblem& v) { v.qo_indptr[0] = -1; }},
    {"qo_indptr[2] = 1: must not be below the offset before it, 2", [](ValidProblem& v) { v.qo_indptr[2] = 1; }},
    {"qo_indptr[2] = -2147483648:", [](ValidProblem& v) { v.qo_indptr[2] = std::numeric_limits<int32_t>::min(); }},
    {"qo_indptr[3] = 7: must be at most q.total = 6", [](ValidProblem& v) { v.qo_indptr[3] = 7; }},
    {"qo_indptr[3] = 2147483647:", [](ValidProblem& v) { v.qo_indptr[3] = kMax32; }},
    {"context_lens = null: must be given", [](ValidProblem& v) { v.p.context_lens = nullptr; }},
    {"context_lens = *: must be aligned", [](ValidProblem& v) { v.p.context_lens = misaligned(v.p.context_lens); }},
    {"context_lens[2] = -1:", [](ValidProblem& v) { v.context_lens[2] = -1; }},
    // numbers
    {"sinks = *: must be aligned", [](ValidProblem& v) { v.p.sinks = misaligned(v.p.sinks); }},
    {"sinks_request_stride = 9223372036854775807:", [](ValidProblem& v) { v.p.sinks_request_stride = kHuge; }},
    {"sm_scale = nan:", [](ValidProblem& v) { v.p.sm_scale = kNan; }},
    {"sm_scale = -inf:", [](ValidProblem& v) { v.p.sm_scale = -kInf; }},
    {"logits_soft_cap = -1:", [](ValidProblem& v) { v.p.logits_soft_cap = -1.0F; }},
    {"logits_soft_cap = inf:", [](ValidProblem& v) { v.p.logits_soft_cap = kInf; }},
    {"logits_soft_cap = nan:", [](ValidProblem& v) { v.p.logits_soft_cap = kNan; }},
    // sources
    {"sources.size() = 0:", [](ValidProblem& v) { v.p.sources = {}; }},
    {"sources.size() = 17: at most 16",
     [](ValidProblem& v) {
       static std::array<Source, 17> many;
       many.fill(v.sources[0]);
       v.p.sources = many;
     },
     kUnsupported},
    // outputs
    {"out.data = null:", [](ValidProblem& v) { v.p.out.data = nullptr; }},
    {"out.data = *: must be aligned to 2", [](ValidProblem& v) { v.p.out.data = misaligned(v.p.out.data); }},
    {"out.data = *: must not be the queries", [](ValidProblem& v) { v.p.out.data = v.q.data(); }},
    {"out.type = e4m3:", [](ValidProblem& v) { v.p.out.type = Type::kE4m3; }},
    {"out.type = i64:", [](ValidProblem& v) { v.p.out.type = Type::kI64; }},
    {"out.row_stride_bytes = 0: elements of an output must not overlap", [](ValidProblem& v) { v.p.out.row_stride_bytes = 0; }},
    {"out.row_stride_bytes = 254:", [](ValidProblem& v) { v.p.out.row_stride_bytes = 254; }},
    {"out.row_stride_bytes = 257: must be a multiple of 2", [](ValidProblem& v) { v.p.out.row_stride_bytes = 257; }},
    {"out.row_stride_bytes = 9223372036854775806:", [](ValidProblem& v) { v.p.out.row_stride_bytes = kHuge - 1; }},
    {"out.head_stride_bytes = 0:",
     [](ValidProblem& v) {
       v.p.out.head_stride_bytes = 0;
       v.p.out.row_stride_bytes = 256;
     }},
    {"out.head_stride_bytes = 62: elements of an output must not overlap; at least 64 needed",
     [](ValidProblem& v) {
       v.p.out.head_stride_bytes = 62;
       v.p.out.row_stride_bytes = 256;
     }},
    {"lse.data = *: must be aligned", [](ValidProblem& v) { v.p.lse.data = misaligned(v.p.lse.data); }},
    {"lse.data = *: must not be another tensor", [](ValidProblem& v) { v.p.lse.data = reinterpret_cast<float*>(v.out.data()); }},
    {"lse.token_stride = 0:", [](ValidProblem& v) { v.p.lse.token_stride = 0; }},
    {"lse.token_stride = 3:", [](ValidProblem& v) { v.p.lse.token_stride = 3; }},
    {"lse.token_stride = dense: must be given", [](ValidProblem& v) { v.p.lse.head_stride = 6; }},
    {"lse.head_stride = 0:",
     [](ValidProblem& v) {
       v.p.lse.head_stride = 0;
       v.p.lse.token_stride = 4;
     }},
    {"lse.head_stride = 5: elements",  // [h, tokens] with room for 5 of 6 tokens
     [](ValidProblem& v) {
       v.p.lse.token_stride = 1;
       v.p.lse.head_stride = 5;
     }},
    {"lse.request_stride = 0:", [](ValidProblem& v) { v.p.lse.request_stride = 0; }},
    {"lse.request_stride = 8:",  // request 2 has 3 tokens x 4 heads
     [](ValidProblem& v) { v.p.lse.request_stride = 8; }},
    {"lse.request_stride = 9223372036854775807:", [](ValidProblem& v) { v.p.lse.request_stride = kHuge; }},
};

const Break kSourceBreaks[] = {
    // tensors
    {"kv[0].k.data = null:", [](ValidProblem& v) { v.sources[0].k.data = nullptr; }},
    {"kv[0].v.data = null:", [](ValidProblem& v) { v.sources[0].v.data = nullptr; }},
    {"kv[0].k.data = *: must be aligned to 2", [](ValidProblem& v) { v.sources[0].k.data = misaligned(v.sources[0].k.data); }},
    {"kv[5].v.data = *: must be aligned to 4", [](ValidProblem& v) { v.sources[5].v.data = misaligned(v.sources[5].v.data); }},
    {"kv[0].k.format = Format(200):", [](ValidProblem& v) { v.sources[0].k.format = static_cast<Format>(200); }},
    {"kv[0].v.format = Format(15):", [](ValidProblem& v) { v.sources[0].v.format = static_cast<Format>(kNumFormats); }},
    {"kv[3].k.width = 64: records of fp8_ds_656 have 576", [](ValidProblem& v) { v.sources[3].k.format = Format::kFp8Ds656; }},
    {"kv[3].k.width = 64: records of mxfp4_rope_bf16 have more", [](ValidProblem& v) { v.sources[3].k.format = Format::kMxfp4RopeBf16; }},
    {"kv[0].k.width = 0:", [](ValidProblem& v) { v.sources[0].k.width = 0; }},
    {"kv[0].k.width = 63: must equal q.width + q_tail.width = 64", [](ValidProblem& v) { v.sources[0].k.width = 63; }},
    {"kv[0].k.width = 2147483647: the largest supported is 576", [](ValidProblem& v) { v.sources[0].k.width = kMax32; }, kUnsupported},
    {"kv[0].v.width = 0:", [](ValidProblem& v) { v.sources[0].v.width = 0; }},
    {"kv[0].v.width = 577: the largest", [](ValidProblem& v) { v.sources[0].v.width = 577; }, kUnsupported},
    {"kv[1].v.width = 32: must equal that of kv[0], 33", [](ValidProblem& v) { v.sources[0].v.width = 33; }},
    {"kv[2].v.width = 31: must equal that of kv[0], 32", [](ValidProblem& v) { v.sources[2].v.width = 31; }},
    {"kv[3].value_width = 0:", [](ValidProblem& v) { v.sources[3].value_width = 0; }},
    {"kv[3].value_width = 65: must be at most k.width = 64", [](ValidProblem& v) { v.sources[3].value_width = 65; }},
    {"kv[3].value_width = 31: must equal that of kv[0], 32", [](ValidProblem& v) { v.sources[3].value_width = 31; }},
    {"kv[3].v.width = 0:", [](ValidProblem& v) { v.sources[3].shared = false; }},
    {"kv[0].k.row_stride_bytes = 9223372036854775806:", [](ValidProblem& v) { v.sources[0].k.row_stride_bytes = kHuge - 1; }},
    {"kv[0].k.row_stride_bytes = 255: must be a multiple of 2", [](ValidProblem& v) { v.sources[0].k.row_stride_bytes = 255; }},
    {"kv[0].k.row_stride_bytes = dense: must be given", [](ValidProblem& v) { v.sources[0].k.head_stride_bytes = 1024; }},
    {"kv[0].k.head_stride_bytes = -9223372036854775806:", [](ValidProblem& v) { v.sources[0].k.head_stride_bytes = -kHuge + 1; }},
    {"kv[1].k.page_stride_bytes = 4611686018427387904:", [](ValidProblem& v) { v.sources[1].k.page_stride_bytes = int64_t{1} << 62; }},
    {"kv[1].v.page_stride_bytes = dense: must be given", [](ValidProblem& v) { v.sources[1].v.row_stride_bytes = 100; }},
    {"kv[2].k.scales = null:", [](ValidProblem& v) { v.sources[2].k.scales = nullptr; }},
    {"kv[2].v.scales = *: must be aligned to 4", [](ValidProblem& v) { v.sources[2].v.scales = misaligned(v.sources[2].v.scales); }},
    {"kv[0].k.scales = *: bf16 holds no scales apart", [](ValidProblem& v) { v.sources[0].k.scales = v.cache.data(); }},
    {"kv[2].k.scale_row_stride_bytes = 9223372036854775807:", [](ValidProblem& v) { v.sources[2].k.scale_row_stride_bytes = kHuge; }},
    {"kv[2].k.scale_page_stride_bytes = dense: must be given", [](ValidProblem& v) { v.sources[2].k.scale_row_stride_bytes = 18; }},
    {"kv[2].k.scale_page_stride_bytes = 9223372036854775807:", [](ValidProblem& v) { v.sources[2].k.scale_page_stride_bytes = kHuge; }},
    {"kv[2].k.scale_head_stride_bytes = 9223372036854775807:",
     [](ValidProblem& v) {
       v.sources[2].heads = 2;
       v.sources[2].k.scale_head_stride_bytes = kHuge;
     }},
    {"kv[2].k.scale_block_stride_bytes = 9223372036854775807:", [](ValidProblem& v) { v.sources[2].k.scale_block_stride_bytes = kHuge; }},
    {"kv[2].v.scale_row_stride_bytes = 6: must be a multiple of 4", [](ValidProblem& v) { v.sources[2].v.scale_row_stride_bytes = 6; }},
    // scales
    {"kv[1].k.scale.count = -1:", [](ValidProblem& v) { v.sources[1].k.scale.count = -1; }},
    {"kv[1].k.scale.count = 3: must be 1 or the number of KV heads, 2", [](ValidProblem& v) { v.sources[1].k.scale.count = 3; }},
    {"kv[1].k.scale.count = 0:", [](ValidProblem& v) { v.sources[1].k.scale.count = 0; }},
    {"kv[1].k.scale.data = null:", [](ValidProblem& v) { v.sources[1].k.scale.data = nullptr; }},
    {"kv[1].k.scale.data = *: must be aligned", [](ValidProblem& v) { v.sources[1].k.scale.data = misaligned(v.sources[1].k.scale.data); }},
    {"kv[1].k.scale.data[1] = nan:", [](ValidProblem& v) { v.k_scale[1] = kNan; }},
    {"kv[1].v.scale.value = inf:", [](ValidProblem& v) { v.sources[1].v.scale.value = kInf; }},
    {"kv[0].k.scale.count = 1: records of bf16 take no scale", [](ValidProblem& v) { v.sources[0].k.scale = Scale::constant(0.5F); }},
    {"kv[0].v.scale.count = 2: records of f16 take no scale", [](ValidProblem& v) { v.sources[0].v.scale = Scale::array(v.k_scale.data(), 2); }},
    {"kv[4].k.scale.count = 2: shared storage takes one value",
     [](ValidProblem& v) {
       v.sources[4].heads = 2;
       v.sources[4].k.scale = Scale::array(v.k_scale.data(), 2);
     }},
    {"kv[0].heads = 0:", [](ValidProblem& v) { v.sources[0].heads = 0; }},
    {"kv[0].heads = 3: must divide q.heads = 4", [](ValidProblem& v) { v.sources[0].heads = 3; }},
    {"kv[0].heads = 8: must divide q.heads = 4", [](ValidProblem& v) { v.sources[0].heads = 8; }},
    // addressing
    {"kv[0].addressing = 9:", [](ValidProblem& v) { v.sources[0].addressing.kind = static_cast<AddressingKind>(9); }},
    {"kv[1].page_size = 0: must be at least 1", [](ValidProblem& v) { v.sources[1].addressing.page_size = 0; }},
    {"kv[1].page_size = -2147483648:",
     [](ValidProblem& v) { v.sources[1].addressing.page_size = std::numeric_limits<int32_t>::min(); }},
    {"kv[1].num_pages = -1:", [](ValidProblem& v) { v.sources[1].addressing.num_pages = -1; }},
    {"kv[1].num_pages = 9223372036854775807:", [](ValidProblem& v) { v.sources[1].addressing.num_pages = kHuge; }},
    {"kv[0].num_pages = 9223372036854775807:", [](ValidProblem& v) { v.sources[0].addressing.num_pages = kHuge; }},
    {"kv[0].kv_indptr[3] = 9: must be at most num_pages = 8", [](ValidProblem& v) { v.sources[0].addressing.num_pages = 8; }},
    {"kv[0].kv_indptr = null:", [](ValidProblem& v) { v.sources[0].addressing.kv_indptr = nullptr; }},
    {"kv[0].kv_indptr = *: must be aligned",
     [](ValidProblem& v) { v.sources[0].addressing.kv_indptr = misaligned(v.sources[0].addressing.kv_indptr); }},
    {"kv[0].kv_indptr[0] = -1:", [](ValidProblem& v) { v.ragged_indptr[0] = -1; }},
    {"kv[0].kv_indptr[2] = 4: must not be below the offset before it, 5", [](ValidProblem& v) { v.ragged_indptr[2] = 4; }},
    {"kv[0].kv_indptr[3] = 11: must be at most num_pages = 10", [](ValidProblem& v) { v.ragged_indptr[3] = 11; }},
    {"kv[0].seq_lens = *: ragged", [](ValidProblem& v) { v.sources[0].addressing.seq_lens = v.list_lens.data(); }},
    {"kv[0].kv_last_page_len = *: ragged", [](ValidProblem& v) { v.sources[0].addressing.kv_last_page_len = v.list_lens.data(); }},
    {"kv[0].block_table = *:", [](ValidProblem& v) { v.sources[0].addressing.block_table = v.list_lens.data(); }},
    {"kv[0].kv_indices = *:", [](ValidProblem& v) { v.sources[0].addressing.kv_indices = v.list_lens.data(); }},
    {"kv[1].kv_indptr = *:", [](ValidProblem& v) { v.sources[1].addressing.kv_indptr = v.list_lens.data(); }},
    {"kv[1].block_table = null:", [](ValidProblem& v) { v.sources[1].addressing.block_table = nullptr; }},
    {"kv[1].max_pages = -1:", [](ValidProblem& v) { v.sources[1].addressing.max_pages = -1; }},
    {"kv[1].max_pages = 9223372036854775807:", [](ValidProblem& v) { v.sources[1].addressing.max_pages = kHuge; }},
    {"kv[1].seq_lens[0] = 9: must be at most 8, the 2 pages", [](ValidProblem& v) { v.sources[1].addressing.max_pages = 2; }},
    {"kv[1].block_table_stride = 9223372036854775807:", [](ValidProblem& v) { v.sources[1].addressing.block_table_stride = kHuge; }},
    {"kv[1].block_table[0][1] = 6: must be from 0 to num_pages - 1 = 5 (holds entries of request 0)",
     [](ValidProblem& v) { v.window_table[1] = 6; }},
    {"kv[1].block_table[2][0] = -1:", [](ValidProblem& v) { v.window_table[6] = -1; }},
    {"kv[1].seq_lens = null:", [](ValidProblem& v) { v.sources[1].addressing.seq_lens = nullptr; }},
    {"kv[1].seq_lens[1] = -1:", [](ValidProblem& v) { v.window_lens[1] = -1; }},
    {"kv[1].seq_lens[2] = 13: must be at most 12", [](ValidProblem& v) { v.window_lens[2] = 13; }},
    {"kv[1].seq_lens[2] = 2147483647:", [](ValidProblem& v) { v.window_lens[2] = kMax32; }},
    {"kv[1].kv_last_page_len[0] = 3: makes 11 entries, but seq_lens[0] = 9",
     [](ValidProblem& v) { v.sources[1].addressing.kv_last_page_len = v.list_last.data(); }},
    {"kv[2].kv_indptr = null:", [](ValidProblem& v) { v.sources[2].addressing.kv_indptr = nullptr; }},
    {"kv[2].kv_indptr[3] = 4: must be at most num_indices = 3", [](ValidProblem& v) { v.list_indptr[3] = 4; }},
    {"kv[2].kv_indices = null:", [](ValidProblem& v) { v.sources[2].addressing.kv_indices = nullptr; }},
    {"kv[2].num_indices = -1:", [](ValidProblem& v) { v.sources[2].addressing.num_indices = -1; }},
    {"kv[2].kv_indptr[3] = 3: must be at most num_indices = 2", [](ValidProblem& v) { v.sources[2].addressing.num_indices = 2; }},
    {"kv[2].kv_indices[1] = 5: must be from 0 to num_pages - 1 = 4", [](ValidProblem& v) { v.list_indices[1] = 5; }},
    {"kv[2].seq_lens = null: must be given, or kv_last_page_len",
     [](ValidProblem& v) { v.sources[2].addressing.seq_lens = v.sources[2].addressing.kv_last_page_len = nullptr; }},
    {"kv[2].seq_lens[0] = 9: must be at most 8", [](ValidProblem& v) { v.list_lens[0] = 9; }},
    {"kv[2].kv_last_page_len[0] = 0: must be from 1 to page_size = 4", [](ValidProblem& v) { v.list_last[0] = 0; }},
    {"kv[2].kv_last_page_len[0] = 5: must be from 1 to page_size = 4", [](ValidProblem& v) { v.list_last[0] = 5; }},
    {"kv[2].kv_last_page_len[0] = 4: makes 8 entries, but seq_lens[0] = 7", [](ValidProblem& v) { v.list_last[0] = 4; }},
    {"kv[3].addressing = pool:", [](ValidProblem& v) { v.sources[3].rule = Rule::full(); }},
    {"kv[3].block_table = *:", [](ValidProblem& v) { v.sources[3].addressing.block_table = v.window_table.data(); }},
    {"kv[4].block_table[0][0] = 3:", [](ValidProblem& v) { v.position_table[0] = 3; }},
    {"kv[4].block_table[2][1] = -1:", [](ValidProblem& v) { v.position_table[5] = -1; }},
    {"kv[4].seq_lens = null:", [](ValidProblem& v) { v.sources[4].addressing.seq_lens = nullptr; }},
    // rules
    {"kv[0].rule = 5:", [](ValidProblem& v) { v.sources[0].rule.kind = static_cast<RuleKind>(5); }},
    {"kv[2].window_left = 3: a window without causal is not supported", [](ValidProblem& v) { v.sources[2].rule.window_left = 3; }, kUnsupported},
    {"kv[0].window_left = 3: read by RuleKind::kWindow only", [](ValidProblem& v) { v.sources[0].rule.window_left = 3; }},
    {"kv[1].window_left = -2:", [](ValidProblem& v) { v.sources[1].rule.window_left = -2; }},
    {"kv[0].ratio = 4:", [](ValidProblem& v) { v.sources[0].rule.ratio = 4; }},
    {"kv[5].ratio = 0:", [](ValidProblem& v) { v.sources[5].rule.ratio = 0; }},
    {"kv[0].indices = *:", [](ValidProblem& v) { v.sources[0].rule.indices = v.positions.data(); }},
    {"kv[0].topk = 2:", [](ValidProblem& v) { v.sources[0].rule.topk = 2; }},
    {"kv[0].topk_lens = *:", [](ValidProblem& v) { v.sources[0].rule.topk_lens = v.topk_lens.data(); }},
    {"kv[3].indices = null:", [](ValidProblem& v) { v.sources[3].rule.indices = nullptr; }},
    {"kv[3].indices = *: must be aligned to 8",
     [](ValidProblem& v) { v.sources[3].rule.indices = static_cast<const char*>(v.sources[3].rule.indices) + 4; }},
    {"kv[3].index_type = f32: must be i32 or i64", [](ValidProblem& v) { v.sources[3].rule.index_type = Type::kF32; }},
    {"kv[4].index_type = i64: positions must be i32", [](ValidProblem& v) { v.sources[4].rule.index_type = Type::kI64; }},
    {"kv[3].topk = -1:", [](ValidProblem& v) { v.sources[3].rule.topk = -1; }},
    {"kv[3].indices_stride = 9223372036854775807:", [](ValidProblem& v) { v.sources[3].rule.indices_stride = kHuge; }},
    {"kv[3].topk_lens = *: must be aligned", [](ValidProblem& v) { v.sources[3].rule.topk_lens = misaligned(v.sources[3].rule.topk_lens); }},
    {"kv[4].index_space = 2:", [](ValidProblem& v) { v.sources[4].rule.index_space = static_cast<IndexSpace>(2); }},
    {"kv[3].index_space = position: a pool has no table",
     [](ValidProblem& v) {
       v.sources[3].rule.index_space = IndexSpace::kPosition;
       v.sources[3].rule.index_type = Type::kI32;
     }},
    // positions
    {"kv[5].first_position = *: must be aligned", [](ValidProblem& v) { v.sources[5].first_position = misaligned(v.sources[5].first_position); }},
    {"kv[5].position_stride = *: must be aligned",
     [](ValidProblem& v) { v.sources[5].position_stride = misaligned(v.sources[5].position_stride); }},
    {"kv[5].position_stride[1] = 0: must be at least 1", [](ValidProblem& v) { v.position_stride[1] = 0; }},
    {"kv[5].position_stride[0] = 2147483647: puts the last entry at position 2147483647", [](ValidProblem& v) { v.position_stride[0] = kMax32; }},
    {"kv[5].position_stride[2] = 2: puts the last entry at position 2147483647", [](ValidProblem& v) { v.first_position[2] = kMax32; }},
};

// Does the message start as the pattern says ("*": any address) and go on with a rule?
::testing::AssertionResult matches(const std::string& message, const std::string& prefix) {
  const size_t star = prefix.find('*');
  bool same = false;
  if (star == std::string::npos) {
    same = message.compare(0, prefix.size(), prefix) == 0;
  } else {
    const std::string head = prefix.substr(0, star) + "0x";
    const std::string tail = prefix.substr(star + 1);
    same = message.compare(0, head.size(), head) == 0 && message.find(tail, head.size()) != std::string::npos;
  }
  if (same && message.size() > message.find(": ") + 2) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "expected \"" << prefix << "...\", got \"" << message << "\"";
}

void expect_refusals(std::span<const Break> breaks) {
  for (const Break& b : breaks) {
    ValidProblem v;
    b.apply(v);
    ResolvedProblem resolved;
    const Status status = validate(v.p, &resolved);
    EXPECT_EQ(status.code(), b.code) << b.prefix << " got: " << status.message();
    EXPECT_TRUE(matches(status.message(), b.prefix));
    EXPECT_EQ(resolved.num_sources, 0) << b.prefix;  // a refused problem resolves to nothing
    const Status run = attend(v.p);
    EXPECT_EQ(run.code(), status.code()) << b.prefix;
    EXPECT_EQ(run.message(), status.message());
    EXPECT_TRUE(v.outputs_untouched()) << b.prefix;
  }
}

TEST(Validate, AcceptsTheProblemThatTheTableBreaks) {
  ValidProblem v;
  ResolvedProblem resolved;
  const Status status = validate(v.p, &resolved);
  EXPECT_TRUE(status.ok()) << status.message();
  PlanarProblem planar;
  const Status planar_status = validate(planar.p, &resolved);
  EXPECT_TRUE(planar_status.ok()) << planar_status.message();
}

TEST(Validate, NamesEveryBrokenFieldOfTheProblem) { expect_refusals(kBreaks); }
TEST(Validate, NamesEveryBrokenFieldOfASource) { expect_refusals(kSourceBreaks); }

struct PlanarBreak {
  const char* prefix;
  void (*apply)(PlanarProblem& v);
};
TEST(Validate, PlanarRecordsNeedPagesOfOneHead) {
  const PlanarBreak breaks[] = {
      {"kv[0].addressing = ragged: fp8_ds_584 keeps its scales at the page's end",
       [](PlanarProblem& v) { v.sources[0].addressing = {.num_pages = 2, .kv_indptr = v.qo_indptr.data()}; }},
      {"kv[0].heads = 2: fp8_ds_584", [](PlanarProblem& v) { v.sources[0].heads = 2; }},
      {"kv[0].k.row_stride_bytes = 584: fp8_ds_584 packs its records: must be 576",
       [](PlanarProblem& v) {
         v.sources[0].k.row_stride_bytes = 584;
         v.sources[0].k.page_stride_bytes = 1728;
       }},
      {"kv[0].k.page_stride_bytes = 1167: a page of fp8_ds_584 with its scales takes 1168",
       [](PlanarProblem& v) { v.sources[0].k.page_stride_bytes = 1167; }},
      {"kv[0].k.width = 512: must equal q.width = 511", [](PlanarProblem& v) { v.p.q.width = 511; }},
  };
  for (const PlanarBreak& b : breaks) {
    PlanarProblem v;
    b.apply(v);
    ResolvedProblem resolved;
    const Status status = validate(v.p, &resolved);
    EXPECT_EQ(status.code(), kInvalid) << b.prefix;
    EXPECT_TRUE(matches(status.message(), b.prefix));
  }
}

}  // namespace
}  // namespace headwater
