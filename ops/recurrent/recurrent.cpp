#include "ops/recurrent/recurrent.h"

#include <algorithm>
#include <cmath>

#include "graph/op_schema.h"
#include "graph/text.h"
#include "lathe/error.h"

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
  spec.cell = node.op->name == "LSTM"  ? RecurrentCell::lstm
              : node.op->name == "GRU" ? RecurrentCell::gru
                                       : RecurrentCell::rnn;
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
  RecurrentExtents extents{x[spec.is_batch_first ? 1 : 0], x[spec.is_batch_first ? 0 : 1], x[2], r[2]};
  const int64_t rows = r[1];
  if (extents.hidden < 1 || rows / spec.gates != extents.hidden || rows % spec.gates != 0 ||
      w != Dims{spec.directions, rows, extents.input} || r[0] != spec.directions) {
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

}  // namespace lathe
