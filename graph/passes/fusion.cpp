#include "graph/passes/fusion.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "src/base/expression_simplify.h"

namespace lathe {
namespace {

template <size_t N>
bool is_in(const std::array<std::string_view, N>& names, const Node& node) {
  return node.op->domain.empty() && std::find(names.begin(), names.end(), node.op->name) != names.end();
}

// What QuantizeLinear makes of float32.
bool is_quantized(DType dtype) { return is_byte(dtype) || dtype == DType::u16 || dtype == DType::i16; }
// Every value of the type is a float32.
bool is_exact(DType dtype) { return dtype == DType::f32 || dtype == DType::boolean || is_byte(dtype); }

// Casts go through float32 without a change of meaning: all to float32 and bool (a nonzero integer stays nonzero), and
// float32 to bytes. Integer to byte wraps around, which no expression does.
bool is_exact_cast(DType from, DType to) {
  const bool is_known =
      is_exact(from) || from == DType::i32 || from == DType::i64 || from == DType::f16 || from == DType::bf16;
  if (to == DType::f32 || to == DType::boolean) return is_known;
  return is_byte(to) && (from == DType::f32 || from == DType::boolean);
}

bool types_allow(const Graph& graph, const Node& node, DType output) {
  static constexpr std::array<std::string_view, 9> kCompare = {
      "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Not"};
  static constexpr std::array<std::string_view, 1> kSelect = {"Where"};
  static constexpr std::array<std::string_view, 1> kDequantize = {"DequantizeLinear"};
  static constexpr std::array<std::string_view, 1> kQuantize = {"QuantizeLinear"};
  const auto dtype_of_input = [&](size_t slot) {
    const ValueId id = input_or_none(node, slot);
    return id == ValueId::none ? DType::undefined : graph.value(id).type.dtype;
  };
  const auto all_inputs = [&](auto&& allowed) {
    for (size_t slot = 0; slot < node.own_input_count(); ++slot) {
      if (node.inputs[slot] != ValueId::none && !allowed(dtype_of_input(slot))) return false;
    }
    return true;
  };
  if (is_op(node, "Cast") || is_op(node, "CastLike")) return is_exact_cast(dtype_of_input(0), output);
  if (is_in(kDequantize, node))
    return output == DType::f32 && (is_quantized(dtype_of_input(0)) || dtype_of_input(0) == DType::i32);
  if (is_in(kQuantize, node)) return dtype_of_input(0) == DType::f32 && is_quantized(output);
  if (is_in(kCompare, node)) return output == DType::boolean && all_inputs(is_exact);
  if (is_in(kSelect, node)) return is_exact(output) && all_inputs(is_exact);
  return (output == DType::f32 || output == DType::boolean) &&
         all_inputs([](DType dtype) { return dtype == DType::f32; });
}

bool is_truth(ExprOp op) {
  switch (op) {
    case ExprOp::logical_not:
    case ExprOp::is_nan:
    case ExprOp::equal:
    case ExprOp::less:
    case ExprOp::less_equal:
    case ExprOp::logical_and:
    case ExprOp::logical_or:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::optional<Expression> fusible_expression(const Graph& graph, const Node& node) {
  if (node.outputs.empty() || node.outputs[0] == ValueId::none || node.captures > 0) return std::nullopt;
  if (std::any_of(node.outputs.begin() + 1, node.outputs.end(), [](ValueId id) { return id != ValueId::none; })) {
    return std::nullopt;
  }
  if (is_lathe_op(node, "Pointwise")) return node.epilogue->expression;
  if (node.op->express == nullptr || node.epilogue || !node.op->deterministic) return std::nullopt;
  if (!types_allow(graph, node, graph.value(node.outputs[0]).type.dtype)) return std::nullopt;
  std::vector<TensorType> types;
  for (const ValueId id : node.inputs) types.push_back(id == ValueId::none ? TensorType() : graph.value(id).type);
  std::optional<Expression> expression = node.op->express(
      node, types, [&](int slot) { return constant_of(graph, input_or_none(node, static_cast<size_t>(slot))); });
  if (!expression || expression->nodes.empty()) return std::nullopt;
  for (const ExprNode& each : expression->nodes) {
    if (each.op == ExprOp::input && (each.a < 0 || input_or_none(node, static_cast<size_t>(each.a)) == ValueId::none)) {
      return std::nullopt;
    }
  }
  return expression;
}

bool ExpressionBuilder::has_input(ValueId id) const {
  return std::find(inputs_.begin(), inputs_.end(), id) != inputs_.end();
}

int ExpressionBuilder::add(ExprOp op, int a, int b) { return expression_.add({.op = op, .a = a, .b = b}); }
int ExpressionBuilder::constant(float value) { return expression_.add({.op = ExprOp::constant, .value = value}); }

void ExpressionBuilder::add_input(ValueId id) {
  computed_[id] = add(ExprOp::input, static_cast<int>(inputs_.size()));
  inputs_.push_back(id);
  expression_.inputs.push_back(graph_->value(id).type.dtype);
}

bool ExpressionBuilder::absorbs(ValueId id, const Node& node) const {
  const Tensor tensor = graph_->value(id).constant;
  if (!tensor.defined() || tensor.size() != 1 || (!is_exact(tensor.dtype()) && !is_quantized(tensor.dtype())))
    return false;
  int rank = 0;
  for (const ValueId other : node.inputs) {
    if (other == ValueId::none || graph_->value(other).is_constant()) continue;
    rank = std::max(rank, graph_->value(other).type.rank());
  }
  return tensor.rank() <= rank;
}

int ExpressionBuilder::operand(ValueId id, const Node& node) {
  if (const auto found = computed_.find(id); found != computed_.end()) return found->second;
  if (absorbs(id, node)) {
    const Tensor tensor = graph_->value(id).constant;
    switch (tensor.dtype()) {
      case DType::f32:
        return constant(*tensor.data<float>());
      case DType::u8:
        return constant(*tensor.data<uint8_t>());
      case DType::i8:
        return constant(*tensor.data<int8_t>());
      case DType::u16:
        return constant(*tensor.data<uint16_t>());
      case DType::i16:
        return constant(*tensor.data<int16_t>());
      default:
        return constant(*tensor.data<bool>() ? 1.f : 0.f);
    }
  }
  add_input(id);
  return computed_[id];
}

// What reading `index` back from memory of this type would give.
int ExpressionBuilder::as_stored(int index, DType dtype) {
  if (dtype == DType::boolean && !is_truth(expression_.nodes[static_cast<size_t>(index)].op)) {
    const int zero = constant(0);
    const int is_zero = add(ExprOp::equal, index, zero);
    return add(ExprOp::logical_not, is_zero);
  }
  if (!is_quantized(dtype)) return index;
  const FloatRange range = stored_range(dtype);
  const int low = constant(range.low), high = constant(range.high);
  const int raised = add(ExprOp::max, index, low);
  return add(ExprOp::min, raised, high);
}

void ExpressionBuilder::append(const Node& node, const Expression& expression) {
  append_as(node.outputs[0], node, node.inputs, expression);
}

void ExpressionBuilder::append_as(ValueId result, const Node& node, const std::vector<ValueId>& operands,
                                  const Expression& expression) {
  std::vector<int> moved;
  for (ExprNode each : expression.nodes) {
    if (each.op == ExprOp::input) {
      moved.push_back(operand(operands[static_cast<size_t>(each.a)], node));
      continue;
    }
    for (int* index : {&each.a, &each.b, &each.c}) {
      if (*index >= 0) *index = moved[static_cast<size_t>(*index)];
    }
    moved.push_back(expression_.add(each));
  }
  computed_[result] = as_stored(moved.back(), expression.output);
  result_ = computed_[result];
}

Expression ExpressionBuilder::finish(DType output) const {
  Expression result = expression_;
  result.output = output;
  // The last node is the result: a group that only passes a value on needs a node of its own for it.
  if (result_ != static_cast<int>(size()) - 1) {
    const int zero = result.add({.op = ExprOp::constant, .value = 0});
    result.add({.op = ExprOp::select, .a = zero, .b = result_, .c = result_});
  }
  return simplified(result);
}

void ExpressionBuilder::swap_inputs(size_t a, size_t b) {
  std::swap(inputs_[a], inputs_[b]);
  std::swap(expression_.inputs[a], expression_.inputs[b]);
  for (ExprNode& node : expression_.nodes) {
    if (node.op != ExprOp::input) continue;
    if (node.a == static_cast<int>(a)) {
      node.a = static_cast<int>(b);
    } else if (node.a == static_cast<int>(b)) {
      node.a = static_cast<int>(a);
    }
  }
}

}  // namespace lathe
