#pragma once
// The intermediate representation: ONNX operators over SSA values. Ids, not pointers; plain data.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "graph/attributes.h"
#include "graph/type.h"
#include "src/base/expression.h"

namespace lathe {

struct OpSchema;

enum class ValueId : int32_t { none = -1 };  // none: an optional input that is absent, an output nobody wants
enum class NodeId : int32_t { none = -1 };
inline size_t index_of(ValueId id) { return static_cast<size_t>(id); }
inline size_t index_of(NodeId id) { return static_cast<size_t>(id); }

struct Value {
  std::string name;
  TensorType type;
  Tensor constant;                 // defined: an initializer or a folded result; shared with the file's mapping
  NodeId producer = NodeId::none;  // none: graph input or constant
  bool is_constant() const { return constant.defined(); }
};

// Pointwise work fused behind a node: the stored first output is expression(first output, extra inputs...), where the
// extra inputs are the node's last `inputs` and broadcast to the output's shape.
struct Epilogue {
  Expression expression;  // input 0: the node's own result
  int inputs = 0;
};

struct Node {
  const OpSchema* op = nullptr;
  int version = 1;              // opset version of op's domain under which the model was written
  std::string name;             // unique and not empty (the importer makes one up)
  std::vector<ValueId> inputs;  // own inputs, then `captures`, then the epilogue's
  std::vector<ValueId> outputs;
  Attributes attributes;
  int captures = 0;  // outer values used by the bodies; each body's inputs end with these
  std::optional<Epilogue> epilogue;
  std::string fused_from;  // "Conv+BatchNormalization+Relu", for people; empty: the op's own name

  size_t own_input_count() const;  // without captures and the epilogue's
  std::string origin() const;      // what fused_from says
};

// Bodies are shared by all copies of their graph, and are known by who owns them.
class Graph : public std::enable_shared_from_this<Graph> {
 public:
  std::string name;
  std::vector<ValueId> inputs;   // without initializers, unless a body's formal input
  std::vector<ValueId> outputs;  // may repeat, may be inputs or constants

  Graph();
  Graph(const Graph&);
  Graph(Graph&&) noexcept;
  Graph& operator=(const Graph&);
  Graph& operator=(Graph&&) noexcept;
  ~Graph();

  ValueId add_value(std::string name, TensorType type);
  ValueId add_constant(std::string name, Tensor tensor);
  // Appends; outputs that are not none must have no producer yet. The node is placed at the end of order().
  NodeId add_node(Node node);

  // References stay good for as long as the graph lives, whatever is added: passes hold a node while they make others.
  const Value& value(ValueId id) const { return values_[index_of(id)]; }
  Value& value(ValueId id) { return values_[index_of(id)]; }
  const Node& node(NodeId id) const { return nodes_[index_of(id)]; }
  Node& node(NodeId id) { return nodes_[index_of(id)]; }
  size_t value_count() const { return values_.size(); }

  // The node's results are these constants from now on, none of which is undefined but where nobody wants it. The
  // caller takes the node out of order().
  void fold(NodeId id, std::vector<Tensor> results);

  // Live nodes in a topological order.
  const std::vector<NodeId>& order() const { return order_; }
  void set_order(std::vector<NodeId> order) { order_ = std::move(order); }
  // Re-sorts order() topologically, keeping the present order where it may. Throws Error(invalid_model) on a cycle.
  void sort();

  // Uses: (node, input slot) pairs, computed anew by each call of uses(); graph outputs are not in it.
  struct Use {
    NodeId node;
    int slot;
  };
  std::vector<std::vector<Use>> uses() const;  // indexed by value
  bool is_output(ValueId id) const;
  bool is_input(ValueId id) const;

  // Drops constants that nobody uses (their memory) and nothing else; ids stay.
  void drop_unused_constants();

 private:
  std::deque<Value> values_;
  std::deque<Node> nodes_;
  std::vector<NodeId> order_;
};

}  // namespace lathe
