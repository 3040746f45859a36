#include "jit/expression/vector_program.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "jit/expression/byte_products.h"
#include "jit/expression/vector_builder.h"
#include "jit/expression/vector_math.h"
#include "jit/kernel.h"

namespace lathe {
namespace {

using Id = VectorBuilder::Id;

class Lowering {
 public:
  Lowering(const Expression& expression, Isa isa, BytesTimesConstants products)
      : expression_(expression),
        products_(has_avx512(isa) ? products : BytesTimesConstants::multiplied),
        builder_(isa),
        values_(expression.nodes.size(), -1),
        uses_(values_.size(), 0) {}

  VectorProgram run() {
    if (expression_.nodes.empty()) throw JitError("an expression without nodes");
    count_uses();
    for (size_t i = 0; i < expression_.nodes.size(); ++i) {
      const ExprNode& node = expression_.nodes[i];
      // Inputs come up where they are first used: fewer registers are live.
      if (uses_[i] == 0 || node.op == ExprOp::input || is_merged_[i]) continue;
      values_[i] = lower(node);
    }
    return builder_.finish(as_stored(value(static_cast<int>(expression_.nodes.size()) - 1)));
  }

 private:
  const ExprNode& node_at(int i) const { return expression_.nodes[static_cast<size_t>(i)]; }

  void check_operand(size_t user, int operand) const {
    if (operand < 0 || static_cast<size_t>(operand) >= user) throw JitError("an expression uses a later node");
  }

  void count_uses() {
    is_merged_.assign(uses_.size(), false);
    uses_.back() = 1;
    for (size_t i = uses_.size(); i-- > 0;) {
      if (uses_[i] == 0) continue;
      const ExprNode& node = expression_.nodes[i];
      const int operands[] = {node.a, node.b, node.c};
      for (int k = 0; k < operand_count(node.op); ++k) {
        check_operand(i, operands[k]);
        ++uses_[static_cast<size_t>(operands[k])];
      }
    }
    for (size_t i = 0; i < uses_.size(); ++i)
      if (uses_[i] > 0) choose_merges(expression_.nodes[i]);
  }

  // A product, or a comparison, that only its user needs becomes a part of it.
  void choose_merges(const ExprNode& node) {
    const auto merge = [&](int i) { is_merged_[static_cast<size_t>(i)] = true; };
    const auto is_product = [&](int i) { return is_single(i, ExprOp::mul) && sigmoid_factor(node_at(i)) < 0; };
    if (node.op == ExprOp::add || node.op == ExprOp::sub) {
      if (is_product(node.b)) return merge(node.b);
      if (is_product(node.a)) return merge(node.a);
    }
    if (node.op == ExprOp::mul && sigmoid_factor(node) >= 0) return merge(sigmoid_factor(node));
    if (node.op == ExprOp::select && is_comparison(node_at(node.a).op)) merge_if_single(node.a);
    if (is_smooth(node.op) && is_single(node.a, ExprOp::div) && node_at(node_at(node.a).b).op == ExprOp::constant)
      merge(node.a);
  }

  void merge_if_single(int i) {
    if (uses_[static_cast<size_t>(i)] == 1) is_merged_[static_cast<size_t>(i)] = true;
  }
  bool is_single(int i, ExprOp op) const { return node_at(i).op == op && uses_[static_cast<size_t>(i)] == 1; }
  // Of a product: the factor that is a sigmoid needed nowhere else, or -1.
  int sigmoid_factor(const ExprNode& product) const {
    if (is_single(product.b, ExprOp::sigmoid)) return product.b;
    return is_single(product.a, ExprOp::sigmoid) ? product.a : -1;
  }
  bool is_merged(int i) const { return is_merged_[static_cast<size_t>(i)]; }
  static bool is_comparison(ExprOp op) {
    return op == ExprOp::equal || op == ExprOp::less || op == ExprOp::less_equal || op == ExprOp::is_nan;
  }
  // Where an argument may be off by half a unit: its error is below the function's own.
  static bool is_smooth(ExprOp op) { return op == ExprOp::erf || op == ExprOp::tanh || op == ExprOp::sigmoid; }

  Id value(int i) {
    Id& id = values_[static_cast<size_t>(i)];
    if (id < 0) {
      const int number = node_at(i).a;
      if (number < 0 || static_cast<size_t>(number) >= expression_.inputs.size())
        throw JitError("an expression reads input " + std::to_string(number) + ", which it does not have");
      id = builder_.input(number);
    }
    return id;
  }

  static uint32_t predicate_of(ExprOp op) {
    if (op == ExprOp::equal) return predicate::equal;
    if (op == ExprOp::is_nan) return predicate::unordered;
    return op == ExprOp::less ? predicate::less : predicate::less_equal;
  }

  Id compare_and_select(const ExprNode& comparison, Id yes, Id no) {
    const Id a = value(comparison.a);
    const Id b = comparison.op == ExprOp::is_nan ? a : value(comparison.b);
    return builder_.select(predicate_of(comparison.op), a, b, yes, no);
  }

  bool is_truth(int i) const {
    const ExprNode& node = node_at(i);
    if (node.op == ExprOp::input) return expression_.inputs[static_cast<size_t>(node.a)] == DType::boolean;
    return is_comparison(node.op) || node.op == ExprOp::logical_and || node.op == ExprOp::logical_or ||
           node.op == ExprOp::logical_not;
  }
  // 1 where the value is not 0.
  Id truth(int i) {
    const Id id = value(i);
    return is_truth(i) ? id : builder_.select(predicate::not_equal, id, zero(), one(), zero());
  }
  Id one() { return builder_.constant(1); }
  Id zero() { return builder_.constant(0); }

  Id smooth_argument(int i) {
    if (!is_merged(i)) return value(i);
    const ExprNode& quotient = node_at(i);
    return builder_.mul(value(quotient.a), builder_.constant(1.0F / node_at(quotient.b).value));
  }

  Id lower(const ExprNode& node) {
    switch (operand_count(node.op)) {
      case 0:
        return builder_.constant(node.value);
      case 1:
        return lower_unary(node);
      case 2:
        return lower_binary(node);
      default:
        return lower_select(node);
    }
  }

  Id lower_select(const ExprNode& node) {
    if (is_comparison(node_at(node.a).op)) return compare_and_select(node_at(node.a), value(node.b), value(node.c));
    return builder_.select(predicate::not_equal, value(node.a), zero(), value(node.b), value(node.c));
  }

  Id lower_unary(const ExprNode& node) {
    VectorBuilder& b = builder_;
    switch (node.op) {
      case ExprOp::neg:
        return b.neg(value(node.a));
      case ExprOp::abs:
        return b.abs(value(node.a));
      case ExprOp::sqrt:
        return b.sqrt(value(node.a));
      case ExprOp::reciprocal:
        return b.div(one(), value(node.a));
      case ExprOp::exp:
        return vector_math::exp(b, value(node.a));
      case ExprOp::log:
        if (const int x = softplus_argument(node.a); x >= 0) return vector_math::softplus_of_negative(b, value(x));
        return vector_math::log(b, value(node.a));
      case ExprOp::erf:
        return vector_math::erf(b, smooth_argument(node.a));
      case ExprOp::tanh:
        return vector_math::tanh(b, smooth_argument(node.a));
      case ExprOp::sigmoid:
        return vector_math::sigmoid(b, smooth_argument(node.a));
      case ExprOp::floor:
        return b.round(value(node.a), rounding::down);
      case ExprOp::ceil:
        return b.round(value(node.a), rounding::up);
      case ExprOp::round_even:
        return b.round(value(node.a), rounding::nearest);
      case ExprOp::sin:
        return vector_math::sin(b, value(node.a));
      case ExprOp::cos:
        return vector_math::cos(b, value(node.a));
      case ExprOp::sign:
        return sign_of(value(node.a));
      case ExprOp::logical_not:
        if (is_truth(node.a)) return b.bit_xor(value(node.a), one());
        return b.select(predicate::equal, value(node.a), zero(), one(), zero());
      case ExprOp::is_nan:
        return compare_and_select(node, one(), zero());
      default:
        throw JitError("an operation of one operand that has no vector form");
    }
  }

  // Of 1 + exp(-|x|): x. Else -1. Softplus is max(x, 0) and the logarithm of this.
  int softplus_argument(int sum) const {
    const auto operand_if = [&](int i, ExprOp op) { return i >= 0 && node_at(i).op == op ? node_at(i).a : -1; };
    const auto is_one = [&](int i) { return node_at(i).op == ExprOp::constant && node_at(i).value == 1; };
    const ExprNode& node = node_at(sum);
    if (node.op != ExprOp::add || is_one(node.a) == is_one(node.b)) return -1;
    const int negative = operand_if(is_one(node.a) ? node.b : node.a, ExprOp::exp);
    return operand_if(operand_if(negative, ExprOp::neg), ExprOp::abs);
  }

  Id sign_of(Id x) {
    const Id not_positive = builder_.select(predicate::less, x, zero(), builder_.constant(-1), x);
    return builder_.select(predicate::greater, x, zero(), one(), not_positive);
  }

  Id lower_binary(const ExprNode& node) {
    VectorBuilder& b = builder_;
    switch (node.op) {
      case ExprOp::add:
      case ExprOp::sub:
        return lower_sum(node);
      case ExprOp::mul:
        return lower_product(node);
      case ExprOp::div:
        return b.div(value(node.a), value(node.b));
      case ExprOp::min:
        if (const auto clamp = clamped(node)) return b.min(value(clamp->value), b.constant(clamp->bound));
        return b.min_or_nan(value(node.a), value(node.b));
      case ExprOp::max:
        if (const auto clamp = clamped(node)) return b.max(value(clamp->value), b.constant(clamp->bound));
        return b.max_or_nan(value(node.a), value(node.b));
      case ExprOp::pow:
        return lower_pow(node);
      case ExprOp::equal:
      case ExprOp::less:
      case ExprOp::less_equal:
        return compare_and_select(node, one(), zero());
      case ExprOp::logical_and:
        return b.bit_and(truth(node.a), truth(node.b));
      case ExprOp::logical_or:
        return b.bit_or(truth(node.a), truth(node.b));
      default:
        throw JitError("an operation of two operands that has no vector form");
    }
  }

  // A factor 1 / (1 + exp(-x)) divides.
  Id lower_product(const ExprNode& node) {
    if (const int byte = byte_factor(node); byte >= 0) return look_up_product(node, byte);
    const int sigmoid = sigmoid_factor(node);
    if (sigmoid < 0) return builder_.mul(value(node.a), value(node.b));
    const Id other = value(sigmoid == node.b ? node.a : node.b);
    return builder_.div(other, vector_math::reciprocal_of_sigmoid(builder_, smooth_argument(node_at(sigmoid).a)));
  }

  // Of a product with a constant that is looked up: the factor that is a byte, or -1.
  int byte_factor(const ExprNode& product) const {
    const auto is_byte = [&](int i, int other) {
      const ExprNode& factor = node_at(other);
      return factor.op == ExprOp::constant && std::isfinite(factor.value) &&
             lowest_of_byte(expression_, i, products_).has_value();
    };
    if (is_byte(product.a, product.b)) return product.a;
    return is_byte(product.b, product.a) ? product.b : -1;
  }
  // Where there is no NaN to keep, the bound need not be in a register.
  std::optional<ConstantBound> clamped(const ExprNode& node) const {
    return products_ == BytesTimesConstants::multiplied ? std::nullopt : constant_bound(expression_, node);
  }

  // A byte in each 32-bit lane, less `base`: as it comes in, or clamped first, which rounding to whole bounds allows.
  Id byte_index(int byte, int base) {
    const ExprNode& node = node_at(byte);
    Id whole = -1;
    if (node.op == ExprOp::input) {
      const auto reads = [&](const ExprNode& other) { return other.op == ExprOp::input && other.a == node.a; };
      const auto nodes = std::count_if(expression_.nodes.begin(), expression_.nodes.end(), reads);
      const bool is_free = nodes == 1 && uses_[static_cast<size_t>(byte)] == 1;
      whole = is_free ? builder_.byte_input(node.a) : builder_.to_int(value(byte));
    } else {
      const ConstantBound high = *constant_bound(expression_, node);
      const ConstantBound low = *constant_bound(expression_, node_at(high.value));
      const Id raised = builder_.max(value(node_at(low.value).a), builder_.constant(low.bound));
      whole = builder_.to_int(builder_.min(raised, builder_.constant(high.bound)));
    }
    return base == 0 ? whole : builder_.int_sub(whole, builder_.constant_bits(static_cast<uint32_t>(base)));
  }

  // The product, and `addend`.
  Id look_up_product(const ExprNode& product, int byte, double addend = 0) {
    const double factor = node_at(byte == product.a ? product.b : product.a).value;
    const ByteTables tables = byte_tables(*lowest_of_byte(expression_, byte, products_), factor, addend);
    const Id index = byte_index(byte, tables.base);
    const Id low = builder_.look_up(index, tables.lower);
    return builder_.add(builder_.look_up(builder_.shift_right(index, 4), tables.upper), low);
  }

  Id lower_sum(const ExprNode& node) {
    const bool is_add = node.op == ExprOp::add;
    if (is_merged(node.b)) {
      const ExprNode& product = node_at(node.b);
      if (const int byte = byte_factor(product); byte >= 0) {
        if (is_add && node_at(node.a).op == ExprOp::constant) {
          return look_up_product(product, byte, node_at(node.a).value);
        }
        const Id other = value(node.a), looked_up = look_up_product(product, byte);
        return is_add ? builder_.add(other, looked_up) : builder_.sub(other, looked_up);
      }
      const Id sum = value(node.a), x = value(product.a), y = value(product.b);
      return is_add ? builder_.fma(x, y, sum) : builder_.fnma(x, y, sum);
    }
    if (is_merged(node.a)) {
      const ExprNode& product = node_at(node.a);
      if (const int byte = byte_factor(product); byte >= 0) {
        if (is_add && node_at(node.b).op == ExprOp::constant) {
          return look_up_product(product, byte, node_at(node.b).value);
        }
        const Id looked_up = look_up_product(product, byte), other = value(node.b);
        return is_add ? builder_.add(looked_up, other) : builder_.sub(looked_up, other);
      }
      const Id x = value(product.a), y = value(product.b), sum = value(node.b);
      return is_add ? builder_.fma(x, y, sum) : builder_.fms(x, y, sum);
    }
    return is_add ? builder_.add(value(node.a), value(node.b)) : builder_.sub(value(node.a), value(node.b));
  }

  Id lower_pow(const ExprNode& node) {
    VectorBuilder& b = builder_;
    const Id x = value(node.a), y = value(node.b);
    if (!b.is_constant(y)) return vector_math::pow(b, x, y);
    const float exponent = b.value(y);
    const Id square = b.mul(x, x);
    if (exponent == 0) return one();
    if (exponent == 1) return x;
    if (exponent == 2) return square;
    if (exponent == 3) return b.mul(square, x);
    if (exponent == 4) return b.mul(square, square);
    if (exponent == -1) return b.div(one(), x);
    if (exponent == -2) return b.div(one(), square);
    if (exponent != 0.5F && exponent != -0.5F) return vector_math::pow(b, x, y);
    // pow(-0, 0.5) is 0 and pow(-inf, 0.5) is inf, unlike sqrt.
    const Id infinity = b.constant(std::bit_cast<float>(0x7f800000));
    const Id root = b.select(predicate::equal, x, b.neg(infinity), infinity, b.sqrt(b.add(x, zero())));
    return exponent > 0 ? root : b.div(one(), root);
  }

  Id as_stored(Id x) {
    VectorBuilder& b = builder_;
    const int last = static_cast<int>(expression_.nodes.size()) - 1;
    switch (expression_.output) {
      case DType::u8:
      case DType::i8:
      case DType::u16:
      case DType::i16:
      case DType::i32: {
        const FloatRange range = stored_range(expression_.output);
        return b.min(b.max(x, b.constant(range.low)), b.constant(range.high));
      }
      case DType::boolean:
        return is_truth(last) ? x : b.select(predicate::not_equal, x, zero(), one(), zero());
      case DType::f32:
      case DType::f16:  // rounded by the store
        return x;
      default:
        throw JitError("an expression's result has a type that cannot be stored");
    }
  }

  const Expression& expression_;
  const BytesTimesConstants products_;
  VectorBuilder builder_;
  std::vector<Id> values_;  // by expression node
  std::vector<int> uses_;
  std::vector<bool> is_merged_;
};

}  // namespace

VectorProgram lower_expression(const Expression& expression, Isa isa, BytesTimesConstants products) {
  return Lowering(expression, isa, products).run();
}

}  // namespace lathe
