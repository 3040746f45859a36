// ConvInteger, which dynamic quantization writes: a convolution of integers (lathe::QuantizedConv) that gives float32
// where a Cast to it follows, else int32. One of single channels has no kernel for integers and becomes a Conv of whole
// numbers in float32, exact while sums stay small.
#include "graph/passes/passes.h"
#include "graph/passes/quantized.h"

namespace lathe::passes {
namespace {

constexpr int64_t kFloat = 1, kInt32 = 6;                         // of Cast's 'to'
constexpr int64_t kMostTerms = (int64_t{1} << 24) / (255 * 255);  // of a sum that is a float32

class Convolutions {
 public:
  Convolutions(Rewriter& rewriter, const OpLookup& ops)
      : rewriter_(rewriter),
        schema_(ops.require("lathe", "QuantizedConv")),
        conv_(ops.require("", "Conv", 11)),
        cast_(ops.require("", "Cast", 13)),
        sub_(ops.require("", "Sub", 14)) {}

  void try_node(NodeId id) {
    const Node& node = rewriter_.graph().node(id);
    if (!is_op(node, "ConvInteger") || node.epilogue || node.outputs[0] == ValueId::none) return;
    const Graph& graph = rewriter_.graph();
    const TensorType& type = graph.value(node.inputs[0]).type;
    const ValueId zero = input_or_none(node, 2);
    const Tensor weights = constant_of(graph, node.inputs[1]), zeros = constant_of(graph, input_or_none(node, 3));
    if (!type.has_rank || (type.rank() != 3 && type.rank() != 4) || !can_center(weights, zeros) ||
        weights.rank() != type.rank() || (input_or_none(node, 3) != ValueId::none && !zeros.defined())) {
      return;
    }
    if (zero != ValueId::none && !is_scalar(graph.value(zero).type)) return;
    has_integer_kernel(node, graph.value(node.inputs[1]).type) ? use_integers(id) : use_floats(id, weights, zeros);
  }

 private:
  // The Cast to float32 that is all that reads the node; none: there is another reader.
  NodeId only_cast(NodeId id) const {
    const Graph& graph = rewriter_.graph();
    const NodeId cast = rewriter_.only_user(graph.node(id).outputs[0]);
    if (cast == NodeId::none || !is_op(graph.node(cast), "Cast") || graph.node(cast).epilogue) return NodeId::none;
    return graph.value(graph.node(cast).outputs[0]).type.dtype == DType::f32 ? cast : NodeId::none;
  }

  static const char* name_of_both(NodeId cast) { return cast == NodeId::none ? "ConvInteger" : "ConvInteger+Cast"; }

  void use_integers(NodeId id) {
    const Node old = rewriter_.graph().node(id);
    const NodeId cast = only_cast(id);
    ValueId scale = ValueId::none;
    if (cast != NodeId::none) scale = rewriter_.add_constant(old.name + "_scale", Tensor::scalar(1.0F));
    finish(id, cast,
           quantized_conv(
               rewriter_, schema_, old, name_of_both(cast),
               {old.inputs[0], old.inputs[1], scale, input_or_none(old, 2), input_or_none(old, 3), ValueId::none}));
  }

  void use_floats(NodeId id, const Tensor& weights, const Tensor& zeros) {
    const Node old = rewriter_.graph().node(id);
    if (weights.size() / weights.dims()[0] > kMostTerms) return;
    const NodeId cast = only_cast(id);
    ValueId x = as_float(old.inputs[0], id);
    if (const ValueId zero = input_or_none(old, 2); zero != ValueId::none) {
      const ValueId point = as_float(zero, id);
      x = append_float(rewriter_, {.op = &sub_, .version = 14, .inputs = {x, point}}, x, id);
    }
    Node conv{.op = &conv_, .version = 11, .name = old.name, .outputs = {ValueId::none}};
    conv.attributes = old.attributes;
    conv.inputs = {x, rewriter_.add_constant(old.name + "_weights", centered(weights, zeros))};
    conv.fused_from = name_of_both(cast);
    if (cast != NodeId::none) return finish(id, cast, std::move(conv));
    const ValueId sums = append_float(rewriter_, std::move(conv), old.outputs[0], id);
    Node whole{.op = &cast_, .version = 13, .inputs = {sums}, .outputs = {ValueId::none}};
    whole.attributes.set("to", kInt32);
    finish(id, cast, std::move(whole));
  }

  // `made` gives what the node gave, or the Cast behind it.
  void finish(NodeId id, NodeId cast, Node made) {
    const NodeId last = cast == NodeId::none ? id : cast;
    const ValueId result = rewriter_.graph().node(last).outputs[0];
    rewriter_.erase(id);
    if (cast != NodeId::none) rewriter_.erase(cast);
    rewriter_.move_output(result, rewriter_.add(std::move(made), last));
  }

  ValueId as_float(ValueId bytes, NodeId place) {
    Node node{.op = &cast_, .version = 13, .inputs = {bytes}};
    node.attributes.set("to", kFloat);
    return append_float(rewriter_, std::move(node), bytes, place);
  }

  static Tensor centered(const Tensor& weights, const Tensor& zeros) {
    Tensor numbers(DType::f32, weights.dims());
    for_each_centered(weights, zeros,
                      [&](int64_t i, int value) { numbers.mutable_data<float>()[i] = static_cast<float>(value); });
    return numbers;
  }

  Rewriter& rewriter_;
  const OpSchema &schema_, &conv_, &cast_, &sub_;
};

}  // namespace

bool use_integers_dynamic(Graph& graph, const PassContext& context) {
  if (context.ops.find("lathe", "QuantizedConv", 1) == nullptr) return false;
  Rewriter rewriter(graph);
  Convolutions convolutions(rewriter, context.ops);
  return rewrite_each(rewriter, [&](NodeId id) { convolutions.try_node(id); });
}

}  // namespace lathe::passes
