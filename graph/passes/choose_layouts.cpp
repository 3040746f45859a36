// Decides which values are stored blocked by channels, and puts a "lathe::Reorder" wherever a reader wants the other
// layout: one for each value, shared by all its readers.
#include <algorithm>
#include <numeric>
#include <vector>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

// A decision for one node.
struct Choice {
  int output = 0;           // channel block of its outputs, but for scalars beside them
  std::vector<int> inputs;  // by slot
};

int block_in(const Choice& choice, const TensorType& output) { return output.rank() == 0 ? 0 : choice.output; }

double bytes_of(const TensorType& type) {
  double bytes = bits_of(type.dtype) / 8.0;
  for (const Dim& dim : type.dims) bytes *= static_cast<double>(dim.extent);
  return bytes;
}

int64_t channels_of(const TensorType& type) { return type.dims[1].extent; }

class LayoutChooser {
 public:
  LayoutChooser(Graph& graph, int block) : graph_(graph), block_(block), layout_(graph.value_count(), 0) {}

  bool run() {
    choices_.reserve(graph_.order().size());
    bool any = false;
    for (const NodeId id : graph_.order()) {
      choices_.push_back(choose(graph_.node(id)));
      any = any || choices_.back().output != 0;
      for (const ValueId output : graph_.node(id).outputs) {
        if (output != ValueId::none) layout_[index_of(output)] = block_in(choices_.back(), type(output));
      }
    }
    return any;
  }

  const std::vector<Choice>& choices() const { return choices_; }  // in graph order

  // Do the node's values lie as they would if those it reads had been so?
  bool agrees(const Node& node) {
    const auto block_of = [&](ValueId id) { return id == ValueId::none ? 0 : type(id).layout.channel_block; };
    for (const ValueId id : node.inputs)
      if (id != ValueId::none) layout_[index_of(id)] = block_of(id);
    const Choice choice = choose(node);
    for (size_t slot = 0; slot < node.inputs.size(); ++slot)
      if (block_of(node.inputs[slot]) != choice.inputs[slot]) return false;
    return std::all_of(node.outputs.begin(), node.outputs.end(),
                       [&](ValueId id) { return id == ValueId::none || block_of(id) == block_in(choice, type(id)); });
  }

 private:
  Choice plain(const Node& node) const { return {0, std::vector<int>(node.inputs.size(), 0)}; }
  const TensorType& type(ValueId id) const { return graph_.value(id).type; }
  int layout(ValueId id) const { return layout_[index_of(id)]; }

  Choice choose(const Node& node) const {
    if (node.captures > 0 || node.inputs.empty() || node.inputs[0] == ValueId::none || !has_block_types(node)) {
      return plain(node);
    }
    if (is_op(node, "Pad")) return pads_pixels_only(node) ? choose_follower(node) : plain(node);
    // Blocks of 16-bit elements have no kernel that turns them.
    if (is_op(node, "Cast") && type(node.outputs[0]).dtype == DType::f16) return plain(node);
    // As fast on plain pictures, which need not be turned first.
    if ((is_resize(node) || pools_planes(node)) && layout(node.inputs[0]) == 0) return plain(node);
    switch (node.op->layout) {
      case LayoutRole::blocked:
        return choose_blocked(node);
      case LayoutRole::any_same:
        return choose_same(node);
      case LayoutRole::channel_join:
        return choose_join(node);
      case LayoutRole::channel_part:
        return choose_part(node);
      case LayoutRole::plain_only:
        break;
    }
    return plain(node);
  }

  // By constants, and of elements of whole bytes: other Pads run by their reference, which knows no layout.
  bool pads_pixels_only(const Node& node) const {
    const TensorType& x = type(node.inputs[0]);
    if (x.rank() < 3 || x.dtype == DType::string || bits_of(x.dtype) < 8) return false;
    for (size_t slot = 1; slot < node.inputs.size(); ++slot) {
      if (node.inputs[slot] != ValueId::none && !graph_.value(node.inputs[slot]).is_constant()) return false;
    }
    if (node.version < 11) return false;
    const auto pads = integers_of(graph_, node.inputs[1]);
    std::vector<int64_t> axes(static_cast<size_t>(x.rank()));
    std::iota(axes.begin(), axes.end(), int64_t{0});
    if (const ValueId list = input_or_none(node, 3); list != ValueId::none) {
      axes = integers_of(graph_, list).value_or(std::vector<int64_t>());
    }
    if (!pads || pads->size() != 2 * axes.size()) return false;
    // Other modes repeat what is there, which must not be cut away.
    const bool repeats = node.attributes.get_string("mode", "constant") != "constant";
    if (repeats && std::any_of(pads->begin(), pads->end(), [](int64_t count) { return count < 0; })) return false;
    if (repeats && std::any_of(x.dims.begin(), x.dims.end(), [](const Dim& dim) { return dim.extent < 1; }))
      return false;
    for (size_t i = 0; i < axes.size(); ++i) {
      const bool is_pixels = (axes[i] < 0 ? axes[i] + x.rank() : axes[i]) >= 2;
      if (!is_pixels && ((*pads)[i] != 0 || (*pads)[i + axes.size()] != 0)) return false;
    }
    return true;
  }

  static bool is_resize(const Node& node) { return is_op(node, "Resize") || is_op(node, "Upsample"); }

  static bool pools_planes(const Node& node) {
    return is_op(node, "GlobalAveragePool") || is_op(node, "GlobalMaxPool");
  }

  // As input 0 lies.
  Choice choose_follower(const Node& node) const {
    Choice choice = plain(node);
    choice.output = choice.inputs[0] = layout(node.inputs[0]);
    return choice;
  }

  // Everything that may be blocked has static types; outputs have channels and somewhere to go, but for scalars beside
  // the first one.
  bool has_block_types(const Node& node) const {
    for (const ValueId id : node.inputs) {
      if (id != ValueId::none && !type(id).is_static()) return false;
    }
    bool has_output = false;
    for (const ValueId id : node.outputs) {
      if (id == ValueId::none) continue;
      has_output = true;
      const bool is_beside = node.outputs[0] != ValueId::none && id != node.outputs[0] && type(id).rank() == 0;
      if (!type(id).is_static() || (type(id).rank() < 3 && !is_beside)) return false;
    }
    return has_output;
  }

  Choice choose_blocked(const Node& node) const {
    if (node.op->accepts_blocked == nullptr || node.outputs[0] == ValueId::none) return plain(node);
    for (size_t i = 1; i < node.outputs.size(); ++i) {
      if (node.outputs[i] != ValueId::none) return plain(node);
    }
    std::vector<TensorType> types;
    for (size_t slot = 0; slot < node.own_input_count(); ++slot) {
      types.push_back(node.inputs[slot] == ValueId::none ? TensorType() : type(node.inputs[slot]));
      types.back().layout = {};
    }
    if (types[0].rank() < 3 || !node.op->accepts_blocked(node, types, block_)) return plain(node);
    Choice choice{block_, std::vector<int>(node.inputs.size(), 0)};
    // A dense convolution over fewer channels than a block (a picture) reads them plain.
    const bool is_first_layer = (is_op(node, "Conv") || is_lathe_op(node, "QuantizedConv")) &&
                                node.attributes.get_int("group", 1) == 1 && channels_of(types[0]) < block_;
    choice.inputs[0] = is_first_layer ? 0 : block_;
    // Blocks of a picture's few channels would be mostly padding, of which a transposed convolution writes a lot.
    if (is_op(node, "ConvTranspose") && 2 * channels_of(type(node.outputs[0])) <= block_) {
      choice.output = 0;
      return choice;
    }
    return set_extras(node, choice) ? choice : plain(node);
  }

  // Epilogue inputs of the result's shape must be stored as the result is.
  bool set_extras(const Node& node, Choice& choice) const {
    const size_t first = node.inputs.size() - static_cast<size_t>(node.epilogue ? node.epilogue->inputs : 0);
    for (size_t slot = first; slot < node.inputs.size(); ++slot) {
      const std::optional<int> wanted =
          operand_layout(type(node.inputs[slot]), type(node.outputs[0]), node.inputs[slot]);
      if (!wanted) return false;
      choice.inputs[slot] = *wanted;
    }
    return true;
  }

  // How a pointwise operand must be stored beside a blocked result of this type; nullopt: it cannot stand there.
  std::optional<int> operand_layout(const TensorType& operand, const TensorType& result, ValueId id) const {
    if (is_scalar(operand)) return 0;
    const int shift = result.rank() - operand.rank();
    if (shift < 0) return std::nullopt;
    const int channel_axis = 1 - shift;
    const bool has_channels =
        channel_axis >= 0 && operand.dims[static_cast<size_t>(channel_axis)].extent == channels_of(result);
    if (!has_channels) return std::nullopt;
    // One element per channel: the same bytes either way.
    bool is_per_channel = true;
    for (int i = 0; i < operand.rank(); ++i) {
      is_per_channel = is_per_channel && (i == channel_axis || operand.dims[static_cast<size_t>(i)].extent == 1);
    }
    if (is_per_channel) return shift == 0 ? layout(id) : 0;
    return shift == 0 ? std::optional<int>(block_) : std::nullopt;
  }

  // Pointwise nodes follow their operands, by weight of bytes.
  Choice choose_same(const Node& node) const {
    const TensorType& result = type(node.outputs[0]);
    Choice choice{block_, std::vector<int>(node.inputs.size(), 0)};
    double blocked_bytes = 0, plain_bytes = 0;
    for (size_t slot = 0; slot < node.inputs.size(); ++slot) {
      const ValueId id = node.inputs[slot];
      if (id == ValueId::none) continue;
      const std::optional<int> wanted = operand_layout(type(id), result, id);
      if (!wanted) return plain(node);
      choice.inputs[slot] = *wanted;
      if (layout(id) != 0) blocked_bytes += bytes_of(type(id));
      if (layout(id) == 0 && *wanted != 0) plain_bytes += bytes_of(type(id));
    }
    return blocked_bytes > 0 && blocked_bytes >= plain_bytes ? choice : plain(node);
  }

  bool is_along_channels(const Node& node, int rank) const {
    const int64_t axis = node.attributes.get_int("axis", is_op(node, "Concat") ? 1 : 0);
    return (axis < 0 ? axis + rank : axis) == 1;
  }

  // Every part but the last fills its blocks, so that the parts lie behind each other; or channels can be gathered from
  // their blocks one by one.
  bool can_lie_in_blocks(const std::vector<ValueId>& parts) const {
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      if (const int bits = bits_of(type(parts[i]).dtype); bits == 32 || bits == 8) continue;
      if (channels_of(type(parts[i])) % block_ != 0) return false;
    }
    return true;
  }

  Choice choose_join(const Node& node) const {
    if (node.epilogue || !is_along_channels(node, type(node.outputs[0]).rank()) || !can_lie_in_blocks(node.inputs)) {
      return plain(node);
    }
    double blocked_bytes = 0, plain_bytes = 0;
    for (const ValueId id : node.inputs) (layout(id) != 0 ? blocked_bytes : plain_bytes) += bytes_of(type(id));
    if (blocked_bytes <= plain_bytes) return plain(node);
    return {block_, std::vector<int>(node.inputs.size(), block_)};
  }

  Choice choose_part(const Node& node) const {
    const bool all_wanted = std::count(node.outputs.begin(), node.outputs.end(), ValueId::none) == 0;
    if (layout(node.inputs[0]) == 0 || !all_wanted || !is_along_channels(node, type(node.inputs[0]).rank()) ||
        !can_lie_in_blocks(node.outputs)) {
      return plain(node);
    }
    Choice choice = plain(node);
    choice.output = choice.inputs[0] = block_;
    return choice;
  }

  Graph& graph_;
  int block_;
  std::vector<int> layout_;  // by value
  std::vector<Choice> choices_;
};

class ReorderInserter {
 public:
  ReorderInserter(Rewriter& rewriter, const OpSchema& schema) : rewriter_(rewriter), schema_(schema) {}

  // `id`, or a copy of it in the layout asked for; a new reorder stands right before `reader`.
  ValueId as(ValueId id, int block, NodeId reader) {
    Graph& graph = rewriter_.graph();
    if (graph.value(id).type.layout.channel_block == block) return id;
    if (copies_.size() <= index_of(id)) copies_.resize(graph.value_count(), ValueId::none);
    if (copies_[index_of(id)] == ValueId::none) {
      TensorType type = graph.value(id).type;
      type.layout.channel_block = block;
      const ValueId copy = rewriter_.add_value(graph.value(id).name, type);
      insert(id, copy, block, reader);
      copies_[index_of(id)] = copy;
    }
    return copies_[index_of(id)];
  }

  void insert(ValueId from, ValueId to, int block, NodeId place) {
    Node node{.op = &schema_, .name = "", .inputs = {from}, .outputs = {to}};
    node.attributes.set("channel_block", int64_t{block});
    rewriter_.add(std::move(node), place);
  }

 private:
  Rewriter& rewriter_;
  const OpSchema& schema_;
  std::vector<ValueId> copies_;  // by value: the same in the other layout
};

// A blocked graph output becomes an inner value with a reorder behind it.
void free_outputs(Rewriter& rewriter, ReorderInserter& reorders, NodeId id) {
  Graph& graph = rewriter.graph();
  for (size_t i = 0; i < graph.node(id).outputs.size(); ++i) {
    const ValueId output = graph.node(id).outputs[i];
    if (output == ValueId::none || graph.value(output).type.layout.channel_block == 0 || !rewriter.is_output(output))
      continue;
    const ValueId inner = rewriter.add_value(graph.value(output).name, graph.value(output).type);
    for (const Graph::Use use : rewriter.uses(output))
      rewriter.set_input(use.node, static_cast<size_t>(use.slot), inner);
    graph.node(id).outputs[i] = inner;
    graph.value(inner).producer = id;
    graph.value(output).producer = NodeId::none;
    graph.value(output).type.layout = {};
    reorders.insert(inner, output, 0, id);
  }
}

// What the passes behind this one make: copies that read blocks or write them, and views of the same bytes.
bool moves_blocks(const Graph& graph, const Node& node) {
  const bool is_one_to_one = node.outputs.size() == 1 && !node.inputs.empty() && !node.epilogue;
  if (!is_one_to_one || node.inputs[0] == ValueId::none || node.outputs[0] == ValueId::none) return false;
  for (size_t slot = 1; slot < node.inputs.size(); ++slot) {
    const ValueId id = node.inputs[slot];
    if (id != ValueId::none && graph.value(id).type.layout.channel_block != 0) return false;
  }
  const TensorType &from = graph.value(node.inputs[0]).type, &to = graph.value(node.outputs[0]).type;
  if (from.rank() < 3 || to.rank() < 3 || bits_of(from.dtype) < 8) return false;
  if (is_lathe_op(node, "Reorder")) return node.attributes.get_int("channel_block", 0) == to.layout.channel_block;
  if (is_op(node, "Transpose")) return from.layout.channel_block == 0 || to.layout.channel_block == 0;
  return is_reshape(node) && from.layout == to.layout && from.dims[0] == to.dims[0] && from.dims[1] == to.dims[1];
}

}  // namespace

bool has_fitting_layouts(const Graph& graph, NodeId id, int block) {
  const Node& node = graph.node(id);
  bool is_blocked = false;
  for (const auto* ids : {&node.inputs, &node.outputs}) {
    for (const ValueId value : *ids)
      is_blocked = is_blocked || (value != ValueId::none && graph.value(value).type.layout.channel_block != 0);
  }
  if (!is_blocked) return true;
  Graph copy = graph;
  return moves_blocks(graph, node) || LayoutChooser(copy, block).agrees(node);
}

bool choose_layouts(Graph& graph, const PassContext& context) {
  const OpSchema* schema = context.ops.find("lathe", "Reorder", 1);
  if (context.channel_block == 0 || schema == nullptr) return false;
  LayoutChooser chooser(graph, context.channel_block);
  if (!chooser.run()) return false;
  const std::vector<NodeId> order = graph.order();
  for (size_t i = 0; i < order.size(); ++i) {
    for (const ValueId id : graph.node(order[i]).outputs) {
      if (id == ValueId::none) continue;
      TensorType& type = graph.value(id).type;
      type.layout.channel_block = block_in(chooser.choices()[i], type);
    }
  }
  Rewriter rewriter(graph);
  ReorderInserter reorders(rewriter, *schema);
  for (size_t i = 0; i < order.size(); ++i) {
    const std::vector<int>& wanted = chooser.choices()[i].inputs;
    for (size_t slot = 0; slot < wanted.size(); ++slot) {
      const ValueId input = graph.node(order[i]).inputs[slot];
      if (input != ValueId::none) rewriter.set_input(order[i], slot, reorders.as(input, wanted[slot], order[i]));
    }
  }
  for (const NodeId id : order) free_outputs(rewriter, reorders, id);
  rewriter.finish();
  return true;
}

}  // namespace lathe::passes
