/* Two operators of domain "rude" that no caller can survive: Crash(x) and Hang(x). */
#include <stdlib.h>
#include <unistd.h>

#include "lathe/custom_op.h"

static int infer_same(const LatheHost* host, LatheCall* call, int32_t inputs, const LatheTensor* input,
                      int32_t outputs) {
  (void)inputs, (void)outputs;
  return host->set_output(call, 0, input[0].type, input[0].rank, input[0].dims);
}

static int crash(const LatheHost* host, LatheCall* call, void* kernel, int32_t inputs, const LatheTensor* input,
                 int32_t outputs) {
  (void)host, (void)call, (void)kernel, (void)inputs, (void)input, (void)outputs;
  abort();
}

static int hang(const LatheHost* host, LatheCall* call, void* kernel, int32_t inputs, const LatheTensor* input,
                int32_t outputs) {
  (void)host, (void)call, (void)kernel, (void)inputs, (void)input, (void)outputs;
  while (pause() == -1) continue;
  return 0;
}

static const LatheCustomOp kOps[] = {
    {.name = "Crash",
     .domain = "rude",
     .since_version = 1,
     .min_inputs = 1,
     .max_inputs = 1,
     .min_outputs = 1,
     .max_outputs = 1,
     .infer = infer_same,
     .compute = crash},
    {.name = "Hang",
     .domain = "rude",
     .since_version = 1,
     .min_inputs = 1,
     .max_inputs = 1,
     .min_outputs = 1,
     .max_outputs = 1,
     .infer = infer_same,
     .compute = hang},
};

const LatheCustomOps* lathe_custom_ops(void) {
  static const LatheCustomOps ops = {LATHE_CUSTOM_OP_ABI, sizeof(LatheCustomOp), sizeof kOps / sizeof *kOps, kOps};
  return &ops;
}
