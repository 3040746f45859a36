// A Transpose next to a lathe::Reorder (or with a Reshape of the pixels between them) reads the channel blocks itself,
// or writes them: one copy, not two.
#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

bool is_blocked(const Graph& graph, ValueId id) { return graph.value(id).type.layout.channel_block != 0; }

// Elements of whole bytes: others are moved by a reference, which knows no layout.
bool is_plain_transpose(const Graph& graph, const Node& node) {
  if (!is_op(node, "Transpose") || node.epilogue || node.captures > 0 || node.outputs[0] == ValueId::none) return false;
  const TensorType &from = graph.value(node.inputs[0]).type, &to = graph.value(node.outputs[0]).type;
  return from.is_static() && to.is_static() && from.dtype != DType::string && bits_of(from.dtype) >= 8 &&
         !is_blocked(graph, node.inputs[0]) && !is_blocked(graph, node.outputs[0]);
}

// A Reshape of the pixels alone means the same bytes in either layout.
bool keeps_channels(const Graph& graph, const Node& node) {
  if (node.epilogue || !is_reshape(node)) return false;
  const TensorType &from = graph.value(node.inputs[0]).type, &to = graph.value(node.outputs[0]).type;
  return from.is_static() && to.is_static() && from.rank() >= 3 && to.rank() >= 3 &&
         from.dims[0].extent == to.dims[0].extent && from.dims[1].extent == to.dims[1].extent;
}

class Absorber {
 public:
  explicit Absorber(Rewriter& rewriter) : rewriter_(rewriter), graph_(rewriter.graph()) {}

  void try_transpose(NodeId id) {
    if (!read_blocks(id)) write_blocks(id);
  }

 private:
  bool is_reorder(NodeId id) const {
    return id != NodeId::none && rewriter_.is_live(id) && is_lathe_op(graph_.node(id), "Reorder");
  }

  bool read_blocks(NodeId id) {
    const ValueId read = graph_.node(id).inputs[0];
    NodeId reader = id, producer = graph_.value(read).producer;
    // Other readers of the plain copy would keep the reorder.
    if (producer == NodeId::none || rewriter_.only_user(read) != id) return false;
    if (keeps_channels(graph_, graph_.node(producer))) {
      reader = producer;
      producer = graph_.value(graph_.node(reader).inputs[0]).producer;
      if (rewriter_.only_user(graph_.node(reader).inputs[0]) != reader) return false;
    }
    if (!is_reorder(producer) || !is_blocked(graph_, graph_.node(producer).inputs[0])) return false;
    const ValueId blocked = graph_.node(producer).inputs[0];
    rewriter_.set_input(reader, 0, blocked);
    rewriter_.erase(producer);
    if (reader != id) graph_.value(read).type.layout = graph_.value(blocked).type.layout;
    return true;
  }

  void write_blocks(NodeId id) {
    const ValueId written = graph_.node(id).outputs[0];
    NodeId writer = id, reader = rewriter_.only_user(written);
    if (reader != NodeId::none && keeps_channels(graph_, graph_.node(reader))) {
      writer = reader;
      reader = rewriter_.only_user(graph_.node(writer).outputs[0]);
    }
    if (!is_reorder(reader) || !is_blocked(graph_, graph_.node(reader).outputs[0])) return;
    const ValueId result = graph_.node(reader).outputs[0];
    rewriter_.erase(reader);
    rewriter_.move_output(result, writer);
    if (writer != id) graph_.value(written).type.layout = graph_.value(result).type.layout;
  }

  Rewriter& rewriter_;
  Graph& graph_;
};

}  // namespace

bool absorb_reorders(Graph& graph, const PassContext&) {
  Rewriter rewriter(graph);
  Absorber absorber(rewriter);
  const std::vector<NodeId> order = graph.order();
  for (const NodeId id : order) {
    if (!rewriter.is_live(id) || !is_plain_transpose(graph, graph.node(id))) continue;
    absorber.try_transpose(id);
  }
  return rewriter.finish();
}

}  // namespace lathe::passes
