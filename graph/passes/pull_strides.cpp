// Where all readers of a value are 1x1 convolutions that skip pixels, those pixels need not be made: the stride moves
// up through pointwise work (the end of a residual block) into the convolution that made it.
#include <algorithm>
#include <array>

#include "graph/passes/convolution_parts.h"
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

constexpr int kPoolVersion = 12;
constexpr int kMostDepth = 16;

using Strides = std::vector<int64_t>;

Strides strides_of(const Node& conv, int rank) {
  Strides strides = conv.attributes.get_ints("strides");
  strides.resize(static_cast<size_t>(std::max(rank, 2)) - 2, 1);
  return strides;
}

bool has_known_pads(const Node& conv) {
  const std::string mode = conv.attributes.get_string("auto_pad", "NOTSET");
  return mode == "NOTSET" || mode == "VALID";
}

// Dense windows of stride 1 have faster algorithms than skipping pixels is worth.
bool takes_stride(const Graph& graph, const Node& node) {
  if (!is_op(node, "Conv") || node.epilogue || !has_known_pads(node)) return false;
  const TensorType& weights = graph.value(node.inputs[1]).type;
  return is_of_pixels(graph, node) || (weights.has_rank && weights.rank() >= 3 && weights.dims[1].extent == 1);
}

bool is_pointwise(const Node& node) {
  static constexpr std::array<std::string_view, 13> kOps = {
      "Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Relu", "Clip", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu"};
  return node.op->domain.empty() && std::find(kOps.begin(), kOps.end(), node.op->name) != kOps.end() &&
         node.version >= 7 && !node.epilogue && node.outputs.size() == 1;
}

enum class Spread { none, pixels, partly };  // over the pixels of a result

Spread spread_of(const TensorType& operand, const TensorType& result) {
  if (!operand.has_rank || operand.rank() > result.rank()) return Spread::partly;
  const size_t shift = result.dims.size() - operand.dims.size();
  bool is_even = true, is_full = shift == 0;
  for (size_t axis = 2; axis < result.dims.size(); ++axis) {
    if (axis < shift) continue;
    const Dim& dim = operand.dims[axis - shift];
    is_even = is_even && dim.extent == 1;
    is_full = is_full && same_dim(dim, result.dims[axis]);
  }
  return is_even ? Spread::none : is_full ? Spread::pixels : Spread::partly;
}

class Puller {
 public:
  Puller(Rewriter& rewriter, const OpSchema& pool, ValueId value)
      : rewriter_(rewriter), graph_(rewriter.graph()), pool_(pool), value_(value) {}

  bool pull() {
    if (!find_readers() || !collect(value_, 0) || makers_.empty()) return false;
    for (const ValueId shrunk : shrunk_) graph_.value(shrunk).type = sampled_type(graph_.value(shrunk).type);
    for (const NodeId maker : makers_) multiply(maker);
    for (const auto& [node, slot] : sampled_) sample(node, slot);
    for (const NodeId reader : readers_) {
      graph_.node(reader).attributes.set("strides", Strides(strides_.size(), 1));
      rewriter_.set_input(reader, 0, value_);
    }
    return true;
  }

 private:
  // All of one stride.
  bool find_readers() {
    const TensorType& type = graph_.value(value_).type;
    if (rewriter_.is_output(value_) || type.dtype != DType::f32 || !type.has_rank || type.rank() < 3) return false;
    for (const Graph::Use use : rewriter_.uses(value_)) {
      const Node& node = graph_.node(use.node);
      if (use.slot != 0 || !is_op(node, "Conv") || !is_of_pixels(graph_, node)) return false;
      if (!readers_.empty() && strides_of(node, type.rank()) != strides_) return false;
      strides_ = strides_of(node, type.rank());
      readers_.push_back(use.node);
    }
    return std::any_of(strides_.begin(), strides_.end(), [](int64_t stride) { return stride > 1; });
  }

  // Whether what makes the value can leave pixels out. Requires: nobody needs them.
  bool collect(ValueId value, int depth) {
    const NodeId maker = graph_.value(value).producer;
    if (maker == NodeId::none || !rewriter_.is_live(maker) || depth > kMostDepth) return false;
    const Node& node = graph_.node(maker);
    if (takes_stride(graph_, node)) {
      makers_.push_back(maker);
      shrunk_.push_back(value);
      return true;
    }
    if (!is_pointwise(node)) return false;
    for (size_t slot = 0; slot < node.inputs.size(); ++slot) {
      if (node.inputs[slot] == ValueId::none) continue;
      if (spread_of(graph_.value(node.inputs[slot]).type, graph_.value(value).type) == Spread::partly) return false;
    }
    shrunk_.push_back(value);
    for (size_t slot = 0; slot < node.inputs.size(); ++slot) {
      const ValueId operand = node.inputs[slot];
      if (operand == ValueId::none || spread_of(graph_.value(operand).type, graph_.value(value).type) == Spread::none)
        continue;
      const bool is_own = rewriter_.only_user(operand) == maker && rewriter_.has_one_use(operand);
      if (!is_own || !collect(operand, depth + 1)) sampled_.emplace_back(maker, slot);
    }
    return true;
  }

  TensorType sampled_type(TensorType type) const {
    for (size_t i = 0; i < strides_.size(); ++i) {
      Dim& dim = type.dims[i + 2];
      if (strides_[i] != 1) dim = {dim.known() ? (dim.extent + strides_[i] - 1) / strides_[i] : -1, ""};
    }
    return type;
  }

  void multiply(NodeId conv) {
    Strides strides = strides_of(graph_.node(conv), static_cast<int>(strides_.size()) + 2);
    for (size_t i = 0; i < strides.size(); ++i) strides[i] *= strides_[i];
    graph_.node(conv).attributes.set("strides", std::move(strides));
  }

  // What others need whole is copied for this node: a pool of one pixel.
  void sample(NodeId node, size_t slot) {
    const ValueId operand = graph_.node(node).inputs[slot];
    const ValueId few = rewriter_.add_value(graph_.value(operand).name, sampled_type(graph_.value(operand).type));
    Node pool{.op = &pool_, .version = kPoolVersion, .name = "", .inputs = {operand}, .outputs = {few}};
    pool.attributes.set("kernel_shape", Strides(strides_.size(), 1));
    pool.attributes.set("strides", strides_);
    rewriter_.add(std::move(pool), node);
    rewriter_.set_input(node, slot, few);
  }

  Rewriter& rewriter_;
  Graph& graph_;
  const OpSchema& pool_;
  ValueId value_;
  Strides strides_;
  std::vector<NodeId> readers_, makers_;
  std::vector<ValueId> shrunk_;
  std::vector<std::pair<NodeId, size_t>> sampled_;
};

}  // namespace

bool pull_strides(Graph& graph, const PassContext& context) {
  const OpSchema* pool = context.ops.find("", "MaxPool", kPoolVersion);
  if (pool == nullptr) return false;
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) {
    if (graph.node(id).outputs.size() == 1 && graph.node(id).outputs[0] != ValueId::none) {
      Puller(rewriter, *pool, graph.node(id).outputs[0]).pull();
    }
  });
}

}  // namespace lathe::passes
