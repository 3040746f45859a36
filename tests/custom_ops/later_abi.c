/* A library made for an interface that does not exist yet. */
#include "lathe/custom_op.h"

const LatheCustomOps* lathe_custom_ops(void) {
  static const LatheCustomOps ops = {LATHE_CUSTOM_OP_ABI + 1, sizeof(LatheCustomOp), 0, NULL};
  return &ops;
}
