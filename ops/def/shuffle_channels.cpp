// lathe::ShuffleChannels: channels as a matrix of `groups` rows, transposed: what exporters spell
// Reshape-Transpose-Reshape.
#include "ops/copy/channel_gather.h"
#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_step.h"
#include "ops/op_def.h"
#include "src/base/checked_size.h"

namespace lathe::ops {
namespace {

void infer(InferContext& context) {
  const TensorType& type = context.input(0);
  const int64_t groups = context.node.attributes.get_int("groups", 1);
  if (groups < 1) context.fail("attribute 'groups' is " + std::to_string(groups));
  if (type.has_rank) {
    if (type.rank() < 2) context.fail("the input has no channels");
    const Dim& channels = type.dims[1];
    if (channels.known() && channels.extent % groups != 0) {
      context.fail(std::to_string(channels.extent) + " channels do not make " + std::to_string(groups) + " groups");
    }
  }
  context.set_output(0, type);
}

// Axes of the copy: images, groups, channels of a group, pixels.
std::vector<MoveAxis> axes_of(const Dims& dims, int64_t groups) {
  const int64_t pixels = checked_elements(Dims(dims.begin() + 2, dims.end()));
  const int64_t size = dims[1] / groups;
  return {{dims[0], dims[1] * pixels, dims[1] * pixels},
          {groups, size * pixels, pixels},
          {size, pixels, groups * pixels},
          {pixels, 1, 1}};
}

void reference(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const int64_t groups = context.node.attributes.get_int("groups", 1);
  if (x.rank() < 2 || groups < 1 || x.dims()[1] % groups != 0) context.fail("the channels do not make these groups");
  const Tensor from = spread_elements(x);
  Tensor result = make_output(context, from.dtype(), x.dims());
  move_elements(from, 0, result, 0, axes_of(x.dims(), groups));
  context.outputs[0] = pack_elements(result, x.dtype());
}

bool lower(LowerContext& context) {
  const TensorType &from = context.input_type(0), &to = context.output_type(0);
  if (from.layout != to.layout || bits_of(from.dtype) < 8 || from.dtype == DType::string) return false;
  const int64_t groups = context.node.attributes.get_int("groups", 1);
  const Dims dims = from.extents();
  if (from.layout.channel_block == 0) {
    return add_copy_step(
        context, from.dtype,
        {{context.buffer(context.input(0)), context.buffer(context.output(0)), 0, 0, axes_of(dims, groups)}});
  }
  std::vector<ChannelOrigin> origins;
  const int64_t size = dims[1] / groups;
  for (int64_t channel = 0; channel < dims[1]; ++channel) {
    origins.push_back({context.input(0), channel % groups * size + channel / groups});
  }
  return add_channel_gather_step(context, context.output(0), origins);
}

}  // namespace

std::vector<OpDef> shuffle_channels_ops() {
  return {{.schema = {.name = "ShuffleChannels",
                      .domain = "lathe",
                      .attributes = {{"groups", AttributeSpec::Kind::integer, true}},
                      .infer = infer,
                      .reference = reference,
                      .layout = LayoutRole::any_same},
           .lower = lower}};
}

}  // namespace lathe::ops
