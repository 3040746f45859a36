// Conv, for one and more spatial axes.
#include "ops/conv/conv_lower.h"
#include "ops/conv/conv_node.h"
#include "ops/conv/conv_volume.h"
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
  const VolumeConv volume = volume_conv_of(context);
  return lower_conv(context, volume.problem, std::nullopt, volume.frames);
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
                      .fuses_epilogue = true},
           .lower = lower}};
}

}  // namespace lathe::ops
