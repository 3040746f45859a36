// float16 is a way to store numbers: nodes that compute with them take and give float32, and kernels, fusions and
// layouts of float32 serve them. Casts stand where float16 comes in, goes out, or is only moved; between two nodes that
// compute they go, and so does the rounding that they would do.
#include <algorithm>
#include <array>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"
#include "src/base/half_rows.h"

namespace lathe::passes {
namespace {

constexpr int kCastVersion = 13;

template <size_t kCount>
bool is_one_of(const Node& node, const std::array<std::string_view, kCount>& names) {
  return node.op->domain.empty() && std::find(names.begin(), names.end(), node.op->name) != names.end();
}

// Elements as they are, in another place.
constexpr std::array<std::string_view, 20> kMoves = {
    "Identity", "Reshape", "Flatten", "Squeeze",      "Unsqueeze",      "Transpose", "Concat",
    "Split",    "Slice",   "Gather",  "GatherND",     "GatherElements", "Expand",    "Tile",
    "Pad",      "Where",   "Trilu",   "DepthToSpace", "SpaceToDepth",   "ScatterND"};

// What they give has the type that an attribute or their meaning says, or is rounded on the way in the type of the
// inputs.
constexpr std::array<std::string_view, 8> kOfOwnType = {"Cast",     "CastLike", "QuantizeLinear", "BitCast",
                                                        "Constant", "Shape",    "Size",           "Bernoulli"};

bool has_own_type(const Node& node) {
  if (std::find(kOfOwnType.begin(), kOfOwnType.end(), node.op->name) != kOfOwnType.end()) return true;
  for (const auto& [name, attribute] : node.attributes) {
    if (name == "dtype" || name == "to" || name == "output_dtype" || name == "output_datatype") return true;
    if (const auto* tensor = std::get_if<Tensor>(&attribute); tensor != nullptr && tensor->dtype() == DType::f16)
      return true;
  }
  return false;
}

Tensor widened(const Tensor& halves) {
  Tensor result(DType::f32, halves.dims());
  halves_to_floats(static_cast<const uint16_t*>(halves.raw()), halves.size(), result.mutable_data<float>());
  return result;
}

class Widener {
 public:
  Widener(Rewriter& rewriter, const OpSchema& cast) : rewriter_(rewriter), cast_(cast) {}

  void visit(NodeId id) {
    const Node& node = rewriter_.graph().node(id);
    if (is_op(node, "Cast")) return skip_rounding(id);
    if (can_widen(node) && (is_one_of(node, kMoves) ? moves_rounded(node) : touches_halves(node))) widen(id);
  }

 private:
  Graph& graph() { return rewriter_.graph(); }
  DType type_of(ValueId id) const { return rewriter_.graph().value(id).type.dtype; }
  bool is_half(ValueId id) const { return id != ValueId::none && type_of(id) == DType::f16; }

  bool touches_halves(const Node& node) const {
    const auto is_half_value = [&](ValueId id) { return is_half(id); };
    return std::any_of(node.inputs.begin(), node.inputs.end(), is_half_value) ||
           std::any_of(node.outputs.begin(), node.outputs.end(), is_half_value);
  }

  bool can_widen(const Node& node) const {
    const bool is_known_domain = node.op->domain.empty() || node.op->domain == "com.microsoft";
    if (!is_known_domain || node.op->takes_objects || node.op->extension || node.epilogue || node.captures > 0)
      return false;
    return !has_bodies(node) && !has_own_type(node);
  }

  // The float32 value that was rounded to this one; none: another.
  ValueId before_rounding(ValueId id) {
    const NodeId producer = graph().value(id).producer;
    if (producer == NodeId::none || !is_op(graph().node(producer), "Cast") || graph().node(producer).epilogue)
      return ValueId::none;
    const ValueId source = graph().node(producer).inputs[0];
    return type_of(source) == DType::f32 ? source : ValueId::none;
  }

  // What is moved was computed: it may as well be moved as float32. What came in as float16 is smaller as it is.
  bool moves_rounded(const Node& node) {
    bool has_rounded = false;
    for (const ValueId id : node.inputs) {
      if (!is_half(id) || graph().value(id).is_constant()) continue;
      if (before_rounding(id) == ValueId::none) return false;
      has_rounded = true;
    }
    return has_rounded;
  }

  ValueId as_float(ValueId id, NodeId reader) {
    if (const ValueId source = before_rounding(id); source != ValueId::none) return source;
    if (floats_.size() <= index_of(id)) floats_.resize(graph().value_count(), ValueId::none);
    if (floats_[index_of(id)] != ValueId::none) return floats_[index_of(id)];
    ValueId made = ValueId::none;
    if (graph().value(id).is_constant()) {
      made = rewriter_.add_constant(graph().value(id).name, widened(graph().value(id).constant));
    } else {
      TensorType type = graph().value(id).type;
      type.dtype = DType::f32;
      made = rewriter_.add_value(graph().value(id).name, type);
      add_cast(id, made, DType::f32, reader);
    }
    return floats_[index_of(id)] = made;
  }

  void add_cast(ValueId from, ValueId to, DType dtype, NodeId place) {
    Node node{.op = &cast_, .version = kCastVersion, .name = "", .inputs = {from}, .outputs = {to}};
    node.attributes.set("to", static_cast<int64_t>(dtype));
    rewriter_.add(std::move(node), place);
  }

  void widen(NodeId id) {
    for (size_t slot = 0; slot < graph().node(id).inputs.size(); ++slot) {
      const ValueId input = graph().node(id).inputs[slot];
      if (is_half(input)) rewriter_.set_input(id, slot, as_float(input, id));
    }
    for (size_t i = 0; i < graph().node(id).outputs.size(); ++i) {
      const ValueId output = graph().node(id).outputs[i];
      if (!is_half(output)) continue;
      TensorType type = graph().value(output).type;
      type.dtype = DType::f32;
      const ValueId inner = rewriter_.add_value(graph().value(output).name, type);
      graph().node(id).outputs[i] = inner;
      graph().value(inner).producer = id;
      graph().value(output).producer = NodeId::none;
      add_cast(inner, output, DType::f16, id);
    }
  }

  // A Cast of what was rounded to float16 takes what it was before.
  void skip_rounding(NodeId id) {
    const Node& node = graph().node(id);
    if (node.epilogue || !is_half(node.inputs[0])) return;
    const ValueId source = before_rounding(node.inputs[0]), result = node.outputs[0];
    if (source == ValueId::none) return;
    if (type_of(result) == DType::f32) {
      if (rewriter_.replace(result, source)) rewriter_.erase(id);
    } else if (is_integer(type_of(result)) || type_of(result) == DType::f64 || type_of(result) == DType::boolean) {
      rewriter_.set_input(id, 0, source);
    }
  }

  Rewriter& rewriter_;
  const OpSchema& cast_;
  std::vector<ValueId> floats_;  // by value: the same as float32
};

// Tensors of a few thousand elements take no time by their references either, which round after every node.
constexpr double kFewElements = 4096;

bool has_large_halves(const Graph& graph) {
  for (size_t i = 0; i < graph.value_count(); ++i) {
    const TensorType& type = graph.value(static_cast<ValueId>(i)).type;
    if (type.dtype != DType::f16) continue;
    if (!type.is_static()) return true;
    double elements = 1;
    for (const Dim& dim : type.dims) elements *= static_cast<double>(dim.extent);
    if (elements >= kFewElements) return true;
  }
  return false;
}

}  // namespace

bool widen_halves(Graph& graph, const PassContext& context) {
  if (!has_large_halves(graph)) return false;
  const OpSchema* cast = context.ops.find("", "Cast", kCastVersion);
  if (cast == nullptr) return false;
  Rewriter rewriter(graph);
  Widener widener(rewriter, *cast);
  return rewrite_each(rewriter, [&](NodeId id) { widener.visit(id); });
}

}  // namespace lathe::passes
