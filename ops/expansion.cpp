#include "ops/expansion.h"

#include <algorithm>
#include <numeric>

#include "graph/infer.h"
#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"

namespace lathe {
namespace {

// Names that inference made up for extents of the outer graph would mean something else in the inner one.
constexpr std::string_view kOuter = "outer:";

TensorType marked(TensorType type) {
  for (Dim& dim : type.dims) {
    if (dim.symbol.starts_with('?')) dim.symbol.insert(0, kOuter);
  }
  return type;
}

TensorType unmarked(TensorType type) {
  type = without_inferred_symbols(std::move(type));
  for (Dim& dim : type.dims) {
    if (dim.symbol.starts_with(kOuter)) dim.symbol.erase(0, kOuter.size());
  }
  return type;
}

// A graph of the node alone. Its inputs are set by `add_input(graph, i)`.
template <class AddInput>
void make_graph(Graph& graph, const Node& node, size_t inputs, AddInput add_input) {
  Node copy = node;
  copy.epilogue.reset();
  copy.inputs.clear();
  for (size_t i = 0; i < inputs; ++i) copy.inputs.push_back(add_input(i));
  for (size_t i = 0; i < copy.outputs.size(); ++i) {
    if (copy.outputs[i] == ValueId::none) continue;
    copy.outputs[i] = graph.add_value("output" + std::to_string(i), {});
    graph.outputs.push_back(copy.outputs[i]);
  }
  graph.add_node(std::move(copy));
}

}  // namespace

void infer_by_expansion(InferContext& context) {
  Graph graph;
  make_graph(graph, context.node, static_cast<size_t>(context.input_count()), [&](size_t slot) {
    const int i = static_cast<int>(slot);
    const std::string name = "input" + std::to_string(i);
    if (!context.has_input(i)) return ValueId::none;
    if (const Tensor known = context.constant(i); known.defined()) return graph.add_constant(name, known);
    graph.inputs.push_back(graph.add_value(name, marked(context.input(i))));
    return graph.inputs.back();
  });
  if (!expand_nodes(graph, OpRegistry::builtin())) {
    for (int i = 0; i < context.output_count(); ++i) {
      context.set_output(i, TensorType::unranked(context.has_input(0) ? context.input(0).dtype : DType::undefined));
    }
    return;
  }
  infer_types(graph);
  size_t given = 0;
  for (int i = 0; i < context.output_count(); ++i) {
    if (context.node.outputs[static_cast<size_t>(i)] == ValueId::none) continue;
    context.set_output(i, unmarked(graph.value(graph.outputs[given++]).type));
  }
}

void reference_by_expansion(ReferenceContext& context) {
  Graph graph;
  make_graph(graph, context.node, context.inputs.size(), [&](size_t i) {
    if (!context.inputs[i].defined()) return ValueId::none;
    return graph.add_constant("input" + std::to_string(i), context.inputs[i]);
  });
  if (!expand_nodes(graph, OpRegistry::builtin())) context.fail("these inputs are not supported");
  std::vector<Tensor> results = run_reference_graph(graph, {}, context.limits);
  size_t given = 0;
  for (size_t i = 0; i < context.outputs.size(); ++i) {
    if (context.node.outputs[i] != ValueId::none) context.outputs[i] = std::move(results[given++]);
  }
}

OpDef composite(std::string_view name, int min_inputs, int max_inputs, ExpandFn* expand,
                std::vector<AttributeSpec> attributes) {
  OpDef def;
  def.schema.name = name;
  def.schema.domain = kMicrosoft;
  def.schema.min_inputs = min_inputs;
  def.schema.max_inputs = max_inputs;
  def.schema.attributes = std::move(attributes);
  def.schema.infer = infer_by_expansion;
  def.schema.reference = reference_by_expansion;
  def.schema.expand = expand;
  return def;
}

void require_inputs(const ExpandContext& context, std::initializer_list<int> inputs) {
  for (const int i : inputs) {
    if (!context.has_input(i)) context.fail("required input " + std::to_string(i) + " is absent");
  }
}

ValueId add_scalar(ExpandContext& context, DType dtype, double value) {
  Tensor tensor(dtype, {});
  store_real(tensor, 0, value);
  return context.constant(std::move(tensor));
}

Attributes copied_attributes(const Node& node, std::initializer_list<std::string_view> names) {
  Attributes copy;
  for (const std::string_view name : names) {
    if (const Attribute* value = node.attributes.find(name)) copy.set(std::string(name), *value);
  }
  return copy;
}

ValueId add_transposed(ExpandContext& context, ValueId x, std::vector<int64_t> permutation) {
  return context.add("Transpose", {x}, {{"perm", std::move(permutation)}});
}

namespace {

// Of a picture, before its channels move.
std::vector<int64_t> axes_of(const ExpandContext& context, int rank) {
  if (rank < 2) context.fail("a picture has rank " + std::to_string(rank) + ", expected at least 2");
  std::vector<int64_t> axes(static_cast<size_t>(rank));
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

}  // namespace

ValueId add_channels_first(ExpandContext& context, ValueId x, int rank) {
  std::vector<int64_t> permutation = axes_of(context, rank);
  std::rotate(permutation.begin() + 1, permutation.end() - 1, permutation.end());
  return add_transposed(context, x, std::move(permutation));
}

ValueId add_channels_last(ExpandContext& context, ValueId x, int rank) {
  std::vector<int64_t> permutation = axes_of(context, rank);
  std::rotate(permutation.begin() + 1, permutation.begin() + 2, permutation.end());
  return add_transposed(context, x, std::move(permutation));
}

std::vector<ValueId> add_split(ExpandContext& context, ValueId x, int64_t axis, const std::vector<int64_t>& lengths) {
  const Dims dims{static_cast<int64_t>(lengths.size())};
  const ValueId sizes = context.constant(Tensor::from<int64_t>(dims, std::span<const int64_t>(lengths)));
  Attributes attributes;
  attributes.set("axis", axis);
  return context.add_many("Split", {x, sizes}, static_cast<int>(lengths.size()), std::move(attributes));
}

ValueId add_activation(ExpandContext& context, ValueId x, const std::string& name,
                       const std::vector<float>& parameters) {
  if (name.empty()) return x;
  if (name == "Clip") {
    const DType dtype = context.type(x).dtype;
    const auto bound = [&](size_t i) {
      return i < parameters.size() ? add_scalar(context, dtype, static_cast<double>(parameters[i])) : ValueId::none;
    };
    const ValueId low = bound(0), high = bound(1);
    return context.add("Clip", {x, low, high});
  }
  static constexpr std::string_view kWithout[] = {"Relu",     "Sigmoid",   "Tanh", "Softplus",
                                                  "Softsign", "HardSwish", "Mish"};
  static constexpr std::string_view kWithAlpha[] = {"LeakyRelu", "Elu", "ThresholdedRelu", "Celu"};
  static constexpr std::string_view kWithBeta[] = {"HardSigmoid"};
  static constexpr std::string_view kWithGamma[] = {"Selu"};
  const auto is_in = [&](std::span<const std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  Attributes attributes;
  const auto take = [&](size_t i, const char* attribute) {
    if (i < parameters.size()) attributes.set(attribute, parameters[i]);
  };
  if (!is_in(kWithout)) take(0, "alpha");
  if (is_in(kWithBeta)) take(1, "beta");
  if (is_in(kWithGamma)) take(1, "gamma");
  if (!is_in(kWithout) && !is_in(kWithAlpha) && !is_in(kWithBeta) && !is_in(kWithGamma)) {
    context.unsupported("activation '" + name + "'");
  }
  return context.add(name, {x}, std::move(attributes));
}

ValueId add_dequantized(ExpandContext& context, ValueId x, ValueId scale, ValueId zero_point) {
  return context.add("DequantizeLinear", {x, scale, zero_point});
}

ValueId add_quantized(ExpandContext& context, ValueId y, ValueId scale, ValueId zero_point, DType dtype) {
  if (zero_point == ValueId::none) zero_point = add_scalar(context, dtype, 0);
  return context.add("QuantizeLinear", {y, scale, zero_point});
}

}  // namespace lathe
