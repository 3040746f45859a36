#include "ops/int8/int8_chains.h"

#include <algorithm>

namespace lathe {
namespace {

// How many nodes read each one.
std::vector<int> readers_of(const Expression& e) {
  std::vector<int> readers(e.nodes.size(), 0);
  for (const ExprNode& node : e.nodes) {
    if (node.op == ExprOp::input) continue;
    for (const int operand : {node.a, node.b, node.c}) {
      if (operand >= 0) ++readers[static_cast<size_t>(operand)];
    }
  }
  return readers;
}

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
  // `changes`: of inputs that may take in constants, else null.
  ChainWriter(const Expression& e, bool coarse, std::vector<InputChange*> changes = {})
      : e_(e), coarse_(coarse), changes_(std::move(changes)), moved_(e.nodes.size(), -1) {
    readers_ = readers_of(e);
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
    absorb(form);
    int sum = -1;
    const auto join = [&](int next) { sum = sum < 0 ? next : result_.add({.op = ExprOp::add, .a = next, .b = sum}); };
    if (const auto value = static_cast<float>(form.constant); value != 0) join(constant(value));
    for (size_t i = values.size(); i-- > 0;) {
      const auto factor = static_cast<float>(form.terms[i].factor);
      join(factor == 1 ? values[i] : binary(ExprOp::mul, values[i], factor));
    }
    return sum;
  }

  // An input that may change takes in its factor and the constant.
  void absorb(LinearForm& form) const {
    for (LinearForm::Term& term : form.terms) {
      const ExprNode& node = e_.nodes[static_cast<size_t>(term.node)];
      if (node.op != ExprOp::input || static_cast<size_t>(node.a) >= changes_.size()) continue;
      InputChange* change = changes_[static_cast<size_t>(node.a)];
      if (change == nullptr || readers_[static_cast<size_t>(term.node)] != 1) continue;
      *change = {term.factor, form.constant};
      term.factor = 1;
      form.constant = 0;
      return;
    }
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
  const std::vector<InputChange*> changes_;  // by slot
  std::vector<int> moved_, readers_;
  Expression result_;
};

}  // namespace

Expression write_chains(const Expression& expression, bool coarse, const std::vector<InputChange*>& changes) {
  return ChainWriter(expression, coarse, changes).write();
}

void join_requantization(Expression& e) {
  if (!stores_bytes({e.output})) return;
  const std::vector<int> readers = readers_of(e);
  const auto is_byte = [&](const LinearForm::Term& term) {
    const ExprNode& node = e.nodes[static_cast<size_t>(term.node)];
    return node.op == ExprOp::input && stores_bytes({e.inputs[static_cast<size_t>(node.a)]});
  };
  Expression joined{.inputs = e.inputs, .output = e.output};
  std::vector<int> moved;
  for (size_t i = 0; i < e.nodes.size(); ++i) {
    ExprNode node = e.nodes[i];
    if (node.op == ExprOp::div && is_constant(e, node.b) && has_reciprocal(constant_at(e, node.b))) {
      LinearForm form(e, readers);
      form.add(node.a, 1 / double{constant_at(e, node.b)});
      // A byte among them: what is divided has been rounded before.
      if (std::any_of(form.terms.begin(), form.terms.end(), is_byte)) {
        int sum = joined.add({.op = ExprOp::constant, .value = static_cast<float>(form.constant)});
        for (const LinearForm::Term& term : form.terms) {
          const int factor = joined.add({.op = ExprOp::constant, .value = static_cast<float>(term.factor)});
          const int product = joined.add({.op = ExprOp::mul, .a = moved[static_cast<size_t>(term.node)], .b = factor});
          sum = joined.add({.op = ExprOp::add, .a = product, .b = sum});
        }
        moved.push_back(sum);
        continue;
      }
    }
    if (node.op != ExprOp::input) {
      for (int* operand : {&node.a, &node.b, &node.c}) {
        if (*operand >= 0) *operand = moved[static_cast<size_t>(*operand)];
      }
    }
    moved.push_back(joined.add(node));
  }
  e = std::move(joined);
}

}  // namespace lathe
