// A picture whose pixels become rows, pass a matrix product and become a picture again: a 1x1 convolution.
#include "graph/passes/affine.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kConvVersion = 11;
using Ints = std::vector<int64_t>;

// What the only reader of a value is, if it is this operator and takes the value in slot 0.
NodeId reader_if(Rewriter& rewriter, ValueId id, std::string_view op) {
  const NodeId user = rewriter.only_user(id);
  if (user == NodeId::none) return NodeId::none;
  const Node& node = rewriter.graph().node(user);
  return is_op(node, op) && !node.epilogue && node.inputs[0] == id && node.outputs[0] != ValueId::none ? user
                                                                                                       : NodeId::none;
}

bool swaps_rows(const Node& node) { return node.attributes.get_ints("perm") == Ints{0, 2, 1}; }

// [N, C, H, W] and [N, C, H * W].
bool is_flattened(const TensorType& picture, const TensorType& flat) {
  if (!picture.has_rank || !flat.has_rank || picture.rank() != 4 || flat.rank() != 3) return false;
  for (const size_t axis : {size_t{2}, size_t{3}}) {
    if (!picture.dims[axis].known()) return false;
  }
  return same_dim(picture.dims[0], flat.dims[0]) && picture.dims[1].known() &&
         picture.dims[1].extent == flat.dims[1].extent &&
         flat.dims[2].extent == picture.dims[2].extent * picture.dims[3].extent;
}

class Convolver {
 public:
  Convolver(Rewriter& rewriter, NodeId product) : rewriter_(rewriter), graph_(rewriter.graph()), product_(product) {}

  bool convolve(const OpSchema& schema) {
    const Node& product = graph_.node(product_);
    if (!is_op(product, "MatMul") || product.epilogue || product.outputs[0] == ValueId::none) return false;
    weights_ = constant_of(graph_, product.inputs[1]);
    if (weights_.dtype() != DType::f32 || weights_.rank() != 2 || !find_picture() || !find_result()) return false;
    build(schema);
    return true;
  }

 private:
  bool find_picture() {
    turn_ = rewriter_.producer_if(graph_.node(product_).inputs[0], "Transpose");
    if (turn_ == NodeId::none || !swaps_rows(graph_.node(turn_))) return false;
    const NodeId flatten = rewriter_.producer_if(graph_.node(turn_).inputs[0], "Reshape");
    if (flatten == NodeId::none) return false;
    picture_ = graph_.node(flatten).inputs[0];
    return graph_.value(picture_).type.dtype == DType::f32 &&
           is_flattened(graph_.value(picture_).type, graph_.value(graph_.node(turn_).inputs[0]).type);
  }

  bool find_result() {
    ValueId rows = graph_.node(product_).outputs[0];
    const ChannelAxis channels{static_cast<size_t>(weights_.dims()[1]), 3, 2};
    const NodeId add = rewriter_.only_user(rows);
    if (add != NodeId::none && is_op(graph_.node(add), "Add") && !graph_.node(add).epilogue) {
      const auto affine = affine_of_arithmetic(graph_, graph_.node(add), rows, channels);
      if (!affine) return false;
      bias_ = affine->shift;
      behind_.push_back(add);
      rows = graph_.node(add).outputs[0];
    }
    const NodeId back = reader_if(rewriter_, rows, "Transpose");
    if (back == NodeId::none || !swaps_rows(graph_.node(back))) return false;
    const NodeId unflatten = reader_if(rewriter_, graph_.node(back).outputs[0], "Reshape");
    if (unflatten == NodeId::none) return false;
    behind_.push_back(back);
    behind_.push_back(unflatten);
    result_ = graph_.node(unflatten).outputs[0];
    const TensorType &type = graph_.value(result_).type, &x = graph_.value(picture_).type;
    return is_flattened(type, graph_.value(graph_.node(back).outputs[0]).type) && x.dims[2] == type.dims[2] &&
           x.dims[3] == type.dims[3];
  }

  void build(const OpSchema& schema) {
    const int64_t inputs = weights_.dims()[0], outputs = weights_.dims()[1];
    Tensor turned(DType::f32, {outputs, inputs, 1, 1});
    for (int64_t o = 0; o < outputs; ++o) {
      for (int64_t i = 0; i < inputs; ++i)
        turned.mutable_data<float>()[o * inputs + i] = weights_.data<float>()[i * outputs + o];
    }
    const std::string name = graph_.node(product_).name;
    Node conv{.op = &schema, .version = kConvVersion, .name = name, .inputs = {picture_}, .outputs = {result_}};
    conv.inputs.push_back(rewriter_.add_constant(graph_.value(graph_.node(product_).inputs[1]).name, turned));
    if (!bias_.empty()) conv.inputs.push_back(rewriter_.add_constant(name + "/bias", as_reals(bias_, {outputs})));
    conv.attributes.set("kernel_shape", Ints{1, 1});
    conv.fused_from = bias_.empty() ? "MatMul" : "MatMul+Add";
    rewriter_.erase(product_);
    for (const NodeId id : behind_) rewriter_.erase(id);
    rewriter_.add(std::move(conv), product_);
  }

  Rewriter& rewriter_;
  Graph& graph_;
  NodeId product_, turn_ = NodeId::none;
  Tensor weights_;
  ValueId picture_ = ValueId::none, result_ = ValueId::none;
  std::vector<double> bias_;
  std::vector<NodeId> behind_;
};

}  // namespace

bool convolve_pixels(Graph& graph, const PassContext& context) {
  const OpSchema* conv = context.ops.find("", "Conv", kConvVersion);
  if (conv == nullptr) return false;
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) { Convolver(rewriter, id).convolve(*conv); });
}

}  // namespace lathe::passes
