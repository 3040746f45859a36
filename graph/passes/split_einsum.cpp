// An Einsum of several operands becomes Einsums of two, the cheapest first; what sums along an axis of one operand
// alone becomes ReduceSum, and what sums nothing Mul of operands that spread.
#include <algorithm>
#include <map>

#include "graph/passes/einsum_letters.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kVersion = 13;  // of Mul, ReduceSum, Transpose and Unsqueeze
constexpr int kEinsumVersion = 12;
constexpr size_t kMostOperands = 16;  // pairs of them are tried
using Ints = std::vector<int64_t>;

struct Term {
  ValueId value = ValueId::none;
  std::string letters;
};

class Splitter {
 public:
  Splitter(Rewriter& rewriter, const PassContext& context, NodeId id)
      : rewriter_(rewriter), graph_(rewriter.graph()), context_(context), id_(id) {}

  void split() {
    const Node& node = graph_.node(id_);
    if (!is_op(node, "Einsum") || node.epilogue || node.outputs[0] == ValueId::none) return;
    if (node.inputs.size() > kMostOperands) return;
    const std::optional<EinsumLetters> equation = letters_of(node);
    if (!equation || !collect(node, *equation)) return;
    result_ = equation->result;
    const ValueId output = node.outputs[0];
    if (terms_.size() < 3 && !sums_alone() && !(terms_.size() == 2 && sums_nothing(terms_[0], terms_[1], result_))) {
      return;
    }
    for (size_t i = 0; i < terms_.size(); ++i) reduce(i);
    while (terms_.size() > 1) join_cheapest();
    const ValueId made = turned(terms_[0], result_).value;
    rewriter_.erase(id_);
    rewriter_.move_output(output, graph_.value(made).producer);
  }

 private:
  // Extents of a letter are certainly equal wherever it stands: none of them spreads.
  bool collect(const Node& node, const EinsumLetters& equation) {
    for (size_t i = 0; i < equation.operands.size(); ++i) {
      const std::string& letters = equation.operands[i];
      const TensorType& type = graph_.value(node.inputs[i]).type;
      if (type.dtype != DType::f32 || !type.has_rank || type.dims.size() != letters.size()) return false;
      for (size_t axis = 0; axis < letters.size(); ++axis) {
        const auto [found, is_new] = dims_.try_emplace(letters[axis], type.dims[axis]);
        if (!is_new && !same_dim(found->second, type.dims[axis])) return false;
      }
      terms_.push_back({node.inputs[i], letters});
    }
    return std::all_of(equation.result.begin(), equation.result.end(), [&](char c) { return dims_.contains(c); });
  }

  // Is the letter in the result, or in a term that is none of those two?
  bool is_needed(char letter, size_t a, size_t b) const {
    if (has(result_, letter)) return true;
    for (size_t i = 0; i < terms_.size(); ++i) {
      if (i != a && i != b && has(terms_[i].letters, letter)) return true;
    }
    return false;
  }

  bool sums_alone() const {
    for (size_t i = 0; i < terms_.size(); ++i) {
      for (const char letter : terms_[i].letters) {
        if (!is_needed(letter, i, i)) return true;
      }
    }
    return false;
  }

  static bool sums_nothing(const Term& a, const Term& b, const std::string& kept) {
    const auto is_kept = [&](char letter) { return has(kept, letter); };
    return std::all_of(a.letters.begin(), a.letters.end(), is_kept) &&
           std::all_of(b.letters.begin(), b.letters.end(), is_kept);
  }

  TensorType type_of(const std::string& letters) const {
    TensorType type = graph_.value(terms_[0].value).type;
    type.dims.clear();
    for (const char letter : letters) type.dims.push_back(dims_.at(letter));
    return type;
  }

  Term added(std::string_view op, int version, std::vector<ValueId> inputs, const std::string& letters, TensorType type,
             const std::function<void(Attributes&)>& set = nullptr) {
    const ValueId made = rewriter_.add_value(graph_.value(inputs[0]).name, std::move(type));
    Node node{.op = &context_.ops.require("", op, version),
              .version = version,
              .name = "",
              .inputs = std::move(inputs),
              .outputs = {made}};
    if (set) set(node.attributes);
    rewriter_.add(std::move(node), id_);
    return {made, letters};
  }

  // Without the letters that nobody else has.
  void reduce(size_t i) {
    Term& term = terms_[i];
    Ints axes;
    for (size_t axis = 0; axis < term.letters.size(); ++axis) {
      if (!is_needed(term.letters[axis], i, i)) axes.push_back(static_cast<int64_t>(axis));
    }
    if (axes.empty()) return;
    const std::string left = those(term.letters, [&](char letter) { return is_needed(letter, i, i); });
    term = added("ReduceSum", kVersion, {term.value, rewriter_.add_integers("axes", axes)}, left, type_of(left),
                 [](Attributes& attributes) { attributes.set("keepdims", int64_t{0}); });
  }

  Term turned(const Term& term, const std::string& letters) {
    if (term.letters == letters) return term;
    Ints perm;
    for (const char letter : letters) perm.push_back(static_cast<int64_t>(term.letters.find(letter)));
    return added("Transpose", kVersion, {term.value}, letters, type_of(letters),
                 [&](Attributes& attributes) { attributes.set("perm", perm); });
  }

  // The term with axes of one element where it lacks a letter.
  ValueId spread(const Term& term, const std::string& letters) {
    const Term in_order = turned(term, those(letters, [&](char c) { return has(term.letters, c); }));
    if (in_order.letters == letters) return in_order.value;
    Ints axes;
    TensorType type = type_of(letters);
    for (size_t i = 0; i < letters.size(); ++i) {
      if (has(term.letters, letters[i])) continue;
      axes.push_back(static_cast<int64_t>(i));
      type.dims[i] = {1, ""};
    }
    return added("Unsqueeze", kVersion, {in_order.value, rewriter_.add_integers("axes", axes)}, letters,
                 std::move(type))
        .value;
  }

  double multiplications(size_t a, size_t b) const {
    constexpr double kUnknownExtent = 64;
    double count = 1;
    const std::string& other = terms_[b].letters;
    for (const char letter : terms_[a].letters + those(other, [&](char c) { return !has(terms_[a].letters, c); })) {
      const Dim& dim = dims_.at(letter);
      count *= dim.known() ? static_cast<double>(dim.extent) : kUnknownExtent;
    }
    return count;
  }

  void join_cheapest() {
    size_t a = 0, b = 1;
    for (size_t i = 0; i < terms_.size(); ++i) {
      for (size_t j = i + 1; j < terms_.size(); ++j) {
        if (multiplications(i, j) < multiplications(a, b)) a = i, b = j;
      }
    }
    const Term joined = join(terms_[a], terms_[b], kept_letters(a, b));
    terms_.erase(terms_.begin() + static_cast<std::ptrdiff_t>(b));
    terms_[a] = joined;
  }

  // Of the product of these two terms, in the result's order if they are the last ones.
  std::string kept_letters(size_t a, size_t b) const {
    if (terms_.size() == 2) return result_;
    const std::string &x = terms_[a].letters, &y = terms_[b].letters;
    const auto joins = [&](char c) { return is_needed(c, a, b); };
    const std::string longer = x.size() >= y.size() ? x : y, shorter = x.size() >= y.size() ? y : x;
    const bool is_inside = std::all_of(shorter.begin(), shorter.end(), [&](char c) { return has(longer, c); });
    if (is_inside) return those(longer, joins);
    return those(x, [&](char c) { return has(y, c) && joins(c); }) +
           those(x, [&](char c) { return !has(y, c) && joins(c); }) +
           those(y, [&](char c) { return !has(x, c) && joins(c); });
  }

  Term join(const Term& a, const Term& b, const std::string& kept) {
    if (sums_nothing(a, b, kept)) {
      const ValueId left = spread(a, kept), right = spread(b, kept);
      return added("Mul", kVersion, {left, right}, kept, type_of(kept));
    }
    return added("Einsum", kEinsumVersion, {a.value, b.value}, kept, type_of(kept), [&](Attributes& attributes) {
      attributes.set("equation", a.letters + "," + b.letters + "->" + kept);
    });
  }

  Rewriter& rewriter_;
  Graph& graph_;
  const PassContext& context_;
  NodeId id_;
  std::vector<Term> terms_;
  std::map<char, Dim> dims_;
  std::string result_;
};

}  // namespace

bool split_einsum(Graph& graph, const PassContext& context) {
  for (const std::string_view op : {"Einsum", "Mul", "ReduceSum", "Transpose", "Unsqueeze"}) {
    if (context.ops.find("", op, kVersion) == nullptr) return false;
  }
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { Splitter(rewriter, context, id).split(); });
}

}  // namespace lathe::passes
