#include "src/base/expression_simplify.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <optional>

namespace lathe {
namespace {

bool is_leaf(ExprOp op) { return op == ExprOp::input || op == ExprOp::constant; }

// A step of a result turns a rounding error of an operand into a large one.
bool is_step(ExprOp op) {
  switch (op) {
    case ExprOp::floor:
    case ExprOp::ceil:
    case ExprOp::round_even:
    case ExprOp::sign:
    case ExprOp::equal:
    case ExprOp::less:
    case ExprOp::less_equal:
      return true;
    default:
      return false;
  }
}

bool commutes(ExprOp op) {
  return op == ExprOp::add || op == ExprOp::mul || op == ExprOp::logical_and || op == ExprOp::logical_or;
}

// Sums of numbers below this keep their digits when they are taken in another order. Beyond lie tricks that round by
// adding a large number.
constexpr float kLargestSummand = 65536;

class Simplifier {
 public:
  explicit Simplifier(const Expression& source) : source_(source) {
    may_round_ = source.output == DType::f32 && std::none_of(source.nodes.begin(), source.nodes.end(),
                                                             [](const ExprNode& node) { return is_step(node.op); });
  }

  Expression run() {
    for (ExprNode node : source_.nodes) {
      if (node.op != ExprOp::input) {
        for (int* operand : {&node.a, &node.b, &node.c}) {
          if (*operand >= 0) *operand = moved_[static_cast<size_t>(*operand)];
        }
      }
      moved_.push_back(rewritten(node));
    }
    return without_dead(moved_.back());
  }

 private:
  using Key = std::array<int64_t, 5>;

  const ExprNode& at(int index) const { return made_[static_cast<size_t>(index)]; }
  std::optional<float> constant_at(int index) const {
    if (index < 0 || at(index).op != ExprOp::constant) return std::nullopt;
    return at(index).value;
  }
  bool is_constant(int index, float value) const {
    const auto known = constant_at(index);
    return known && *known == value;
  }

  int constant(float value) { return add({.op = ExprOp::constant, .value = value}); }

  // The node's index: an old one when the same node was made before.
  int add(ExprNode node) {
    if (commutes(node.op) && node.a > node.b) std::swap(node.a, node.b);
    const Key key{static_cast<int64_t>(node.op), node.a, node.b, node.c,
                  node.op == ExprOp::constant ? int64_t{std::bit_cast<uint32_t>(node.value)} : 0};
    const auto [known, is_new] = index_.emplace(key, static_cast<int>(made_.size()));
    if (is_new) made_.push_back(node);
    return known->second;
  }

  int rewritten(const ExprNode& node) {
    if (is_leaf(node.op)) return add(node);
    if (const auto folded = folded_value(node)) return constant(*folded);
    if (const auto same = same_value(node)) return *same;
    if (may_round_) {
      if (const auto cheaper = cheaper_form(node)) return *cheaper;
    }
    return add(node);
  }

  // All operands are constants.
  std::optional<float> folded_value(const ExprNode& node) const {
    Expression alone;
    ExprNode copy = node;
    for (int* operand : {&copy.a, &copy.b, &copy.c}) {
      if (*operand < 0) continue;
      const auto value = constant_at(*operand);
      if (!value) return std::nullopt;
      *operand = alone.add({.op = ExprOp::constant, .value = *value});
    }
    alone.add(copy);
    const float result = evaluate(alone, nullptr);
    return std::isfinite(result) ? std::optional(result) : std::nullopt;
  }

  // The operand that the node's result always equals. x + 0 may turn -0 into 0: no difference that counts.
  std::optional<int> same_value(const ExprNode& node) const {
    switch (node.op) {
      case ExprOp::add:
        if (is_constant(node.b, 0)) return node.a;
        if (is_constant(node.a, 0)) return node.b;
        break;
      case ExprOp::sub:
        if (is_constant(node.b, 0)) return node.a;
        break;
      case ExprOp::mul:
        if (is_constant(node.b, 1)) return node.a;
        if (is_constant(node.a, 1)) return node.b;
        break;
      case ExprOp::div:
      case ExprOp::pow:
        if (is_constant(node.b, 1)) return node.a;
        break;
      case ExprOp::neg:
        if (at(node.a).op == ExprOp::neg) return at(node.a).a;
        break;
      case ExprOp::select:
        if (const auto condition = constant_at(node.a)) return *condition != 0 ? node.b : node.c;
        if (node.b == node.c) return node.b;
        break;
      default:
        break;
    }
    return std::nullopt;
  }

  std::optional<int> cheaper_form(const ExprNode& node) {
    if (node.op == ExprOp::div) {
      const auto divisor = constant_at(node.b);
      if (divisor && std::isnormal(*divisor) && std::isnormal(1 / *divisor)) {
        return rewritten({.op = ExprOp::mul, .a = node.a, .b = constant(1 / *divisor)});
      }
    }
    if (node.op == ExprOp::pow) {
      if (is_constant(node.b, 2)) return add({.op = ExprOp::mul, .a = node.a, .b = node.a});
      if (is_constant(node.b, 3)) {
        const int square = add({.op = ExprOp::mul, .a = node.a, .b = node.a});
        return add({.op = ExprOp::mul, .a = square, .b = node.a});
      }
    }
    if (node.op == ExprOp::sub) {
      if (const auto summand = constant_at(node.b)) {
        return rewritten({.op = ExprOp::add, .a = node.a, .b = constant(-*summand)});
      }
    }
    if (node.op == ExprOp::mul || node.op == ExprOp::add) return joined_constants(node);
    return std::nullopt;
  }

  // (x . c) . d = x . (c . d)
  std::optional<int> joined_constants(const ExprNode& node) {
    const auto [x, c] = split_off_constant(node);
    if (!c || at(x).op != node.op) return std::nullopt;
    const auto [inner, d] = split_off_constant(at(x));
    if (!d) return std::nullopt;
    const float both = node.op == ExprOp::mul ? *c * *d : *c + *d;
    const bool keeps_digits = node.op == ExprOp::mul ? std::isnormal(both) && std::isnormal(*c) && std::isnormal(*d)
                                                     : std::abs(*c) < kLargestSummand && std::abs(*d) < kLargestSummand;
    if (!keeps_digits) return std::nullopt;
    const int joint = constant(both);
    return rewritten({.op = node.op, .a = inner, .b = joint});
  }

  std::pair<int, std::optional<float>> split_off_constant(const ExprNode& node) const {
    if (const auto value = constant_at(node.b)) return {node.a, value};
    return {node.b, constant_at(node.a)};
  }

  Expression without_dead(int result) const {
    std::vector<bool> is_live(made_.size(), false);
    is_live[static_cast<size_t>(result)] = true;
    for (size_t i = made_.size(); i-- > 0;) {
      // Inputs stay: whoever runs the expression passes them all.
      if (made_[i].op == ExprOp::input) is_live[i] = true;
      if (!is_live[i] || is_leaf(made_[i].op)) continue;
      for (const int operand : {made_[i].a, made_[i].b, made_[i].c}) {
        if (operand >= 0) is_live[static_cast<size_t>(operand)] = true;
      }
    }
    Expression kept;
    kept.inputs = source_.inputs;
    kept.output = source_.output;
    std::vector<int> place(made_.size(), -1);
    for (size_t i = 0; i < made_.size(); ++i) {
      if (!is_live[i]) continue;
      ExprNode node = made_[i];
      if (!is_leaf(node.op)) {
        for (int* operand : {&node.a, &node.b, &node.c}) {
          if (*operand >= 0) *operand = place[static_cast<size_t>(*operand)];
        }
      }
      place[i] = kept.add(node);
    }
    const int last = place[static_cast<size_t>(result)];
    if (last != static_cast<int>(kept.nodes.size()) - 1) {
      // The last node is the result.
      const int zero = kept.add({.op = ExprOp::constant, .value = 0});
      kept.add({.op = ExprOp::select, .a = zero, .b = last, .c = last});
    }
    return kept;
  }

  const Expression& source_;
  bool may_round_ = false;
  std::vector<ExprNode> made_;
  std::vector<int> moved_;  // by node of the source
  std::map<Key, int> index_;
};

}  // namespace

Expression simplified(const Expression& expression) {
  return expression.nodes.empty() ? expression : Simplifier(expression).run();
}

}  // namespace lathe
