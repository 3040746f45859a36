#pragma once
// Model-local functions: what the packaged schema knows of them, and what it lacks (overloads, attribute defaults).
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>

#include "src/base/limits.h"

namespace onnx {
class AttributeProto;
class FunctionProto;
class GraphProto;
class ModelProto;
class NodeProto;
}  // namespace onnx

namespace lathe {

using Opsets = std::map<std::string, int>;  // version by domain; ai.onnx is ""

struct Function {
  const onnx::FunctionProto* proto = nullptr;
  Opsets opsets;
  std::set<std::string> attributes;  // every name that a call may give
  std::map<std::string, std::shared_ptr<const onnx::AttributeProto>> defaults;
};

class FunctionTable {
 public:
  // Throws Error(invalid_model) when two functions have one key. `model` must outlive the table.
  explicit FunctionTable(const onnx::ModelProto& model);

  const Function* find(const onnx::NodeProto& node) const;

  // Nodes that the graph has when every call is expanded, bodies included; counted without expanding. Throws
  // Error(invalid_model) when a function calls itself, Error(limit) above Limits::nodes or function_depth.
  int64_t expanded_nodes(const onnx::GraphProto& graph, const Limits& limits) const;

 private:
  using Key = std::tuple<std::string, std::string, std::string>;  // domain, name, overload
  std::map<Key, Function> functions_;
};

// "ai.onnx" and "" are the same domain.
std::string domain_of(const std::string& written);
std::string shown_domain(const std::string& domain);

// Reads opset_import of a model or function. Throws Error(invalid_model), Error(unsupported) for an opset that is newer
// than any that is known.
template <class Imports>
Opsets opsets_of(const Imports& imports, const std::string& place);

}  // namespace lathe
