#include "tests/graph/pass_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "graph/passes/rewrite.h"
#include "graph/text.h"
#include "graph/verify.h"

namespace lathe::testing {
namespace {

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

// ---- convolution and products

void infer_conv(InferContext& context) {
  const TensorType &x = context.input(0), &w = context.input(1);
  if (!x.has_rank || !w.is_static()) return context.set_output(0, TensorType::unranked(x.dtype));
  TensorType y = x;
  y.dims[1] = w.dims[0];
  const auto pads = context.node.attributes.get_ints("pads", {0, 0, 0, 0});
  const auto strides = context.node.attributes.get_ints("strides", {1, 1});
  for (size_t d = 0; d < 2; ++d) {
    const Dim in = x.dims[2 + d];
    y.dims[2 + d] =
        in.known() ? Dim{(in.extent + pads[d] + pads[d + 2] - w.dims[2 + d].extent) / strides[d] + 1, ""} : Dim();
  }
  context.set_output(0, y);
}

void reference_conv(ReferenceContext& context) {
  const Tensor &x = context.inputs[0], &w = context.inputs[1];
  const auto pads = context.node.attributes.get_ints("pads", {0, 0, 0, 0});
  const auto strides = context.node.attributes.get_ints("strides", {1, 1});
  const int64_t groups = context.node.attributes.get_int("group", 1), each = w.dims()[0] / groups;
  const int64_t in_h = x.dims()[2], in_w = x.dims()[3], kernel_h = w.dims()[2], kernel_w = w.dims()[3];
  const int64_t out_h = (in_h + pads[0] + pads[2] - kernel_h) / strides[0] + 1;
  const int64_t out_w = (in_w + pads[1] + pads[3] - kernel_w) / strides[1] + 1;
  Tensor y(DType::f32, {x.dims()[0], w.dims()[0], out_h, out_w});
  float* to = y.mutable_data<float>();
  for (int64_t n = 0; n < y.dims()[0]; ++n)
    for (int64_t m = 0; m < y.dims()[1]; ++m)
      for (int64_t i = 0; i < out_h; ++i)
        for (int64_t j = 0; j < out_w; ++j) {
          double sum = context.has_input(2) ? context.inputs[2].data<float>()[m] : 0;
          for (int64_t c = 0; c < w.dims()[1]; ++c)
            for (int64_t a = 0; a < kernel_h; ++a)
              for (int64_t b = 0; b < kernel_w; ++b) {
                const int64_t row = i * strides[0] + a - pads[0], column = j * strides[1] + b - pads[1];
                if (row < 0 || column < 0 || row >= in_h || column >= in_w) continue;
                const int64_t channel = m / each * w.dims()[1] + c;
                sum +=
                    static_cast<double>(x.data<float>()[((n * x.dims()[1] + channel) * in_h + row) * in_w + column]) *
                    w.data<float>()[((m * w.dims()[1] + c) * kernel_h + a) * kernel_w + b];
              }
          *to++ = static_cast<float>(sum);
        }
  context.outputs[0] = y;
}

bool conv_accepts_blocked(const Node& node, std::span<const TensorType>, int) {
  return node.attributes.get_int("group", 1) == 1;
}

void infer_matmul(InferContext& context) {
  TensorType y = context.input(0);
  if (y.has_rank) y.dims.back() = context.input(1).dims.back();
  context.set_output(0, y);
}

void reference_matmul(ReferenceContext& context) {
  const Tensor &a = context.inputs[0], &b = context.inputs[1];
  Dims dims = a.dims();
  const int64_t depth = dims.back(), columns = b.dims().back(), rows = a.size() / depth;
  dims.back() = columns;
  Tensor y(DType::f32, dims);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < depth; ++k) {
        sum += static_cast<double>(a.data<float>()[i * depth + k]) * b.data<float>()[k * columns + j];
      }
      y.mutable_data<float>()[i * columns + j] = static_cast<float>(sum);
    }
  context.outputs[0] = y;
}

void infer_same(InferContext& context) { context.set_output(0, context.input(0)); }

void reference_batch_norm(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  Tensor y(DType::f32, x.dims());
  const int64_t channels = x.dims()[1];
  int64_t inner = 1;
  for (size_t d = 2; d < x.dims().size(); ++d) inner *= x.dims()[d];
  const double epsilon = context.node.attributes.get_float("epsilon", 1e-5f);
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t c = i / inner % channels;
    const auto p = [&](size_t slot) { return static_cast<double>(context.inputs[slot].data<float>()[c]); };
    y.mutable_data<float>()[i] =
        static_cast<float>((x.data<float>()[i] - p(3)) / std::sqrt(p(4) + epsilon) * p(1) + p(2));
  }
  context.outputs[0] = y;
}

// ---- rows

void infer_reduce_mean(InferContext& context) {
  TensorType y = context.input(0);
  y.dims.back() = Dim{1, ""};
  context.set_output(0, y);
}

void reference_reduce_mean(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  Dims dims = x.dims();
  const int64_t columns = dims.back();
  dims.back() = 1;
  Tensor y(DType::f32, dims);
  for (int64_t i = 0; i < y.size(); ++i) {
    double sum = 0;
    for (int64_t j = 0; j < columns; ++j) sum += x.data<float>()[i * columns + j];
    y.mutable_data<float>()[i] = static_cast<float>(sum / static_cast<double>(columns));
  }
  context.outputs[0] = y;
}

void reference_layer_norm(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const int64_t columns = x.dims().back();
  Tensor y(DType::f32, x.dims());
  for (int64_t i = 0; i < x.size() / columns; ++i) {
    const float* row = x.data<float>() + i * columns;
    double mean = 0, variance = 0;
    for (int64_t j = 0; j < columns; ++j) mean += row[j] / static_cast<double>(columns);
    for (int64_t j = 0; j < columns; ++j) variance += (row[j] - mean) * (row[j] - mean) / static_cast<double>(columns);
    const double scale = 1 / std::sqrt(variance + context.node.attributes.get_float("epsilon", 1e-5f));
    for (int64_t j = 0; j < columns; ++j) {
      const double bias = context.has_input(2) ? context.inputs[2].data<float>()[j] : 0;
      y.mutable_data<float>()[i * columns + j] =
          static_cast<float>((row[j] - mean) * scale * context.inputs[1].data<float>()[j] + bias);
    }
  }
  context.outputs[0] = y;
}

void infer_pool(InferContext& context) {
  TensorType y = context.input(0);
  for (size_t d = 2; d < y.dims.size(); ++d) y.dims[d] = Dim{1, ""};
  context.set_output(0, y);
}

void reference_pool(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  Tensor y(DType::f32, {x.dims()[0], x.dims()[1], 1, 1});
  const int64_t inner = x.size() / y.size();
  for (int64_t i = 0; i < x.size(); ++i)
    y.mutable_data<float>()[i / inner] += x.data<float>()[i] / static_cast<float>(inner);
  context.outputs[0] = y;
}

bool always_blocked(const Node&, std::span<const TensorType>, int) { return true; }

// ---- shapes and moves

void infer_shape(InferContext& context) {
  TensorType y{DType::i64, true, {Dim()}, {}};
  if (context.input(0).has_rank) y.dims[0].extent = context.input(0).rank();
  context.set_output(0, y);
}

void infer_gather(InferContext& context) {
  context.set_output(0, {context.input(0).dtype, true, context.input(1).dims, {}});
}

void reference_gather(ReferenceContext& context) {
  Tensor y(context.inputs[0].dtype(), context.inputs[1].dims());
  for (int64_t i = 0; i < y.size(); ++i) {
    const int64_t at = context.inputs[1].data<int64_t>()[i];
    if (at < 0 || at >= context.inputs[0].size()) context.fail("index out of range");
    set_element(y, i, element(context.inputs[0], at));
  }
  context.outputs[0] = y;
}

size_t axis_of(const Node& node, size_t rank) {
  const int64_t axis = node.attributes.get_int("axis", 0);
  return static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis);
}

void infer_concat(InferContext& context) {
  TensorType y = context.input(0);
  Dim& dim = y.dims[axis_of(context.node, y.dims.size())];
  for (int i = 1; i < context.input_count(); ++i) {
    const Dim part = context.input(i).dims[axis_of(context.node, y.dims.size())];
    dim = dim.known() && part.known() ? Dim{dim.extent + part.extent, ""} : Dim();
  }
  context.set_output(0, y);
}

void reference_concat(ReferenceContext& context) {
  Dims dims = context.inputs[0].dims();
  const size_t axis = axis_of(context.node, dims.size());
  int64_t inner = 1, outer = 1;
  for (size_t d = 0; d < dims.size(); ++d) (d < axis ? outer : inner) *= d == axis ? 1 : dims[d];
  dims[axis] = 0;
  for (const Tensor& part : context.inputs) dims[axis] += part.dims()[axis];
  Tensor y(context.inputs[0].dtype(), dims);
  int64_t at = 0;
  for (int64_t i = 0; i < outer; ++i)
    for (const Tensor& part : context.inputs) {
      const int64_t count = part.dims()[axis] * inner;
      for (int64_t k = 0; k < count; ++k) set_element(y, at++, element(part, i * count + k));
    }
  context.outputs[0] = y;
}

Dims reshaped(const Dims& from, int64_t elements, std::span<const int64_t> shape) {
  Dims dims(shape.begin(), shape.end());
  int64_t known = 1;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 0) dims[d] = from[d];
    if (dims[d] > 0) known *= dims[d];
  }
  for (int64_t& extent : dims) extent = extent < 0 ? elements / known : extent;
  return dims;
}

void infer_reshape(InferContext& context) {
  const Tensor shape = context.constant(1);
  const TensorType& x = context.input(0);
  if (!shape.defined()) {
    TensorType y = TensorType::unranked(x.dtype);
    if (context.input(1).is_static()) {
      y.has_rank = true;
      y.dims.resize(static_cast<size_t>(context.input(1).dims[0].extent));
    }
    return context.set_output(0, y);
  }
  TensorType y{x.dtype, true, {}, {}};
  if (x.is_static()) {
    const Dims from = x.extents();
    int64_t elements = 1;
    for (const int64_t extent : from) elements *= extent;
    return context.set_output(0, TensorType::of(x.dtype, reshaped(from, elements, shape.elements<int64_t>())));
  }
  for (const int64_t extent : shape.elements<int64_t>()) {
    y.dims.push_back(extent > 0 ? Dim{extent, ""} : extent == 0 && x.has_rank ? x.dims[y.dims.size()] : Dim());
  }
  context.set_output(0, y);
}

void reference_reshape(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  context.outputs[0] = x.reshaped(reshaped(x.dims(), x.size(), context.inputs[1].elements<int64_t>()));
}

void infer_unsqueeze(InferContext& context) {
  TensorType y = context.input(0);
  for (const int64_t axis : context.constant(1).elements<int64_t>()) y.dims.insert(y.dims.begin() + axis, Dim{1, ""});
  context.set_output(0, y);
}
void infer_squeeze(InferContext& context) {
  TensorType y = context.input(0);
  y.dims.erase(y.dims.begin() + context.constant(1).data<int64_t>()[0]);
  context.set_output(0, y);
}
void reference_unsqueeze(ReferenceContext& context) {
  Dims dims = context.inputs[0].dims();
  for (const int64_t axis : context.inputs[1].elements<int64_t>()) dims.insert(dims.begin() + axis, 1);
  context.outputs[0] = context.inputs[0].reshaped(dims);
}
void reference_squeeze(ReferenceContext& context) {
  Dims dims = context.inputs[0].dims();
  dims.erase(dims.begin() + context.inputs[1].data<int64_t>()[0]);
  context.outputs[0] = context.inputs[0].reshaped(dims);
}

void infer_transpose(InferContext& context) {
  TensorType y = context.input(0);
  const auto perm = context.node.attributes.get_ints("perm");
  for (size_t d = 0; d < perm.size(); ++d) y.dims[d] = context.input(0).dims[static_cast<size_t>(perm[d])];
  context.set_output(0, y);
}

void reference_transpose(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const auto perm = context.node.attributes.get_ints("perm");
  Dims dims, strides(x.dims().size(), 1);
  for (const int64_t axis : perm) dims.push_back(x.dims()[static_cast<size_t>(axis)]);
  for (size_t d = strides.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * x.dims()[d + 1];
  Tensor y(x.dtype(), dims);
  for (int64_t i = 0; i < y.size(); ++i) {
    int64_t rest = i, from = 0;
    for (size_t d = dims.size(); d-- > 0;) {
      from += rest % dims[d] * strides[static_cast<size_t>(perm[d])];
      rest /= dims[d];
    }
    set_element(y, i, element(x, from));
  }
  context.outputs[0] = y;
}

void reference_same(ReferenceContext& context) { context.outputs[0] = context.inputs[0]; }

// ---- control flow and chance

void infer_if(InferContext& context) {
  const auto types = context.infer_body(*context.node.attributes.get_graph("then_branch"), {});
  const auto others = context.infer_body(*context.node.attributes.get_graph("else_branch"), {});
  for (size_t i = 0; i < types.size(); ++i) {
    context.set_output(static_cast<int>(i), types[i] == others[i] ? types[i] : TensorType::unranked(types[i].dtype));
  }
}
void reference_if(ReferenceContext& context) {
  const char* branch = *context.inputs[0].data<bool>() ? "then_branch" : "else_branch";
  context.outputs = context.run_body(*context.node.attributes.get_graph(branch), context.captures);
}
void reference_random(ReferenceContext& context) { context.outputs[0] = context.inputs[0]; }

std::vector<OpSchema> make_schemas() {
  std::vector<OpSchema> all;
  for (const char* name : {"Relu", "Sigmoid", "Erf", "Sqrt", "Cast"}) {
    all.push_back({.name = name,
                   .infer = infer_pointwise,
                   .reference = reference_pointwise,
                   .express = express,
                   .layout = LayoutRole::any_same});
  }
  all.back().attributes = {{"to", AttributeSpec::Kind::integer}};
  for (const char* name : {"Add", "Sub", "Mul", "Div", "Pow", "Less"}) {
    all.push_back({.name = name,
                   .min_inputs = 2,
                   .max_inputs = 2,
                   .infer = infer_pointwise,
                   .reference = reference_pointwise,
                   .express = express,
                   .layout = LayoutRole::any_same});
  }
  all.push_back({.name = "Clip",
                 .max_inputs = 3,
                 .infer = infer_pointwise,
                 .reference = reference_pointwise,
                 .express = express,
                 .layout = LayoutRole::any_same});
  all.push_back({.name = "Conv",
                 .min_inputs = 2,
                 .max_inputs = 3,
                 .attributes = {{"pads"}, {"strides"}, {"group"}},
                 .infer = infer_conv,
                 .reference = reference_conv,
                 .layout = LayoutRole::blocked,
                 .accepts_blocked = conv_accepts_blocked,
                 .fuses_epilogue = true});
  all.push_back({.name = "MatMul",
                 .min_inputs = 2,
                 .max_inputs = 2,
                 .infer = infer_matmul,
                 .reference = reference_matmul,
                 .fuses_epilogue = true});
  all.push_back({.name = "BatchNormalization",
                 .min_inputs = 5,
                 .max_inputs = 5,
                 .max_outputs = 5,
                 .attributes = {{"epsilon"}, {"training_mode"}},
                 .infer = infer_same,
                 .reference = reference_batch_norm});
  all.push_back({.name = "ReduceMean",
                 .max_inputs = 2,
                 .attributes = {{"axes"}, {"keepdims"}},
                 .infer = infer_reduce_mean,
                 .reference = reference_reduce_mean});
  all.push_back({.name = "LayerNormalization",
                 .min_inputs = 2,
                 .max_inputs = 3,
                 .attributes = {{"axis"}, {"epsilon"}},
                 .infer = infer_same,
                 .reference = reference_layer_norm});
  all.push_back({.name = "GlobalAveragePool",
                 .infer = infer_pool,
                 .reference = reference_pool,
                 .layout = LayoutRole::blocked,
                 .accepts_blocked = always_blocked});
  all.push_back({.name = "Shape", .attributes = {{"start"}, {"end"}}, .infer = infer_shape});
  all.push_back(
      {.name = "Gather", .min_inputs = 2, .max_inputs = 2, .infer = infer_gather, .reference = reference_gather});
  all.push_back({.name = "Concat",
                 .max_inputs = -1,
                 .attributes = {{"axis"}},
                 .infer = infer_concat,
                 .reference = reference_concat,
                 .layout = LayoutRole::channel_join});
  all.push_back(
      {.name = "Reshape", .min_inputs = 2, .max_inputs = 2, .infer = infer_reshape, .reference = reference_reshape});
  all.push_back({.name = "Unsqueeze",
                 .min_inputs = 2,
                 .max_inputs = 2,
                 .infer = infer_unsqueeze,
                 .reference = reference_unsqueeze});
  all.push_back(
      {.name = "Squeeze", .min_inputs = 2, .max_inputs = 2, .infer = infer_squeeze, .reference = reference_squeeze});
  all.push_back(
      {.name = "Transpose", .attributes = {{"perm"}}, .infer = infer_transpose, .reference = reference_transpose});
  all.push_back({.name = "Identity", .infer = infer_same, .reference = reference_same});
  all.push_back(
      {.name = "Dropout", .max_inputs = 3, .max_outputs = 2, .infer = infer_same, .reference = reference_same});
  all.push_back({.name = "If",
                 .max_outputs = -1,
                 .attributes = {{"then_branch"}, {"else_branch"}},
                 .infer = infer_if,
                 .reference = reference_if});
  all.push_back(
      {.name = "RandomUniformLike", .infer = infer_same, .reference = reference_random, .deterministic = false});
  all.push_back({.name = "Pointwise", .domain = "lathe", .infer = infer_same, .layout = LayoutRole::any_same});
  all.push_back({.name = "Reorder", .domain = "lathe", .infer = infer_same});
  return all;
}

class PassOps : public OpLookup {
 public:
  const OpSchema* find(std::string_view domain, std::string_view name, int) const override {
    for (const OpSchema& schema : schemas_) {
      if (schema.domain == domain && schema.name == name) return &schema;
    }
    return nullptr;
  }

 private:
  std::vector<OpSchema> schemas_ = make_schemas();
};

void expect_equal(const Tensor& expected, const Tensor& actual, const std::string& text) {
  ASSERT_EQ(expected.dtype(), actual.dtype()) << text;
  ASSERT_EQ(expected.dims(), actual.dims()) << text;
  for (int64_t i = 0; i < expected.size(); ++i) {
    const double a = element(expected, i), b = element(actual, i);
    // Refactored arithmetic over at most a few hundred terms of magnitude about one.
    ASSERT_NEAR(a, b, 1e-5 * (1 + std::abs(a))) << "element " << i << "\n" << text;
  }
}

void compare(const Graph& before, const Graph& after) {
  std::vector<Tensor> inputs;
  for (const ValueId id : before.inputs) {
    const TensorType& type = before.value(id).type;
    Dims dims;
    for (const Dim& dim : type.dims) dims.push_back(dim.known() ? dim.extent : 4);
    Tensor values = noise(dims, static_cast<unsigned>(inputs.size() + 7));
    Tensor input(type.dtype, dims);
    for (int64_t i = 0; i < input.size(); ++i)
      set_element(input, i, values.data<float>()[i] + (type.dtype == DType::f32 ? 0 : 1));
    inputs.push_back(input);
  }
  const auto expected = run_reference_graph(before, inputs), actual = run_reference_graph(after, inputs);
  ASSERT_EQ(expected.size(), actual.size());
  for (size_t i = 0; i < expected.size(); ++i) expect_equal(expected[i], actual[i], to_text(after));
}

}  // namespace

const OpLookup& pass_ops() {
  static const PassOps ops;
  return ops;
}

ValueId Net::input(const std::string& name, TensorType type) {
  const ValueId id = graph.add_value(name, std::move(type));
  graph.inputs.push_back(id);
  return id;
}

ValueId Net::constant(Tensor tensor) {
  return graph.add_constant("constant" + std::to_string(count_++), std::move(tensor));
}

ValueId Net::weights(const Dims& dims) {
  ++count_;
  return constant(noise(dims, static_cast<unsigned>(count_)));
}

ValueId Net::op(const std::string& name, std::vector<ValueId> inputs, Attributes node_attributes, int version) {
  const bool is_own = name == "Pointwise" || name == "Reorder";
  const std::string label = name + std::to_string(count_++);
  const ValueId result = graph.add_value(label, {});
  graph.add_node({.op = &pass_ops().require(is_own ? "lathe" : "", name, version),
                  .version = version,
                  .name = label,
                  .inputs = std::move(inputs),
                  .outputs = {result},
                  .attributes = std::move(node_attributes)});
  return result;
}

Attributes attributes(std::initializer_list<std::pair<const char*, Attribute>> entries) {
  Attributes all;
  for (const auto& [name, value] : entries) all.set(name, value);
  return all;
}

Tensor noise(const Dims& dims, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Tensor tensor(DType::f32, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<float>()[i] = uniform(random);
  return tensor;
}

TensorType symbolic(std::initializer_list<const char*> symbols) {
  TensorType type{DType::f32, true, {}, {}};
  for (const std::string symbol : symbols) {
    if (symbol == "?") {
      type.dims.push_back(Dim());
    } else {
      const bool is_extent = std::isdigit(static_cast<unsigned char>(symbol[0])) != 0;
      type.dims.push_back(is_extent ? Dim{std::stoll(symbol), ""} : Dim{-1, symbol});
    }
  }
  return type;
}

std::string ops_of(const Graph& graph) {
  std::string text;
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    text += (text.empty() ? "" : " ") + (node.fused_from.empty() ? std::string(node.op->name) : node.fused_from);
  }
  return text;
}

int count_of(const Graph& graph, const std::string& op) {
  return static_cast<int>(std::count_if(graph.order().begin(), graph.order().end(),
                                        [&](NodeId id) { return graph.node(id).op->name == op; }));
}

PassContext pass_context(int channel_block) {
  static const Limits limits;
  return {pass_ops(), limits, channel_block};
}

Graph run_and_compare(const Graph& graph, PassFn* pass, bool expect_change, int channel_block) {
  Graph after = graph;
  infer_types(after);
  const bool changed = pass(after, pass_context(channel_block));
  EXPECT_EQ(changed, expect_change) << to_text(after);
  verify(after);
  infer_types(after);
  compare(graph, after);
  return after;
}

Graph run_all_and_compare(const Graph& graph, const std::vector<PassFn*>& passes, int channel_block) {
  Graph after = graph;
  infer_types(after);
  for (PassFn* pass : passes) {
    pass(after, pass_context(channel_block));
    verify(after);
    infer_types(after);
  }
  compare(graph, after);
  return after;
}

}  // namespace lathe::testing
