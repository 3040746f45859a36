#include "ops/recurrent/recurrent.h"

#include <algorithm>
#include <cmath>

#include "graph/text.h"
#include "lathe/error.h"
#include "ops/numbers.h"
#include "ops/shape_arguments.h"

namespace lathe {
namespace {

using Kind = RecurrentActivation::Kind;

struct KnownActivation {
  const char* name;  // in lower case: the names are not case-sensitive
  Kind kind;
  int parameters;
  float alpha, beta;
};
constexpr KnownActivation kActivations[] = {
    {"sigmoid", Kind::sigmoid, 0, 0, 0},
    {"tanh", Kind::tanh, 0, 0, 0},
    {"relu", Kind::relu, 0, 0, 0},
    {"softsign", Kind::softsign, 0, 0, 0},
    {"softplus", Kind::softplus, 0, 0, 0},
    {"leakyrelu", Kind::leaky_relu, 1, 0.01f, 0},
    {"thresholdedrelu", Kind::thresholded_relu, 1, 1, 0},
    {"elu", Kind::elu, 1, 1, 0},
    {"affine", Kind::affine, 2, 1, 0},
    {"scaledtanh", Kind::scaled_tanh, 2, 1, 1},
    {"hardsigmoid", Kind::hard_sigmoid, 2, 0.2f, 0.5f},
};

[[noreturn]] void reject(const Node& node, const std::string& what) {
  throw Error(ErrorCode::invalid_model, describe(node) + ": " + what);
}

const KnownActivation& known_activation(const Node& node, std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const KnownActivation& known : kActivations) {
    if (name == known.name) return known;
  }
  reject(node, "unknown activation " + in_quotes(name));
}

std::vector<RecurrentActivation> activations_of(const Node& node, const RecurrentSpec& spec) {
  std::vector<std::string> names = node.attributes.get_strings("activations");
  if (names.empty()) {
    for (int64_t d = 0; d < spec.directions; ++d) {
      if (spec.cell != RecurrentCell::rnn) names.push_back("sigmoid");
      names.push_back("tanh");
      if (spec.cell == RecurrentCell::lstm) names.push_back("tanh");
    }
  }
  const size_t expected = (static_cast<size_t>(spec.cell) + 1) * static_cast<size_t>(spec.directions);
  if (names.size() != expected) {
    reject(node, "has " + std::to_string(names.size()) + " activations, expected " + std::to_string(expected));
  }
  // Both lists are used up in order by those activations that have such a parameter.
  const std::vector<float> alphas = node.attributes.get_floats("activation_alpha"),
                           betas = node.attributes.get_floats("activation_beta");
  size_t next_alpha = 0, next_beta = 0;
  std::vector<RecurrentActivation> result;
  for (const std::string& name : names) {
    const KnownActivation& known = known_activation(node, name);
    RecurrentActivation activation{known.kind, known.alpha, known.beta};
    if (known.parameters >= 1 && next_alpha < alphas.size()) activation.alpha = alphas[next_alpha++];
    if (known.parameters >= 2 && next_beta < betas.size()) activation.beta = betas[next_beta++];
    result.push_back(activation);
  }
  return result;
}

}  // namespace

double apply(const RecurrentActivation& activation, double x) {
  const double alpha = activation.alpha, beta = activation.beta;
  switch (activation.kind) {
    case Kind::sigmoid:
      return 1 / (1 + std::exp(-x));
    case Kind::tanh:
      return std::tanh(x);
    case Kind::relu:
      return std::max(x, 0.0);
    case Kind::affine:
      return alpha * x + beta;
    case Kind::leaky_relu:
      return x >= 0 ? x : alpha * x;
    case Kind::thresholded_relu:
      return x > alpha ? x : 0;
    case Kind::scaled_tanh:
      return alpha * std::tanh(beta * x);
    case Kind::hard_sigmoid:
      return std::min(std::max(alpha * x + beta, 0.0), 1.0);
    case Kind::elu:
      return x >= 0 ? x : alpha * std::expm1(x);
    case Kind::softsign:
      return x / (1 + std::fabs(x));
    case Kind::softplus:
      return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
  }
  return x;
}

int append(Expression& e, const RecurrentActivation& activation, int x) {
  const auto constant = [&](float value) { return e.add({.op = ExprOp::constant, .value = value}); };
  const auto one = [&](ExprOp op, int a) { return e.add({.op = op, .a = a}); };
  const auto two = [&](ExprOp op, int a, int b) { return e.add({.op = op, .a = a, .b = b}); };
  const auto affine = [&](int a) {
    return two(ExprOp::add, two(ExprOp::mul, a, constant(activation.alpha)), constant(activation.beta));
  };
  const auto if_negative = [&](int yes) {
    return e.add({.op = ExprOp::select, .a = two(ExprOp::less, x, constant(0)), .b = yes, .c = x});
  };
  switch (activation.kind) {
    case Kind::sigmoid:
      return one(ExprOp::sigmoid, x);
    case Kind::tanh:
      return one(ExprOp::tanh, x);
    case Kind::relu:
      return two(ExprOp::max, x, constant(0));
    case Kind::affine:
      return affine(x);
    case Kind::leaky_relu:
      return if_negative(two(ExprOp::mul, x, constant(activation.alpha)));
    case Kind::thresholded_relu:
      return e.add(
          {.op = ExprOp::select, .a = two(ExprOp::less, constant(activation.alpha), x), .b = x, .c = constant(0)});
    case Kind::scaled_tanh:
      return two(ExprOp::mul, one(ExprOp::tanh, two(ExprOp::mul, x, constant(activation.beta))),
                 constant(activation.alpha));
    case Kind::hard_sigmoid:
      return two(ExprOp::min, two(ExprOp::max, affine(x), constant(0)), constant(1));
    case Kind::elu:
      return if_negative(
          two(ExprOp::mul, two(ExprOp::sub, one(ExprOp::exp, x), constant(1)), constant(activation.alpha)));
    case Kind::softsign:
      return two(ExprOp::div, x, two(ExprOp::add, one(ExprOp::abs, x), constant(1)));
    case Kind::softplus: {
      const int tail = one(ExprOp::exp, one(ExprOp::neg, one(ExprOp::abs, x)));
      return two(ExprOp::add, two(ExprOp::max, x, constant(0)), one(ExprOp::log, two(ExprOp::add, tail, constant(1))));
    }
  }
  return x;
}

RecurrentSpec recurrent_spec(const Node& node) {
  RecurrentSpec spec;
  spec.has_gates_last = node.op->name == "DynamicQuantizeLSTM";
  spec.cell = node.op->name == "GRU"   ? RecurrentCell::gru
              : node.op->name == "RNN" ? RecurrentCell::rnn
                                       : RecurrentCell::lstm;
  spec.gates = spec.cell == RecurrentCell::lstm ? 4 : spec.cell == RecurrentCell::gru ? 3 : 1;
  const std::string direction = node.attributes.get_string("direction", "forward");
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional") {
    reject(node, "attribute 'direction' is " + in_quotes(direction));
  }
  spec.directions = direction == "bidirectional" ? 2 : 1;
  spec.is_first_reversed = direction == "reverse";
  spec.activations = activations_of(node, spec);
  spec.clip = node.attributes.get_float("clip", 0);
  if (node.attributes.has("clip") && !(spec.clip >= 0)) reject(node, "attribute 'clip' is negative");
  spec.couples_forget = node.attributes.get_int("input_forget", 0) != 0;
  spec.is_linear_before_reset = node.attributes.get_int("linear_before_reset", 0) != 0;
  spec.is_batch_first = node.attributes.get_int("layout", 0) != 0;
  return spec;
}

RecurrentExtents recurrent_extents(const Node& node, const RecurrentSpec& spec, const Dims& x, const Dims& w,
                                   const Dims& r) {
  if (x.size() != 3 || w.size() != 3 || r.size() != 3) {
    reject(node, "X is " + to_string(x) + ", W " + to_string(w) + ", R " + to_string(r) + "; expected rank 3");
  }
  const size_t gates = spec.has_gates_last ? 2 : 1, terms = 3 - gates;
  RecurrentExtents extents{x[spec.is_batch_first ? 1 : 0], x[spec.is_batch_first ? 0 : 1], x[2], r[terms]};
  const int64_t rows = r[gates];
  if (extents.hidden < 1 || rows / spec.gates != extents.hidden || rows % spec.gates != 0 || w[0] != spec.directions ||
      w[gates] != rows || w[terms] != extents.input || r[0] != spec.directions) {
    reject(node, "X is " + to_string(x) + ", W " + to_string(w) + ", R " + to_string(r) + ", with " +
                     std::to_string(spec.gates) + " gates and " + std::to_string(spec.directions) + " directions");
  }
  const int64_t declared = node.attributes.get_int("hidden_size", extents.hidden);
  if (declared != extents.hidden) {
    reject(node, "attribute 'hidden_size' is " + std::to_string(declared) + ", R is " + to_string(r));
  }
  return extents;
}

Dims recurrent_dims(const RecurrentSpec& spec, const RecurrentExtents& extents, const std::string& operand) {
  const int64_t hidden = extents.hidden;
  if (operand == "B") return {spec.directions, 2 * spec.gates * hidden};
  if (operand == "P") return {spec.directions, 3 * hidden};
  if (operand == "sequence_lens") return {extents.batch};
  if (operand == "Y") {
    if (spec.is_batch_first) return {extents.batch, extents.steps, spec.directions, hidden};
    return {extents.steps, spec.directions, extents.batch, hidden};
  }
  if (spec.is_batch_first) return {extents.batch, spec.directions, hidden};
  return {spec.directions, extents.batch, hidden};
}

void infer_recurrent(InferContext& context) {
  const RecurrentSpec spec = recurrent_spec(context.node);
  const TensorType &x = context.input(0), &w = context.input(1), &r = context.input(2);
  if (x.is_static() && w.is_static() && r.is_static()) {
    (void)recurrent_extents(context.node, spec, x.extents(), w.extents(), r.extents());
  }
  Dim steps, batch, hidden;
  if (x.has_rank) {
    if (x.rank() != 3) context.fail("input 0 has rank " + std::to_string(x.rank()) + ", expected 3");
    steps = x.dims[spec.is_batch_first ? 1 : 0];
    batch = x.dims[spec.is_batch_first ? 0 : 1];
  }
  if (r.has_rank && r.rank() == 3) hidden = r.dims[spec.has_gates_last ? 1 : 2];
  const Dim directions = known_dim(spec.directions);
  const bool first = spec.is_batch_first;
  const std::vector<Dim> y =
      first ? std::vector<Dim>{batch, steps, directions, hidden} : std::vector<Dim>{steps, directions, batch, hidden};
  const std::vector<Dim> state =
      first ? std::vector<Dim>{batch, directions, hidden} : std::vector<Dim>{directions, batch, hidden};
  context.set_output(0, {x.dtype, true, y, {}});
  context.set_output(1, {x.dtype, true, state, {}});
  context.set_output(2, {x.dtype, true, state, {}});
}

std::vector<double> optional_reals(const ReferenceContext& context, const RecurrentSpec& spec,
                                   const RecurrentExtents& extents, size_t input, const char* name) {
  if (!context.has_input(input)) return {};
  const Dims expected = recurrent_dims(spec, extents, name);
  if (context.inputs[input].dims() != expected) {
    context.fail("input " + std::to_string(input) + " (" + name + ") is " + to_string(context.inputs[input].dims()) +
                 ", expected " + to_string(expected));
  }
  return reals_of(context.inputs[input]);
}

std::vector<int64_t> sequence_lengths(const ReferenceContext& context, const RecurrentSpec& spec,
                                      const RecurrentExtents& extents) {
  std::vector<int64_t> lengths;
  for (const double length : optional_reals(context, spec, extents, 4, "sequence_lens")) {
    if (!(length >= 0 && length <= static_cast<double>(extents.steps))) {
      context.fail("sequence length " + std::to_string(static_cast<int64_t>(length)) + " is out of range for " +
                   std::to_string(extents.steps) + " steps");
    }
    lengths.push_back(static_cast<int64_t>(length));
  }
  if (lengths.empty()) lengths.assign(static_cast<size_t>(extents.batch), extents.steps);
  return lengths;
}

double step(const RecurrentSpec& spec, const RecurrentActivation* activations, const LstmUnit& unit, double& cell) {
  const auto gate = [&](int number, int peephole, double state) {
    double sum = unit.sums[number] + unit.peepholes[peephole] * state;
    if (spec.clip > 0) sum = std::clamp(sum, -double{spec.clip}, double{spec.clip});
    return apply(activations[0], sum);
  };
  const double in = gate(0, 0, cell), forget = spec.couples_forget ? 1 - in : gate(2, 2, cell);
  const double fresh = spec.clip > 0 ? std::clamp(unit.sums[3], -double{spec.clip}, double{spec.clip}) : unit.sums[3];
  cell = forget * cell + in * apply(activations[1], fresh);
  return gate(1, 1, cell) * apply(activations[2], cell);
}

}  // namespace lathe
