#pragma once
// The words in which spell_out.cpp says what only Lathe knows: nodes of ai.onnx, as the opset of the file spells them.
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "graph/op_schema.h"
#include "graph/passes/rewrite.h"

namespace lathe {

class Spelling {
 public:
  using NamedAttributes = std::vector<std::pair<const char*, Attribute>>;

  Spelling(const Graph& source, const OpLookup& ops, int opset)
      : graph_(source), rewriter_(graph_), ops_(ops), opset_(opset) {}

  // From here on all nodes come to stand in this one's place.
  void begin(NodeId id);
  // `result`: the value that the node shall make; none: a new one.
  ValueId op(const char* name, std::vector<ValueId> inputs, NamedAttributes attributes = {},
             ValueId result = ValueId::none);
  ValueId constant(Tensor tensor) { return rewriter_.add_constant(like_, std::move(tensor)); }
  ValueId scalar(float value) { return constant(Tensor::scalar<float>(value)); }
  ValueId integers(const std::vector<int64_t>& values);
  ValueId cast(ValueId value, DType dtype, ValueId result = ValueId::none);
  ValueId transposed(ValueId value, const std::vector<int64_t>& perm, ValueId result = ValueId::none);
  ValueId reshaped(ValueId value, const std::vector<int64_t>& dims, ValueId result = ValueId::none);

  const TensorType& type(ValueId id) const { return graph_.value(id).type; }
  // Throws Error(unsupported) naming the node.
  [[noreturn]] static void fail(const Node& node, const std::string& what);

 protected:
  Graph graph_;
  Rewriter rewriter_;
  const OpLookup& ops_;
  int opset_;
  NodeId place_ = NodeId::none;
  std::string like_;
};

// lathe::SequencePositions and lathe::CacheAppend (ops/def/sequence_cache.cpp).
void spell_positions(Spelling& spelling, const Node& node, ValueId result);
void spell_append(Spelling& spelling, const Node& node, ValueId result);

}  // namespace lathe
