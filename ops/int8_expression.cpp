// What follows a sum of integer products, as one expression.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "ops/int8_lower.h"

namespace lathe {
namespace {

bool is_constant(const Expression& e, int node) {
  return node >= 0 && e.nodes[static_cast<size_t>(node)].op == ExprOp::constant;
}
float constant_at(const Expression& e, int node) { return e.nodes[static_cast<size_t>(node)].value; }

// Division by it may become a multiplication.
bool has_reciprocal(float value) { return std::isnormal(value) && std::isnormal(1 / value); }

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

bool is_integral(float value) { return std::nearbyint(value) == value && std::abs(value) < 65536; }

// A sum of multiples of other nodes.
class LinearForm {
 public:
  // Values with several readers are terms as they are.
  LinearForm(const Expression& e, const std::vector<int>& readers) : e_(e), readers_(readers) {}

  struct Term {
    int node;
    double factor;
  };
  std::vector<Term> terms;
  double constant = 0;

  void add(int index, double factor, bool is_root = false) {
    const ExprNode& node = e_.nodes[static_cast<size_t>(index)];
    if (node.op == ExprOp::constant) {
      constant += factor * node.value;
    } else if (!is_root && readers_[static_cast<size_t>(index)] > 1) {
      add_term(index, factor);
    } else if (node.op == ExprOp::add || node.op == ExprOp::sub) {
      add(node.a, factor);
      add(node.b, node.op == ExprOp::add ? factor : -factor);
    } else if (node.op == ExprOp::mul && is_constant(e_, node.a)) {
      add(node.b, factor * constant_at(e_, node.a));
    } else if (node.op == ExprOp::mul && is_constant(e_, node.b)) {
      add(node.a, factor * constant_at(e_, node.b));
    } else {
      add_term(index, factor);
    }
  }

 private:
  void add_term(int index, double factor) {
    for (Term& term : terms) {
      if (term.node != index) continue;
      term.factor += factor;
      return;
    }
    terms.push_back({index, factor});
  }

  const Expression& e_;
  const std::vector<int>& readers_;
};

// min(max(round(x) + zero, low), high) of whole numbers.
struct ShiftedClamp {
  int rounded = -1;  // -1: some other node
  float zero = 0, low = 0, high = 0;
};

ShiftedClamp shifted_clamp(const Expression& e, int index) {
  const auto node = [&](int i) -> const ExprNode& { return e.nodes[static_cast<size_t>(i)]; };
  const auto other = [&](int i) { return is_constant(e, node(i).a) ? node(i).b : node(i).a; };
  const auto bound = [&](int i) { return is_constant(e, node(i).a) ? node(i).a : node(i).b; };
  if (node(index).op != ExprOp::min || !is_constant(e, bound(index))) return {};
  const int raised = other(index);
  if (node(raised).op != ExprOp::max || !is_constant(e, bound(raised))) return {};
  const int sum = other(raised);
  if (node(sum).op != ExprOp::add || !is_constant(e, bound(sum)) || node(other(sum)).op != ExprOp::round_even) {
    return {};
  }
  const ShiftedClamp clamp{other(sum), constant_at(e, bound(sum)), constant_at(e, bound(raised)),
                           constant_at(e, bound(index))};
  return is_integral(clamp.zero) && is_integral(clamp.low) && is_integral(clamp.high) ? clamp : ShiftedClamp();
}

// Writes an expression anew: sums of a few multiples become chains of multiply-adds.
class ChainWriter {
 public:
  // `coarse`: functions need no more than 16 bits.
  ChainWriter(const Expression& e, bool coarse) : e_(e), coarse_(coarse), moved_(e.nodes.size(), -1) {
    readers_.resize(e.nodes.size());
    for (const ExprNode& node : e.nodes) {
      if (node.op == ExprOp::input) continue;
      for (const int operand : {node.a, node.b, node.c}) {
        if (operand >= 0) ++readers_[static_cast<size_t>(operand)];
      }
    }
    result_.inputs = e.inputs;
    result_.output = e.output;
  }

  Expression write() {
    const int last = moved(static_cast<int>(e_.nodes.size()) - 1);
    result_.nodes.resize(static_cast<size_t>(last) + 1);  // it needs nothing behind it
    return std::move(result_);
  }

 private:
  int moved(int index) {
    int& place = moved_[static_cast<size_t>(index)];
    if (place >= 0) return place;
    const int written = write_node(index);
    moved_[static_cast<size_t>(index)] = written;
    return written;
  }

  int write_node(int index) {
    const ExprNode& node = e_.nodes[static_cast<size_t>(index)];
    if (node.op == ExprOp::add || node.op == ExprOp::sub || node.op == ExprOp::mul) {
      if (const int chain = write_chain(index); chain >= 0) return chain;
    }
    if (node.op == ExprOp::erf && coarse_) return coarse_erf(moved(node.a));
    ExprNode copy = node;
    if (node.op != ExprOp::input) {
      for (int* operand : {&copy.a, &copy.b, &copy.c}) {
        if (*operand >= 0) *operand = moved(*operand);
      }
    }
    return result_.add(copy);
  }

  // -1: too long, or no sum at all.
  int write_chain(int index) {
    constexpr size_t kMostTerms = 4;
    LinearForm form(e_, readers_);
    form.add(index, 1, true);
    if (form.terms.empty() || form.terms.size() > kMostTerms || form.terms[0].node == index) return -1;
    std::vector<int> values;
    for (const LinearForm::Term& term : form.terms) values.push_back(write_term(term, form.constant));
    int sum = -1;
    const auto join = [&](int next) { sum = sum < 0 ? next : result_.add({.op = ExprOp::add, .a = next, .b = sum}); };
    if (const auto value = static_cast<float>(form.constant); value != 0) join(constant(value));
    for (size_t i = values.size(); i-- > 0;) {
      const auto factor = static_cast<float>(form.terms[i].factor);
      join(factor == 1 ? values[i] : binary(ExprOp::mul, values[i], factor));
    }
    return sum;
  }

  // The clamped value without its zero point, which goes to `shift`.
  int write_term(const LinearForm::Term& term, double& shift) {
    const ShiftedClamp clamp =
        readers_[static_cast<size_t>(term.node)] > 1 ? ShiftedClamp() : shifted_clamp(e_, term.node);
    if (clamp.rounded < 0) return moved(term.node);
    shift += term.factor * static_cast<double>(clamp.zero);
    const int larger = binary(ExprOp::max, moved(clamp.rounded), clamp.low - clamp.zero);
    return binary(ExprOp::min, larger, clamp.high - clamp.zero);
  }

  // x * P(x^2) / Q(x^2) up to 3.2, off by 1.3e-6 there and by 6e-6 beyond.
  int coarse_erf(int x) {
    constexpr float kBound = 3.2F;
    const int inside = binary(ExprOp::max, binary(ExprOp::min, x, kBound), -kBound);
    const int square = result_.add({.op = ExprOp::mul, .a = inside, .b = inside});
    const int top = horner(square, {0.000759335526F, 0.0433727875F, 0.153623134F, 1.12838113F});
    const int bottom = horner(square, {0.00937047601F, 0.0947761983F, 0.469525039F, 1});
    const int product = result_.add({.op = ExprOp::mul, .a = inside, .b = top});
    return result_.add({.op = ExprOp::div, .a = product, .b = bottom});
  }
  int horner(int x, std::initializer_list<float> highest_first) {
    int sum = -1;
    for (const float coefficient : highest_first) {
      if (sum < 0) {
        sum = constant(coefficient);
        continue;
      }
      const int product = result_.add({.op = ExprOp::mul, .a = sum, .b = x});
      sum = binary(ExprOp::add, product, coefficient);
    }
    return sum;
  }

  int constant(float value) { return result_.add({.op = ExprOp::constant, .value = value}); }
  int binary(ExprOp op, int a, float b) { return result_.add({.op = op, .a = a, .b = constant(b)}); }

  const Expression& e_;
  const bool coarse_;
  std::vector<int> moved_, readers_;
  Expression result_;
};

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

Int8Store split_requantization(Expression& e, std::span<const float> factors, bool takes_gelu) {
  Int8Store store{e.output};
  if (!stores_bytes(store)) {
    if (e.output == DType::f32) e = ChainWriter(e, false).write();
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
  e = ChainWriter(e, true).write();
  double largest_factor = -1;
  for (const float factor : factors) largest_factor = std::max(largest_factor, std::abs(double{factor}));
  const Interval range = range_of(e, factors.size() > 1 ? largest_factor : -1);
  // Rounded, it is an int32. GELU brings nothing further from 0.
  const double most = 2e9 / std::max(1.0, std::abs(double{store.gelu}));
  store.is_bounded = range.low > -most && range.high < most;
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
