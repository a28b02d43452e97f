/* What the Python package calls: problems as arrays (pointer, type, shape, strides) plus a list of integers that says which array is what.
 * The torch op library and ctypes (numpy) pass the same thing, so both run the same checks and the same code. C, so that the two sides
 * may be built by different compilers. */
#ifndef HEADWATER_PYTHON_NATIVE_ARRAYS_H_
#define HEADWATER_PYTHON_NATIVE_ARRAYS_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HEADWATER_MAX_DIMS = 5, HEADWATER_TYPE_U8 = 100, HEADWATER_TYPE_OTHER = 101 };

typedef struct headwater_array {
  void* data;
  int32_t type; /* headwater_type, or one of the two above */
  int32_t ndim; /* above HEADWATER_MAX_DIMS: shape and strides are not filled */
  int64_t shape[HEADWATER_MAX_DIMS];
  int64_t strides[HEADWATER_MAX_DIMS]; /* elements */
  int32_t device_kind, device_index;
} headwater_array;

/* descriptor and numbers: layout in arrays.cc, written by headwater/_describe.py. Floats are doubles, as torch passes them. */
typedef struct headwater_call {
  const headwater_array* q;
  const headwater_array* tensors;
  int32_t num_tensors;
  const int64_t* descriptor;
  int32_t descriptor_size;
  const double* numbers;
  int32_t numbers_size;
  const headwater_array* out; /* NULL where only lengths are read */
  const headwater_array* lse; /* NULL: none wanted */
} headwater_call;

typedef struct headwater_pool {
  void (*parallel_for)(void* context, int32_t tasks, void (*body)(void* arg, int32_t task), void* arg);
  void* context;
  int32_t workers;
} headwater_pool;

typedef struct headwater_bytes {
  void* data;
  size_t size;
} headwater_bytes;

/* Each returns a headwater_status and leaves its message in headwater_arrays_error(). pool and stream may be NULL. */
const char* headwater_arrays_error(void);
/* The tightest bounds of a call as integers; *count holds the room on entry and the number on return. */
int32_t headwater_arrays_bounds(const headwater_call* call, int64_t* bounds, int32_t* count);
int32_t headwater_arrays_plan_bytes(const int64_t* bounds, int32_t count, const headwater_pool* pool, int64_t* schedule_bytes,
                                    int64_t* scratch_bytes);
/* The kernel that a plan of these bounds chose; `name` has room for `size` bytes. */
int32_t headwater_arrays_kernel(const int64_t* bounds, int32_t count, const headwater_pool* pool, char* name, int32_t size);
int32_t headwater_arrays_schedule(const headwater_call* call, const int64_t* bounds, int32_t count, const headwater_pool* pool,
                                  headwater_bytes schedule, void* stream);
int32_t headwater_arrays_run(const headwater_call* call, const int64_t* bounds, int32_t count, const headwater_pool* pool,
                             headwater_bytes schedule, headwater_bytes scratch, void* stream);
int32_t headwater_arrays_check(const int64_t* bounds, int32_t count, const headwater_pool* pool, headwater_bytes schedule, void* stream);
/* a, b, result [tokens, heads, width]; lse [tokens, heads]. */
int32_t headwater_arrays_merge(const headwater_array* a, const headwater_array* lse_a, const headwater_array* b,
                               const headwater_array* lse_b, const headwater_array* out, const headwater_array* lse_out);
/* source: the per-source part of a descriptor; numbers: its k_scale and v_scale. k_tail and v may be NULL. */
int32_t headwater_arrays_append(const headwater_array* tensors, int32_t num_tensors, const int64_t* source, int32_t source_size,
                                const double* numbers, const headwater_array* k, const headwater_array* k_tail, const headwater_array* v,
                                const headwater_array* slots, int32_t block_scale_rule);
/* k_out [count, heads, k_width], v_out [count, heads, d_v]: float32, packed. */
int32_t headwater_arrays_gather(const headwater_array* tensors, int32_t num_tensors, const int64_t* source, int32_t source_size,
                                const double* numbers, const headwater_array* slots, const headwater_array* k_out,
                                const headwater_array* v_out);
/* backend `index`: name, built, usable and detail as one line; returns 0 past the end. */
int32_t headwater_arrays_backend(int32_t index, char* line, int32_t size);
/* format `index`: "name fixed_width takes_scale scales_apart planar"; returns 0 past the end. */
int32_t headwater_arrays_format(int32_t index, char* line, int32_t size);
int64_t headwater_arrays_record_bytes(int32_t format, int32_t width, int64_t* apart_bytes);

#ifdef __cplusplus
}
#endif
#endif
