#pragma once
// What passes share: uses kept up to date while nodes come and go, and questions about constants and shapes.
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/op_schema.h"

namespace lathe {

bool is_op(const Node& node, std::string_view name);                            // of ai.onnx
bool is_one_of(const Node& node, std::initializer_list<std::string_view> ops);  // of ai.onnx
bool is_lathe_op(const Node& node, std::string_view name);
bool is_reshape(const Node& node);        // the elements of input 0, in their order, in another shape
bool is_plain_reshape(const Node& node);  // and nothing is done to them
bool has_bodies(const Node& node);
ValueId input_or_none(const Node& node, size_t slot);

// The constant behind a value; undefined when it has none (or is absent).
Tensor constant_of(const Graph& graph, ValueId id);
// The value of a float32 constant of one element, whatever its rank.
std::optional<float> scalar_of(const Graph& graph, ValueId id);
// The elements of an int64 or int32 constant.
std::optional<std::vector<int64_t>> integers_of(const Graph& graph, ValueId id);
// The one element of such a constant.
std::optional<int64_t> integer_of(const Graph& graph, ValueId id);

// The order of axes of a Transpose; empty where that is any and the rank is not known.
std::vector<int64_t> order_of(const Graph& graph, const Node& transpose);

// Certainly equal extents: known and equal, or of one symbol.
bool same_dim(const Dim& a, const Dim& b);
bool same_shape(const TensorType& a, const TensorType& b);
// Broadcasting an operand of type `other` against `type` certainly gives the shape of `type`.
bool broadcasts_into(const TensorType& other, const TensorType& type);
bool is_scalar(const TensorType& type);  // of rank 0, or all extents 1

// By node: its place in `order`; 0 for a node that is not there.
std::vector<int> positions_in(const std::vector<NodeId>& order);

// A node of ai.onnx with one result and no attributes yet; its name is made up when it is added.
Node made_node(const OpLookup& ops, std::string_view op, int version, std::vector<ValueId> inputs, ValueId result);

// Edits one graph. Erased nodes leave order() and new ones find their place in finish(); until then only the questions
// asked here see the changes.
class Rewriter {
 public:
  explicit Rewriter(Graph& graph);

  Graph& graph() { return graph_; }
  // Live uses by nodes; graph outputs are not among them.
  std::vector<Graph::Use> uses(ValueId id) const;
  bool is_output(ValueId id) const { return output_uses_[index_of(id)] > 0; }
  bool is_used(ValueId id) const;
  // Exactly one slot of one node; graph outputs are not counted. Asked of a value with many readers this costs no more
  // than of one with two, unlike uses().
  bool has_one_use(ValueId id) const;
  // Every user of this value that is a node is one of those; asked in any order, until one is not.
  bool all_users(ValueId id, const std::function<bool(NodeId)>& is_one) const;
  // The one node that uses this value, in one slot or several; none for several nodes or a graph output.
  NodeId only_user(ValueId id) const;
  bool is_live(NodeId id) const { return index_of(id) >= is_erased_.size() || !is_erased_[index_of(id)]; }
  // The producing node, if it is this operator of ai.onnx; none otherwise.
  NodeId producer_if(ValueId id, std::string_view op) const;

  void set_input(NodeId node, size_t slot, ValueId to);
  // Every use becomes `to`, but a graph output keeps its value, for the name is the user's: false, and nothing happens,
  // when `from` is a graph output and `to` cannot take its place (an input, a constant, an output itself).
  // Requires: the producer of `from` is erased next.
  bool replace(ValueId from, ValueId to);
  // The outputs lose their producer.
  void erase(NodeId id);
  ValueId add_value(const std::string& like, TensorType type);
  ValueId add_constant(const std::string& like, Tensor tensor);
  ValueId add_integers(const std::string& like, const std::vector<int64_t>& numbers);  // a list of int64
  // The new node stands where `place` stands or stood, as far as its operands let it: the order of execution decides
  // how much memory is alive. An empty name is made up from the first output's.
  NodeId add(Node node, NodeId place);
  // The output moves from its producer to `to`, slot 0. Requires: the producer is erased or about to be.
  void move_output(ValueId output, NodeId to);

  // Puts order() right. True when anything was changed.
  bool finish();

  // How many uses all Rewriters of this thread have looked at so far: what tests of the passes' complexity count.
  static int64_t uses_read();

 private:
  std::string fresh(const std::string& like);
  void list_all() const;
  void list_use(ValueId id, Graph::Use use) const;
  // Calls visit(use) for each live use until it returns false; the same use may come twice. What is stale leaves the
  // list, so that nobody looks at it again.
  template <class Visit>
  void each_use(ValueId id, Visit visit) const;
  bool is_current(ValueId id, const Graph::Use& use) const;

  Graph& graph_;
  // Uses by value as lists in one block of memory, made when first asked for: most passes find nothing that they look
  // for. They may be stale: checked when read.
  struct ListedUse {
    Graph::Use use;
    int next;  // -1: the last one
  };
  mutable std::vector<ListedUse> listed_;
  mutable std::vector<int> first_use_;  // by value; -1: none; empty: not made yet
  std::vector<int> output_uses_;
  std::vector<bool> is_erased_;
  std::vector<std::vector<NodeId>> placed_at_;  // new nodes by the old node whose place they take
  std::vector<NodeId> place_of_;                // by node; none: an old one
  bool is_changed_ = false;
};

// Most passes: `rewrite_node(id)` for each node that is live by then, in order. True: changed.
template <class RewriteNode>
bool rewrite_each(Rewriter& rewriter, RewriteNode rewrite_node) {
  const std::vector<NodeId> order = rewriter.graph().order();
  for (const NodeId id : order) {
    if (rewriter.is_live(id)) rewrite_node(id);
  }
  return rewriter.finish();
}
// The same by a Rewriter of its own: `rewrite_node(rewriter, id)`.
template <class RewriteNode>
bool rewrite_each(Graph& graph, RewriteNode rewrite_node) {
  Rewriter rewriter(graph);
  return rewrite_each(rewriter, [&](NodeId id) { rewrite_node(rewriter, id); });
}

}  // namespace lathe
