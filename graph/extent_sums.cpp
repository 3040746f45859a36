#include "graph/extent_sums.h"

#include <algorithm>

#include "graph/passes/rewrite.h"

namespace lathe {
namespace {

constexpr size_t kMostElements = 64;
constexpr int64_t kFarthest = int64_t{1} << 30;  // products of two such numbers do not overflow

ExtentSum number_of(int64_t number) { return {.factors = {}, .number = number}; }

bool is_number(const ExtentSum& sum) { return sum.factors.empty(); }

std::optional<ExtentSum> if_near(ExtentSum sum) {
  const auto is_far = [](int64_t number) { return number < -kFarthest || number > kFarthest; };
  const bool all_near =
      std::none_of(sum.factors.begin(), sum.factors.end(), [&](const auto& entry) { return is_far(entry.second); });
  if (!all_near || is_far(sum.number)) return std::nullopt;
  return sum;
}

std::optional<ExtentSum> scaled(ExtentSum sum, int64_t by) {
  if (by == 0) return number_of(0);
  for (auto& [extent, factor] : sum.factors) factor *= by;
  sum.number *= by;
  return if_near(std::move(sum));
}

std::optional<ExtentSum> added(ExtentSum a, const ExtentSum& b, int64_t sign = 1) {
  for (const auto& [extent, factor] : b.factors) {
    int64_t& sum = a.factors[extent];
    sum += sign * factor;
    if (sum == 0) a.factors.erase(extent);
  }
  a.number += sign * b.number;
  return if_near(std::move(a));
}

std::optional<ExtentSum> product(const ExtentSum& a, const ExtentSum& b) {
  if (is_number(b)) return scaled(a, b.number);
  return is_number(a) ? scaled(b, a.number) : std::nullopt;
}

// Whatever the extents are, none of which is below 0.
bool is_at_least(const ExtentSum& sum, int64_t number) {
  return sum.number >= number &&
         std::all_of(sum.factors.begin(), sum.factors.end(), [](const auto& entry) { return entry.second > 0; });
}

std::optional<ExtentSum> equality(const ExtentSum& a, const ExtentSum& b) {
  const auto difference = added(a, b, -1), opposite = added(b, a, -1);
  if (!difference || !opposite) return std::nullopt;
  if (is_number(*difference)) return number_of(difference->number == 0 ? 1 : 0);
  if (is_at_least(*difference, 1) || is_at_least(*opposite, 1)) return number_of(0);
  return std::nullopt;
}

// A node that only gives elements another shape, or another type that holds extents.
bool keeps_elements(const Graph& graph, const Node& node) {
  const DType type = graph.value(node.outputs[0]).type.dtype;
  if (is_op(node, "Cast")) return type == DType::i64 || type == DType::i32;
  return is_reshape(node) || is_op(node, "Identity");
}

}  // namespace

ExtentSums::ExtentSums(const Graph& graph) : graph_(graph) {
  for (size_t input = 0; input < graph.inputs.size(); ++input) {
    const std::vector<Dim>& dims = graph.value(graph.inputs[input]).type.dims;
    for (size_t axis = 0; axis < dims.size(); ++axis)
      if (!dims[axis].known() && !dims[axis].symbol.empty())
        of_symbol_.try_emplace(dims[axis].symbol, ExtentSum{.factors = {{{input, axis}, 1}}, .number = 0});
  }
  for (const NodeId id : graph.order()) add_node(graph.node(id));
}

std::optional<ExtentSum> ExtentSums::extent(const Dim& dim) const {
  if (dim.known()) return number_of(dim.extent);
  const auto found = of_symbol_.find(dim.symbol);
  return found == of_symbol_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::vector<ExtentSum>> ExtentSums::elements(ValueId id) const {
  const auto found = of_value_.find(id);
  if (found == of_value_.end()) return std::nullopt;
  std::vector<ExtentSum> sums;
  for (const Element& element : found->second) {
    if (!element) return std::nullopt;
    sums.push_back(*element);
  }
  return sums;
}

void ExtentSums::add_node(const Node& node) {
  if (node.outputs.empty() || node.outputs[0] == ValueId::none || node.epilogue || node.captures > 0) return;
  for (const ValueId id : node.inputs) {
    const auto numbers = id == ValueId::none ? std::nullopt : integers_of(graph_, id);
    if (!numbers || numbers->size() > kMostElements || of_value_.contains(id)) continue;
    Elements& elements = of_value_[id];
    for (const int64_t number : *numbers) elements.push_back(if_near(number_of(number)));
  }
  const ValueId result = node.outputs[0];
  name_extents(node, graph_.value(result).type);
  if (auto elements = elements_made_by(node); elements && elements->size() <= kMostElements)
    of_value_.try_emplace(result, std::move(*elements));
}

// Those that inference has names for, but no numbers.
void ExtentSums::name_extents(const Node& node, const TensorType& type) {
  for (size_t axis = 0; axis < type.dims.size(); ++axis) {
    const Dim& dim = type.dims[axis];
    if (dim.known() || dim.symbol.empty() || of_symbol_.contains(dim.symbol)) continue;
    if (Element sum = extent_made_by(node, axis)) of_symbol_.emplace(dim.symbol, *std::move(sum));
  }
}

ExtentSums::Element ExtentSums::extent_made_by(const Node& node, size_t axis) const {
  if (is_op(node, "Concat")) return joined_extent(node, axis);
  if (is_op(node, "ConstantOfShape")) return wanted_extent(node.inputs[0], axis);
  if (is_op(node, "Reshape") && node.inputs.size() > 1) return wanted_extent(node.inputs[1], axis);
  if (is_op(node, "Expand")) {
    // Where one place is spread, or as many as there are.
    const TensorType& from = graph_.value(node.inputs[0]).type;
    const Element wanted = wanted_extent(node.inputs[1], axis);
    const bool has_axis = wanted && from.rank() == graph_.value(node.outputs[0]).type.rank();
    return has_axis && (from.dims[axis].extent == 1 || extent(from.dims[axis]) == wanted) ? wanted : std::nullopt;
  }
  if (is_op(node, "Range")) {
    const auto numbers = elements_made_by(node);
    return numbers ? Element(number_of(static_cast<int64_t>(numbers->size()))) : std::nullopt;
  }
  return std::nullopt;
}

ExtentSums::Element ExtentSums::joined_extent(const Node& concat, size_t axis) const {
  const auto rank = static_cast<int64_t>(graph_.value(concat.outputs[0]).type.dims.size());
  const int64_t joined = concat.attributes.get_int("axis", 0);
  if (static_cast<int64_t>(axis) != (joined < 0 ? joined + rank : joined)) return std::nullopt;
  Element sum = number_of(0);
  for (const ValueId part : concat.inputs) {
    const TensorType& type = graph_.value(part).type;
    const Element more = type.rank() == rank ? extent(type.dims[axis]) : std::nullopt;
    sum = sum && more ? added(*std::move(sum), *more) : std::nullopt;
  }
  return sum;
}

// Of a shape that is told. 0 and -1 have meanings of their own.
ExtentSums::Element ExtentSums::wanted_extent(ValueId shape, size_t axis) const {
  const Elements* wanted = known_elements(shape);
  if (wanted == nullptr || axis >= wanted->size()) return std::nullopt;
  const Element& extent = (*wanted)[axis];
  return extent && is_at_least(*extent, 1) ? extent : std::nullopt;
}

const ExtentSums::Elements* ExtentSums::known_elements(ValueId id) const {
  const auto found = of_value_.find(id);
  return found == of_value_.end() ? nullptr : &found->second;
}

std::optional<ExtentSums::Elements> ExtentSums::elements_made_by(const Node& node) const {
  if (is_op(node, "Shape")) return shape_of(node);
  std::vector<const Elements*> operands;
  for (const ValueId id : node.inputs) operands.push_back(id == ValueId::none ? nullptr : known_elements(id));
  if (operands.empty() || operands[0] == nullptr) return std::nullopt;
  if (keeps_elements(graph_, node)) return *operands[0];
  const bool all_known = std::none_of(operands.begin(), operands.end(), [](const auto* one) { return one == nullptr; });
  if (!all_known) return std::nullopt;
  if (is_op(node, "Concat")) return joined(node);
  if (is_one_of(node, {"Gather", "Slice"})) return picked(node);
  if (is_op(node, "Range")) return counted(node);
  if (is_one_of(node, {"Add", "Sub", "Mul", "Equal", "Where"})) return combined(node, operands);
  return std::nullopt;
}

std::optional<ExtentSums::Elements> ExtentSums::shape_of(const Node& node) const {
  const TensorType& type = graph_.value(node.inputs[0]).type;
  if (!type.has_rank) return std::nullopt;
  Elements elements;
  const int64_t rank = type.rank(), start = node.attributes.get_int("start", 0),
                end = node.attributes.get_int("end", rank);
  const auto place = [&](int64_t axis) { return std::clamp<int64_t>(axis < 0 ? axis + rank : axis, 0, rank); };
  for (int64_t axis = place(start); axis < place(end); ++axis)
    elements.push_back(extent(type.dims[static_cast<size_t>(axis)]));
  return elements;
}

ExtentSums::Elements ExtentSums::joined(const Node& node) const {
  Elements all;
  for (const ValueId id : node.inputs) {
    const Elements& part = *known_elements(id);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

// Of a list.
std::optional<ExtentSums::Elements> ExtentSums::picked(const Node& node) const {
  const Elements& whole = *known_elements(node.inputs[0]);
  const auto size = static_cast<int64_t>(whole.size());
  if (graph_.value(node.inputs[0]).type.rank() != 1) return std::nullopt;
  const auto at = [&](int64_t place) { return place < 0 ? place + size : place; };
  Elements some;
  if (is_op(node, "Gather")) {
    const auto places = integers_of(graph_, node.inputs[1]);
    if (!places) return std::nullopt;
    for (const int64_t place : *places)
      some.push_back(at(place) >= 0 && at(place) < size ? whole[static_cast<size_t>(at(place))] : std::nullopt);
    return some;
  }
  if (node.inputs.size() < 3) return std::nullopt;
  const auto starts = integer_of(graph_, node.inputs[1]), ends = integer_of(graph_, node.inputs[2]);
  const ValueId steps = input_or_none(node, 4);
  if (!starts || !ends || (steps != ValueId::none && integer_of(graph_, steps) != 1)) return std::nullopt;
  const int64_t last = std::clamp<int64_t>(at(*ends), 0, size);
  for (int64_t place = std::clamp<int64_t>(at(*starts), 0, size); place < last; ++place)
    some.push_back(whole[static_cast<size_t>(place)]);
  return some;
}

// A Range of a number of elements that is the same for all extents.
std::optional<ExtentSums::Elements> ExtentSums::counted(const Node& node) const {
  const auto one = [&](size_t slot) {
    const Elements& elements = *known_elements(node.inputs[slot]);
    return elements.size() == 1 ? elements[0] : std::nullopt;
  };
  const Element start = one(0), limit = one(1), step = one(2);
  const Element count = start && limit && step == number_of(1) ? added(*limit, *start, -1) : std::nullopt;
  if (!count || !is_number(*count) || count->number > static_cast<int64_t>(kMostElements)) return std::nullopt;
  Elements numbers;
  for (int64_t i = 0; i < count->number; ++i) numbers.push_back(added(*start, number_of(i)));
  return numbers;
}

std::optional<ExtentSums::Elements> ExtentSums::combined(const Node& node,
                                                         const std::vector<const Elements*>& operands) const {
  size_t size = 1;
  for (const Elements* operand : operands)
    if (operand->size() != 1) size = operand->size();
  const bool all_fit = std::all_of(operands.begin(), operands.end(),
                                   [&](const Elements* one) { return one->size() == size || one->size() == 1; });
  if (!all_fit) return std::nullopt;
  Elements results;
  for (size_t i = 0; i < size; ++i) {
    const auto of = [&](size_t slot) { return (*operands[slot])[operands[slot]->size() == 1 ? 0 : i]; };
    const Element a = of(0), b = of(1);
    if (is_op(node, "Where"))
      results.push_back(a && is_number(*a) ? (a->number != 0 ? b : of(2)) : std::nullopt);
    else if (!a || !b)
      results.push_back(std::nullopt);
    else if (is_op(node, "Equal"))
      results.push_back(equality(*a, *b));
    else
      results.push_back(is_op(node, "Mul") ? product(*a, *b) : added(*a, *b, is_op(node, "Sub") ? -1 : 1));
  }
  return results;
}

}  // namespace lathe
