#include "src/base/expression.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <span>
#include <string_view>

#include "src/base/check.h"
#include "src/base/half.h"

namespace lathe {
namespace {

enum class Form : uint8_t { leaf, call, infix };

struct OpFacts {
  int operands;
  Form form;
  std::string_view text;
  double flop;
};

constexpr double kTranscendental = 10;

OpFacts facts_of(ExprOp op) {
  switch (op) {
    case ExprOp::input:
      return {0, Form::leaf, "x", 0};
    case ExprOp::constant:
      return {0, Form::leaf, "", 0};
    case ExprOp::neg:
      return {1, Form::call, "neg", 1};
    case ExprOp::abs:
      return {1, Form::call, "abs", 1};
    case ExprOp::sqrt:
      return {1, Form::call, "sqrt", 1};
    case ExprOp::reciprocal:
      return {1, Form::call, "reciprocal", 1};
    case ExprOp::exp:
      return {1, Form::call, "exp", kTranscendental};
    case ExprOp::log:
      return {1, Form::call, "log", kTranscendental};
    case ExprOp::erf:
      return {1, Form::call, "erf", kTranscendental};
    case ExprOp::tanh:
      return {1, Form::call, "tanh", kTranscendental};
    case ExprOp::sigmoid:
      return {1, Form::call, "sigmoid", kTranscendental};
    case ExprOp::floor:
      return {1, Form::call, "floor", 1};
    case ExprOp::ceil:
      return {1, Form::call, "ceil", 1};
    case ExprOp::round_even:
      return {1, Form::call, "round_even", 1};
    case ExprOp::sin:
      return {1, Form::call, "sin", kTranscendental};
    case ExprOp::cos:
      return {1, Form::call, "cos", kTranscendental};
    case ExprOp::sign:
      return {1, Form::call, "sign", 1};
    case ExprOp::logical_not:
      return {1, Form::call, "not", 1};
    case ExprOp::is_nan:
      return {1, Form::call, "is_nan", 1};
    case ExprOp::add:
      return {2, Form::infix, " + ", 1};
    case ExprOp::sub:
      return {2, Form::infix, " - ", 1};
    case ExprOp::mul:
      return {2, Form::infix, " * ", 1};
    case ExprOp::div:
      return {2, Form::infix, " / ", 1};
    case ExprOp::min:
      return {2, Form::call, "min", 1};
    case ExprOp::max:
      return {2, Form::call, "max", 1};
    case ExprOp::pow:
      return {2, Form::call, "pow", kTranscendental};
    case ExprOp::equal:
      return {2, Form::infix, " == ", 1};
    case ExprOp::less:
      return {2, Form::infix, " < ", 1};
    case ExprOp::less_equal:
      return {2, Form::infix, " <= ", 1};
    case ExprOp::logical_and:
      return {2, Form::infix, " && ", 1};
    case ExprOp::logical_or:
      return {2, Form::infix, " || ", 1};
    case ExprOp::select:
      return {3, Form::call, "select", 1};
  }
  LATHE_CHECK(false, "an expression has an operation that does not exist");
}

std::array<int, 3> operands_of(const ExprNode& node) { return {node.a, node.b, node.c}; }

void check_nodes(const Expression& expression) {
  LATHE_CHECK(!expression.nodes.empty(), "an expression has no nodes");
  for (size_t i = 0; i < expression.nodes.size(); ++i) {
    const ExprNode& node = expression.nodes[i];
    if (node.op == ExprOp::input)
      LATHE_CHECK(node.a >= 0 && static_cast<size_t>(node.a) < expression.inputs.size(),
                  "an expression reads an input that it does not have");
    const int operands = facts_of(node.op).operands;
    for (int k = 0; k < operands; ++k) {
      const int operand = operands_of(node)[static_cast<size_t>(k)];
      LATHE_CHECK(operand >= 0 && static_cast<size_t>(operand) < i, "an expression's node uses a later node");
    }
  }
}

float truth(bool value) { return value ? 1.0F : 0.0F; }

// ONNX's Min and Max: NaN wins.
float minimum(float a, float b) { return std::isnan(a) || std::isnan(b) ? a + b : std::min(a, b); }
float maximum(float a, float b) { return std::isnan(a) || std::isnan(b) ? a + b : std::max(a, b); }

float sign_of(float x) { return std::isnan(x) ? x : static_cast<float>((x > 0) - (x < 0)); }

float apply_unary(ExprOp op, float x) {
  switch (op) {
    case ExprOp::neg:
      return -x;
    case ExprOp::abs:
      return std::fabs(x);
    case ExprOp::sqrt:
      return std::sqrt(x);
    case ExprOp::reciprocal:
      return 1.0F / x;
    case ExprOp::exp:
      return std::exp(x);
    case ExprOp::log:
      return std::log(x);
    case ExprOp::erf:
      return std::erf(x);
    case ExprOp::tanh:
      return std::tanh(x);
    case ExprOp::sigmoid:
      return 1.0F / (1.0F + std::exp(-x));
    case ExprOp::floor:
      return std::floor(x);
    case ExprOp::ceil:
      return std::ceil(x);
    case ExprOp::round_even:
      return std::nearbyint(x);
    case ExprOp::sin:
      return std::sin(x);
    case ExprOp::cos:
      return std::cos(x);
    case ExprOp::sign:
      return sign_of(x);
    case ExprOp::logical_not:
      return truth(x == 0);
    case ExprOp::is_nan:
      return truth(std::isnan(x));
    default:
      break;
  }
  LATHE_CHECK(false, "not an operation of one operand");
}

float apply_binary(ExprOp op, float a, float b) {
  switch (op) {
    case ExprOp::add:
      return a + b;
    case ExprOp::sub:
      return a - b;
    case ExprOp::mul:
      return a * b;
    case ExprOp::div:
      return a / b;
    case ExprOp::min:
      return minimum(a, b);
    case ExprOp::max:
      return maximum(a, b);
    case ExprOp::pow:
      return std::pow(a, b);
    case ExprOp::equal:
      return truth(a == b);
    case ExprOp::less:
      return truth(a < b);
    case ExprOp::less_equal:
      return truth(a <= b);
    case ExprOp::logical_and:
      return truth(a != 0 && b != 0);
    case ExprOp::logical_or:
      return truth(a != 0 || b != 0);
    default:
      break;
  }
  LATHE_CHECK(false, "not an operation of two operands");
}

float apply(const ExprNode& node, const float* values, const float* inputs) {
  if (node.op == ExprOp::input) return inputs[node.a];
  if (node.op == ExprOp::constant) return node.value;
  if (node.op == ExprOp::select) return values[node.a] != 0 ? values[node.b] : values[node.c];
  if (facts_of(node.op).operands == 1) return apply_unary(node.op, values[node.a]);
  return apply_binary(node.op, values[node.a], values[node.b]);
}

float as_stored(float x, DType dtype) {
  if (dtype == DType::f32) return x;
  if (dtype == DType::f16) return half_to_float(float_to_half(x));
  if (dtype == DType::boolean) return truth(x != 0);
  const FloatRange range = stored_range(dtype);
  return std::isnan(x) ? 0 : std::clamp(x, range.low, range.high);
}

// Appends what storing as `dtype` and loading again does to a value.
void append_store(Expression& expression, DType dtype) {
  const int stored = static_cast<int>(expression.nodes.size()) - 1;
  if (dtype == DType::f32 || dtype == DType::f16) return;  // rounded once, where the whole is stored
  if (dtype == DType::boolean) {
    const int inverted = expression.add({.op = ExprOp::logical_not, .a = stored});
    expression.add({.op = ExprOp::logical_not, .a = inverted});
    return;
  }
  const FloatRange range = stored_range(dtype);
  const int low = expression.add({.op = ExprOp::constant, .value = range.low});
  const int raised = expression.add({.op = ExprOp::max, .a = stored, .b = low});
  const int high = expression.add({.op = ExprOp::constant, .value = range.high});
  expression.add({.op = ExprOp::min, .a = raised, .b = high});
}

std::string types_text(const Expression& expression) {
  std::string text = " [";
  for (size_t i = 0; i < expression.inputs.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : " ", name_of(expression.inputs[i]));
  return text + fmt::format(" -> {}]", name_of(expression.output));
}

// Types go without saying when all are float32 and the text shows how many inputs there are.
bool types_are_plain(const Expression& expression, int inputs_shown) {
  return expression.output == DType::f32 && static_cast<size_t>(inputs_shown) == expression.inputs.size() &&
         std::all_of(expression.inputs.begin(), expression.inputs.end(), [](DType t) { return t == DType::f32; });
}

std::vector<int> count_uses(const Expression& expression) {
  std::vector<int> uses(expression.nodes.size(), 0);
  uses.back() = 1;
  for (size_t i = expression.nodes.size(); i-- > 0;) {
    if (uses[i] == 0) continue;  // dead
    const ExprNode& node = expression.nodes[i];
    for (int k = 0; k < facts_of(node.op).operands; ++k)
      ++uses[static_cast<size_t>(operands_of(node)[static_cast<size_t>(k)])];
  }
  return uses;
}

std::string node_text(const ExprNode& node, std::span<const std::string> texts, std::span<const bool> is_infix) {
  const OpFacts facts = facts_of(node.op);
  if (node.op == ExprOp::input) return fmt::format("x{}", node.a);
  if (node.op == ExprOp::constant) return std::isnan(node.value) ? "nan" : fmt::format("{}", node.value);
  std::string text = facts.form == Form::call ? fmt::format("{}(", facts.text) : "";
  for (int k = 0; k < facts.operands; ++k) {
    const auto operand = static_cast<size_t>(operands_of(node)[static_cast<size_t>(k)]);
    const bool needs_parentheses = facts.form == Form::infix && is_infix[operand];
    if (k > 0) text += facts.form == Form::infix ? facts.text : ", ";
    text += needs_parentheses ? fmt::format("({})", texts[operand]) : texts[operand];
  }
  return facts.form == Form::call ? text + ")" : text;
}

}  // namespace

int operand_count(ExprOp op) { return facts_of(op).operands; }

std::string to_string(const Expression& expression) {
  check_nodes(expression);
  const std::vector<int> uses = count_uses(expression);
  const size_t count = expression.nodes.size();
  std::vector<std::string> texts(count);
  const auto is_infix = std::make_unique<bool[]>(count);
  std::string named;  // "t0 = x0 + 1; ": nodes with several uses are written once
  int names = 0, inputs_shown = 0;
  for (size_t i = 0; i < count; ++i) {
    if (uses[i] == 0) continue;
    const ExprNode& node = expression.nodes[i];
    if (node.op == ExprOp::input) inputs_shown = std::max(inputs_shown, node.a + 1);
    texts[i] = node_text(node, texts, {is_infix.get(), count});
    is_infix[i] = facts_of(node.op).form == Form::infix;
    if (uses[i] < 2 || facts_of(node.op).form == Form::leaf) continue;
    std::string name = fmt::format("t{}", names++);
    named += fmt::format("{} = {}; ", name, texts[i]);
    texts[i] = std::move(name);
    is_infix[i] = false;
  }
  return named + texts.back() + (types_are_plain(expression, inputs_shown) ? "" : types_text(expression));
}

FloatRange stored_range(DType dtype) {
  if (dtype == DType::u8) return {0, 255};
  if (dtype == DType::i8) return {-128, 127};
  if (dtype == DType::u16) return {0, 65535};
  if (dtype == DType::i16) return {-32768, 32767};
  LATHE_CHECK(dtype == DType::i32, "an expression's result has a type that cannot be stored");
  return {-2147483648.0F, 2147483520.0F};
}

float evaluate(const Expression& expression, const float* inputs) {
  constexpr size_t kOnStack = 64;
  std::array<float, kOnStack> few;
  std::vector<float> many;
  const size_t count = expression.nodes.size();
  LATHE_CHECK(count > 0, "an expression has no nodes");
  float* values = few.data();
  if (count > kOnStack) {
    many.resize(count);
    values = many.data();
  }
  for (size_t i = 0; i < count; ++i) values[i] = apply(expression.nodes[i], values, inputs);
  return as_stored(values[count - 1], expression.output);
}

namespace {

// `inner` in place of input `slot` of `outer`, over the inputs of `result`: where those of either are among them.
Expression nest(const Expression& outer, int slot, const Expression& inner, Expression result,
                const std::vector<int>& of_outer, const std::vector<int>& of_inner) {
  result.output = outer.output;
  for (ExprNode node : inner.nodes) {
    if (node.op == ExprOp::input) node.a = of_inner[static_cast<size_t>(node.a)];
    result.nodes.push_back(node);
  }
  append_store(result, inner.output);
  const int inner_result = static_cast<int>(result.nodes.size()) - 1;

  if (outer.nodes.back().op == ExprOp::input && outer.nodes.back().a == slot) return result;
  std::vector<int> moved;  // outer's node -> result's node
  for (ExprNode node : outer.nodes) {
    if (node.op == ExprOp::input && node.a == slot) {
      moved.push_back(inner_result);
      continue;
    }
    if (node.op == ExprOp::input) {
      node.a = of_outer[static_cast<size_t>(node.a)];
    } else {
      for (int* operand : {&node.a, &node.b, &node.c})
        if (*operand >= 0) *operand = moved[static_cast<size_t>(*operand)];
    }
    moved.push_back(result.add(node));
  }
  return result;
}

void check_nesting(const Expression& outer, int slot, const Expression& inner) {
  check_nodes(outer);
  check_nodes(inner);
  LATHE_CHECK(slot >= 0 && static_cast<size_t>(slot) < outer.inputs.size(),
              "substitution into an input that is not there");
}

std::vector<int> numbers_from(int first, size_t count) {
  std::vector<int> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

}  // namespace

Expression substitute(const Expression& outer, int slot, const Expression& inner) {
  check_nesting(outer, slot, inner);
  Expression result;
  result.inputs = outer.inputs;
  result.inputs.erase(result.inputs.begin() + slot);
  const std::vector<int> of_inner = numbers_from(static_cast<int>(result.inputs.size()), inner.inputs.size());
  result.inputs.insert(result.inputs.end(), inner.inputs.begin(), inner.inputs.end());
  std::vector<int> of_outer = numbers_from(0, outer.inputs.size());
  for (size_t i = static_cast<size_t>(slot) + 1; i < of_outer.size(); ++i) --of_outer[i];
  return nest(outer, slot, inner, std::move(result), of_outer, of_inner);
}

Expression extend_input(const Expression& outer, int slot, const Expression& inner) {
  check_nesting(outer, slot, inner);
  LATHE_CHECK(!inner.inputs.empty(), "nothing would be read from the input");
  Expression result;
  result.inputs = outer.inputs;
  result.inputs[static_cast<size_t>(slot)] = inner.inputs[0];
  std::vector<int> of_inner = numbers_from(static_cast<int>(outer.inputs.size()) - 1, inner.inputs.size());
  of_inner[0] = slot;
  result.inputs.insert(result.inputs.end(), inner.inputs.begin() + 1, inner.inputs.end());
  return nest(outer, slot, inner, std::move(result), numbers_from(0, outer.inputs.size()), of_inner);
}

double flop_per_element(const Expression& expression) {
  double flop = 0;
  for (const ExprNode& node : expression.nodes) flop += facts_of(node.op).flop;
  return flop;
}

}  // namespace lathe
