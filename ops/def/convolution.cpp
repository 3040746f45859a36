// Conv, for one and more spatial axes.
#include "graph/expand.h"
#include "ops/conv_lower.h"
#include "ops/conv_node.h"
#include "ops/conv_volume.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

void infer(InferContext& context) {
  TensorType type = TensorType::unranked(context.input(0).dtype);
  type.dims = named(context, [&] { return infer_conv_dims(context.node, context.input(0), context.input(1)); });
  type.has_rank = !type.dims.empty();
  if (context.has_input(2) && context.input(2).has_rank) {
    const TensorType& bias = context.input(2);
    if (bias.rank() != 1) context.fail("the bias has rank " + std::to_string(bias.rank()) + ", expected 1");
    if (type.has_rank && type.dims[1].known() && bias.dims[0].known() && bias.dims[0].extent != type.dims[1].extent) {
      context.fail("the bias has " + std::to_string(bias.dims[0].extent) + " elements, expected " +
                   std::to_string(type.dims[1].extent));
    }
  }
  context.set_output(0, std::move(type));
}

void reference(ReferenceContext& context) {
  const Tensor &in = context.inputs[0], &weights = context.inputs[1];
  const ConvNode conv = named(context, [&] { return read_conv(context.node, in.dims(), weights.dims()); });
  const std::vector<double> values = reals_of(in), filters = reals_of(weights);
  std::vector<double> bias(static_cast<size_t>(conv.sizes.out_channels), 0.0);
  if (context.has_input(2)) {
    if (context.inputs[2].size() != conv.sizes.out_channels) context.fail("the bias does not fit the output channels");
    bias = reals_of(context.inputs[2]);
  }
  Dims dims = {conv.sizes.batch, conv.sizes.out_channels};
  dims.insert(dims.end(), conv.sizes.out.begin(), conv.sizes.out.end());
  Tensor out(in.dtype(), dims);
  convolve<double>(
      conv.sizes, conv.window, [&](int64_t i) { return values[static_cast<size_t>(i)]; },
      [&](int64_t i) { return filters[static_cast<size_t>(i)]; },
      [&](int64_t i, int64_t channel, double sum) { store_real(out, i, sum + bias[static_cast<size_t>(channel)]); });
  context.outputs[0] = std::move(out);
}

bool accepts_blocked(const Node&, std::span<const TensorType> inputs, int) {
  if (inputs.size() < 2 || inputs[0].dtype != DType::f32 || inputs[1].dtype != DType::f32) return false;
  return inputs[0].rank() >= 3 && inputs[0].rank() <= 5;
}

bool lower(LowerContext& context) {
  const int rank = context.input_type(0).rank();
  if (rank == 3 || rank == 4) return lower_conv(context, conv_problem_of(context));
  if (rank != 5 || !has_float_types(context)) return false;
  const std::optional<VolumeConv> volume = volume_conv_of(context);
  return volume && lower_conv(context, volume->problem, std::nullopt, volume->frames);
}

// A grouped convolution of volumes, whose groups' channels of several frames do not lie together: the sum of one for
// each frame of the window.
bool expand(ExpandContext& context) {
  if (context.input_type(0).dtype != DType::f32) return false;
  const std::optional<ConvNode> conv = known_conv(context.node, context.input_type(0), context.input_type(1));
  if (!conv || conv->window.axes() != 3 || conv->sizes.groups == 1 || conv->window.kernel[0] == 1) return false;
  const Window& window = conv->window;
  ValueId x = context.input(0);
  if (window.pads_begin[0] + window.pads_end[0] > 0)
    x = context.add("Pad", {x, context.longs({0, 0, window.pads_begin[0], 0, 0, 0, 0, window.pads_end[0], 0, 0})});
  Attributes attributes;
  attributes.set("group", conv->sizes.groups);
  attributes.set("kernel_shape", Dims{1, window.kernel[1], window.kernel[2]});
  attributes.set("strides", Dims{1, window.strides[1], window.strides[2]});
  attributes.set("dilations", Dims{1, window.dilations[1], window.dilations[2]});
  attributes.set("pads",
                 Dims{0, window.pads_begin[1], window.pads_begin[2], 0, window.pads_end[1], window.pads_end[2]});
  const ValueId frame_axis = context.longs({2});
  const auto slice = [&](ValueId from, int64_t first, int64_t count, int64_t step) {
    const int64_t end = first + (count - 1) * step + 1;
    return context.add("Slice",
                       {from, context.longs({first}), context.longs({end}), frame_axis, context.longs({step})});
  };
  ValueId sum = ValueId::none;
  for (int64_t i = 0; i < window.kernel[0]; ++i) {
    const ValueId frames = slice(x, i * window.dilations[0], conv->sizes.out[0], window.strides[0]);
    std::vector<ValueId> inputs = {frames, slice(context.input(1), i, 1, 1)};
    if (i == 0 && context.has_input(2)) inputs.push_back(context.input(2));
    const ValueId part = context.add("Conv", std::move(inputs), attributes);
    sum = i == 0 ? part : context.add("Add", {sum, part});
  }
  context.set_output(0, sum);
  return true;
}

}  // namespace

std::vector<OpDef> convolution_ops() {
  return {{.schema = {.name = "Conv",
                      .min_inputs = 2,
                      .max_inputs = 3,
                      .attributes = conv_attributes(),
                      .infer = infer,
                      .reference = reference,
                      .layout = LayoutRole::blocked,
                      .accepts_blocked = accepts_blocked,
                      .fuses_epilogue = true,
                      .expand = expand},
           .lower = lower}};
}

}  // namespace lathe::ops
