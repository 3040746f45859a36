// lathe::Pointwise, made by fusion: the node's epilogue over all its inputs, which broadcast to the output.
#include "ops/pointwise/elementwise.h"
#include "ops/pointwise/pointwise_lowering.h"

namespace lathe::ops {

std::vector<OpDef> pointwise_ops() {
  // The reference of the epilogue (graph/run_reference.cpp) is all of it.
  return {{.schema = {.name = "Pointwise",
                      .domain = "lathe",
                      .min_inputs = 1,
                      .max_inputs = -1,
                      .infer = infer_same,
                      .layout = LayoutRole::any_same,
                      .fuses_epilogue = true},
           .lower = lower_pointwise}};
}

}  // namespace lathe::ops
