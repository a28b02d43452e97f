#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "src/plan/balance.h"

namespace headwater::plan {

namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Most tiles that one source gives a row block.
int64_t most_tiles(const PlanShape& shape, const SourceRules& rules) {
  const int64_t tile = shape.tile_entries;
  if (rules.rule == RuleKind::kGathered) return ceil_div(rules.topk, tile);
  const int64_t whole = ceil_div(rules.max_len, tile);
  if (rules.rule != RuleKind::kWindow || rules.window_left < 0) return whole;
  const int64_t entries = int64_t{rules.window_left} + shape.tokens_per_block;  // may begin anywhere in a tile
  return std::min(whole, (entries + tile - 2) / tile + 1);
}

// Fragments of several to a row block, over a whole run.
int64_t most_invariant_partials(const PlanShape& shape) {
  int64_t least = INT64_MAX;
  for (int32_t t = 1; t <= shape.tokens_per_block; ++t) {
    least = std::min(least, ceil_div(cut_units(shape, t), tile_units(shape, t)));
  }
  int64_t tiles_of_block = 0;
  int64_t tiles_of_run = 0;  // one head block
  const int64_t blocks_of_request = ceil_div(shape.max_q_len, shape.tokens_per_block);
  for (int32_t s = 0; s < shape.num_sources; ++s) {
    const SourceRules& rules = shape.sources[s];
    const int64_t tiles = most_tiles(shape, rules);
    tiles_of_block += tiles;
    int64_t run = shape.max_token_blocks * tiles;
    if (rules.rule != RuleKind::kGathered && rules.rule != RuleKind::kWindow) {
      run = std::min(run, blocks_of_request * (rules.max_total_len / shape.tile_entries + shape.max_requests));
    }
    tiles_of_run += run;
  }
  const int64_t fragments = std::min<int64_t>(shape.max_splits, tiles_of_block / least);
  if (fragments < 2) return 0;
  return std::min(shape.max_token_blocks * fragments, tiles_of_run / least) * shape.num_head_blocks;
}

void set_capacities(PlanShape* shape) {
  const int64_t requests = shape->max_requests;
  const int64_t tokens = shape->max_total_q;
  const int64_t t = shape->tokens_per_block;
  // sum of ceil(q_len / t): at most one block a token, and only a request's last block may be short.
  shape->max_token_blocks =
      std::min({requests * ceil_div(shape->max_q_len, t), tokens, (tokens + std::min(requests, tokens) * (t - 1)) / t});
  const int64_t blocks = shape->max_token_blocks * shape->num_head_blocks;
  if (shape->batch_invariant) {
    shape->max_partials = most_invariant_partials(*shape);
    shape->max_items = blocks + shape->max_partials;
    shape->max_merges = std::min(blocks, shape->max_partials / 2);
    return;
  }
  int64_t tiles = 0;
  for (int32_t s = 0; s < shape->num_sources; ++s) tiles += most_tiles(*shape, shape->sources[s]);
  const int64_t cuts = blocks > 0 && tiles > 1 ? shape->workers - 1 : 0;  // each adds an item
  shape->max_items = blocks + cuts;
  shape->max_merges = std::min(blocks, cuts);
  shape->max_partials = cuts > 0 ? 2 * int64_t{shape->workers} : 0;
}

void hash_bytes(uint64_t* hash, uint64_t value) {  // FNV-1a
  for (int i = 0; i < 8; ++i) *hash = (*hash ^ ((value >> (8 * i)) & 0xff)) * 0x100000001b3ULL;
}

std::string number(int64_t value) { return std::to_string(value); }
std::string at(const std::string& name, int64_t index, int64_t value) { return name + "[" + number(index) + "] = " + number(value); }
std::string source_name(int32_t source) { return "kv[" + number(source) + "]"; }

Status check_pointers(const PlanShape& shape, const Lengths& lengths) {
  if (lengths.requests < 0 || lengths.requests > shape.max_requests) {
    return invalid("requests = " + number(lengths.requests) + ": must be 0 to the plan's max_requests = " + number(shape.max_requests));
  }
  if (lengths.num_sources != shape.num_sources) {
    return invalid("num_sources = " + number(lengths.num_sources) + ": the plan has " + number(shape.num_sources));
  }
  if (lengths.requests == 0) return {};
  if (lengths.qo_indptr == nullptr) return invalid("qo_indptr = null: must be given");
  if (shape.needs_context && lengths.context_lens == nullptr && shape.context_source < 0) {
    return invalid("context_lens = null: must be given unless exactly one source is causal or windowed, ragged or paged");
  }
  for (int32_t s = 0; s < shape.num_sources; ++s) {
    const SourceRules& rules = shape.sources[s];
    const SourceLengths& source = lengths.sources[s];
    if (rules.rule == RuleKind::kGathered && rules.index_space == IndexSpace::kSlot) continue;
    const bool by_table = source.seq_lens != nullptr || (rules.addressing == AddressingKind::kPageList && source.kv_indptr != nullptr &&
                                                         source.kv_last_page_len != nullptr);
    if (rules.addressing == AddressingKind::kRagged ? source.kv_indptr == nullptr : !by_table) {
      return invalid(source_name(s) + (rules.addressing == AddressingKind::kRagged ? ".kv_indptr" : ".seq_lens") +
                     " = null: must be given");
    }
  }
  return {};
}

Status describe_fault(const PlanShape& shape, const Lengths& lengths, int64_t r, const LengthCheck& check) {
  const int64_t begin = lengths.qo_indptr[r];
  const int64_t end = lengths.qo_indptr[r + 1];
  const std::string source = source_name(check.source);
  const auto kv_len = [&] { return given_kv_len(shape.sources[check.source], lengths.sources[check.source], r); };
  switch (check.fault) {
    case LengthFault::kNone:
      return {};
    case LengthFault::kQoOrder:
      return begin < 0 ? invalid(at("qo_indptr", r, begin) + ": must be at least 0")
                       : invalid(at("qo_indptr", r + 1, end) + ": must be at least " + at("qo_indptr", r, begin));
    case LengthFault::kQoTotal:
      return invalid(at("qo_indptr", r + 1, end) + ": must be at most total_q = " + number(lengths.total_q) +
                     " and the plan's max_total_q = " + number(shape.max_total_q));
    case LengthFault::kQLen:
      return invalid(at("q_len", r, end - begin) + ": must be at most the plan's max_q_len = " + number(shape.max_q_len));
    case LengthFault::kKvNegative:
      return invalid(at(source + ".kv_len", r, kv_len()) + ": must be at least 0");
    case LengthFault::kKvLen:
      return invalid(at(source + ".kv_len", r, kv_len()) +
                     ": must be at most the plan's max_len = " + number(shape.sources[check.source].max_len));
    case LengthFault::kStride:
      return invalid(at(source + ".position_stride", r, given_position_stride(lengths.sources[check.source], r)) + ": must be at least 1");
    case LengthFault::kContext:
      return invalid(at("context_len", r, given_context_len(shape, lengths, r)) + ": must fit 32 bits");
  }
  return {};
}

Status check_lengths(const PlanShape& shape, const Lengths& lengths) {
  if (Status status = check_pointers(shape, lengths); !status.ok()) return status;
  int64_t totals[kMaxSources] = {};
  for (int64_t r = 0; r < lengths.requests; ++r) {
    const LengthCheck check = check_request(shape, lengths, r);
    if (check.fault != LengthFault::kNone) return describe_fault(shape, lengths, r, check);
    for (int32_t s = 0; s < shape.num_sources; ++s) totals[s] += given_kv_len(shape.sources[s], lengths.sources[s], r);
    if (shape.needs_context && lengths.context_lens == nullptr) {
      const int64_t stride = given_position_stride(lengths.sources[shape.context_source], r);
      if (stride != 1) {
        return invalid(at(source_name(shape.context_source) + ".position_stride", r, stride) +
                       ": context_lens must be given where it is not 1");
      }
    }
  }
  for (int32_t s = 0; s < shape.num_sources; ++s) {
    if (shape.sources[s].rule != RuleKind::kGathered && totals[s] > shape.sources[s].max_total_len) {
      return invalid(source_name(s) + ": lengths sum to " + number(totals[s]) +
                     ": must be at most the plan's max_total_len = " + number(shape.sources[s].max_total_len));
    }
  }
  return {};
}

Status differs(const std::string& what, int64_t now, int64_t scheduled) {
  return invalid(what + " = " + number(now) + ": the schedule was dealt for " + number(scheduled));
}

}  // namespace

PlanShape make_shape(const Bounds& bounds, const KernelTraits& traits, const PlanOptions& options) {
  PlanShape shape;
  shape.num_sources = static_cast<int32_t>(bounds.sources.size());
  shape.heads = bounds.heads;
  int32_t group = 0;
  int32_t gathered = 0;
  int32_t positional = 0;
  for (int32_t s = 0; s < shape.num_sources; ++s) {
    const SourceBounds& source = bounds.sources[static_cast<size_t>(s)];
    SourceRules& rules = shape.sources[s];
    rules.rule = source.rule;
    rules.window_left = source.window_left;
    rules.ratio = source.ratio;
    rules.topk = source.topk;
    rules.addressing = source.addressing;
    rules.page_size = source.page_size;
    rules.index_space = source.index_space;
    rules.max_len = source.max_len;
    rules.max_total_len = source.max_total_len > 0 ? source.max_total_len : bounds.max_requests * source.max_len;
    group = std::gcd(group, bounds.heads / source.heads);
    gathered += source.rule == RuleKind::kGathered ? 1 : 0;
    shape.needs_context =
        shape.needs_context || source.rule == RuleKind::kCausal || source.rule == RuleKind::kWindow || source.rule == RuleKind::kCompressed;
    if (source.rule == RuleKind::kCausal || source.rule == RuleKind::kWindow) {
      positional += 1;
      shape.context_source = source.addressing == AddressingKind::kPool ? -1 : s;
    }
  }
  if (positional != 1) shape.context_source = -1;
  shape.head_block = std::max(1, group);
  shape.num_head_blocks = bounds.heads / shape.head_block;
  // The smaller of the two leaves the token blocks of every request within the bounds as they are.
  shape.tokens_per_block = gathered > 0 ? 1 : std::max(1, std::min(bounds.max_q_len, traits.max_rows / shape.head_block));
  shape.tile_entries = traits.tile_entries;
  shape.workers = std::max(1, options.workers > 0 ? options.workers : traits.default_workers);
  shape.batch_invariant = options.batch_invariant;
  shape.max_splits = traits.max_splits;
  shape.max_q_len = bounds.max_q_len;
  shape.max_requests = bounds.max_requests;
  shape.max_total_q = bounds.max_total_q;
  set_costs(bounds, traits, &shape);
  set_capacities(&shape);
  return shape;
}

Status check_shape(const PlanShape& shape) {
  const int64_t limit = INT32_MAX - 1;
  if (shape.max_items > limit || shape.max_partials > limit) {
    return unsupported("bounds: up to " + number(shape.max_items) + " work items and " + number(shape.max_partials) +
                       " partials: the planner counts to " + number(limit) + "; lower max_requests, max_total_q or max_len");
  }
  return {};
}

uint64_t fingerprint(const PlanShape& shape) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  const auto add = [&](auto value) { hash_bytes(&hash, static_cast<uint64_t>(static_cast<int64_t>(value))); };
  for (const int64_t value : {int64_t{shape.num_sources},
                              int64_t{shape.heads},
                              int64_t{shape.head_block},
                              int64_t{shape.num_head_blocks},
                              int64_t{shape.tokens_per_block},
                              int64_t{shape.tile_entries},
                              int64_t{shape.workers},
                              int64_t{shape.batch_invariant},
                              int64_t{shape.needs_context},
                              int64_t{shape.context_source},
                              int64_t{shape.tile_cost},
                              int64_t{shape.tile_token_cost},
                              int64_t{shape.block_cost},
                              int64_t{shape.partial_cost},
                              int64_t{shape.max_splits},
                              int64_t{shape.max_q_len},
                              shape.max_requests,
                              shape.max_total_q,
                              shape.max_token_blocks,
                              shape.max_items,
                              shape.max_merges,
                              shape.max_partials}) {
    add(value);
  }
  for (int32_t s = 0; s < shape.num_sources; ++s) {
    const SourceRules& rules = shape.sources[s];
    for (const int64_t value : {int64_t{rules.window_left}, int64_t{rules.ratio}, int64_t{rules.topk}, int64_t{rules.page_size},
                                rules.max_len, rules.max_total_len}) {
      add(value);
    }
    add(static_cast<int32_t>(rules.rule));
    add(static_cast<int32_t>(rules.addressing));
    add(static_cast<int32_t>(rules.index_space));
  }
  return hash;
}

size_t schedule_bytes(const PlanShape& shape) {
  ScheduleView view;
  return layout_schedule(shape, nullptr, &view);
}

size_t partial_bytes(const PlanShape& shape, int32_t d_v) {
  const size_t rows = static_cast<size_t>(shape.tokens_per_block) * static_cast<size_t>(shape.head_block);
  return align_up(rows * (static_cast<size_t>(d_v) + 2) * sizeof(float), 256);
}

Status schedule_host(const PlanShape& shape, const Lengths& lengths, void* buffer) {
  if (buffer == nullptr) return {StatusCode::kBuffer, "schedule_buf.data = null: must be given"};
  const ScheduleView view = view_schedule(shape, buffer);
  *view.header = {};
  if (Status status = check_shape(shape); !status.ok()) return status;
  if (Status status = check_lengths(shape, lengths); !status.ok()) return status;
  return deal(shape, lengths, view);
}

Status check_scheduled_lengths(const PlanShape& shape, const ScheduleView& view, const ResolvedProblem& problem) {
  if (view.header->magic != kScheduleMagic) return {StatusCode::kBuffer, "schedule_buf: holds no schedule"};
  if (view.header->fingerprint != fingerprint(shape)) return {StatusCode::kBuffer, "schedule_buf: was dealt by another plan"};
  if (problem.requests != view.header->requests) return differs("requests", problem.requests, view.header->requests);
  for (int64_t r = 0; r < problem.requests; ++r) {
    if (problem.qo_indptr[r] != view.q_begin[r]) return differs("qo_indptr[" + number(r) + "]", problem.qo_indptr[r], view.q_begin[r]);
    if (problem.qo_indptr[r + 1] != view.q_begin[r + 1]) {
      return differs("qo_indptr[" + number(r + 1) + "]", problem.qo_indptr[r + 1], view.q_begin[r + 1]);
    }
    const int64_t context = shape.needs_context ? context_len(problem, r) : 0;
    if (context != view.context_len[r]) return differs("context_lens[" + number(r) + "]", context, view.context_len[r]);
  }
  for (int32_t s = 0; s < shape.num_sources; ++s) {
    const ResolvedSource& source = problem.sources[s];
    const bool gathered = shape.sources[s].rule == RuleKind::kGathered;
    const bool has_length = !gathered || shape.sources[s].index_space == IndexSpace::kPosition;
    for (int64_t r = 0; r < problem.requests; ++r) {
      const int64_t slot = s * shape.max_requests + r;
      const std::string name = source_name(s);
      const int64_t kv_len = has_length ? source_kv_len(source, r) : 0;
      const int64_t first = source.first_position != nullptr ? source.first_position[r] : 0;
      const int64_t stride = source.position_stride != nullptr ? source.position_stride[r] : 1;
      if (kv_len != view.kv_len[slot]) return differs(name + ".kv_len[" + number(r) + "]", kv_len, view.kv_len[slot]);
      if (first != view.first_position[slot]) {
        return differs(name + ".first_position[" + number(r) + "]", first, view.first_position[slot]);
      }
      if (stride != view.position_stride[slot]) {
        return differs(name + ".position_stride[" + number(r) + "]", stride, view.position_stride[slot]);
      }
    }
    if (!gathered) continue;
    const int64_t rows = problem.requests > 0 ? problem.qo_indptr[problem.requests] : 0;
    for (int64_t row = problem.requests > 0 ? problem.qo_indptr[0] : 0; row < rows; ++row) {
      const int64_t scheduled = view.topk_len[s * shape.max_total_q + row];
      if (topk_len(source, row) != scheduled) {
        return differs(source_name(s) + ".topk_lens[" + number(row) + "]", topk_len(source, row), scheduled);
      }
    }
  }
  return {};
}

}  // namespace headwater::plan
