// com.microsoft's DynamicQuantizeLSTM: an LSTM whose weights are bytes, [directions][k][4 * hidden]. X is rounded to
// bytes by the range of its time steps up to the longest sequence's last, H at every step by that of the batch entries
// that have this step or had the one before, or any before where Y is not wanted. Reversed sequences take their first
// steps together, each at its own end. So does ONNX Runtime with one thread. (Its threads have ranges of their own.)
#include <algorithm>

#include "ops/copy/copy_elements.h"
#include "ops/expansion.h"
#include "ops/int8/quantize_floats.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/recurrent/dynamic_lstm_lower.h"
#include "ops/recurrent/recurrent.h"
#include "ops/recurrent/recurrent_weights.h"

namespace lathe::ops {
namespace {

void infer(InferContext& context) {
  // Those before may be absent.
  for (const int input : {kWScale, kWZero, kRScale, kRZero}) {
    if (!context.has_input(input)) context.fail("input " + std::to_string(input) + " is absent");
  }
  infer_recurrent(context);
}

// Rows of float32 as bytes of this range mean them.
std::vector<double> rounded(const std::vector<float>& values, const ValueRange& range) {
  const auto count = static_cast<int64_t>(values.size());
  const Quantization q = quantization_of(range);
  std::vector<uint8_t> bytes(values.size());
  quantize(values.data(), count, q, bytes.data());
  std::vector<double> reals;
  for (const uint8_t byte : bytes) reals.push_back((byte - q.zero) * double{q.scale});
  return reals;
}

// W or R as real numbers, all directions.
std::vector<double> real_weights(const ReferenceContext& context, const ByteOperands& operands, int64_t directions,
                                 int64_t columns) {
  std::vector<double> weights = reals_of(context.inputs[operands.weights]);
  const auto of_columns = [&](RecurrentInput input) {
    const Dims& dims = context.inputs[input].dims();
    if (dims != Dims{directions} && dims != Dims{directions, columns}) {
      context.fail("input " + std::to_string(input) + " is " + to_string(dims) + ", expected " +
                   to_string(Dims{directions}) + " or " + to_string(Dims{directions, columns}));
    }
    return reals_of(context.inputs[input]);
  };
  const std::vector<double> scales = of_columns(operands.scale), zeros = of_columns(operands.zero);
  const size_t of_direction = weights.size() / static_cast<size_t>(directions);
  for (size_t i = 0; i < weights.size(); ++i) {
    const size_t direction = i / of_direction, column = i % static_cast<size_t>(columns);
    const auto pick = [&](const std::vector<double>& from) {
      const size_t each = from.size() / static_cast<size_t>(directions);
      return from[direction * each + column % each];
    };
    weights[i] = (weights[i] - pick(zeros)) * pick(scales);
  }
  return weights;
}

struct Layer {
  RecurrentSpec spec;
  RecurrentExtents extents;
  std::vector<double> x, w, r, b, p;  // X rounded; b and p: empty when absent
  std::vector<int64_t> lengths;       // by batch entry
  bool wants_y = true;

  // Of a batch entry's step, which it has.
  int64_t time_of(int64_t direction, int64_t entry, int64_t step) const {
    return spec.is_reversed(direction) ? lengths[static_cast<size_t>(entry)] - 1 - step : step;
  }
  int64_t columns() const { return 4 * extents.hidden; }
};

// row * matrix, of columns `column`.
double product(const double* row, const double* matrix, int64_t k, int64_t columns, int64_t column) {
  double sum = 0;
  for (int64_t i = 0; i < k; ++i) sum += row[i] * matrix[i * columns + column];
  return sum;
}

// One step of one direction; `h` and `c` are rows of all batch entries.
void step_direction(const Layer& layer, int64_t direction, int64_t i, std::vector<float>& h, std::vector<double>& c) {
  const RecurrentExtents& e = layer.extents;
  const int64_t columns = layer.columns();
  ValueRange range;
  for (int64_t entry = 0; entry < e.batch; ++entry) {
    if (!counts_in_range(i, layer.lengths[static_cast<size_t>(entry)], layer.wants_y)) continue;
    range.include(range_of(h.data() + entry * e.hidden, e.hidden));
  }
  const std::vector<double> before = rounded(h, range);
  const double* w = layer.w.data() + direction * e.input * columns;
  const double* r = layer.r.data() + direction * e.hidden * columns;
  for (int64_t entry = 0; entry < e.batch; ++entry) {
    if (i >= layer.lengths[static_cast<size_t>(entry)]) continue;
    const int64_t t = layer.time_of(direction, entry, i);
    for (int64_t j = 0; j < e.hidden; ++j) {
      LstmUnit unit;
      for (int64_t gate = 0; gate < 4; ++gate) {
        const int64_t column = gate * e.hidden + j;
        unit.sums[gate] =
            product(&layer.x[static_cast<size_t>((t * e.batch + entry) * e.input)], w, e.input, columns, column) +
            product(&before[static_cast<size_t>(entry * e.hidden)], r, e.hidden, columns, column);
        for (int64_t half = 0; half < 2 && !layer.b.empty(); ++half) {
          unit.sums[gate] += layer.b[static_cast<size_t>((2 * direction + half) * columns + column)];
        }
        if (gate < 3 && !layer.p.empty()) {
          unit.peepholes[gate] = layer.p[static_cast<size_t>((direction * 3 + gate) * e.hidden + j)];
        }
      }
      const auto at = static_cast<size_t>(entry * e.hidden + j);
      h[at] = static_cast<float>(step(layer.spec, layer.spec.activations_of(direction), unit, c[at]));
    }
  }
}

Layer layer_of(const ReferenceContext& context) {
  Layer layer;
  layer.spec = recurrent_spec(context.node);
  layer.extents = recurrent_extents(context.node, layer.spec, context.inputs[kX].dims(), context.inputs[kW].dims(),
                                    context.inputs[kR].dims());
  const auto x = context.inputs[kX].elements<float>();
  layer.lengths = sequence_lengths(context, layer.spec, layer.extents);
  layer.wants_y = !context.node.outputs.empty() && context.node.outputs[0] != ValueId::none;
  const int64_t longest = layer.lengths.empty() ? 0 : *std::max_element(layer.lengths.begin(), layer.lengths.end());
  const ValueRange range = range_of(x.data(), longest * layer.extents.batch * layer.extents.input);
  layer.x = rounded({x.begin(), x.end()}, range);
  layer.w = real_weights(context, kWBytes, layer.spec.directions, layer.columns());
  layer.r = real_weights(context, kRBytes, layer.spec.directions, layer.columns());
  layer.b = optional_reals(context, layer.spec, layer.extents, kB, "B");
  layer.p = optional_reals(context, layer.spec, layer.extents, kPeepholes, "P");
  return layer;
}

void reference(ReferenceContext& context) {
  const Layer layer = layer_of(context);
  const RecurrentExtents& e = layer.extents;
  Tensor y = make_output(context, DType::f32, recurrent_dims(layer.spec, e, "Y"));
  Tensor last_h = make_output(context, DType::f32, recurrent_dims(layer.spec, e, "Y_h")), last_c = last_h.clone();
  const std::vector<double> h0 = optional_reals(context, layer.spec, e, kInitialH, "initial_h");
  const std::vector<double> c0 = optional_reals(context, layer.spec, e, kInitialC, "initial_c");
  const int64_t states = e.batch * e.hidden;
  for (int64_t d = 0; d < layer.spec.directions; ++d) {
    std::vector<float> h(static_cast<size_t>(states));
    std::vector<double> c(static_cast<size_t>(states));
    if (!h0.empty()) std::copy_n(h0.begin() + d * states, states, h.begin());
    if (!c0.empty()) std::copy_n(c0.begin() + d * states, states, c.begin());
    for (int64_t i = 0; i < e.steps; ++i) {
      step_direction(layer, d, i, h, c);
      for (int64_t entry = 0; entry < e.batch; ++entry) {
        if (i >= layer.lengths[static_cast<size_t>(entry)]) continue;
        const int64_t t = layer.time_of(d, entry, i);
        std::copy_n(h.begin() + entry * e.hidden, e.hidden,
                    y.mutable_data<float>() + ((t * layer.spec.directions + d) * e.batch + entry) * e.hidden);
      }
    }
    for (int64_t entry = 0; entry < e.batch; ++entry) {
      if (layer.lengths[static_cast<size_t>(entry)] > 0) continue;
      std::fill_n(h.begin() + entry * e.hidden, e.hidden, 0.0f);
      std::fill_n(c.begin() + entry * e.hidden, e.hidden, 0.0);
    }
    std::copy(h.begin(), h.end(), last_h.mutable_data<float>() + d * states);
    for (int64_t i = 0; i < states; ++i) store_real(last_c, d * states + i, c[static_cast<size_t>(i)]);
  }
  Tensor* results[] = {&y, &last_h, &last_c};
  for (size_t i = 0; i < context.outputs.size() && i < 3; ++i) context.outputs[i] = std::move(*results[i]);
}

}  // namespace

std::vector<OpDef> contrib_recurrent_ops() {
  using Kind = AttributeSpec::Kind;
  return {{.schema = {.name = "DynamicQuantizeLSTM",
                      .domain = kMicrosoft,
                      .min_inputs = 3,
                      .max_inputs = 12,
                      .min_outputs = 0,
                      .max_outputs = 3,
                      .attributes = {{"activations", Kind::strings},
                                     {"activation_alpha", Kind::reals},
                                     {"activation_beta", Kind::reals},
                                     {"clip", Kind::real},
                                     {"direction", Kind::string},
                                     {"hidden_size", Kind::integer},
                                     {"input_forget", Kind::integer}},
                      .infer = infer,
                      .reference = reference},
           .lower = lower_dynamic_lstm}};
}

}  // namespace lathe::ops
