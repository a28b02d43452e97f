// One KV source: fields and strides (any device), then its arrays (CPU).
#include "src/core/validate_source.h"

#include <algorithm>
#include <array>
#include <limits>

#include "src/core/check.h"
#include "src/core/store.h"
#include "src/core/visibility.h"

namespace headwater::check {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

bool gathered_slots(const Rule& rule) { return rule.kind == RuleKind::kGathered && rule.index_space == IndexSpace::kSlot; }

// ---- fields -------------------------------------------------------------------------------------------------------------------

Status check_rule(const Source& s, int32_t index, const ResolvedProblem& p) {
  const Where at{index};
  const Rule& r = s.rule;
  if (r.kind != RuleKind::kWindow && r.window_left != -1) {
    if (r.kind == RuleKind::kFull) {
      return refuse(StatusCode::kUnsupported, field(at, "window_left"), text(r.window_left),
                    "a window without causal is not supported; RuleKind::kWindow ends at the query");
    }
    return bad(at, "window_left", r.window_left, "read by RuleKind::kWindow only, leave -1");
  }
  if (r.kind == RuleKind::kWindow && r.window_left < -1) {
    return bad(at, "window_left", r.window_left, "must be at least 0, or -1 for no left edge");
  }
  if (r.kind == RuleKind::kCompressed && r.ratio < 1) return bad(at, "ratio", r.ratio, "must be at least 1");
  if (r.kind != RuleKind::kCompressed && r.ratio != 0) return bad(at, "ratio", r.ratio, "read by RuleKind::kCompressed only, leave 0");
  if (r.kind != RuleKind::kGathered) {
    if (r.indices != nullptr) return bad(at, "indices", r.indices, "read by RuleKind::kGathered only, leave null");
    if (r.topk_lens != nullptr) return bad(at, "topk_lens", r.topk_lens, "read by RuleKind::kGathered only, leave null");
    if (r.topk != 0) return bad(at, "topk", r.topk, "read by RuleKind::kGathered only, leave 0");
    if (s.addressing.kind == AddressingKind::kPool) {
      return bad({index}, "addressing", std::string_view("pool"), "has no table: only the gathered rule in slot space reads it");
    }
    return {};
  }
  if (r.topk < 0) return bad(at, "topk", r.topk, "must be at least 0");
  if (r.index_type != Type::kI32 && r.index_type != Type::kI64) return bad(at, "index_type", r.index_type, "must be i32 or i64");
  if (r.index_space != IndexSpace::kSlot && r.index_space != IndexSpace::kPosition) {
    return bad(at, "index_space", static_cast<int32_t>(r.index_space), "no such index space");
  }
  if (r.index_space == IndexSpace::kPosition) {
    if (r.index_type != Type::kI32) return bad(at, "index_type", r.index_type, "positions must be i32; only slots may be i64");
    if (s.addressing.kind == AddressingKind::kPool) {
      return bad(at, "index_space", std::string_view("position"), "a pool has no table to translate positions: use slots");
    }
  }
  const bool read = p.total_q > 0 && p.requests > 0;
  HEADWATER_TRY(
      check_array(at, "indices", r.indices, read && r.topk > 0, "the gathered rule reads it", r.index_type == Type::kI64 ? 8 : 4));
  return check_array(at, "topk_lens", r.topk_lens, false, "");
}

// Fields that the addressing does not read must be left unset, so that nobody relies on a silently ignored table.
Status check_addressing(const Source& s, int32_t index, const ResolvedProblem& p) {
  const Where at{index};
  const Addressing& a = s.addressing;
  const bool ragged = a.kind == AddressingKind::kRagged;
  const bool read = p.requests > 0 && !gathered_slots(s.rule);
  const bool uses_indptr = ragged || a.kind == AddressingKind::kPageList;
  HEADWATER_TRY(check_array(at, "kv_indptr", a.kv_indptr, uses_indptr && read, "ragged and page-list sources read it"));
  HEADWATER_TRY(check_array(at, "block_table", a.block_table, a.kind == AddressingKind::kBlockTable && read && a.max_pages > 0,
                            "block-table sources read it"));
  HEADWATER_TRY(check_array(at, "kv_indices", a.kv_indices, a.kind == AddressingKind::kPageList && read && a.num_indices > 0,
                            "page-list sources read it"));
  HEADWATER_TRY(check_array(at, "seq_lens", a.seq_lens, a.kind == AddressingKind::kBlockTable && read, "block-table sources read it"));
  HEADWATER_TRY(check_array(at, "kv_last_page_len", a.kv_last_page_len, false, ""));
  if (!uses_indptr && a.kv_indptr != nullptr) return bad(at, "kv_indptr", a.kv_indptr, "read by ragged and page-list sources only");
  if (a.kind != AddressingKind::kBlockTable && a.block_table != nullptr) {
    return bad(at, "block_table", a.block_table, "read by block-table sources only");
  }
  if (a.kind != AddressingKind::kPageList && a.kv_indices != nullptr) {
    return bad(at, "kv_indices", a.kv_indices, "read by page-list sources only");
  }
  if (ragged && a.seq_lens != nullptr) return bad(at, "seq_lens", a.seq_lens, "ragged sources take their lengths from kv_indptr");
  if (ragged && a.kv_last_page_len != nullptr) return bad(at, "kv_last_page_len", a.kv_last_page_len, "ragged sources have no pages");
  if (a.kind == AddressingKind::kPageList) {
    if (a.num_indices < 0) return bad(at, "num_indices", a.num_indices, "must be at least 0");
    if (read && a.seq_lens == nullptr && a.kv_last_page_len == nullptr) {
      return bad(at, "seq_lens", static_cast<const void*>(nullptr), "must be given, or kv_last_page_len");
    }
  }
  if (a.kind == AddressingKind::kBlockTable && a.max_pages < 0) return bad(at, "max_pages", a.max_pages, "must be at least 0");
  if (a.max_pages > kMaxSpan) return bad(at, "max_pages", a.max_pages, "must be at most 2^58");
  HEADWATER_TRY(check_array(at, "first_position", s.first_position, false, ""));
  return check_array(at, "position_stride", s.position_stride, false, "");
}

Status resolve_tables(const Source& s, int32_t index, const ResolvedProblem& p, ResolvedSource* out) {
  const Where at{index};
  const Addressing& a = s.addressing;
  if (!gathered_slots(s.rule)) {  // physical slots need no table and have no length: what is not read is not there
    out->kv_indptr = a.kv_indptr;
    out->block_table = a.block_table;
    out->kv_indices = a.kv_indices;
    out->seq_lens = a.seq_lens;
    out->kv_last_page_len = a.kv_last_page_len;
  }
  out->max_pages = a.kind == AddressingKind::kBlockTable ? a.max_pages : 0;
  out->block_table_stride = a.kind == AddressingKind::kBlockTable ? a.block_table_stride : 0;
  int64_t column = 1;
  const std::array<Axis, 2> table{{{"block_table_stride", p.requests, &out->block_table_stride}, {"max_pages", out->max_pages, &column}}};
  HEADWATER_TRY(resolve_strides(at, table, 1, 1));
  if (s.rule.kind != RuleKind::kGathered) {
    out->first_position = s.first_position;
    out->position_stride = s.position_stride;
  }

  const Rule& r = s.rule;
  out->rule = r.kind;
  out->window_left = r.window_left;
  out->ratio = r.ratio;
  out->indices = r.indices;
  out->indices_are_64 = r.index_type == Type::kI64;
  out->topk = r.topk;
  out->topk_lens = r.topk_lens;
  out->index_space = r.index_space;
  out->indices_stride = r.kind == RuleKind::kGathered ? r.indices_stride : 0;
  int64_t entry = 1;
  const std::array<Axis, 2> lists{{{"indices_stride", p.total_q, &out->indices_stride}, {"topk", r.topk, &entry}}};
  return resolve_strides({index}, lists, 1, 1);
}

}  // namespace

Status resolve_source(const Source& s, int32_t index, ResolvedProblem* resolved) {
  ResolvedSource* out = &resolved->sources[index];
  const Where at{index};
  if (s.rule.kind < RuleKind::kFull || s.rule.kind > RuleKind::kGathered) {
    return bad(at, "rule", static_cast<int32_t>(s.rule.kind), "no such rule");
  }
  HEADWATER_TRY(resolve_store(at, s, out));
  if (resolved->heads % s.heads != 0) return bad(at, "heads", s.heads, "must divide q.heads = " + text(resolved->heads));
  if (s.k.width != resolved->d_qk) {
    return bad({index, "k."}, "width", s.k.width,
               (resolved->q_tail_width > 0 ? "must equal q.width + q_tail.width = " : "must equal q.width = ") + text(resolved->d_qk));
  }
  if (s.d_v() != resolved->d_v) {
    const Where value_at = s.shared ? at : Where{index, "v."};
    return bad(value_at, s.shared ? "value_width" : "width", s.d_v(), "must equal that of kv[0], " + text(resolved->d_v));
  }
  out->group = resolved->heads / s.heads;
  HEADWATER_TRY(check_addressing(s, index, *resolved));
  HEADWATER_TRY(check_rule(s, index, *resolved));
  return resolve_tables(s, index, *resolved, out);
}

// ---- arrays, CPU ----------------------------------------------------------------------------------------------------------------

namespace {

Status check_indptr(const ResolvedProblem& p, const Source& s, int32_t index) {
  const int32_t* indptr = s.addressing.kv_indptr;
  const Where at{index};
  if (indptr[0] < 0) return bad(at, "kv_indptr[0]", indptr[0], "must be at least 0");
  for (int64_t b = 0; b < p.requests; ++b) {
    if (indptr[b + 1] < indptr[b]) {
      return bad(at, element("kv_indptr", b + 1), indptr[b + 1], "must not be below the offset before it, " + text(indptr[b]));
    }
  }
  const bool ragged = s.addressing.kind == AddressingKind::kRagged;
  const int64_t limit = ragged ? s.addressing.num_pages : s.addressing.num_indices;
  if (indptr[p.requests] > limit) {
    return bad(at, element("kv_indptr", p.requests), indptr[p.requests],
               std::string("must be at most ") + (ragged ? "num_pages" : "num_indices") + " = " + text(limit));
  }
  return {};
}

// Lengths of a paged request: at least 0, inside the table, and the same by both fields where both are given.
Status check_paged_length(const ResolvedProblem& p, const Source& s, int32_t index, int64_t b) {
  const Where at{index};
  const Addressing& a = s.addressing;
  const bool list = a.kind == AddressingKind::kPageList;
  const int64_t pages = list ? int64_t{a.kv_indptr[b + 1]} - a.kv_indptr[b] : p.sources[index].max_pages;
  const int64_t length = a.seq_lens != nullptr ? a.seq_lens[b] : 0;
  if (a.seq_lens != nullptr) {
    if (length < 0) return bad(at, element("seq_lens", b), length, "must be at least 0");
    if (length > Int128{pages} * a.page_size) {
      return bad(at, element("seq_lens", b), length,
                 "must be at most " + text(Int128{pages} * a.page_size) + ", the " + text(pages) + " pages of the request times page_size");
    }
  }
  if (a.kv_last_page_len == nullptr) return {};
  const int64_t last = a.kv_last_page_len[b];
  const int64_t used = list ? pages : (length + a.page_size - 1) / a.page_size;
  if (used > 0 && (last < 1 || last > a.page_size)) {
    return bad(at, element("kv_last_page_len", b), last, "must be from 1 to page_size = " + text(a.page_size));
  }
  const int64_t derived = used == 0 ? 0 : (used - 1) * a.page_size + last;
  if (a.seq_lens != nullptr && derived != length) {
    return bad(at, element("kv_last_page_len", b), last,
               "makes " + text(derived) + " entries, but seq_lens[" + text(b) + "] = " + text(length));
  }
  if (derived > kMaxInt32) return bad(at, element("kv_last_page_len", b), last, "makes " + text(derived) + " entries: above 2^31 - 1");
  return {};
}

Status check_positions(const ResolvedProblem& p, int32_t index, int64_t b) {
  const ResolvedSource& s = p.sources[index];
  const Where at{index};
  const int64_t first = s.first_position != nullptr ? s.first_position[b] : 0;
  const int64_t stride = s.position_stride != nullptr ? s.position_stride[b] : 1;
  if (stride < 1) return bad(at, element("position_stride", b), stride, "must be at least 1");
  const int64_t length = source_kv_len(s, b);
  const int64_t last = first + std::max<int64_t>(length - 1, 0) * stride;
  if (last >= kMaxInt32) {
    return bad(at, element(s.position_stride != nullptr ? "position_stride" : "first_position", b),
               s.position_stride != nullptr ? stride : first, "puts the last entry at position " + text(last) + ", above 2^31 - 2");
  }
  return {};
}

Status check_page(const ResolvedProblem& p, const Source& source, int32_t index, int64_t b, int64_t page_index) {
  const ResolvedSource& s = p.sources[index];
  const bool table = s.addressing == AddressingKind::kBlockTable;
  const int64_t at = table ? page_index : int64_t{s.kv_indptr[b]} + page_index;
  const int64_t page = table ? s.block_table[b * s.block_table_stride + page_index] : s.kv_indices[at];
  if (page >= 0 && page < source.addressing.num_pages) return {};
  return bad({index}, table ? element(element("block_table", b), at) : element("kv_indices", at), page,
             "must be from 0 to num_pages - 1 = " + text(source.addressing.num_pages - 1) + " (holds entries of request " + text(b) + ")");
}

}  // namespace

Status check_source_values(const ResolvedProblem& p, const Source& s, int32_t index) {
  HEADWATER_TRY(check_scale_values({index, "k."}, p.sources[index].k));
  if (!s.shared) HEADWATER_TRY(check_scale_values({index, "v."}, p.sources[index].v));
  if (p.requests == 0 || gathered_slots(s.rule)) return {};  // no lengths
  const bool uses_indptr = s.addressing.kind != AddressingKind::kBlockTable;
  if (uses_indptr) HEADWATER_TRY(check_indptr(p, s, index));
  for (int64_t b = 0; b < p.requests; ++b) {
    if (s.addressing.kind != AddressingKind::kRagged) HEADWATER_TRY(check_paged_length(p, s, index, b));
    if (s.rule.kind != RuleKind::kGathered) HEADWATER_TRY(check_positions(p, index, b));
  }
  return {};
}

Status check_live_pages(const ResolvedProblem& p, const Source& source, int32_t index) {
  const ResolvedSource& s = p.sources[index];
  if (s.addressing == AddressingKind::kRagged || gathered_slots(source.rule)) return {};
  for (int64_t b = 0; b < p.requests; ++b) {
    const int64_t q_len = int64_t{p.qo_indptr[b + 1]} - p.qo_indptr[b];
    const int64_t length = source_kv_len(s, b);
    if (q_len == 0 || length == 0) continue;
    if (s.rule == RuleKind::kGathered) {  // only the pages that a list names
      if (s.topk == 0) continue;          // indices may be null
      for (int64_t row = p.qo_indptr[b]; row < p.qo_indptr[b + 1]; ++row) {
        const int32_t* list = static_cast<const int32_t*>(s.indices) + row * s.indices_stride;
        for (int64_t i = 0; i < topk_len(s, row); ++i) {
          if (list[i] < 0 || list[i] >= length) continue;
          HEADWATER_TRY(check_page(p, source, index, b, list[i] / s.page_size));
        }
      }
      continue;
    }
    const int64_t first = s.first_position != nullptr ? s.first_position[b] : 0;
    const int64_t stride = s.position_stride != nullptr ? s.position_stride[b] : 1;
    const int64_t last_t = context_len(p, b) - 1;
    const EntryRange head = visible_range(s.rule, s.window_left, s.ratio, first, stride, length, last_t - q_len + 1);
    const EntryRange tail = visible_range(s.rule, s.window_left, s.ratio, first, stride, length, last_t);
    if (tail.end <= head.begin) continue;
    for (int64_t page = head.begin / s.page_size; page <= (tail.end - 1) / s.page_size; ++page) {
      HEADWATER_TRY(check_page(p, source, index, b, page));
    }
  }
  return {};
}

}  // namespace headwater::check
