// Split: parts of an axis. Sizes come from an attribute (versions 2 to 12), from input 1 (1, 13 on), or are even.
#include "ops/copy/channel_gather.h"
#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_step.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

// Sizes of the parts of an axis of `extent`; `given` is undefined when input 1 is absent.
template <class Context>
std::vector<int64_t> part_sizes(const Context& context, int64_t extent, size_t outputs, const Tensor& given) {
  std::vector<int64_t> sizes;
  if (given.defined()) {
    sizes = integers_of(context, given, "input 1 (split)");
  } else if (context.node.attributes.has("split")) {
    sizes = context.node.attributes.get_ints("split");
  } else {
    const int64_t parts = context.node.attributes.get_int("num_outputs", static_cast<int64_t>(outputs));
    if (parts != static_cast<int64_t>(outputs)) {
      context.fail("num_outputs is " + std::to_string(parts) + ", the node has " + std::to_string(outputs));
    }
    const bool may_be_uneven = context.node.op->since >= 18;
    if (!may_be_uneven && extent % parts != 0) {
      context.fail("an axis of " + std::to_string(extent) + " has no " + std::to_string(parts) + " equal parts");
    }
    const int64_t part = (extent + parts - 1) / parts;
    int64_t left = extent;
    for (int64_t i = 0; i < parts; ++i) {
      sizes.push_back(std::min(part, left));
      left -= sizes.back();
    }
    return sizes;
  }
  if (sizes.size() != outputs) {
    context.fail("split names " + std::to_string(sizes.size()) + " parts, the node has " + std::to_string(outputs) +
                 " outputs");
  }
  int64_t sum = 0;
  for (const int64_t size : sizes) {
    if (size < 0 || size > extent - sum)
      context.fail("the sizes of the parts do not add up to " + std::to_string(extent));
    sum += size;
  }
  if (sum != extent) context.fail("the sizes of the parts do not add up to " + std::to_string(extent));
  return sizes;
}

void infer(InferContext& context) {
  const TensorType& data = context.input(0);
  const auto outputs = static_cast<size_t>(context.output_count());
  if (!data.has_rank) {
    for (size_t i = 0; i < outputs; ++i) context.set_output(static_cast<int>(i), TensorType::unranked(data.dtype));
    return;
  }
  const auto axis = static_cast<size_t>(axis_within(context, context.node.attributes.get_int("axis", 0), data.rank()));
  TensorType part = data;
  const bool sizes_unknown = context.has_input(1) && !context.constant(1).defined();
  std::vector<int64_t> sizes;
  if (data.dims[axis].known() && !sizes_unknown) {
    sizes = part_sizes(context, data.dims[axis].extent, outputs, context.constant(1));
  } else if (!sizes_unknown && (context.has_input(1) || context.node.attributes.has("split"))) {
    sizes = context.has_input(1) ? integers_of(context, context.constant(1), "input 1 (split)")
                                 : context.node.attributes.get_ints("split");
    if (sizes.size() != outputs) context.fail("split and outputs differ in number");
  }
  for (size_t i = 0; i < outputs; ++i) {
    part.dims[axis] = sizes.empty() ? Dim{} : known_dim(sizes[i]);
    if (part.dims[axis].extent < -1) context.fail("the size of a part is negative");
    context.set_output(static_cast<int>(i), part);
  }
}

void reference(ReferenceContext& context) {
  const Tensor data = spread_elements(context.inputs[0]);
  const auto axis = static_cast<size_t>(axis_within(context, context.node.attributes.get_int("axis", 0), data.rank()));
  const std::vector<int64_t> sizes = part_sizes(context, data.dims()[axis], context.outputs.size(),
                                                context.has_input(1) ? context.inputs[1] : Tensor());
  const std::vector<int64_t> from = strides_of(data.dims());
  int64_t offset = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    Dims dims = data.dims();
    dims[axis] = sizes[i];
    Tensor part = make_output(context, data.dtype(), dims);
    const std::vector<int64_t> to = strides_of(dims);
    std::vector<MoveAxis> axes;
    for (size_t d = 0; d < dims.size(); ++d) axes.push_back({dims[d], from[d], to[d]});
    move_elements(data, offset, part, 0, axes);
    offset += sizes[i] * from[axis];
    context.outputs[i] = pack_elements(part, context.inputs[0].dtype());
  }
}

// A blocked part that begins inside of a block.
bool gather_part(const LowerContext& context, int output, int64_t first_channel) {
  std::vector<ChannelOrigin> origins;
  for (int64_t channel = 0; channel < context.output_type(output).dims[1].extent; ++channel) {
    origins.push_back({context.input(0), first_channel + channel});
  }
  return add_channel_gather_step(context, context.output(output), origins);
}

bool lower(LowerContext& context) {
  const TensorType& whole = context.input_type(0);
  const int bits = bits_of(whole.dtype);
  if (bits < 8 || whole.dtype == DType::string) return false;
  const auto element_bytes = static_cast<size_t>(bits) / 8;
  int64_t axis = context.node.attributes.get_int("axis", 0);
  if (axis < 0) axis += whole.rank();
  const int block = whole.layout.channel_block;
  if (block != 0 && axis != 1) return false;
  const AxisSplit split = split_at(whole.storage_dims(), axis);
  std::vector<CopyJob> jobs;
  int64_t offset = 0, channels = 0;
  for (size_t i = 0; i < context.node.outputs.size(); ++i) {
    const int output = static_cast<int>(i);
    if (!context.has_output(output)) return false;
    const TensorType& type = context.output_type(output);
    if (type.layout != whole.layout) return false;
    if (block != 0 && channels % block != 0) {
      if (!gather_part(context, output, channels)) return false;
      channels += type.dims[static_cast<size_t>(axis)].extent;
      continue;
    }
    // Blocks that parts share are counted once.
    if (block != 0) offset = channels / block * split.inner;
    channels += type.dims[static_cast<size_t>(axis)].extent;
    const int64_t part_row = split_at(type.storage_dims(), axis).row(), at = offset;
    offset += part_row;
    if (split.outer * part_row == 0) continue;
    if (split.outer == 1 &&
        context.view_of(context.output(output), context.input(0), static_cast<size_t>(at) * element_bytes)) {
      continue;
    }
    jobs.push_back({context.buffer(context.input(0)),
                    context.buffer(context.output(output)),
                    at,
                    0,
                    {{split.outer, split.row(), part_row}, {part_row, 1, 1}}});
  }
  return jobs.empty() || add_copy_step(context, whole.dtype, std::move(jobs));
}

}  // namespace

std::vector<OpDef> split_ops() {
  using Kind = AttributeSpec::Kind;
  const std::vector<AttributeSpec> with_sizes = {{"axis", Kind::integer}, {"split", Kind::integers}};
  const struct {
    int since, until, max_inputs;
    std::vector<AttributeSpec> attributes;
  } versions[] = {{1, 1, 2, with_sizes},
                  {2, 12, 1, with_sizes},
                  {13, 17, 2, {{"axis", Kind::integer}}},
                  {18, 1 << 20, 2, {{"axis", Kind::integer}, {"num_outputs", Kind::integer}}}};
  std::vector<OpDef> defs;
  for (const auto& version : versions) {
    defs.push_back({.schema = {.name = "Split",
                               .since = version.since,
                               .until = version.until,
                               .max_inputs = version.max_inputs,
                               .max_outputs = -1,
                               .attributes = version.attributes,
                               .infer = infer,
                               .reference = reference,
                               .layout = LayoutRole::channel_part},
                    .lower = lower});
  }
  return defs;
}

}  // namespace lathe::ops
