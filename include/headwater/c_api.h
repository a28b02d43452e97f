/* The C interface: the structs of problem.h and plan.h as plain C, opaque plans, status codes.
 *
 * Every call returns a headwater_status and never throws, prints or exits; after any other than HEADWATER_OK, headwater_last_error()
 * tells this thread's field, value and rule. Calls are thread-safe as in C++: a plan may be used by many threads, each with its buffers.
 * Fill every struct with its _init function first: it sets struct_size, packed strides and the documented defaults. Structs grow at
 * their end only, so a caller built against an older header keeps working. Not frozen before version 1.0. */
#ifndef HEADWATER_C_API_H_
#define HEADWATER_C_API_H_

/* NOLINTBEGIN(modernize-use-using, modernize-deprecated-headers, readability-identifier-naming, cppcoreguidelines-use-enum-class): C */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADWATER_DENSE INT64_MIN /* a stride: packed */

typedef enum headwater_status {
  HEADWATER_OK = 0,
  HEADWATER_INVALID = 1,     /* the problem is wrong */
  HEADWATER_UNSUPPORTED = 2, /* no kernel of this build and machine takes it */
  HEADWATER_BUFFER = 3,      /* a buffer is missing, too small or misaligned; or memory ran out */
  HEADWATER_STALE = 4,       /* a run met lengths other than the scheduled ones */
  HEADWATER_DEVICE = 5       /* the device runtime reported an error */
} headwater_status;

/* The values of headwater::Type, Format, RuleKind, AddressingKind, IndexSpace, DeviceKind and BlockScaleRule. */
typedef enum headwater_type {
  HEADWATER_TYPE_NONE,
  HEADWATER_F32,
  HEADWATER_F16,
  HEADWATER_BF16,
  HEADWATER_E4M3,
  HEADWATER_E5M2,
  HEADWATER_I8,
  HEADWATER_E2M1,
  HEADWATER_E8M0,
  HEADWATER_I32,
  HEADWATER_I64
} headwater_type;
typedef enum headwater_format {
  HEADWATER_FORMAT_F32,
  HEADWATER_FORMAT_F16,
  HEADWATER_FORMAT_BF16,
  HEADWATER_FORMAT_E4M3,
  HEADWATER_FORMAT_E5M2,
  HEADWATER_FORMAT_INT8,
  HEADWATER_FORMAT_Q8_0,
  HEADWATER_FORMAT_FP8_DS_656,
  HEADWATER_FORMAT_FP8_DS_584,
  HEADWATER_FORMAT_MXFP4,
  HEADWATER_FORMAT_NVFP4,
  HEADWATER_FORMAT_MXFP4_ROPE_BF16,
  HEADWATER_FORMAT_NVFP4_DS_352,
  HEADWATER_FORMAT_NVFP4_DS_384,
  HEADWATER_FORMAT_NVFP4_DS_432
} headwater_format;
typedef enum headwater_rule_kind {
  HEADWATER_FULL,
  HEADWATER_CAUSAL,
  HEADWATER_WINDOW,
  HEADWATER_COMPRESSED,
  HEADWATER_GATHERED
} headwater_rule_kind;
typedef enum headwater_addressing_kind {
  HEADWATER_RAGGED,
  HEADWATER_BLOCK_TABLE,
  HEADWATER_PAGE_LIST,
  HEADWATER_POOL
} headwater_addressing_kind;
typedef enum headwater_device_kind { HEADWATER_CPU, HEADWATER_CUDA } headwater_device_kind;

typedef struct headwater_query {
  const void* data; /* [total, heads, width] */
  int32_t type;     /* headwater_type: bf16, f16, f32, e4m3 */
  int64_t total;
  int32_t heads;
  int32_t width; /* without the tail */
  int64_t row_stride_bytes, head_stride_bytes;
  const void* tail; /* [total, heads, tail_width]; NULL = none: continues each row */
  int32_t tail_width;
  int64_t tail_row_stride_bytes, tail_head_stride_bytes;
  const float* scale; /* e4m3 only: one value, or [total, heads] where scale_per_row; NULL = scale_value */
  int32_t scale_per_row;
  float scale_value;
  int64_t scale_row_stride, scale_head_stride; /* floats */
} headwater_query;

typedef struct headwater_kv_tensor {
  const void* data; /* [pages, page_size, heads, record]; ragged: [rows, heads, record] */
  int32_t format;   /* headwater_format */
  int32_t width;    /* columns of a record */
  int64_t row_stride_bytes, head_stride_bytes, page_stride_bytes;
  const void* scales; /* block scales held apart: [pages, page_size, heads, blocks] */
  int64_t scale_row_stride_bytes, scale_head_stride_bytes, scale_page_stride_bytes, scale_block_stride_bytes;
  const float* scale;  /* k_scale / v_scale: scale_count values; NULL with scale_count 1 = scale_value */
  int32_t scale_count; /* 0 = not given */
  float scale_value;
} headwater_kv_tensor;

typedef struct headwater_source {
  size_t struct_size;
  headwater_kv_tensor k, v; /* v is ignored where shared */
  int32_t shared;           /* V is the first value_width columns of the K record */
  int32_t value_width;
  int32_t heads;
  int32_t addressing; /* headwater_addressing_kind */
  int32_t page_size;
  int64_t num_pages;          /* pages in the cache; ragged: rows */
  const int32_t* kv_indptr;   /* [b+1] */
  const int32_t* block_table; /* [b, max_pages] */
  int64_t max_pages;
  int64_t block_table_stride; /* elements */
  const int32_t* kv_indices;  /* [num_indices] */
  int64_t num_indices;
  const int32_t* seq_lens;         /* [b] */
  const int32_t* kv_last_page_len; /* [b] */
  int32_t rule;                    /* headwater_rule_kind */
  int32_t window_left;             /* -1 = causal */
  int32_t ratio;
  const void* indices; /* [total_q, topk] */
  int32_t index_type;  /* HEADWATER_I32, or HEADWATER_I64 in slot space */
  int32_t topk;
  int64_t indices_stride; /* elements */
  const int32_t* topk_lens;
  int32_t index_space;            /* 0 = slots, 1 = positions */
  const int32_t* first_position;  /* [b] */
  const int32_t* position_stride; /* [b] */
} headwater_source;

typedef struct headwater_problem {
  size_t struct_size;
  int32_t device_kind, device_index;
  headwater_query q;
  int64_t requests;
  const int32_t* qo_indptr;    /* [b+1] */
  const int32_t* context_lens; /* [b] or NULL */
  const headwater_source* sources;
  int32_t num_sources;
  const float* sinks; /* [heads] or [b, heads] */
  int64_t sinks_request_stride;
  float sm_scale, logits_soft_cap;
  void* out; /* [total, heads, d_v] */
  int32_t out_type;
  int64_t out_row_stride_bytes, out_head_stride_bytes;
  float* lse;                                                    /* NULL: none wanted */
  int64_t lse_token_stride, lse_head_stride, lse_request_stride; /* floats; request stride HEADWATER_DENSE = flat */
} headwater_problem;

typedef struct headwater_source_bounds {
  size_t struct_size;
  int32_t k_format, v_format, shared, heads, addressing, page_size, rule, window_left, ratio, topk, index_type, index_space;
  int64_t max_len, max_total_len;
  int32_t alignment;
} headwater_source_bounds;

typedef struct headwater_bounds {
  size_t struct_size;
  int32_t device_kind, device_index;
  int64_t max_requests, max_total_q;
  int32_t max_q_len, q_type, out_type, heads, d_qk, d_v, softcap, q_alignment;
  const headwater_source_bounds* sources;
  int32_t num_sources;
} headwater_bounds;

typedef struct headwater_options {
  size_t struct_size;
  int32_t batch_invariant;
  int32_t workers;    /* 0 = all that this process may use */
  const char* kernel; /* force by name; NULL = choose */
  const char* isa;
  /* The host application's parallel loop; NULL: the library's own. */
  void (*parallel_for)(void* context, int32_t tasks, void (*body)(void* arg, int32_t task), void* arg);
  void* parallel_context;
  int32_t checked;
} headwater_options;

typedef struct headwater_append_rows {
  size_t struct_size;
  const void *k, *k_tail, *v; /* [count, heads, width] each */
  int32_t k_tail_width;
  int32_t type; /* bf16, f16, f32 */
  int64_t count;
  int64_t k_row_stride_bytes, k_head_stride_bytes, k_tail_row_stride_bytes, k_tail_head_stride_bytes, v_row_stride_bytes,
      v_head_stride_bytes;
} headwater_append_rows;

typedef struct headwater_state {
  size_t struct_size;
  void* out; /* [tokens, heads, width] */
  int32_t type;
  int64_t out_token_stride_bytes, out_head_stride_bytes;
  float* lse;
  int64_t lse_token_stride, lse_head_stride, lse_request_stride;
} headwater_state;

typedef struct headwater_plan headwater_plan;

const char* headwater_version(void);
const char* headwater_last_error(void); /* of this thread; "" after a success; valid until its next call */

void headwater_source_init(headwater_source* source);
void headwater_problem_init(headwater_problem* problem);
void headwater_source_bounds_init(headwater_source_bounds* bounds);
void headwater_bounds_init(headwater_bounds* bounds);
void headwater_options_init(headwater_options* options);
void headwater_append_rows_init(headwater_append_rows* rows);
void headwater_state_init(headwater_state* state);

/* options may be NULL. Plans, schedules and runs with memory of its own. */
headwater_status headwater_attend(const headwater_problem* problem, const headwater_options* options, void* stream);

headwater_status headwater_plan_create(const headwater_bounds* bounds, const headwater_options* options, headwater_plan** plan);
/* From the tightest bounds of this one problem. */
headwater_status headwater_plan_create_for(const headwater_problem* problem, const headwater_options* options, headwater_plan** plan);
void headwater_plan_destroy(headwater_plan* plan); /* NULL is fine */
size_t headwater_plan_schedule_bytes(const headwater_plan* plan);
size_t headwater_plan_scratch_bytes(const headwater_plan* plan);
const char* headwater_plan_kernel(const headwater_plan* plan); /* lives as long as the plan */
/* Deals work from the problem's lengths (its other fields are not read); buffers are 256-byte aligned, on the plan's device. */
headwater_status headwater_plan_schedule(const headwater_plan* plan, const headwater_problem* lengths, void* schedule,
                                         size_t schedule_bytes, void* stream);
headwater_status headwater_plan_run(const headwater_plan* plan, const headwater_problem* problem, void* schedule, size_t schedule_bytes,
                                    void* scratch, size_t scratch_bytes, void* stream);
headwater_status headwater_plan_check(const headwater_plan* plan, void* schedule, size_t schedule_bytes, void* stream);

/* indptr [requests+1]: needed only by states whose lse has a request stride. sinks [heads]. result may alias an input. */
headwater_status headwater_merge_states(int64_t tokens, int32_t heads, int32_t width, const int32_t* indptr, int64_t requests,
                                        const headwater_state* a, const headwater_state* b, const headwater_state* result);
headwater_status headwater_finalize(int64_t tokens, int32_t heads, int32_t width, const int32_t* indptr, int64_t requests,
                                    const headwater_state* state, const float* sinks, const headwater_state* result);

/* slots [count], negative = skip. block_scale_rule: 0 round up, 1 even, 2 floor. */
headwater_status headwater_append(const headwater_source* cache, const headwater_append_rows* rows, const int64_t* slots,
                                  int32_t block_scale_rule);
/* k_out [count, heads, k.width], v_out [count, heads, d_v], float32; either may be NULL. */
headwater_status headwater_gather(const headwater_source* cache, const int64_t* slots, int64_t count, float* k_out, float* v_out);

/* A format by the names of docs/formats.md; returns -1 for an unknown one. */
int32_t headwater_format_by_name(const char* name);
int64_t headwater_record_row_bytes(int32_t format, int32_t width);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(modernize-use-using, modernize-deprecated-headers, readability-identifier-naming, cppcoreguidelines-use-enum-class) */
#endif
