// Pixels as rows, [N, H * W, C], cost a copy of all channels on each side of a convolution. A matrix product on the way
// is a 1x1 convolution on the other side of the copy, where that has fewer channels to copy: behind the product that
// reads rows of a picture (and the pointwise work before it), or before the product that makes rows of a wider one. A
// product between two copies needs neither.
#include <algorithm>
#include <array>

#include "graph/passes/affine.h"
#include "graph/passes/passes.h"
#include "graph/passes/rearranger.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kConvVersion = 11;
constexpr size_t kMostPointwise = 16;
using Ints = std::vector<int64_t>;

const Ints kSwapped{0, 2, 1};  // rows of channels and rows of pixels

bool swaps_rows(const Node& node) { return node.attributes.get_ints("perm") == kSwapped; }

// [N, C, H, W] and [N, C, H * W].
bool is_flattened(const TensorType& picture, const TensorType& flat) {
  if (!picture.has_rank || !flat.has_rank || picture.rank() != 4 || flat.rank() != 3) return false;
  if (!picture.dims[1].known() || !picture.dims[2].known() || !picture.dims[3].known()) return false;
  return same_dim(picture.dims[0], flat.dims[0]) && picture.dims[1].extent == flat.dims[1].extent &&
         flat.dims[2].extent == picture.dims[2].extent * picture.dims[3].extent;
}

bool is_pointwise(const Node& node) {
  static constexpr std::array<std::string_view, 4> kOthers = {"QuantizeLinear", "DequantizeLinear", "PRelu", "Cast"};
  return node.op->domain.empty() && node.op->express != nullptr && !node.epilogue && !node.attributes.has("axis") &&
         !node.attributes.has("broadcast") && node.outputs.size() == 1 && node.outputs[0] != ValueId::none &&
         std::find(kOthers.begin(), kOthers.end(), node.op->name) == kOthers.end();
}

class Convolver {
 public:
  Convolver(Rewriter& rewriter, const OpLookup& ops, const OpSchema& conv, NodeId product)
      : rewriter_(rewriter),
        graph_(rewriter.graph()),
        conv_(conv),
        rearranger_(rewriter, ops, product),
        product_(product) {}

  void convolve() {
    const Node& product = graph_.node(product_);
    if (!is_op(product, "MatMul") || product.epilogue || product.outputs[0] == ValueId::none) return;
    weights_ = constant_of(graph_, product.inputs[1]);
    const TensorType& rows = graph_.value(product.inputs[0]).type;
    if (weights_.dtype() != DType::f32 || weights_.rank() != 2 || weights_.size() == 0 || rows.rank() != 3) return;
    find_bias();
    const bool is_from = find_picture(), is_to = find_result();
    const int64_t inputs = weights_.dims()[0], outputs = weights_.dims()[1];
    if (is_from && is_to && pointwise_.empty() && has_same_pixels()) {
      build(picture_, result_);
    } else if (is_to && inputs < outputs && is_convolved(result_)) {
      build(as_picture(), result_);
    } else if (is_from && outputs < inputs && is_convolution(picture_)) {
      from_picture();
    }
  }

 private:
  // The sum behind the product goes along.
  void find_bias() {
    rows_ = graph_.node(product_).outputs[0];
    const NodeId add = rewriter_.only_user(rows_);
    if (add == NodeId::none || !is_op(graph_.node(add), "Add") || graph_.node(add).epilogue) return;
    const ChannelAxis channels{static_cast<size_t>(weights_.dims()[1]), 3, 2};
    const auto affine = affine_of_arithmetic(graph_, graph_.node(add), rows_, channels);
    if (!affine) return;
    bias_ = affine->shift;
    behind_.push_back(add);
    rows_ = graph_.node(add).outputs[0];
  }

  // What the rows are made of, and the pointwise work on them.
  bool find_picture() {
    const ValueId operand = graph_.node(product_).inputs[0];
    if (!find_pointwise(operand) || turned_ == ValueId::none) return false;
    if (!is_read_by_us(turned_)) return false;
    const bool are_own = std::all_of(pointwise_.begin(), pointwise_.end(),
                                     [this](NodeId id) { return is_read_by_us(graph_.node(id).outputs[0]); });
    const NodeId turn = graph_.value(turned_).producer;
    const NodeId flatten = rewriter_.producer_if(graph_.node(turn).inputs[0], "Reshape");
    if (!are_own || flatten == NodeId::none) return false;
    picture_ = graph_.node(flatten).inputs[0];
    return graph_.value(picture_).type.dtype == DType::f32 &&
           is_flattened(graph_.value(picture_).type, graph_.value(graph_.node(turn).inputs[0]).type);
  }

  bool is_ours(NodeId id) const { return std::find(pointwise_.begin(), pointwise_.end(), id) != pointwise_.end(); }

  bool is_read_by_us(ValueId value) const {
    const std::vector<Graph::Use> uses = rewriter_.uses(value);
    return !rewriter_.is_output(value) && std::all_of(uses.begin(), uses.end(), [this](const Graph::Use& use) {
      return is_ours(use.node) || (use.node == product_ && use.slot == 0);
    });
  }

  // All that lies between one Transpose and this value.
  bool find_pointwise(ValueId value) {
    const NodeId maker = value == ValueId::none ? NodeId::none : graph_.value(value).producer;
    if (maker == NodeId::none || !rewriter_.is_live(maker)) return false;
    if (is_ours(maker)) return true;
    const Node& node = graph_.node(maker);
    if (rewriter_.producer_if(value, "Transpose") != NodeId::none && swaps_rows(node)) {
      if (turned_ != ValueId::none && turned_ != value) return false;
      turned_ = value;
      return true;
    }
    if (!is_pointwise(node) || graph_.value(value).type.dtype != DType::f32) return false;
    pointwise_.push_back(maker);
    if (pointwise_.size() > kMostPointwise) return false;
    return std::all_of(node.inputs.begin(), node.inputs.end(), [this](ValueId operand) {
      if (operand == ValueId::none) return true;
      const Value& given = graph_.value(operand);
      return (given.is_constant() && is_scalar(given.type) && given.type.rank() <= 3) || find_pointwise(operand);
    });
  }

  // The picture that the rows become, and nothing else.
  bool find_result() {
    const NodeId back = rewriter_.only_user(rows_);
    if (back == NodeId::none || !is_op(graph_.node(back), "Transpose") || !swaps_rows(graph_.node(back))) return false;
    const ValueId flat = graph_.node(back).outputs[0];
    const NodeId unflatten = flat == ValueId::none ? NodeId::none : rewriter_.only_user(flat);
    if (unflatten == NodeId::none || !is_op(graph_.node(unflatten), "Reshape")) return false;
    result_ = graph_.node(unflatten).outputs[0];
    if (result_ == ValueId::none || !is_flattened(graph_.value(result_).type, graph_.value(flat).type)) return false;
    turns_back_ = {back, unflatten};
    return true;
  }

  bool has_same_pixels() const {
    const TensorType &from = graph_.value(picture_).type, &to = graph_.value(result_).type;
    return from.dims[2] == to.dims[2] && from.dims[3] == to.dims[3];
  }

  bool is_convolution(ValueId value) const {
    const NodeId maker = graph_.value(value).producer;
    return maker != NodeId::none && rewriter_.is_live(maker) && is_op(graph_.node(maker), "Conv");
  }

  bool is_convolved(ValueId value) const {
    const std::vector<Graph::Use> uses = rewriter_.uses(value);
    return !uses.empty() && std::all_of(uses.begin(), uses.end(), [this](const Graph::Use& use) {
      return is_op(graph_.node(use.node), "Conv") && use.slot == 0;
    });
  }

  // The product's own operand, turned.
  ValueId as_picture() {
    const TensorType& type = graph_.value(result_).type;
    const ValueId flat = rearranger_.transposed(graph_.node(product_).inputs[0], kSwapped);
    return rearranger_.reshaped(flat, {0, weights_.dims()[0], type.dims[2].extent, type.dims[3].extent});
  }

  // Pointwise work on pixels instead of rows, then the product, then rows.
  void from_picture() {
    const TensorType picture = graph_.value(picture_).type;
    for (const NodeId id : pointwise_) {
      graph_.value(graph_.node(id).outputs[0]).type = picture;
      for (size_t slot = 0; slot < graph_.node(id).inputs.size(); ++slot) {
        if (graph_.node(id).inputs[slot] == turned_) rewriter_.set_input(id, slot, picture_);
      }
    }
    const ValueId x = pointwise_.empty() ? picture_ : graph_.node(product_).inputs[0], result = rows_;
    turns_back_.clear();
    TensorType type = picture;
    type.dims[1] = {weights_.dims()[1], ""};
    const ValueId convolved = rewriter_.add_value(graph_.value(result).name, std::move(type));
    build(x, convolved);
    rearranger_.transposed(rearranger_.reshaped(convolved, {0, 0, -1}), kSwapped, result);
  }

  void build(ValueId x, ValueId result) {
    const int64_t inputs = weights_.dims()[0], outputs = weights_.dims()[1];
    Tensor kernel(DType::f32, {outputs, inputs, 1, 1});
    for (int64_t o = 0; o < outputs; ++o) {
      for (int64_t i = 0; i < inputs; ++i)
        kernel.mutable_data<float>()[o * inputs + i] = weights_.data<float>()[i * outputs + o];
    }
    const std::string name = graph_.node(product_).name;
    Node conv{.op = &conv_, .version = kConvVersion, .name = name, .inputs = {x}, .outputs = {result}};
    conv.inputs.push_back(rewriter_.add_constant(graph_.value(graph_.node(product_).inputs[1]).name, kernel));
    if (!bias_.empty()) conv.inputs.push_back(rewriter_.add_constant(name + "/bias", as_reals(bias_, {outputs})));
    conv.attributes.set("kernel_shape", Ints{1, 1});
    conv.fused_from = bias_.empty() ? "MatMul" : "MatMul+Add";
    rewriter_.erase(product_);
    for (const NodeId id : behind_) rewriter_.erase(id);
    for (const NodeId id : turns_back_) rewriter_.erase(id);
    rewriter_.add(std::move(conv), product_);
  }

  Rewriter& rewriter_;
  Graph& graph_;
  const OpSchema& conv_;
  Rearranger rearranger_;
  NodeId product_;
  Tensor weights_;
  std::vector<double> bias_;
  std::vector<NodeId> behind_;      // sums that go along
  ValueId rows_ = ValueId::none;    // behind them
  ValueId turned_ = ValueId::none;  // rows of the picture, before the pointwise work
  std::vector<NodeId> pointwise_;
  ValueId picture_ = ValueId::none, result_ = ValueId::none;
  std::vector<NodeId> turns_back_;  // Transpose and Reshape to the result
};

}  // namespace

bool convolve_pixels(Graph& graph, const PassContext& context) {
  const OpSchema* conv = context.ops.find("", "Conv", kConvVersion);
  if (conv == nullptr) return false;
  return rewrite_each(graph,
                      [&](Rewriter& rewriter, NodeId id) { Convolver(rewriter, context.ops, *conv, id).convolve(); });
}

}  // namespace lathe::passes
