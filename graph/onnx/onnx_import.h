#pragma once
// GraphProto to Graph: names become ids, bodies are closed over what they use, calls of local functions are expanded.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "graph/onnx/onnx_attribute.h"
#include "graph/onnx/onnx_functions.h"
#include "graph/onnx/onnx_scope.h"
#include "graph/onnx/onnx_tensor.h"
#include "graph/op_schema.h"

namespace onnx {
class TypeProto;
class ValueInfoProto;
}  // namespace onnx

namespace lathe {

class GraphImporter {
 public:
  GraphImporter(const OpLookup& ops, const FunctionTable& functions, TensorReader& tensors, const Limits& limits)
      : ops_(ops), functions_(functions), tensors_(tensors), limits_(limits) {}

  // The model's main graph. Throws as import_model_file does.
  std::shared_ptr<Graph> run(const onnx::GraphProto& proto, const Opsets& opsets);

 private:
  struct Body {
    std::shared_ptr<Graph> graph;
    std::unique_ptr<GraphInProgress> progress;
  };
  using Nodes = std::vector<const onnx::NodeProto*>;

  void fill(const onnx::GraphProto& proto, Scope& scope);
  void declare_initializers(const onnx::GraphProto& proto, Scope& scope);
  void declare_constant(const std::string& name, const std::string& kind, Tensor tensor, Scope& scope);
  void declare_inputs(const onnx::GraphProto& proto, Scope& scope);
  void declare_outputs(const onnx::NodeProto& node, Scope& scope);
  void record_types(const onnx::GraphProto& proto, Scope& scope);
  void set_outputs(const onnx::GraphProto& proto, Scope& scope);

  void convert(const onnx::NodeProto& proto, int index, Scope& scope);
  void convert_operator(const onnx::NodeProto& proto, Node node, Scope& scope);
  void convert_constant(const onnx::NodeProto& proto, const Node& node, Scope& scope);
  void report_unsupported(const onnx::NodeProto& proto, const Node& node);
  void resolve_inputs(const onnx::NodeProto& proto, Node& node, Scope& scope);
  void read_attributes(const onnx::NodeProto& proto, Node& node, Scope& scope, std::vector<Body>& bodies);
  void read_attribute(const onnx::AttributeProto& proto, const std::string& place, Node& node, Scope& scope,
                      const BodyReader& read_body);
  std::shared_ptr<const Graph> import_body(const onnx::GraphProto& proto, Scope& outer, std::vector<Body>& bodies);
  static void close_bodies(std::vector<Body>& bodies, Node& node);

  void expand(const Function& function, const onnx::NodeProto& call, const std::string& name, Scope& scope);
  std::map<std::string, Attribute> bind(const Function& function, const onnx::NodeProto& call, const std::string& place,
                                        Scope& scope);
  void declare_formals(const Function& function, const onnx::NodeProto& call, const std::string& place, Scope& caller,
                       Scope& inner);
  void pass_through(const std::string& name, ValueId actual, Scope& inner);
  void spend(size_t bytes);

  const OpLookup& ops_;
  const FunctionTable& functions_;
  TensorReader& tensors_;
  const Limits& limits_;
  size_t copied_bytes_ = 0;                                      // by expansion of functions
  std::map<std::string, std::vector<std::string>> unsupported_;  // nodes by "operator 'Foo' (ai.onnx 28) is ..."
};

}  // namespace lathe
