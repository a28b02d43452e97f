/* What a C engine writes: one call, a plan that is kept, errors by name, merge, append and gather. Compiled as C11. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "headwater/c_api.h"

static int failures = 0;
#define EXPECT(condition)                                                                            \
  do {                                                                                               \
    if (!(condition)) {                                                                              \
      printf("%s:%d: %s; last error: %s\n", __FILE__, __LINE__, #condition, headwater_last_error()); \
      ++failures;                                                                                    \
    }                                                                                                \
  } while (0)

static const float kQ[2] = {1.0F, 0.0F};
static const float kK[3][2] = {{0.0F, 1.0F}, {1.0F, 0.0F}, {2.0F, 0.0F}};
static const float kV[3][1] = {{1.0F}, {2.0F}, {4.0F}};
static const int32_t kQoIndptr[2] = {0, 1};
static const int32_t kKvIndptr[2] = {0, 3};
static const float kSinks[1] = {1.5F};

static void fill(headwater_source* source, headwater_problem* problem, float* out, float* lse) {
  headwater_source_init(source);
  source->k.data = kK;
  source->k.format = HEADWATER_FORMAT_F32;
  source->k.width = 2;
  source->v.data = kV;
  source->v.format = HEADWATER_FORMAT_F32;
  source->v.width = 1;
  source->num_pages = 3;
  source->kv_indptr = kKvIndptr;
  source->rule = HEADWATER_CAUSAL;
  headwater_problem_init(problem);
  problem->q.data = kQ;
  problem->q.type = HEADWATER_F32;
  problem->q.total = 1;
  problem->q.heads = 1;
  problem->q.width = 2;
  problem->requests = 1;
  problem->qo_indptr = kQoIndptr;
  problem->sources = source;
  problem->num_sources = 1;
  problem->sinks = kSinks;
  problem->sm_scale = 1.0F;
  problem->out = out;
  problem->out_type = HEADWATER_F32;
  problem->lse = lse;
}

static void check_answer(float out, float lse) {
  const double sum = 1.0 + exp(1.0) + exp(2.0);
  EXPECT(fabs(out - (1.0 + 2.0 * exp(1.0) + 4.0 * exp(2.0)) / (sum + exp(1.5))) < 1e-5);
  EXPECT(fabs(lse - log(sum)) < 1e-5);
}

static void* aligned(size_t bytes) { return aligned_alloc(256, (bytes + 255) / 256 * 256 + 256); }

static void test_attend_and_plan(void) {
  headwater_source source;
  headwater_problem problem;
  float out = -1.0F;
  float lse = -1.0F;
  fill(&source, &problem, &out, &lse);
  EXPECT(headwater_attend(&problem, NULL, NULL) == HEADWATER_OK);
  check_answer(out, lse);
  EXPECT(strcmp(headwater_last_error(), "") == 0);

  headwater_source_bounds source_bounds;
  headwater_bounds bounds;
  headwater_source_bounds_init(&source_bounds);
  source_bounds.k_format = source_bounds.v_format = HEADWATER_FORMAT_F32;
  source_bounds.rule = HEADWATER_CAUSAL;
  source_bounds.max_len = 100;
  source_bounds.alignment = 4;
  headwater_bounds_init(&bounds);
  bounds.max_requests = 4;
  bounds.max_total_q = 4;
  bounds.max_q_len = 1;
  bounds.q_type = bounds.out_type = HEADWATER_F32;
  bounds.heads = 1;
  bounds.d_qk = 2;
  bounds.d_v = 1;
  bounds.q_alignment = 4;
  bounds.sources = &source_bounds;
  bounds.num_sources = 1;
  headwater_plan* plan = NULL;
  EXPECT(headwater_plan_create(&bounds, NULL, &plan) == HEADWATER_OK);
  if (plan == NULL) return;
  EXPECT(strlen(headwater_plan_kernel(plan)) > 0);
  const size_t schedule_bytes = headwater_plan_schedule_bytes(plan);
  const size_t scratch_bytes = headwater_plan_scratch_bytes(plan);
  void* schedule = aligned(schedule_bytes);
  void* scratch = aligned(scratch_bytes);
  EXPECT(headwater_plan_schedule(plan, &problem, schedule, schedule_bytes, NULL) == HEADWATER_OK);
  for (int round = 0; round < 2; ++round) {
    out = lse = -1.0F;
    EXPECT(headwater_plan_run(plan, &problem, schedule, schedule_bytes, scratch, scratch_bytes, NULL) == HEADWATER_OK);
    check_answer(out, lse);
  }
  EXPECT(headwater_plan_check(plan, schedule, schedule_bytes, NULL) == HEADWATER_OK);
  free(schedule);
  free(scratch);
  headwater_plan_destroy(plan);
}

static void test_errors(void) {
  headwater_source source;
  headwater_problem problem;
  float out = -1.0F;
  fill(&source, &problem, &out, NULL);
  source.v.width = 0;
  EXPECT(headwater_attend(&problem, NULL, NULL) == HEADWATER_INVALID);
  EXPECT(strstr(headwater_last_error(), "kv[0].v.width = 0") != NULL);
  EXPECT(out == -1.0F);
  fill(&source, &problem, &out, NULL);
  source.k.format = 99;
  EXPECT(headwater_attend(&problem, NULL, NULL) == HEADWATER_INVALID);
  EXPECT(strstr(headwater_last_error(), "kv[0].k.format = 99") != NULL);
  fill(&source, &problem, &out, NULL);
  problem.struct_size = 8;
  EXPECT(headwater_attend(&problem, NULL, NULL) == HEADWATER_INVALID);
  EXPECT(strstr(headwater_last_error(), "struct_size") != NULL);
  EXPECT(headwater_attend(NULL, NULL, NULL) == HEADWATER_INVALID);
  headwater_plan* plan = NULL;
  EXPECT(headwater_plan_create(NULL, NULL, &plan) == HEADWATER_INVALID && plan == NULL);
}

static void test_merge(void) {
  float out_a = 2.0F, out_b = 4.0F, lse_a = 300.0F, lse_b = 300.0F;
  headwater_state a, b;
  headwater_state_init(&a);
  headwater_state_init(&b);
  a.out = &out_a;
  a.lse = &lse_a;
  b.out = &out_b;
  b.lse = &lse_b;
  EXPECT(headwater_merge_states(1, 1, 1, NULL, 0, &a, &b, &a) == HEADWATER_OK);
  EXPECT(fabs(out_a - 3.0) < 1e-6 && fabs(lse_a - (300.0 + log(2.0))) < 1e-3);
  const float sink = 300.0F;
  EXPECT(headwater_finalize(1, 1, 1, NULL, 0, &b, &sink, &b) == HEADWATER_OK);
  EXPECT(fabs(out_b - 2.0) < 1e-6);
}

static void test_append_and_gather(void) {
  enum { kWidth = 32 };
  unsigned char records[4 * 34] = {0};
  float rows[2 * kWidth], back[2 * kWidth];
  for (int i = 0; i < 2 * kWidth; ++i) rows[i] = (float)(i % kWidth - 16);
  EXPECT(headwater_record_row_bytes(headwater_format_by_name("q8_0"), kWidth) == 34);
  EXPECT(headwater_format_by_name("no such format") == -1);
  headwater_source cache;
  headwater_source_init(&cache);
  cache.k.data = records;
  cache.k.format = headwater_format_by_name("q8_0");
  cache.k.width = kWidth;
  cache.shared = 1;
  cache.value_width = kWidth;
  cache.addressing = HEADWATER_POOL;
  cache.num_pages = 4;
  headwater_append_rows append;
  headwater_append_rows_init(&append);
  append.k = rows;
  append.type = HEADWATER_F32;
  append.count = 2;
  const int64_t slots[2] = {3, -1};
  EXPECT(headwater_append(&cache, &append, slots, 0) == HEADWATER_OK);
  const int64_t read[1] = {3};
  EXPECT(headwater_gather(&cache, read, 1, back, NULL) == HEADWATER_OK);
  for (int i = 0; i < kWidth; ++i) EXPECT(fabs(back[i] - rows[i]) < 0.1);
}

int main(void) {
  test_attend_and_plan();
  test_errors();
  test_merge();
  test_append_and_gather();
  printf("c_api: headwater %s, %d failures\n", headwater_version(), failures);
  return failures == 0 ? 0 : 1;
}
