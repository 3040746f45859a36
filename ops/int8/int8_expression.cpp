// What follows a sum of integer products, as one expression.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/int8/int8_chains.h"
#include "ops/int8/int8_lower.h"
#include "ops/int8/int8_table.h"

namespace lathe {
namespace {

struct FirstFactor {
  int node = -1;  // of the multiplication or division
  double factor = 1;
};

// The one reader of input 0, if it multiplies by a constant.
FirstFactor first_factor(const Expression& e) {
  int sum = -1, reader = -1, readers = 0;
  for (size_t i = 0; i < e.nodes.size(); ++i) {
    const ExprNode& node = e.nodes[i];
    if (node.op == ExprOp::input) {
      if (node.a != 0) continue;
      if (sum >= 0) return {};
      sum = static_cast<int>(i);
      continue;
    }
    for (const int operand : {node.a, node.b, node.c}) {
      if (operand < 0 || operand != sum) continue;
      ++readers;
      reader = static_cast<int>(i);
    }
  }
  if (readers != 1) return {};
  const ExprNode& node = e.nodes[static_cast<size_t>(reader)];
  const int other = node.a == sum ? node.b : node.a;
  if (!is_constant(e, other)) return {};
  const float value = constant_at(e, other);
  if (node.op == ExprOp::mul && std::isnormal(value)) return {reader, value};
  if (node.op == ExprOp::div && node.a == sum && has_reciprocal(value)) return {reader, 1.0 / value};
  return {};
}

// The operand that a clamp to at least the range of `dtype` leaves alone inside it; -1: no such clamp.
int clamped_operand(const Expression& e, int index, DType dtype) {
  const ExprNode& node = e.nodes[static_cast<size_t>(index)];
  if (node.op != ExprOp::min && node.op != ExprOp::max) return -1;
  const bool is_first = is_constant(e, node.a);
  if (!is_first && !is_constant(e, node.b)) return -1;
  const float bound = constant_at(e, is_first ? node.a : node.b);
  const float low = dtype == DType::u8 ? 0.0F : -128.0F, high = dtype == DType::u8 ? 255.0F : 127.0F;
  const bool is_implied = node.op == ExprOp::min ? bound >= high : bound <= low;
  return is_implied ? (is_first ? node.b : node.a) : -1;
}

// factor * x * Phi(x), written as a product with 1 + erf(x / sqrt(2)).
struct Gelu {
  int x = -1;  // -1: another expression
  double factor = 1;
};

// Takes constants off the product at `index`; adds what remains to `others`.
void collect_factors(const Expression& e, int index, double& constant, std::vector<int>& others) {
  const ExprNode& node = e.nodes[static_cast<size_t>(index)];
  if (node.op == ExprOp::constant) {
    constant *= node.value;
  } else if (node.op == ExprOp::mul && others.size() < 3) {
    collect_factors(e, node.a, constant, others);
    collect_factors(e, node.b, constant, others);
  } else if (node.op == ExprOp::div && is_constant(e, node.b)) {
    constant /= constant_at(e, node.b);
    collect_factors(e, node.a, constant, others);
  } else {
    others.push_back(index);
  }
}

Gelu gelu_at(const Expression& e, int index) {
  Gelu gelu;
  std::vector<int> factors;
  collect_factors(e, index, gelu.factor, factors);
  gelu.factor *= 2;
  if (factors.size() != 2) return {};
  for (size_t i = 0; i < 2; ++i) {
    const int x = factors[i];
    const ExprNode& sum = e.nodes[static_cast<size_t>(factors[1 - i])];
    if (sum.op != ExprOp::add) continue;
    const bool is_first = is_constant(e, sum.a);
    if (!is_constant(e, is_first ? sum.a : sum.b) || constant_at(e, is_first ? sum.a : sum.b) != 1) continue;
    const ExprNode& function = e.nodes[static_cast<size_t>(is_first ? sum.b : sum.a)];
    if (function.op != ExprOp::erf) continue;
    double scale = 1;
    std::vector<int> arguments;
    collect_factors(e, function.a, scale, arguments);
    constexpr double kSlack = 1e-6;  // of constants that were rounded, and of reciprocals
    if (arguments.size() != 1 || arguments[0] != x || std::abs(scale * std::numbers::sqrt2 - 1) > kSlack) continue;
    const auto factor = static_cast<float>(gelu.factor);
    if (!std::isnormal(factor)) continue;
    gelu.x = x;
    return gelu;
  }
  return {};
}

struct Interval {
  double low = -HUGE_VAL, high = HUGE_VAL;
};

Interval product_of(const Interval& a, const Interval& b) {
  const auto [low, high] = std::minmax({a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high});
  return {low, high};
}

Interval range_of_input(const Expression& e, int slot, double largest_factor) {
  constexpr double kSums = 2147483648.0;
  if (slot == 0) return {-kSums, kSums};
  const DType dtype = e.inputs[static_cast<size_t>(slot)];
  if (slot == 1 && largest_factor >= 0 && dtype == DType::f32) return {-largest_factor, largest_factor};
  if (dtype == DType::u8) return {0, 255};
  if (dtype == DType::i8) return {-128, 127};
  return {};
}

// Where the results of a scaled expression lie. `largest_factor`: of those that come as input 1; negative: none do.
Interval range_of(const Expression& e, double largest_factor) {
  std::vector<Interval> ranges;
  for (const ExprNode& node : e.nodes) {
    const Interval a = node.op != ExprOp::input && node.a >= 0 ? ranges[static_cast<size_t>(node.a)] : Interval();
    const Interval b = node.b >= 0 ? ranges[static_cast<size_t>(node.b)] : Interval();
    Interval range;
    if (node.op == ExprOp::input) range = range_of_input(e, node.a, largest_factor);
    if (node.op == ExprOp::constant) range = {node.value, node.value};
    if (node.op == ExprOp::add) range = {a.low + b.low, a.high + b.high};
    if (node.op == ExprOp::sub) range = {a.low - b.high, a.high - b.low};
    if (node.op == ExprOp::mul) range = product_of(a, b);
    if (node.op == ExprOp::min) range = {std::min(a.low, b.low), std::min(a.high, b.high)};
    if (node.op == ExprOp::max) range = {std::max(a.low, b.low), std::max(a.high, b.high)};
    if (node.op == ExprOp::round_even) range = {a.low - 1, a.high + 1};
    ranges.push_back(range);
  }
  return ranges.back();
}

}  // namespace

Expression scaled_expression(const std::optional<Expression>& outer, std::vector<float>& scale) {
  const FirstFactor first = outer ? first_factor(*outer) : FirstFactor{};
  for (float& each : scale) each = static_cast<float>(each * first.factor);
  Expression result;
  result.inputs = {DType::f32};
  const bool is_scalar = scale.size() == 1;
  if (!is_scalar) result.inputs.push_back(DType::f32);
  const int sum = result.add({.op = ExprOp::input, .a = 0});
  const int factor =
      is_scalar ? result.add({.op = ExprOp::constant, .value = scale[0]}) : result.add({.op = ExprOp::input, .a = 1});
  const int product = result.add({.op = ExprOp::mul, .a = sum, .b = factor});
  if (!outer) return result;
  std::vector<int> moved;
  for (size_t i = 0; i < outer->nodes.size(); ++i) {
    ExprNode node = outer->nodes[i];
    if ((node.op == ExprOp::input && node.a == 0) || static_cast<int>(i) == first.node) {
      moved.push_back(product);
      continue;
    }
    if (node.op == ExprOp::input) {
      node.a += is_scalar ? 0 : 1;
    } else {
      if (node.op == ExprOp::div && is_constant(*outer, node.b) && has_reciprocal(constant_at(*outer, node.b))) {
        const int reciprocal = result.add({.op = ExprOp::constant, .value = 1 / constant_at(*outer, node.b)});
        moved.push_back(result.add({.op = ExprOp::mul, .a = moved[static_cast<size_t>(node.a)], .b = reciprocal}));
        continue;
      }
      for (int* operand : {&node.a, &node.b, &node.c}) {
        if (*operand >= 0) *operand = moved[static_cast<size_t>(*operand)];
      }
    }
    moved.push_back(result.add(node));
  }
  // The last node is the result.
  if (moved.back() != static_cast<int>(result.nodes.size()) - 1) {
    const int zero = result.add({.op = ExprOp::constant, .value = 0});
    result.add({.op = ExprOp::add, .a = moved.back(), .b = zero});
  }
  result.inputs.insert(result.inputs.end(), outer->inputs.begin() + 1, outer->inputs.end());
  result.output = outer->output;
  return result;
}

namespace {

Int8Store split(Expression& e, std::span<const float> factors, bool takes_gelu,
                const std::vector<InputChange*>& changes) {
  Int8Store store{e.output};
  if (!stores_bytes(store)) {
    if (e.output == DType::f32) e = write_chains(e, false, changes);
    return store;
  }
  int at = static_cast<int>(e.nodes.size()) - 1;
  for (int next = at; next >= 0; next = clamped_operand(e, at, e.output)) at = next;
  const ExprNode& sum = e.nodes[static_cast<size_t>(at)];
  if (sum.op == ExprOp::add) {
    const bool is_first = is_constant(e, sum.a);
    const int zero = is_first ? sum.a : sum.b;
    if (is_constant(e, zero) && std::abs(constant_at(e, zero)) <= 255 && is_integral(constant_at(e, zero))) {
      store.zero = static_cast<int>(constant_at(e, zero));
      at = is_first ? sum.b : sum.a;
    }
  }
  // Without a rounding of its own the value is whole, and rounding it again is no change.
  if (e.nodes[static_cast<size_t>(at)].op == ExprOp::round_even) {
    at = e.nodes[static_cast<size_t>(at)].a;
  }
  if (const Gelu gelu = takes_gelu ? gelu_at(e, at) : Gelu(); gelu.x >= 0) {
    at = gelu.x;
    store.gelu = static_cast<float>(gelu.factor);
  }
  // What came before depends on nothing behind it.
  e.nodes.resize(static_cast<size_t>(at) + 1);
  e.output = DType::f32;
  if (store.gelu != 0) {
    const int unit = e.add({.op = ExprOp::constant, .value = 1 / Int8Store::kGeluUnit});
    e.add({.op = ExprOp::mul, .a = at, .b = unit});
  }
  e = write_chains(e, true, changes);
  double largest_factor = -1;
  for (const float factor : factors) largest_factor = std::max(largest_factor, std::abs(double{factor}));
  const Interval range = range_of(e, factors.size() > 1 ? largest_factor : -1);
  // Rounded, it is an int32. GELU brings nothing further from 0.
  const double most = 2e9 / std::max(1.0, std::abs(double{store.gelu}));
  store.is_bounded = range.low > -most && range.high < most;
  return store;
}

// The expression then ends in a byte, for which the table, if there is one, has what the whole gave.
std::vector<uint8_t> take_byte_tail(Expression& e) {
  std::optional<ByteTail> tail = byte_tail(e);
  if (!tail) return {};
  e = std::move(tail->head);
  return {tail->table.begin(), tail->table.end()};
}

}  // namespace

Int8Store split_requantization(Expression& e, std::span<const float> factors, bool takes_gelu) {
  return split(e, factors, takes_gelu, {});
}

Int8Store split_requantization_by_table(Expression& e, std::span<const float> factors) {
  std::vector<uint8_t> table = take_byte_tail(e);
  Int8Store store = split(e, factors, false, {});
  store.table = std::move(table);
  return store;
}

Int8Store split_requantization(Expression& e, Isa isa, const std::vector<bool>& may_change,
                               std::vector<InputChange>& changes) {
  std::vector<uint8_t> table = has_byte_tables(isa) ? take_byte_tail(e) : std::vector<uint8_t>();
  changes.assign(may_change.size(), InputChange());
  std::vector<int> nodes(may_change.size(), 0);
  for (const ExprNode& node : e.nodes) {
    if (node.op == ExprOp::input && static_cast<size_t>(node.a) < nodes.size()) ++nodes[static_cast<size_t>(node.a)];
  }
  std::vector<InputChange*> targets;
  for (size_t slot = 0; slot < may_change.size(); ++slot) {
    targets.push_back(may_change[slot] && nodes[slot] == 1 ? &changes[slot] : nullptr);
  }
  Int8Store store = split(e, {}, has_avx512(isa), targets);
  store.table = std::move(table);
  return store;
}

std::optional<Requantization> as_requantization(const Expression& expression) {
  if (!stores_bytes({expression.output}) || expression.inputs.size() != 1) return std::nullopt;
  std::vector<float> factor = {1};
  Expression rest = scaled_expression(expression, factor);
  const Int8Store store = split_requantization(rest, {});
  if (rest.nodes.size() != 3 || rest.nodes[2].op != ExprOp::mul) return std::nullopt;
  return Requantization{factor[0], store};
}

}  // namespace lathe
