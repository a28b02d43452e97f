// The C interface: copies plain structs into the C++ ones and statuses back. No exception crosses it.
#include "headwater/c_api.h"

#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "headwater/headwater.h"
#include "src/core/c_boundary.h"

struct headwater_plan {
  headwater::Plan plan;
  std::string kernel;
};

namespace {

using headwater::Status;
using headwater::StatusCode;

static_assert(HEADWATER_DENSE == headwater::kDense);
static_assert(HEADWATER_I64 == static_cast<int>(headwater::Type::kI64));
static_assert(HEADWATER_FORMAT_NVFP4_DS_432 == static_cast<int>(headwater::Format::kNvfp4Ds432));
static_assert(HEADWATER_GATHERED == static_cast<int>(headwater::RuleKind::kGathered));
static_assert(HEADWATER_POOL == static_cast<int>(headwater::AddressingKind::kPool));
static_assert(HEADWATER_CUDA == static_cast<int>(headwater::DeviceKind::kCuda));
static_assert(HEADWATER_DEVICE == static_cast<int>(StatusCode::kDevice));

std::string& last_error() {
  thread_local std::string message;
  return message;
}

// Runs `body`, a callable that returns a Status, and keeps its message.
template <class Body>
headwater_status guarded(const Body& body) {
  return static_cast<headwater_status>(headwater::run_without_throwing(body, &last_error()));
}

Status null_argument(const char* name) { return headwater::invalid(std::string(name) + " = null: must be given"); }

// A caller's struct as this library knows it. Longer structs come from a newer header and may ask for what is not here.
template <class T>
Status read_struct(const char* name, const T* from, T* to) {
  if (from == nullptr) return null_argument(name);
  if (from->struct_size != sizeof(T)) {
    return headwater::invalid(std::string(name) + ".struct_size = " + std::to_string(from->struct_size) + ": must be " +
                              std::to_string(sizeof(T)) + " in headwater " + headwater::version());
  }
  *to = *from;
  return {};
}

// Enumerators that the C++ types cannot hold are refused before the cast.
template <class Enum>
Status read_enum(const std::string& name, int32_t value, int32_t last, Enum* to) {
  if (value < 0 || value > last) {
    return headwater::invalid(name + " = " + std::to_string(value) + ": must be from 0 to " + std::to_string(last));
  }
  *to = static_cast<Enum>(value);
  return {};
}

#define TRY(expression)                                                        \
  do {                                                                         \
    if (Status try_status = (expression); !try_status.ok()) return try_status; \
  } while (false)

Status to_tensor(const std::string& name, const headwater_kv_tensor& c, headwater::KvTensor* t) {
  TRY(read_enum(name + ".format", c.format, HEADWATER_FORMAT_NVFP4_DS_432, &t->format));
  t->data = c.data;
  t->width = c.width;
  t->row_stride_bytes = c.row_stride_bytes;
  t->head_stride_bytes = c.head_stride_bytes;
  t->page_stride_bytes = c.page_stride_bytes;
  t->scales = c.scales;
  t->scale_row_stride_bytes = c.scale_row_stride_bytes;
  t->scale_head_stride_bytes = c.scale_head_stride_bytes;
  t->scale_page_stride_bytes = c.scale_page_stride_bytes;
  t->scale_block_stride_bytes = c.scale_block_stride_bytes;
  t->scale = {c.scale, c.scale_count, c.scale_value};
  return {};
}

Status to_source(const std::string& name, const headwater_source* given, headwater::Source* s) {
  headwater_source c{};
  TRY(read_struct(name.c_str(), given, &c));
  TRY(to_tensor(name + ".k", c.k, &s->k));
  TRY(to_tensor(name + ".v", c.v, &s->v));
  s->shared = c.shared != 0;
  s->value_width = c.value_width;
  s->heads = c.heads;
  TRY(read_enum(name + ".addressing", c.addressing, HEADWATER_POOL, &s->addressing.kind));
  s->addressing.page_size = c.page_size;
  s->addressing.num_pages = c.num_pages;
  s->addressing.kv_indptr = c.kv_indptr;
  s->addressing.block_table = c.block_table;
  s->addressing.max_pages = c.max_pages;
  s->addressing.block_table_stride = c.block_table_stride;
  s->addressing.kv_indices = c.kv_indices;
  s->addressing.num_indices = c.num_indices;
  s->addressing.seq_lens = c.seq_lens;
  s->addressing.kv_last_page_len = c.kv_last_page_len;
  TRY(read_enum(name + ".rule", c.rule, HEADWATER_GATHERED, &s->rule.kind));
  TRY(read_enum(name + ".index_type", c.index_type, HEADWATER_I64, &s->rule.index_type));
  TRY(read_enum(name + ".index_space", c.index_space, 1, &s->rule.index_space));
  s->rule.window_left = c.window_left;
  s->rule.ratio = c.ratio;
  s->rule.indices = c.indices;
  s->rule.topk = c.topk;
  s->rule.indices_stride = c.indices_stride;
  s->rule.topk_lens = c.topk_lens;
  s->first_position = c.first_position;
  s->position_stride = c.position_stride;
  return {};
}

Status to_query(const headwater_query& c, headwater::Problem* p) {
  TRY(read_enum("q.type", c.type, HEADWATER_I64, &p->q.type));
  p->q.data = c.data;
  p->q.total = c.total;
  p->q.heads = c.heads;
  p->q.width = c.width;
  p->q.row_stride_bytes = c.row_stride_bytes;
  p->q.head_stride_bytes = c.head_stride_bytes;
  p->q_tail = {c.tail, c.tail_width, c.tail_row_stride_bytes, c.tail_head_stride_bytes};
  p->q_scale = {c.scale, c.scale_per_row != 0, c.scale_value, c.scale_row_stride, c.scale_head_stride};
  return {};
}

// The sources live in `sources`, which the problem points into.
Status to_problem(const headwater_problem* given, std::vector<headwater::Source>* sources, headwater::Problem* p) {
  headwater_problem c{};
  TRY(read_struct("problem", given, &c));
  TRY(read_enum("device_kind", c.device_kind, HEADWATER_CUDA, &p->device.kind));
  p->device.index = c.device_index;
  TRY(to_query(c.q, p));
  p->requests = c.requests;
  p->qo_indptr = c.qo_indptr;
  p->context_lens = c.context_lens;
  if (c.num_sources < 0 || c.num_sources > headwater::kMaxSources) {
    return headwater::invalid("num_sources = " + std::to_string(c.num_sources) + ": must be from 1 to " +
                              std::to_string(headwater::kMaxSources));
  }
  if (c.num_sources > 0 && c.sources == nullptr) return null_argument("sources");
  sources->resize(static_cast<size_t>(c.num_sources));
  for (size_t s = 0; s < sources->size(); ++s) TRY(to_source("kv[" + std::to_string(s) + "]", c.sources + s, &(*sources)[s]));
  p->sources = *sources;
  p->sinks = c.sinks;
  p->sinks_request_stride = c.sinks_request_stride;
  p->sm_scale = c.sm_scale;
  p->logits_soft_cap = c.logits_soft_cap;
  TRY(read_enum("out_type", c.out_type, HEADWATER_I64, &p->out.type));
  p->out.data = c.out;
  p->out.row_stride_bytes = c.out_row_stride_bytes;
  p->out.head_stride_bytes = c.out_head_stride_bytes;
  p->lse = {c.lse, c.lse_token_stride, c.lse_head_stride, c.lse_request_stride};
  return {};
}

Status to_bounds(const headwater_bounds* given, headwater::Bounds* b) {
  headwater_bounds c{};
  TRY(read_struct("bounds", given, &c));
  TRY(read_enum("bounds.device_kind", c.device_kind, HEADWATER_CUDA, &b->device.kind));
  TRY(read_enum("bounds.q_type", c.q_type, HEADWATER_I64, &b->q_type));
  TRY(read_enum("bounds.out_type", c.out_type, HEADWATER_I64, &b->out_type));
  b->device.index = c.device_index;
  b->max_requests = c.max_requests;
  b->max_total_q = c.max_total_q;
  b->max_q_len = c.max_q_len;
  b->heads = c.heads;
  b->d_qk = c.d_qk;
  b->d_v = c.d_v;
  b->softcap = c.softcap != 0;
  b->q_alignment = c.q_alignment;
  if (c.num_sources < 0 || c.num_sources > headwater::kMaxSources) {
    return headwater::invalid("bounds.num_sources = " + std::to_string(c.num_sources) + ": must be from 1 to " +
                              std::to_string(headwater::kMaxSources));
  }
  if (c.num_sources > 0 && c.sources == nullptr) return null_argument("bounds.sources");
  for (int32_t s = 0; s < c.num_sources; ++s) {
    const std::string name = "bounds.kv[" + std::to_string(s) + "]";
    headwater_source_bounds from{};
    TRY(read_struct(name.c_str(), c.sources + s, &from));
    headwater::SourceBounds to;
    TRY(read_enum(name + ".k_format", from.k_format, HEADWATER_FORMAT_NVFP4_DS_432, &to.k_format));
    TRY(read_enum(name + ".v_format", from.v_format, HEADWATER_FORMAT_NVFP4_DS_432, &to.v_format));
    TRY(read_enum(name + ".addressing", from.addressing, HEADWATER_POOL, &to.addressing));
    TRY(read_enum(name + ".rule", from.rule, HEADWATER_GATHERED, &to.rule));
    TRY(read_enum(name + ".index_type", from.index_type, HEADWATER_I64, &to.index_type));
    TRY(read_enum(name + ".index_space", from.index_space, 1, &to.index_space));
    to.shared = from.shared != 0;
    to.heads = from.heads;
    to.page_size = from.page_size;
    to.window_left = from.window_left;
    to.ratio = from.ratio;
    to.topk = from.topk;
    to.max_len = from.max_len;
    to.max_total_len = from.max_total_len;
    to.alignment = from.alignment;
    b->sources.push_back(to);
  }
  return {};
}

Status to_options(const headwater_options* given, headwater::PlanOptions* o) {
  if (given == nullptr) return {};
  headwater_options c{};
  TRY(read_struct("options", given, &c));
  o->batch_invariant = c.batch_invariant != 0;
  o->workers = c.workers;
  if (c.kernel != nullptr) o->kernel = c.kernel;
  if (c.isa != nullptr) o->isa = c.isa;
  o->parallel_for = {c.parallel_for, c.parallel_context};
  o->checked = c.checked != 0;
  return {};
}

Status to_state(const char* name, const headwater_state* given, headwater::State* s) {
  headwater_state c{};
  TRY(read_struct(name, given, &c));
  TRY(read_enum(std::string(name) + ".type", c.type, HEADWATER_I64, &s->type));
  s->out = c.out;
  s->out_token_stride_bytes = c.out_token_stride_bytes;
  s->out_head_stride_bytes = c.out_head_stride_bytes;
  s->lse = {c.lse, c.lse_token_stride, c.lse_head_stride, c.lse_request_stride};
  return {};
}

template <class T>
void zero(T* value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memset(value, 0, sizeof(T));
  value->struct_size = sizeof(T);
}

void init_tensor(headwater_kv_tensor* t) {
  t->format = HEADWATER_FORMAT_BF16;
  t->row_stride_bytes = t->head_stride_bytes = t->page_stride_bytes = HEADWATER_DENSE;
  t->scale_row_stride_bytes = t->scale_head_stride_bytes = t->scale_page_stride_bytes = t->scale_block_stride_bytes = HEADWATER_DENSE;
  t->scale_value = 1.0F;
}

Status make(const headwater::Bounds& bounds, const headwater::PlanOptions& options, headwater_plan** plan) {
  headwater::Result<headwater::Plan> made = headwater::make_plan(bounds, options);
  if (!made.ok()) return made.status();
  *plan = new headwater_plan{*made, made->kernel()};
  return {};
}

}  // namespace

const char* headwater_version(void) { return headwater::version(); }
const char* headwater_last_error(void) { return last_error().c_str(); }

void headwater_source_init(headwater_source* source) {
  zero(source);
  init_tensor(&source->k);
  init_tensor(&source->v);
  source->heads = 1;
  source->page_size = 1;
  source->block_table_stride = source->indices_stride = HEADWATER_DENSE;
  source->window_left = -1;
  source->index_type = HEADWATER_I32;
}
void headwater_problem_init(headwater_problem* problem) {
  zero(problem);
  headwater_query& q = problem->q;
  q.type = HEADWATER_BF16;
  q.row_stride_bytes = q.head_stride_bytes = q.tail_row_stride_bytes = q.tail_head_stride_bytes = HEADWATER_DENSE;
  q.scale_row_stride = q.scale_head_stride = HEADWATER_DENSE;
  q.scale_value = 1.0F;
  problem->out_type = HEADWATER_BF16;
  problem->out_row_stride_bytes = problem->out_head_stride_bytes = HEADWATER_DENSE;
  problem->lse_token_stride = problem->lse_head_stride = problem->lse_request_stride = HEADWATER_DENSE;
}
void headwater_source_bounds_init(headwater_source_bounds* bounds) {
  zero(bounds);
  bounds->k_format = bounds->v_format = HEADWATER_FORMAT_BF16;
  bounds->heads = bounds->page_size = 1;
  bounds->window_left = -1;
  bounds->index_type = HEADWATER_I32;
  bounds->alignment = 16;
}
void headwater_bounds_init(headwater_bounds* bounds) {
  zero(bounds);
  bounds->q_type = bounds->out_type = HEADWATER_BF16;
  bounds->q_alignment = 16;
}
void headwater_options_init(headwater_options* options) { zero(options); }
void headwater_append_rows_init(headwater_append_rows* rows) {
  zero(rows);
  rows->type = HEADWATER_BF16;
  rows->k_row_stride_bytes = rows->k_head_stride_bytes = rows->k_tail_row_stride_bytes = rows->k_tail_head_stride_bytes = HEADWATER_DENSE;
  rows->v_row_stride_bytes = rows->v_head_stride_bytes = HEADWATER_DENSE;
}
void headwater_state_init(headwater_state* state) {
  zero(state);
  state->type = HEADWATER_F32;
  state->out_token_stride_bytes = state->out_head_stride_bytes = HEADWATER_DENSE;
  state->lse_token_stride = state->lse_head_stride = state->lse_request_stride = HEADWATER_DENSE;
}

headwater_status headwater_attend(const headwater_problem* problem, const headwater_options* options, void* stream) {
  return guarded([&]() -> Status {
    std::vector<headwater::Source> sources;
    headwater::Problem p;
    headwater::PlanOptions o;
    TRY(to_problem(problem, &sources, &p));
    TRY(to_options(options, &o));
    return headwater::attend(p, o, stream);
  });
}

headwater_status headwater_plan_create(const headwater_bounds* bounds, const headwater_options* options, headwater_plan** plan) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    headwater::Bounds b;
    headwater::PlanOptions o;
    TRY(to_bounds(bounds, &b));
    TRY(to_options(options, &o));
    return make(b, o, plan);
  });
}

headwater_status headwater_plan_create_for(const headwater_problem* problem, const headwater_options* options, headwater_plan** plan) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    std::vector<headwater::Source> sources;
    headwater::Problem p;
    headwater::PlanOptions o;
    TRY(to_problem(problem, &sources, &p));
    TRY(to_options(options, &o));
    const headwater::Result<headwater::Bounds> bounds = headwater::Bounds::of(p);
    if (!bounds.ok()) return bounds.status();
    return make(*bounds, o, plan);
  });
}

void headwater_plan_destroy(headwater_plan* plan) { delete plan; }
size_t headwater_plan_schedule_bytes(const headwater_plan* plan) { return plan->plan.schedule_bytes(); }
size_t headwater_plan_scratch_bytes(const headwater_plan* plan) { return plan->plan.scratch_bytes(); }
const char* headwater_plan_kernel(const headwater_plan* plan) { return plan->kernel.c_str(); }

headwater_status headwater_plan_schedule(const headwater_plan* plan, const headwater_problem* lengths, void* schedule,
                                         size_t schedule_bytes, void* stream) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    std::vector<headwater::Source> sources;
    headwater::Problem p;
    TRY(to_problem(lengths, &sources, &p));
    return plan->plan.schedule(headwater::Lengths::of(p), {schedule, schedule_bytes}, stream);
  });
}

headwater_status headwater_plan_run(const headwater_plan* plan, const headwater_problem* problem, void* schedule, size_t schedule_bytes,
                                    void* scratch, size_t scratch_bytes, void* stream) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    std::vector<headwater::Source> sources;
    headwater::Problem p;
    TRY(to_problem(problem, &sources, &p));
    return plan->plan.run(p, {schedule, schedule_bytes}, {scratch, scratch_bytes}, stream);
  });
}

headwater_status headwater_plan_check(const headwater_plan* plan, void* schedule, size_t schedule_bytes, void* stream) {
  return guarded([&]() -> Status {
    if (plan == nullptr) return null_argument("plan");
    return plan->plan.check({schedule, schedule_bytes}, stream);
  });
}

headwater_status headwater_merge_states(int64_t tokens, int32_t heads, int32_t width, const int32_t* indptr, int64_t requests,
                                        const headwater_state* a, const headwater_state* b, const headwater_state* result) {
  return guarded([&]() -> Status {
    headwater::State sa;
    headwater::State sb;
    headwater::State sr;
    TRY(to_state("a", a, &sa));
    TRY(to_state("b", b, &sb));
    TRY(to_state("result", result, &sr));
    return headwater::merge_states({tokens, heads, width, indptr, requests}, sa, sb, sr);
  });
}

headwater_status headwater_finalize(int64_t tokens, int32_t heads, int32_t width, const int32_t* indptr, int64_t requests,
                                    const headwater_state* state, const float* sinks, const headwater_state* result) {
  return guarded([&]() -> Status {
    headwater::State s;
    headwater::State r;
    TRY(to_state("state", state, &s));
    TRY(to_state("result", result, &r));
    return headwater::finalize({tokens, heads, width, indptr, requests}, s, sinks, r);
  });
}

headwater_status headwater_append(const headwater_source* cache, const headwater_append_rows* rows, const int64_t* slots,
                                  int32_t block_scale_rule) {
  return guarded([&]() -> Status {
    headwater::Source source;
    headwater_append_rows c{};
    headwater::AppendRows r;
    headwater::BlockScaleRule rule{};
    TRY(to_source("cache", cache, &source));
    TRY(read_struct("rows", rows, &c));
    TRY(read_enum("rows.type", c.type, HEADWATER_I64, &r.type));
    TRY(read_enum("block_scale_rule", block_scale_rule, 2, &rule));
    r.k = c.k;
    r.k_tail = c.k_tail;
    r.k_tail_width = c.k_tail_width;
    r.v = c.v;
    r.count = c.count;
    r.k_row_stride_bytes = c.k_row_stride_bytes;
    r.k_head_stride_bytes = c.k_head_stride_bytes;
    r.k_tail_row_stride_bytes = c.k_tail_row_stride_bytes;
    r.k_tail_head_stride_bytes = c.k_tail_head_stride_bytes;
    r.v_row_stride_bytes = c.v_row_stride_bytes;
    r.v_head_stride_bytes = c.v_head_stride_bytes;
    return headwater::append(source, r, slots, rule);
  });
}

headwater_status headwater_gather(const headwater_source* cache, const int64_t* slots, int64_t count, float* k_out, float* v_out) {
  return guarded([&]() -> Status {
    headwater::Source source;
    TRY(to_source("cache", cache, &source));
    return headwater::gather(source, slots, count, k_out, v_out);
  });
}

int32_t headwater_format_by_name(const char* name) {
  const auto format = name == nullptr ? std::nullopt : headwater::format_by_name(name);
  return format ? static_cast<int32_t>(*format) : -1;
}

int64_t headwater_record_row_bytes(int32_t format, int32_t width) {
  if (format < 0 || format >= headwater::kNumFormats || width < 1 || width > headwater::kMaxWidth) return -1;
  return headwater::record_row_bytes(static_cast<headwater::Format>(format), width);
}
