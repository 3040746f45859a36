#pragma once
// Operators that are compositions of others: one node becomes several nodes of ai.onnx, so that the kernels and fusions
// of the parts serve it.
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "graph/op_schema.h"

namespace lathe {

using NamedAttributes = std::initializer_list<std::pair<const char*, Attribute>>;

// What an ExpandFn sees: the node, what is known of its inputs, and the means to write what stands for it.
class ExpandContext {
 public:
  ExpandContext(Graph& graph, const Node& expanded, const OpLookup& ops);

  const Node node;  // a copy: the graph grows meanwhile
  bool has_input(int i) const { return input(i) != ValueId::none; }
  ValueId input(int i) const;  // none: absent
  bool has_output(int i) const;
  const Graph& graph() const { return graph_; }
  const TensorType& type(ValueId id) const { return graph_.value(id).type; }
  const TensorType& input_type(int i) const { return type(input(i)); }  // Requires: has_input(i).
  Tensor constant_of(ValueId id) const;                                 // undefined: not known, or absent

  // A node of ai.onnx behind those added before; its result. Types are inferred at once.
  ValueId add(std::string_view op, std::vector<ValueId> inputs, NamedAttributes attributes = {});
  ValueId add(std::string_view op, std::vector<ValueId> inputs, Attributes attributes);
  ValueId add_own(std::string_view op, std::vector<ValueId> inputs, Attributes attributes);  // the same of "lathe"
  std::vector<ValueId> add_many(std::string_view op, std::vector<ValueId> inputs, int outputs, Attributes attributes);
  // The same node over other inputs; its results.
  std::vector<ValueId> add_copy(const Node& original, std::vector<ValueId> inputs);
  ValueId constant(Tensor tensor);
  ValueId longs(std::initializer_list<int64_t> elements);
  // Output `i` of the node is this value. Every wanted output must be set.
  void set_output(int i, ValueId value);

  // Throws Error(invalid_model) or Error(unsupported) naming the node.
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void unsupported(const std::string& what) const;

  // What was added, with the outputs of the expanded node in their places. Call once, at the end.
  std::vector<Node> take_nodes();

 private:
  std::string fresh_name(std::string_view op);
  std::vector<ValueId> append(Node made, int outputs);

  Graph& graph_;
  const OpLookup& ops_;
  std::vector<Node> nodes_;
  std::vector<ValueId> results_;  // by output
};

// What was added takes the node's place, but for the order, which is the caller's. Returns it.
std::vector<NodeId> put_in_place(Graph& graph, NodeId id, ExpandContext& context);

// Expands every node that can be, and what comes out of it. True: there was one.
bool expand_nodes(Graph& graph, const OpLookup& ops);

}  // namespace lathe
