#include "graph/spelling.h"

#include "lathe/error.h"

namespace lathe {

void Spelling::fail(const Node& node, const std::string& what) {
  throw Error(ErrorCode::unsupported, "node '" + node.name + "' (" + std::string(node.op->name) + "): " + what);
}

void Spelling::begin(NodeId id) {
  place_ = id;
  like_ = graph_.node(id).name;
}

ValueId Spelling::op(const char* name, std::vector<ValueId> inputs, NamedAttributes attributes, ValueId result) {
  // Before this one Slice, Min and others were written in another way.
  constexpr int kOldestOpset = 10;
  if (opset_ < kOldestOpset) fail(graph_.node(place_), "opset " + std::to_string(opset_) + " is too old to say it");
  if (result == ValueId::none) result = rewriter_.add_value(like_, TensorType::unranked(DType::f32));
  Node node;
  node.op = ops_.find("", name, opset_);
  if (node.op == nullptr) fail(graph_.node(place_), "opset " + std::to_string(opset_) + " has no " + name);
  node.version = opset_;
  node.inputs = std::move(inputs);
  node.outputs = {result};
  for (auto& [key, value] : attributes) node.attributes.set(key, std::move(value));
  rewriter_.add(std::move(node), place_);
  return result;
}

ValueId Spelling::integers(const std::vector<int64_t>& values) {
  return constant(Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values));
}

ValueId Spelling::cast(ValueId value, DType dtype, ValueId result) {
  return op("Cast", {value}, {{"to", static_cast<int64_t>(dtype)}}, result);
}

ValueId Spelling::transposed(ValueId value, const std::vector<int64_t>& perm, ValueId result) {
  if (perm.empty() && result == ValueId::none) return value;
  return perm.empty() ? op("Identity", {value}, {}, result) : op("Transpose", {value}, {{"perm", perm}}, result);
}

ValueId Spelling::reshaped(ValueId value, const std::vector<int64_t>& dims, ValueId result) {
  return op("Reshape", {value, integers(dims)}, {}, result);
}

}  // namespace lathe
