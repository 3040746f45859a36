/* Three operators of domain "example", as docs/custom-operators.md shows them:
 *   SoftClip(x)  -> limit * tanh(x / limit), attribute limit (float, default 1)
 *   Positive(x)  -> the elements above 0, in order: the shape depends on the data
 *   Picky(a, b?) -> the number of its inputs that are there; fails when attribute `broken` is 1 */
#include <math.h>
#include <stdlib.h>

#include "lathe/custom_op.h"

static const uint64_t kFloat[] = {LATHE_TYPE(LATHE_FLOAT32)};

static int64_t count_of(const LatheTensor* tensor) {
  int64_t count = 1;
  for (int32_t i = 0; i < tensor->rank; ++i) count *= tensor->dims[i];
  return count;
}

/* ---- SoftClip */

static int make_limit(const LatheHost* host, LatheCall* call, void** kernel) {
  float limit = 1;
  host->get_float(call, "limit", &limit);
  if (!(limit > 0)) {
    host->fail(call, "attribute 'limit' must be above 0");
    return 0;
  }
  float* kept = malloc(sizeof *kept);
  if (kept == NULL) {
    host->fail(call, "out of memory");
    return 0;
  }
  *kept = limit;
  *kernel = kept;
  return 1;
}

static int infer_same(const LatheHost* host, LatheCall* call, int32_t inputs, const LatheTensor* input,
                      int32_t outputs) {
  (void)inputs, (void)outputs;
  return host->set_output(call, 0, input[0].type, input[0].rank, input[0].dims);
}

static int soft_clip(const LatheHost* host, LatheCall* call, void* kernel, int32_t inputs, const LatheTensor* input,
                     int32_t outputs) {
  (void)inputs, (void)outputs;
  const float limit = *(const float*)kernel;
  const float* x = input[0].data;
  float* y = host->output(call, 0, input[0].type, input[0].rank, input[0].dims);
  if (y == NULL) return 0;
  for (int64_t i = 0, count = count_of(input); i < count; ++i) y[i] = limit * tanhf(x[i] / limit);
  return 1;
}

/* ---- Positive */

static int infer_positive(const LatheHost* host, LatheCall* call, int32_t inputs, const LatheTensor* input,
                          int32_t outputs) {
  (void)inputs, (void)outputs;
  const int64_t unknown = LATHE_UNKNOWN;
  return host->set_output(call, 0, input[0].type, 1, &unknown);
}

static int positive(const LatheHost* host, LatheCall* call, void* kernel, int32_t inputs, const LatheTensor* input,
                    int32_t outputs) {
  (void)kernel, (void)inputs, (void)outputs;
  const float* x = input[0].data;
  const int64_t count = count_of(input);
  int64_t kept = 0;
  for (int64_t i = 0; i < count; ++i) kept += x[i] > 0;
  float* y = host->output(call, 0, input[0].type, 1, &kept);
  if (y == NULL) return 0;
  for (int64_t i = 0; i < count; ++i) {
    if (x[i] > 0) *y++ = x[i];
  }
  return 1;
}

/* ---- Picky */

static int infer_picky(const LatheHost* host, LatheCall* call, int32_t inputs, const LatheTensor* input,
                       int32_t outputs) {
  (void)inputs, (void)input, (void)outputs;
  return host->set_output(call, 0, LATHE_INT64, 0, NULL);
}

static int picky(const LatheHost* host, LatheCall* call, void* kernel, int32_t inputs, const LatheTensor* input,
                 int32_t outputs) {
  (void)kernel, (void)outputs;
  int64_t broken = 0;
  host->get_int(call, "broken", &broken);
  if (broken) {
    host->fail(call, "is broken on request");
    return 0;
  }
  int64_t* y = host->output(call, 0, LATHE_INT64, 0, NULL);
  if (y == NULL) return 0;
  *y = 0;
  for (int32_t i = 0; i < inputs; ++i) *y += input[i].type != LATHE_ABSENT;
  return 1;
}

static const LatheCustomOp kOps[] = {
    {.name = "SoftClip",
     .domain = "example",
     .since_version = 1,
     .min_inputs = 1,
     .max_inputs = 1,
     .min_outputs = 1,
     .max_outputs = 1,
     .input_types = kFloat,
     .input_type_count = 1,
     .create = make_limit,
     .destroy = free,
     .infer = infer_same,
     .compute = soft_clip},
    {.name = "Positive",
     .domain = "example",
     .since_version = 1,
     .min_inputs = 1,
     .max_inputs = 1,
     .min_outputs = 1,
     .max_outputs = 1,
     .input_types = kFloat,
     .input_type_count = 1,
     .infer = infer_positive,
     .compute = positive},
    {.name = "Picky",
     .domain = "example",
     .since_version = 2,
     .flags = LATHE_OP_VARIES,
     .min_inputs = 1,
     .max_inputs = 2,
     .min_outputs = 1,
     .max_outputs = 1,
     .infer = infer_picky,
     .compute = picky},
};

const LatheCustomOps* lathe_custom_ops(void) {
  static const LatheCustomOps ops = {LATHE_CUSTOM_OP_ABI, sizeof(LatheCustomOp), sizeof kOps / sizeof *kOps, kOps};
  return &ops;
}
