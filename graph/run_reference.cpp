// Nodes and graphs run by their plain references: the oracle of tests, the constant folder, the last resort at run
// time.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "graph/infer.h"
#include "graph/text.h"
#include "lathe/error.h"
#include "src/base/box.h"
#include "src/base/check.h"

namespace lathe {
namespace {

float from_half(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const float mantissa = static_cast<float>(bits & 1023);
  const float sign = (bits & 0x8000) != 0 ? -1.f : 1.f;
  if (exponent == 31) return mantissa != 0 ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(mantissa + 1024.f, exponent - 25);
}

float element_as_float(const Tensor& tensor, int64_t i) {
  switch (tensor.dtype()) {
    case DType::f32:
      return tensor.data<float>()[i];
    case DType::f16:
      return from_half(tensor.data<uint16_t>()[i]);
    case DType::bf16:
      return std::bit_cast<float>(static_cast<uint32_t>(tensor.data<uint16_t>()[i]) << 16);
    case DType::u8:
      return tensor.data<uint8_t>()[i];
    case DType::i8:
      return tensor.data<int8_t>()[i];
    case DType::u16:
      return tensor.data<uint16_t>()[i];
    case DType::i16:
      return tensor.data<int16_t>()[i];
    case DType::i32:
      return static_cast<float>(tensor.data<int32_t>()[i]);
    case DType::i64:
      return static_cast<float>(tensor.data<int64_t>()[i]);
    case DType::boolean:
      return tensor.data<bool>()[i] ? 1.f : 0.f;
    default:
      throw Error(ErrorCode::internal, "no pointwise expression over " + std::string(name_of(tensor.dtype())));
  }
}

// Integers are clamped to the type's range, as Expression says.
template <class T>
void store_clamped(Tensor& tensor, int64_t i, float value) {
  const double low = std::numeric_limits<T>::min(), high = std::numeric_limits<T>::max();
  const double kept = std::isnan(value) ? 0 : std::clamp(static_cast<double>(value), low, high);
  tensor.mutable_data<T>()[i] = static_cast<T>(kept);
}

void store(Tensor& tensor, int64_t i, float value) {
  switch (tensor.dtype()) {
    case DType::f32:
      tensor.mutable_data<float>()[i] = value;
      return;
    case DType::u8:
      return store_clamped<uint8_t>(tensor, i, value);
    case DType::i8:
      return store_clamped<int8_t>(tensor, i, value);
    case DType::u16:
      return store_clamped<uint16_t>(tensor, i, value);
    case DType::i16:
      return store_clamped<int16_t>(tensor, i, value);
    case DType::i32:
      return store_clamped<int32_t>(tensor, i, value);
    case DType::boolean:
      tensor.mutable_data<bool>()[i] = value != 0;
      return;
    default:
      throw Error(ErrorCode::internal, "no pointwise result of " + std::string(name_of(tensor.dtype())));
  }
}

Dims broadcast_dims(const Node& node, std::span<const Tensor> operands) {
  Dims dims;
  for (const Tensor& operand : operands) dims.resize(std::max(dims.size(), operand.dims().size()), 1);
  std::fill(dims.begin(), dims.end(), 1);
  for (const Tensor& operand : operands) {
    const size_t shift = dims.size() - operand.dims().size();
    for (size_t i = 0; i < operand.dims().size(); ++i) {
      const int64_t extent = operand.dims()[i];
      int64_t& into = dims[shift + i];
      if (extent == 1 || extent == into) continue;
      if (into != 1) {
        throw Error(ErrorCode::invalid_argument, "node '" + node.name + "' (" + std::string(node.op->name) +
                                                     "): operands do not broadcast: " + to_string(operand.dims()) +
                                                     " to " + to_string(dims));
      }
      into = extent;
    }
  }
  return dims;
}

// Elements to step over in `operand` for one step along each axis of `dims`.
Dims broadcast_strides(const Tensor& operand, const Dims& dims) {
  Dims strides(dims.size(), 0);
  int64_t stride = 1;
  for (size_t i = 0; i < operand.dims().size(); ++i) {
    const size_t from = operand.dims().size() - 1 - i;
    strides[dims.size() - 1 - i] = operand.dims()[from] == 1 ? 0 : stride;
    stride *= operand.dims()[from];
  }
  return strides;
}

Tensor apply_expression(const Node& node, std::span<const Tensor> operands) {
  const Expression& expression = node.epilogue->expression;
  const Dims dims = broadcast_dims(node, operands);
  Tensor result(expression.output, dims);
  std::vector<Dims> strides;
  for (const Tensor& operand : operands) strides.push_back(broadcast_strides(operand, dims));
  std::vector<int64_t> at(operands.size(), 0);
  Dims index(dims.size(), 0);
  std::vector<float> inputs(operands.size());
  for (int64_t i = 0; i < result.size(); ++i) {
    for (size_t k = 0; k < operands.size(); ++k) inputs[k] = element_as_float(operands[k], at[k]);
    store(result, i, evaluate(expression, inputs.data()));
    for (size_t axis = dims.size(); axis-- > 0;) {
      for (size_t k = 0; k < operands.size(); ++k) at[k] += strides[k][axis];
      if (++index[axis] < dims[axis]) break;
      for (size_t k = 0; k < operands.size(); ++k) at[k] -= strides[k][axis] * dims[axis];
      index[axis] = 0;
    }
  }
  return result;
}

void reject_objects(const Node& node, std::span<const Tensor> inputs) {
  if (node.op->takes_objects) return;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!is_boxed(inputs[i])) continue;
    throw Error(ErrorCode::invalid_argument, describe(node) + ": input " + std::to_string(i) + " is " +
                                                 unbox(inputs[i]).kind() + ", expected a tensor");
  }
}

std::vector<Tensor> run_own(const Node& node, std::span<const Tensor> inputs, const Limits& limits,
                            const BodyRunner& run_body) {
  // Layouts are invisible to references: a change of layout changes no element.
  if (node.op->domain == "lathe" && node.op->name == "Reorder") return {inputs[0]};
  if (node.op->domain == "lathe" && node.op->name == "Pointwise") return {inputs[0]};
  if (node.op->reference == nullptr) throw Error(ErrorCode::unsupported, describe(node) + ": has no reference");
  const size_t own = inputs.size() - static_cast<size_t>(node.captures);
  reject_objects(node, inputs.first(own));
  const std::span<const Tensor> captures = inputs.subspan(own);
  std::vector<Tensor> outputs(node.outputs.size());
  ReferenceContext context{node, inputs.first(own), outputs, limits, {}, captures};
  context.run_body = [&](const Graph& body, std::span<const Tensor> given) {
    std::vector<Tensor> all(given.begin(), given.end());
    if (all.size() + captures.size() == body.inputs.size()) all.insert(all.end(), captures.begin(), captures.end());
    return run_body ? run_body(body, all) : run_reference_graph(body, all, limits);
  };
  node.op->reference(context);
  return outputs;
}

}  // namespace

std::vector<Tensor> run_reference(const Node& node, std::span<const Tensor> inputs, const Limits& limits,
                                  const BodyRunner& run_body) {
  LATHE_CHECK(inputs.size() == node.inputs.size(), "run_reference of '" + node.name + "': number of inputs");
  const size_t fused = node.epilogue ? static_cast<size_t>(node.epilogue->inputs) : 0;
  std::vector<Tensor> outputs = run_own(node, inputs.first(inputs.size() - fused), limits, run_body);
  if (node.epilogue) {
    std::vector<Tensor> operands{outputs[0]};
    operands.insert(operands.end(), inputs.end() - static_cast<std::ptrdiff_t>(fused), inputs.end());
    outputs[0] = apply_expression(node, operands);
  }
  return outputs;
}

std::vector<Tensor> run_reference_graph(const Graph& graph, std::span<const Tensor> inputs, const Limits& limits) {
  if (inputs.size() != graph.inputs.size()) {
    throw Error(ErrorCode::invalid_argument, "graph '" + graph.name + "' has " + std::to_string(graph.inputs.size()) +
                                                 " inputs, " + std::to_string(inputs.size()) + " were given");
  }
  std::vector<Tensor> values(graph.value_count());
  for (size_t i = 0; i < values.size(); ++i) values[i] = graph.value(static_cast<ValueId>(i)).constant;
  for (size_t i = 0; i < inputs.size(); ++i) values[index_of(graph.inputs[i])] = inputs[i];
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    std::vector<Tensor> arguments;
    for (const ValueId input : node.inputs)
      arguments.push_back(input == ValueId::none ? Tensor() : values[index_of(input)]);
    std::vector<Tensor> results = run_reference(node, arguments, limits);
    for (size_t i = 0; i < node.outputs.size() && i < results.size(); ++i) {
      if (node.outputs[i] != ValueId::none) values[index_of(node.outputs[i])] = std::move(results[i]);
    }
  }
  std::vector<Tensor> outputs;
  for (const ValueId id : graph.outputs) outputs.push_back(values[index_of(id)]);
  return outputs;
}

}  // namespace lathe
