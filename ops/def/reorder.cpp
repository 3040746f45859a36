// lathe::Reorder: between the plain and the channel-blocked layout of the same elements. The layout pass inserts it and
// sets the output's layout; attribute "channel_block" repeats it (0: to plain).
#include <algorithm>

#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_step.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

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

// One pixel: channels lie behind each other in both layouts. Whole blocks are the same bytes; of one picture, the plain
// elements are the first ones of the padded blocks.
bool is_view(const TensorType& from, const TensorType& to) {
  const Dims dims = from.extents();
  if (dims.size() < 2 || std::any_of(dims.begin() + 2, dims.end(), [](int64_t extent) { return extent != 1; }))
    return false;
  const int block = std::max(from.layout.channel_block, to.layout.channel_block);
  return dims[1] % block == 0 || (dims[0] == 1 && to.layout.channel_block == 0);
}

bool lower(LowerContext& context) {
  const TensorType &from = context.input_type(0), &to = context.output_type(0);
  if (from.layout == to.layout) return lower_as_same_bytes(context);
  if (from.layout.channel_block != 0 && to.layout.channel_block != 0) return false;
  if (is_view(from, to) && context.view_of(context.output(0), context.input(0), 0)) return true;
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
