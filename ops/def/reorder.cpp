// lathe::Reorder: between the plain and the channel-blocked layout of the same elements. The layout pass inserts it and
// sets the output's layout; attribute "channel_block" repeats it (0: to plain).
#include "ops/copy_elements.h"
#include "ops/copy_infer.h"
#include "ops/copy_step.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

void infer(InferContext& context) {
  TensorType type = context.input(0);
  if (context.node.attributes.has("channel_block")) {
    type.layout.channel_block = static_cast<int>(context.node.attributes.get_int("channel_block", 0));
  }
  context.set_output(0, std::move(type));
}

// References see plain tensors: nothing changes.
void reference(ReferenceContext& context) { context.outputs[0] = context.inputs[0]; }

bool lower(LowerContext& context) {
  const TensorType &from = context.input_type(0), &to = context.output_type(0);
  if (from.layout == to.layout) return lower_as_same_bytes(context);
  if (from.layout.channel_block != 0 && to.layout.channel_block != 0) return false;
  return add_reorder_step(context, from, to);
}

}  // namespace

std::vector<OpDef> reorder_ops() {
  return {{.schema = {.name = "Reorder",
                      .domain = "lathe",
                      .attributes = {{"channel_block", AttributeSpec::Kind::integer}},
                      .infer = infer,
                      .reference = reference},
           .lower = lower}};
}

}  // namespace lathe::ops
