#include "graph/infer.h"

#include <algorithm>
#include <limits>

#include "graph/passes/rewrite.h"
#include "graph/text.h"
#include "lathe/error.h"

namespace lathe {
namespace {

// Bodies may infer their bodies more than once each (a Loop looks for a fixed point): deeper ones stay unknown, so that
// nesting cannot cost exponential time.
constexpr int kInferredBodyDepth = 8;
// What is folded here is shape arithmetic; anything larger is left to the fold-constants pass.
constexpr int64_t kFoldedElements = 4096;
constexpr int64_t kFoldedInputElements = 65536;

using Types = std::span<const TensorType* const>;

// What a node's inputs are, where it lies: this is asked for every node of a graph, several times for each new shape.
class Operands {
 public:
  Operands(const Graph& graph, const Node& node) {
    types_.reserve(node.inputs.size());
    constants_.reserve(node.inputs.size());
    for (const ValueId id : node.inputs) {
      types_.push_back(id == ValueId::none ? &kNoType : without_layout(graph.value(id).type));
      constants_.push_back(id == ValueId::none ? &kNoTensor : &graph.value(id).constant);
    }
  }
  Types types() const { return types_; }
  std::span<const Tensor* const> constants() const { return constants_; }

 private:
  // Layouts are not the operators' business.
  const TensorType* without_layout(const TensorType& type) {
    if (type.layout.channel_block == 0) return &type;
    plain_.reserve(types_.capacity());  // they stay where they are
    plain_.push_back(type);
    plain_.back().layout = {};
    return &plain_.back();
  }

  static inline const TensorType kNoType;
  static inline const Tensor kNoTensor;
  std::vector<const TensorType*> types_;
  std::vector<const Tensor*> constants_;
  std::vector<TensorType> plain_;
};

class Inference {
 public:
  Inference(const Limits& limits, int depth) : limits_(limits), depth_(depth) {}

  std::vector<TensorType> outputs_of(const Graph& graph, const Node& node) const {
    const Operands all(graph, node);
    const size_t own = node.own_input_count();
    const Types types = all.types();
    InferContext context(node, types.first(own), all.constants().first(own));
    reject_objects(node, types.first(own));
    if (has_bodies(node)) {
      context.infer_body = [&](const Graph& body, std::span<const TensorType> inputs) {
        return body_outputs(body, inputs, types.subspan(own, static_cast<size_t>(node.captures)));
      };
    }
    std::vector<TensorType> outputs = inferred_or_unknown(context, types.first(own));
    if (node.epilogue && !outputs.empty()) {
      if (is_pointwise(node)) outputs[0] = broadcast_of(node, types);
      outputs[0].dtype = node.epilogue->expression.output;
    }
    return outputs;
  }

  void run(Graph& graph) {
    std::vector<NodeId> kept;
    bool folded_any = false;
    for (const NodeId id : graph.order()) {
      infer_one(graph, graph.node(id));
      if (fold_small(graph, id)) {
        folded_any = true;
      } else {
        kept.push_back(id);
      }
    }
    if (folded_any) graph.set_order(std::move(kept));
    has_changed_ = has_changed_ || folded_any;
  }

  bool has_changed() const { return has_changed_; }

 private:
  // A body's formal inputs may be declared without a type, which only a run makes known: until then nothing about what
  // they feed is an error.
  static std::vector<TensorType> inferred_or_unknown(InferContext& context, Types types) {
    bool is_untyped = false;
    for (size_t i = 0; i < types.size(); ++i) {
      const bool is_known = context.node.inputs[i] == ValueId::none || types[i]->is_object();
      is_untyped = is_untyped || (!is_known && types[i]->dtype == DType::undefined);
    }
    try {
      context.node.op->infer(context);
      return context.take_outputs();
    } catch (const Error&) {
      if (!is_untyped) throw;
      return std::vector<TensorType>(context.node.outputs.size());
    }
  }

  static void reject_objects(const Node& node, Types inputs) {
    if (node.op->takes_objects) return;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!inputs[i]->is_object()) continue;
      throw Error(ErrorCode::invalid_model, describe(node) + ": input " + std::to_string(i) + " is " +
                                                to_string(*inputs[i]) + ", expected a tensor");
    }
  }

  static bool is_pointwise(const Node& node) { return node.op->domain == "lathe" && node.op->name == "Pointwise"; }

  // numpy's rule over all operands, the epilogue's included.
  static TensorType broadcast_of(const Node& node, Types types) {
    int rank = 0;
    for (const TensorType* type : types) {
      if (!type->has_rank) return TensorType::unranked(DType::undefined);
      rank = std::max(rank, type->rank());
    }
    TensorType result{DType::undefined, true, std::vector<Dim>(static_cast<size_t>(rank), Dim{1, ""}), {}};
    for (const TensorType* each : types) {
      const TensorType& type = *each;
      for (int i = 0; i < type.rank(); ++i) {
        Dim& into = result.dims[static_cast<size_t>(rank - type.rank() + i)];
        const Dim& from = type.dims[static_cast<size_t>(i)];
        if (from == into || from.extent == 1) continue;
        if (into.extent == 1) {
          into = from;
        } else if (into.known() && from.known()) {
          throw Error(ErrorCode::invalid_model, describe(node) + ": operands do not broadcast: " + to_string(type));
        } else if (from.known()) {
          into = from;  // an unknown extent beside a known one > 1 must be 1 or equal to it
        } else if (!into.known()) {
          into = Dim();
        }
      }
    }
    return result;
  }

  std::vector<TensorType> body_outputs(const Graph& body, std::span<const TensorType> inputs, Types captured) const {
    Graph copy = body;
    bool is_inferred = false;
    if (depth_ < kInferredBodyDepth) {
      const size_t given = std::min(inputs.size(), copy.inputs.size());
      for (size_t i = 0; i < given; ++i) bind(copy, copy.inputs[i], inputs[i]);
      // Callers may pass the captures themselves or leave them to us.
      if (inputs.size() + captured.size() == copy.inputs.size()) {
        for (size_t i = 0; i < captured.size(); ++i) bind(copy, copy.inputs[inputs.size() + i], *captured[i]);
      }
      is_inferred = infer_body(copy);
    }
    std::vector<TensorType> types;
    for (const ValueId id : copy.outputs) {
      const TensorType& type = copy.value(id).type;
      types.push_back(is_inferred ? without_inferred_symbols(type) : type.without_shape());
    }
    return types;
  }

  // False when the body contradicts itself under these types: a branch that is not taken may, and a run that takes it
  // will say so.
  bool infer_body(Graph& body) const {
    try {
      Inference(limits_, depth_ + 1).run(body);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  static void bind(Graph& body, ValueId input, const TensorType& type) {
    Value& value = body.value(input);
    if (type.dtype == DType::undefined) return;
    value.type = without_inferred_symbols(type);
  }

  void infer_one(Graph& graph, const Node& node) {
    std::vector<TensorType> inferred = outputs_of(graph, node);
    for (size_t i = 0; i < node.outputs.size() && i < inferred.size(); ++i) {
      if (node.outputs[i] == ValueId::none) continue;
      Value& value = graph.value(node.outputs[i]);
      TensorType type = merged(node, value, std::move(inferred[i]));
      name_extents(type, node.outputs[i]);
      if (type == value.type) continue;
      value.type = std::move(type);
      has_changed_ = true;
    }
  }

  // A declared extent is only a claim, and buffers are sized by these types: extents are taken from inference alone.
  // The element type is taken from the declaration where inference has none, and must agree where it has.
  static TensorType merged(const Node& node, const Value& value, TensorType inferred) {
    const TensorType declared = value.type.without_shape();
    if (!may_agree(declared, inferred)) {
      throw Error(ErrorCode::invalid_model, describe(node) + ": output '" + value.name + "' is declared " +
                                                kind_of(declared) + ", but the operator gives " + kind_of(inferred));
    }
    inferred.layout = value.type.layout;
    if (inferred.dtype == DType::undefined || (inferred.is_object() && !inferred.container)) {
      inferred.dtype = declared.dtype;
      inferred.container = declared.container;
    }
    return inferred;
  }

  static std::string kind_of(const TensorType& type) {
    return type.is_object() ? to_string(type) : std::string(name_of(type.dtype));
  }

  static void name_extents(TensorType& type, ValueId id) {
    for (size_t axis = 0; axis < type.dims.size(); ++axis) {
      Dim& dim = type.dims[axis];
      if (dim.known() || !dim.symbol.empty()) continue;
      dim.symbol = "?" + std::to_string(static_cast<int>(id)) + "." + std::to_string(axis);
    }
  }

  bool fold_small(Graph& graph, NodeId id) const {
    const Node& node = graph.node(id);
    if (!can_fold(graph, node)) return false;
    std::vector<Tensor> results = known_results(graph, node);
    if (results.empty()) return false;
    graph.fold(id, std::move(results));
    return true;
  }

  static bool can_fold(const Graph& graph, const Node& node) {
    if (node.captures > 0 || !node.op->deterministic || node.outputs.empty()) return false;
    for (const ValueId id : node.outputs) {
      if (id == ValueId::none) continue;
      const TensorType& type = graph.value(id).type;
      if (!type.is_static() || type.layout.channel_block != 0) return false;
      if (!is_integer(type.dtype) && type.dtype != DType::boolean && type.dtype != DType::f32) return false;
      if (!at_most(type, kFoldedElements)) return false;
    }
    return !has_bodies(node);
  }

  static bool at_most(const TensorType& type, int64_t limit) {
    int64_t elements = 1;
    for (const Dim& dim : type.dims) {
      if (dim.extent == 0) return true;
    }
    for (const Dim& dim : type.dims) {
      if (dim.extent > limit / elements) return false;
      elements *= dim.extent;
    }
    return true;
  }

  // The node's results where they are known now; empty otherwise.
  std::vector<Tensor> known_results(const Graph& graph, const Node& node) const {
    if (node.op->domain.empty() && node.op->name == "Shape") return shape_of(graph, node);
    if (node.op->reference == nullptr && !node.epilogue) return {};
    // Weights, not shape arithmetic: products of integers want them as bytes.
    if (node.op->domain.empty() && node.op->name == "DequantizeLinear") return {};
    std::vector<Tensor> inputs;
    int64_t elements = 0;
    for (const ValueId id : node.inputs) {
      inputs.push_back(id == ValueId::none ? Tensor() : graph.value(id).constant);
      if (id != ValueId::none && !inputs.back().defined()) return {};
      elements += inputs.back().size();
    }
    if (elements > kFoldedInputElements) return {};
    try {
      return checked_results(node, run_reference(node, inputs, limits_));
    } catch (const Error&) {
      return {};  // bad data is an error of the run that reaches it, if any does
    }
  }

  static std::vector<Tensor> checked_results(const Node& node, std::vector<Tensor> results) {
    if (results.size() < node.outputs.size()) return {};
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] != ValueId::none && !results[i].defined()) return {};
    }
    return results;
  }

  static std::vector<Tensor> shape_of(const Graph& graph, const Node& node) {
    if (node.inputs.empty() || node.inputs[0] == ValueId::none) return {};
    const TensorType& type = graph.value(node.inputs[0]).type;
    if (!type.has_rank) return {};
    const int64_t rank = type.rank();
    const auto bounded = [rank](int64_t axis) { return std::clamp<int64_t>(axis < 0 ? axis + rank : axis, 0, rank); };
    const int64_t begin = bounded(node.attributes.get_int("start", 0));
    const int64_t end = bounded(node.attributes.get_int("end", std::numeric_limits<int64_t>::max()));
    std::vector<int64_t> extents;
    for (int64_t axis = begin; axis < end; ++axis) {
      const Dim& dim = type.dims[static_cast<size_t>(axis)];
      if (!dim.known()) return {};
      extents.push_back(dim.extent);
    }
    const Dims dims{static_cast<int64_t>(extents.size())};
    return {Tensor::from<int64_t>(dims, std::span<const int64_t>(extents))};
  }

  const Limits& limits_;
  int depth_;
  bool has_changed_ = false;
};

}  // namespace

TensorType without_inferred_symbols(TensorType type) {
  for (Dim& dim : type.dims) {
    if (dim.symbol.starts_with('?')) dim.symbol.clear();
  }
  return type;
}

bool infer_types(Graph& graph, const Limits& limits) {
  Inference inference(limits, 0);
  inference.run(graph);
  return inference.has_changed();
}

std::vector<TensorType> infer_node(const Graph& graph, const Node& node) {
  const Limits limits;
  return Inference(limits, 0).outputs_of(graph, node);
}

}  // namespace lathe
