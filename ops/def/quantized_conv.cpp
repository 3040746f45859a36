// lathe::QuantizedConv: what DequantizeLinear of input and weights and Conv mean together, as a convolution of
// integers: scale * (conv(x - x_zero, w - w_zero) + bias), with int32 bias, scale and w_zero for all or for each output
// channel. Without a scale: the int32 sums.
#include <algorithm>

#include "ops/conv/conv_int8_lower.h"
#include "ops/conv/conv_node.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

void infer(InferContext& context) {
  TensorType type = TensorType::unranked(context.has_input(2) ? DType::f32 : DType::i32);
  type.dims = named(context, [&] { return infer_conv_dims(context.node, context.input(0), context.input(1)); });
  type.has_rank = !type.dims.empty();
  context.set_output(0, std::move(type));
}

double at(const std::vector<double>& values, int64_t channel) {
  if (values.empty()) return 0;
  return values[values.size() == 1 ? 0 : static_cast<size_t>(channel)];
}

std::vector<double> values_of(const ReferenceContext& context, size_t slot) {
  return context.has_input(slot) ? reals_of(context.inputs[slot]) : std::vector<double>();
}

void reference(ReferenceContext& context) {
  const Tensor &in = context.inputs[0], &weights = context.inputs[1];
  const ConvNode conv = named(context, [&] { return read_conv(context.node, in.dims(), weights.dims()); });
  const std::vector<double> values = reals_of(in), filters = reals_of(weights), scale = values_of(context, 2);
  const std::vector<double> in_zero = values_of(context, 3), zeros = values_of(context, 4);
  const std::vector<double> bias = values_of(context, 5);
  const int64_t row = weights.size() / std::max<int64_t>(1, conv.sizes.out_channels);
  Dims dims = {conv.sizes.batch, conv.sizes.out_channels};
  dims.insert(dims.end(), conv.sizes.out.begin(), conv.sizes.out.end());
  const bool has_scale = !scale.empty();
  Tensor out(has_scale ? DType::f32 : DType::i32, dims);
  convolve<double>(
      conv.sizes, conv.window, [&](int64_t i) { return values[static_cast<size_t>(i)] - at(in_zero, 0); },
      [&](int64_t i) { return filters[static_cast<size_t>(i)] - at(zeros, i / row); },
      [&](int64_t i, int64_t channel, double sum) {
        const double whole = rounded_to(DType::i32, sum + at(bias, channel));
        store_real(out, i, has_scale ? whole * at(scale, channel) : whole);
      });
  context.outputs[0] = std::move(out);
}

bool accepts_blocked(const Node&, std::span<const TensorType> inputs, int) {
  return inputs[0].rank() == 3 || inputs[0].rank() == 4;
}

bool lower(LowerContext& context) {
  const Dims in = context.input_type(0).extents(), weights = context.input_type(1).extents();
  if (in.size() != 3 && in.size() != 4) return false;
  return lower_conv_int8(context, read_conv(context.node, in, weights));
}

}  // namespace

std::vector<OpDef> quantized_conv_ops() {
  // Inputs: x, weights, scale, x_zero, w_zero, bias.
  return {{.schema = {.name = "QuantizedConv",
                      .domain = "lathe",
                      .min_inputs = 2,
                      .max_inputs = 6,
                      .attributes = conv_attributes(),
                      .infer = infer,
                      .reference = reference,
                      .layout = LayoutRole::blocked,
                      .accepts_blocked = accepts_blocked,
                      .fuses_epilogue = true},
           .lower = lower}};
}

}  // namespace lathe::ops
