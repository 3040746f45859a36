#include "src/base/expression_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <map>
#include <utility>

namespace lathe {
namespace {

using Named = std::pair<std::string_view, ExprOp>;

constexpr std::array<Named, 21> kCalls = {
    {{"neg", ExprOp::neg},         {"abs", ExprOp::abs},     {"sqrt", ExprOp::sqrt}, {"reciprocal", ExprOp::reciprocal},
     {"exp", ExprOp::exp},         {"log", ExprOp::log},     {"erf", ExprOp::erf},   {"tanh", ExprOp::tanh},
     {"sigmoid", ExprOp::sigmoid}, {"floor", ExprOp::floor}, {"ceil", ExprOp::ceil}, {"round_even", ExprOp::round_even},
     {"sin", ExprOp::sin},         {"cos", ExprOp::cos},     {"sign", ExprOp::sign}, {"not", ExprOp::logical_not},
     {"is_nan", ExprOp::is_nan},   {"min", ExprOp::min},     {"max", ExprOp::max},   {"pow", ExprOp::pow},
     {"select", ExprOp::select}}};
// Longer ones before their beginnings.
constexpr std::array<Named, 9> kInfix = {{{" + ", ExprOp::add},
                                          {" - ", ExprOp::sub},
                                          {" * ", ExprOp::mul},
                                          {" / ", ExprOp::div},
                                          {" == ", ExprOp::equal},
                                          {" <= ", ExprOp::less_equal},
                                          {" < ", ExprOp::less},
                                          {" && ", ExprOp::logical_and},
                                          {" || ", ExprOp::logical_or}}};

class Reader {
 public:
  explicit Reader(TextReader& text) : text_(text) {}

  Expression read() {
    while (is_definition()) {
      const std::string name = std::string(text_.until(" "));
      text_.expect(" = ");
      const int value = infix();
      text_.expect("; ");
      names_.insert_or_assign(name, value);
    }
    infix();
    if (text_.starts_with(" [")) read_types();
    return std::move(expression_);
  }

 private:
  // "t0 = ..."
  bool is_definition() const {
    const std::string_view rest = text_.rest();
    return rest.starts_with("t") && rest.substr(0, rest.find(' ')).find('(') == std::string_view::npos &&
           rest.find(' ') != std::string_view::npos && rest.substr(rest.find(' ')).starts_with(" = ");
  }

  int infix() {
    if (++depth_ > kDeepest) text_.fail("the expression is nested too deeply");
    const int result = nested_infix();
    --depth_;
    return result;
  }

  int nested_infix() {
    const int left = operand();
    for (const auto& [word, op] : kInfix) {
      if (!text_.accept(word)) continue;
      const int right = operand();
      return expression_.add({op, left, right});
    }
    return left;
  }

  int operand() {
    if (text_.accept("(")) {
      const int inside = infix();
      text_.expect(")");
      return inside;
    }
    for (const auto& [name, op] : kCalls) {
      if (text_.accept(std::string(name) + "(")) return call(op);
    }
    if (text_.accept("nan")) return constant(std::numeric_limits<float>::quiet_NaN());
    if (text_.accept("x")) return input(text_.integer());
    if (text_.starts_with("t")) {
      text_.expect("t");
      const auto found = names_.find("t" + std::to_string(text_.integer()));
      if (found == names_.end()) text_.fail("a name that has no value");
      return found->second;
    }
    return constant(text_.real());
  }

  int call(ExprOp op) {
    std::array<int, 3> operands = {-1, -1, -1};
    size_t count = 0;
    do {
      if (count == operands.size()) text_.fail("too many operands");
      operands[count++] = infix();
    } while (text_.accept(", "));
    text_.expect(")");
    const size_t wanted = op == ExprOp::select                                          ? 3
                          : op == ExprOp::min || op == ExprOp::max || op == ExprOp::pow ? 2
                                                                                        : 1;
    if (count != wanted) text_.fail("another number of operands is due");
    return expression_.add({op, operands[0], operands[1], operands[2]});
  }

  int constant(float value) { return expression_.add({.op = ExprOp::constant, .value = value}); }
  int input(int64_t number) {
    constexpr int64_t kMostInputs = 1 << 10;
    if (number < 0 || number >= kMostInputs) text_.fail("no such input");
    if (static_cast<size_t>(number) >= expression_.inputs.size())
      expression_.inputs.resize(static_cast<size_t>(number) + 1, DType::f32);
    return expression_.add({ExprOp::input, static_cast<int>(number)});
  }

  void read_types() {
    text_.expect(" [");
    std::vector<DType> inputs;
    while (!text_.accept("-> ")) {
      inputs.push_back(type());
      text_.accept(" ");
    }
    if (inputs.size() < expression_.inputs.size()) text_.fail("an input has no type");
    expression_.inputs = std::move(inputs);
    expression_.output = type();
    text_.expect("]");
  }
  DType type() {
    const std::string_view name = text_.until(" ]");
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::u8, DType::i8, DType::u16, DType::i16,
                              DType::i32, DType::i64, DType::boolean}) {
      if (name_of(dtype) == name) return dtype;
    }
    text_.fail("no such type");
  }

  TextReader& text_;
  Expression expression_;
  std::map<std::string, int> names_;
  static constexpr int kDeepest = 1000;  // protects the recursion
  int depth_ = 0;
};

}  // namespace

Expression read_expression(TextReader& text) { return Reader(text).read(); }

}  // namespace lathe
