#include "ops/pointwise/elementwise.h"

#include <algorithm>

namespace lathe {
namespace {

std::vector<TensorType> own_inputs(const InferContext& context) {
  std::vector<TensorType> types;
  for (int i = 0; i < context.input_count(); ++i) {
    if (!context.has_input(i)) context.fail("input " + std::to_string(i) + " is missing");
    types.push_back(context.input(i));
    types.back().layout = {};
  }
  return types;
}

void check_equal(const InferContext& context, const std::vector<TensorType>& types) {
  for (const TensorType& type : types)
    if (type.dtype != types[0].dtype)
      context.fail("operands have different types: " + std::string(name_of(types[0].dtype)) + " and " +
                   std::string(name_of(type.dtype)));
}

}  // namespace

void infer_same(InferContext& context) {
  TensorType type = own_inputs(context)[0];
  context.set_output(0, std::move(type));
}

void infer_same_bool(InferContext& context) {
  TensorType type = own_inputs(context)[0];
  type.dtype = DType::boolean;
  context.set_output(0, std::move(type));
}

void infer_broadcast(InferContext& context) {
  const std::vector<TensorType> types = own_inputs(context);
  check_equal(context, types);
  context.set_output(0, broadcast_types(context, types[0].dtype, types));
}

void infer_broadcast_mixed(InferContext& context) {
  const std::vector<TensorType> types = own_inputs(context);
  context.set_output(0, broadcast_types(context, types[0].dtype, types));
}

void infer_broadcast_bool(InferContext& context) {
  const std::vector<TensorType> types = own_inputs(context);
  check_equal(context, types);
  context.set_output(0, broadcast_types(context, DType::boolean, types));
}

std::vector<Dims> operand_dims(const ReferenceContext& context) {
  std::vector<Dims> dims;
  for (size_t i = 0; i < context.inputs.size(); ++i) {
    if (!context.has_input(i)) context.fail("input " + std::to_string(i) + " is missing");
    dims.push_back(aligned_dims(context.node, static_cast<int>(i), context.inputs[i].dims(), context.inputs[0].rank()));
  }
  return dims;
}

void require_equal_types(const ReferenceContext& context) {
  for (size_t i = 0; i < context.inputs.size(); ++i) {
    if (!context.has_input(i)) context.fail("input " + std::to_string(i) + " is missing");
    if (context.inputs[i].dtype() != context.inputs[0].dtype())
      context.fail("operands have different types: " + std::string(name_of(context.inputs[0].dtype())) + " and " +
                   std::string(name_of(context.inputs[i].dtype())));
  }
}

ExpressionWriter::ExpressionWriter(std::span<const TensorType> inputs) {
  for (const TensorType& type : inputs) expression_.inputs.push_back(type.dtype);
}

bool all_float32(std::span<const TensorType> inputs) {
  return std::all_of(inputs.begin(), inputs.end(), [](const TensorType& type) { return type.dtype == DType::f32; });
}

}  // namespace lathe
