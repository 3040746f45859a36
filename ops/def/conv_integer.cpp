// ConvInteger and QLinearConv: convolutions of 8-bit elements, by their references.
#include <algorithm>
#include <cmath>

#include "ops/conv/conv_node.h"
#include "ops/numbers.h"
#include "ops/op_def.h"

namespace lathe::ops {
namespace {

Dims output_dims(const ConvSizes& sizes) {
  Dims dims = {sizes.batch, sizes.out_channels};
  dims.insert(dims.end(), sizes.out.begin(), sizes.out.end());
  return dims;
}

// A parameter (scale, zero point) of one element, or of one for each output channel; `fallback` when it is absent.
std::vector<double> per_channel(const ReferenceContext& context, size_t slot, int64_t channels, double fallback) {
  if (!context.has_input(slot)) return std::vector<double>(static_cast<size_t>(channels), fallback);
  std::vector<double> values = reals_of(context.inputs[slot]);
  if (values.size() == 1) values.resize(static_cast<size_t>(channels), values[0]);
  if (static_cast<int64_t>(values.size()) != channels) {
    context.fail("input " + std::to_string(slot) + " has " + std::to_string(values.size()) +
                 " elements, expected 1 or " + std::to_string(channels));
  }
  return values;
}

double one_value(const ReferenceContext& context, size_t slot, double fallback) {
  return per_channel(context, slot, 1, fallback)[0];
}

void infer_with(InferContext& context, int weights, DType dtype) {
  TensorType type = TensorType::unranked(dtype);
  type.dims = named(context, [&] { return infer_conv_dims(context.node, context.input(0), context.input(weights)); });
  type.has_rank = !type.dims.empty();
  context.set_output(0, std::move(type));
}

void infer_integer(InferContext& context) { infer_with(context, 1, DType::i32); }
void infer_qlinear(InferContext& context) {
  infer_with(context, 3, context.has_input(7) ? context.input(7).dtype : context.input(0).dtype);
}

void reference_integer(ReferenceContext& context) {
  const Tensor &in = context.inputs[0], &weights = context.inputs[1];
  const ConvNode conv = named(context, [&] { return read_conv(context.node, in.dims(), weights.dims()); });
  const double in_zero = one_value(context, 2, 0);
  const std::vector<double> zeros = per_channel(context, 3, conv.sizes.out_channels, 0);
  const std::vector<double> values = reals_of(in), filters = reals_of(weights);
  const int64_t filter_size = conv.sizes.out_channels == 0 ? 1 : weights.size() / conv.sizes.out_channels;
  Tensor out(DType::i32, output_dims(conv.sizes));
  convolve<double>(
      conv.sizes, conv.window, [&](int64_t i) { return values[static_cast<size_t>(i)] - in_zero; },
      [&](int64_t i) { return filters[static_cast<size_t>(i)] - zeros[static_cast<size_t>(i / filter_size)]; },
      [&](int64_t i, int64_t, double sum) { store_real(out, i, sum); });
  context.outputs[0] = std::move(out);
}

// Inputs: x, scale, zero, w, scale, zero, y scale, y zero, bias.
void reference_qlinear(ReferenceContext& context) {
  const Tensor &in = context.inputs[0], &weights = context.inputs[3];
  const ConvNode conv = named(context, [&] { return read_conv(context.node, in.dims(), weights.dims()); });
  const int64_t channels = conv.sizes.out_channels;
  const double in_scale = one_value(context, 1, 1), in_zero = one_value(context, 2, 0);
  const double out_scale = one_value(context, 6, 1), out_zero = one_value(context, 7, 0);
  const std::vector<double> scales = per_channel(context, 4, channels, 1), zeros = per_channel(context, 5, channels, 0);
  const std::vector<double> bias = per_channel(context, 8, channels, 0);
  const std::vector<double> values = reals_of(in), filters = reals_of(weights);
  const int64_t filter_size = channels == 0 ? 1 : weights.size() / channels;
  const DType dtype = context.has_input(7) ? context.inputs[7].dtype() : in.dtype();
  const double least = dtype == DType::i8 ? -128 : 0, most = dtype == DType::i8 ? 127 : 255;
  Tensor out(dtype, output_dims(conv.sizes));
  convolve<double>(
      conv.sizes, conv.window, [&](int64_t i) { return values[static_cast<size_t>(i)] - in_zero; },
      [&](int64_t i) { return filters[static_cast<size_t>(i)] - zeros[static_cast<size_t>(i / filter_size)]; },
      [&](int64_t i, int64_t channel, double sum) {
        const auto c = static_cast<size_t>(channel);
        const double real =
            std::nearbyint(rounded_to(DType::i32, sum + bias[c]) * in_scale * scales[c] / out_scale) + out_zero;
        store_real(out, i, std::clamp(real, least, most));
      });
  context.outputs[0] = std::move(out);
}

}  // namespace

std::vector<OpDef> conv_integer_ops() {
  return {{.schema = {.name = "ConvInteger",
                      .since = 10,
                      .min_inputs = 2,
                      .max_inputs = 4,
                      .attributes = conv_attributes(),
                      .infer = infer_integer,
                      .reference = reference_integer}},
          {.schema = {.name = "QLinearConv",
                      .since = 10,
                      .min_inputs = 8,
                      .max_inputs = 9,
                      .attributes = conv_attributes(),
                      .infer = infer_qlinear,
                      .reference = reference_qlinear}}};
}

}  // namespace lathe::ops
