// Pointwise operators, one expression each.
#include <algorithm>
#include <cmath>

#include "graph/infer.h"
#include "graph/passes/rewrite.h"
#include "tests/graph/pass_op_meanings.h"

namespace lathe::testing {

// ---- pointwise

std::optional<Expression> express(const Node& node, std::span<const TensorType> inputs,
                                  const std::function<Tensor(int)>& constant) {
  Expression e;
  const auto input = [&](int i) {
    e.inputs.resize(std::max<size_t>(e.inputs.size(), static_cast<size_t>(i) + 1), DType::f32);
    e.inputs[static_cast<size_t>(i)] = inputs[static_cast<size_t>(i)].dtype;
    return e.add({.op = ExprOp::input, .a = i});
  };
  const auto number = [&](float value) { return e.add({.op = ExprOp::constant, .value = value}); };
  const auto name = node.op->name;
  const auto unary = [&](ExprOp op) { e.add({.op = op, .a = input(0)}); };
  const auto binary = [&](ExprOp op) {
    const int a = input(0), b = input(1);
    e.add({.op = op, .a = a, .b = b});
  };
  if (name == "Relu") {
    const int x = input(0), zero = number(0);
    e.add({.op = ExprOp::max, .a = x, .b = zero});
  } else if (name == "Clip") {
    if (!constant(1).defined() || !constant(2).defined()) return std::nullopt;
    const int x = input(0), low = number(*constant(1).data<float>()), high = number(*constant(2).data<float>());
    const int raised = e.add({.op = ExprOp::max, .a = x, .b = low});
    e.add({.op = ExprOp::min, .a = raised, .b = high});
  } else if (name == "Cast") {
    input(0);
    e.output = static_cast<DType>(node.attributes.get_int("to", 1));
  } else if (name == "Sigmoid") {
    unary(ExprOp::sigmoid);
  } else if (name == "Erf") {
    unary(ExprOp::erf);
  } else if (name == "Sqrt") {
    unary(ExprOp::sqrt);
  } else if (name == "Add") {
    binary(ExprOp::add);
  } else if (name == "Sub") {
    binary(ExprOp::sub);
  } else if (name == "Mul") {
    binary(ExprOp::mul);
  } else if (name == "Div") {
    binary(ExprOp::div);
  } else if (name == "Pow") {
    binary(ExprOp::pow);
  } else if (name == "Less") {
    binary(ExprOp::less);
    e.output = DType::boolean;
  } else {
    return std::nullopt;
  }
  return e;
}

void infer_pointwise(InferContext& context) {
  TensorType result = TensorType{context.input(0).dtype, true, {}, {}};
  if (context.node.op->name == "Less") result.dtype = DType::boolean;
  if (context.node.op->name == "Cast") result.dtype = static_cast<DType>(context.node.attributes.get_int("to", 1));
  const int operands = context.node.op->name == "Clip" ? 1 : context.input_count();
  for (int i = 0; i < operands; ++i) {
    if (!context.input(i).has_rank) return context.set_output(0, TensorType::unranked(result.dtype));
    result.dims.resize(std::max(result.dims.size(), context.input(i).dims.size()), Dim{1, ""});
  }
  std::fill(result.dims.begin(), result.dims.end(), Dim{1, ""});
  for (int i = 0; i < operands; ++i) {
    const std::vector<Dim>& dims = context.input(i).dims;
    for (size_t k = 0; k < dims.size(); ++k) {
      Dim& into = result.dims[result.dims.size() - dims.size() + k];
      if (dims[k].extent == 1 || dims[k] == into) continue;
      if (into.extent == 1 || dims[k].known()) {
        into = dims[k];
      } else if (!into.known()) {
        into = Dim();
      }
    }
  }
  context.set_output(0, result);
}

namespace {
// By numpy's rules, in double, and without Expression: results of fusion are compared with this.
double apply(std::string_view name, double a, double b) {
  if (name == "Relu") return std::max(a, 0.);
  if (name == "Sigmoid") return 1 / (1 + std::exp(-a));
  if (name == "Erf") return std::erf(a);
  if (name == "Sqrt") return std::sqrt(a);
  if (name == "Add") return a + b;
  if (name == "Sub") return a - b;
  if (name == "Mul") return a * b;
  if (name == "Div") return a / b;
  if (name == "Pow") return std::pow(a, b);
  if (name == "Less") return a < b;
  return a;
}
}  // namespace

double element(const Tensor& tensor, int64_t i) {
  if (tensor.dtype() == DType::i64) return static_cast<double>(tensor.data<int64_t>()[i]);
  if (tensor.dtype() == DType::boolean) return tensor.data<bool>()[i];
  return tensor.data<float>()[i];
}

void set_element(Tensor& tensor, int64_t i, double value) {
  if (tensor.dtype() == DType::i64) {
    tensor.mutable_data<int64_t>()[i] = static_cast<int64_t>(value);
  } else if (tensor.dtype() == DType::boolean) {
    tensor.mutable_data<bool>()[i] = value != 0;
  } else {
    tensor.mutable_data<float>()[i] = static_cast<float>(value);
  }
}

namespace {
int64_t offset_in(const Tensor& operand, const Dims& dims, int64_t i) {
  int64_t offset = 0, stride = 1;
  for (size_t k = 0; k < dims.size(); ++k) {
    const int64_t at = i % dims[dims.size() - 1 - k];
    i /= dims[dims.size() - 1 - k];
    if (k >= operand.dims().size()) continue;
    const int64_t extent = operand.dims()[operand.dims().size() - 1 - k];
    offset += (extent == 1 ? 0 : at) * stride;
    stride *= extent;
  }
  return offset;
}
}  // namespace

void reference_pointwise(ReferenceContext& context) {
  const std::string_view name = context.node.op->name;
  const size_t operands = name == "Clip" ? 1 : context.inputs.size();
  Dims dims;
  for (size_t k = 0; k < operands; ++k) dims.resize(std::max(dims.size(), context.inputs[k].dims().size()), 1);
  for (size_t k = 0; k < operands; ++k) {
    const Dims& from = context.inputs[k].dims();
    for (size_t d = 0; d < from.size(); ++d) {
      int64_t& into = dims[dims.size() - from.size() + d];
      if (from[d] != 1) into = from[d];
    }
  }
  DType dtype = context.inputs[0].dtype();
  if (name == "Less") dtype = DType::boolean;
  if (name == "Cast") dtype = static_cast<DType>(context.node.attributes.get_int("to", 1));
  Tensor result(dtype, dims);
  for (int64_t i = 0; i < result.size(); ++i) {
    const double a = element(context.inputs[0], offset_in(context.inputs[0], dims, i));
    const double b = operands > 1 ? element(context.inputs[1], offset_in(context.inputs[1], dims, i)) : 0;
    double value = apply(name, a, b);
    if (name == "Clip") value = std::clamp<double>(a, element(context.inputs[1], 0), element(context.inputs[2], 0));
    set_element(result, i, value);
  }
  context.outputs[0] = result;
}

}  // namespace lathe::testing
