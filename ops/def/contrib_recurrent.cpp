// com.microsoft's DynamicQuantizeLSTM: an LSTM whose weights are bytes. They are made real, once when they are
// constant: the input is not quantized, so results are closer to those of the model before quantization.
#include "ops/expansion.h"

namespace lathe::ops {
namespace {

// [directions, rows, 4 * hidden] to float32 [directions, 4 * hidden, rows].
ValueId real_weights(ExpandContext& context, int weights, int scale, int zero_point) {
  const auto to_float = [&](ValueId x) { return context.add("Cast", {x}, {{"to", static_cast<int64_t>(DType::f32)}}); };
  // One for each direction, or for each column of each.
  const auto spread = [&](int i) {
    const ValueId columns = context.add("Reshape", {context.input(i), context.longs({0, -1})});
    return context.add("Unsqueeze", {columns, context.longs({1})});
  };
  const ValueId shifted = context.add("Sub", {to_float(context.input(weights)), to_float(spread(zero_point))});
  return add_transposed(context, context.add("Mul", {shifted, spread(scale)}), {0, 2, 1});
}

// Inputs: x, w, r, b, sequence_lens, initial_h, initial_c, p, w_scale, w_zero_point, r_scale, r_zero_point.
bool expand_lstm(ExpandContext& context) {
  require_inputs(context, {1, 2, 8, 9, 10, 11});
  const ValueId w = real_weights(context, 1, 8, 9), r = real_weights(context, 2, 10, 11);
  const std::vector<ValueId> outputs =
      context.add_many("LSTM",
                       {context.input(0), w, r, context.input(3), context.input(4), context.input(5), context.input(6),
                        context.input(7)},
                       3,
                       copied_attributes(context.node, {"activation_alpha", "activation_beta", "activations", "clip",
                                                        "direction", "hidden_size", "input_forget"}));
  for (int i = 0; i < 3; ++i) context.set_output(i, outputs[static_cast<size_t>(i)]);
  return true;
}

}  // namespace

std::vector<OpDef> contrib_recurrent_ops() {
  OpDef lstm = composite("DynamicQuantizeLSTM", 1, 12, expand_lstm);
  lstm.schema.min_outputs = 0;
  lstm.schema.max_outputs = 3;
  return {std::move(lstm)};
}

}  // namespace lathe::ops
