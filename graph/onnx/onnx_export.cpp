#include "graph/onnx/onnx_export.h"

#include <onnx/onnx_pb.h>

#include <map>
#include <optional>
#include <set>

#include "graph/infer.h"
#include "graph/onnx/onnx_type.h"
#include "graph/spell_out.h"
#include "lathe/error.h"
#include "src/base/write_file.h"

namespace lathe {
namespace {

constexpr int kNewestOpset = 24;
constexpr size_t kMostBytes = (size_t{1} << 31) - (size_t{1} << 24);  // protobuf's limit, with room for the rest

// The first node that means something else at this opset, or none.
std::optional<std::string> misfit(const Graph& graph, const OpLookup& ops, int opset) {
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    for (const auto& [key, value] : node.attributes) {
      const auto* body = std::get_if<std::shared_ptr<const Graph>>(&value);
      const auto inner = body != nullptr && *body != nullptr ? misfit(**body, ops, opset) : std::nullopt;
      if (inner) return inner;
    }
    if (!node.op->domain.empty()) continue;
    if (ops.find("", node.op->name, opset) != node.op) {
      return "node '" + node.name + "' (" + std::string(node.op->name) + ") has no spelling at opset " +
             std::to_string(opset);
    }
  }
  return std::nullopt;
}

class Exporter {
 public:
  using Names = std::map<ValueId, std::string>;

  // A body names its own values with a prefix of its own; `outer_names` are those of its captures, its last inputs.
  explicit Exporter(const Graph& graph, std::string prefix = "", Names outer_names = {})
      : graph_(graph), prefix_(std::move(prefix)), outer_names_(std::move(outer_names)) {}

  void write(onnx::GraphProto& proto) {
    proto.set_name(graph_.name.empty() ? "graph" : graph_.name);
    for (const ValueId id : graph_.inputs) {
      if (outer_names_.count(id) == 0) write_info(*proto.add_input(), id);
    }
    for (const ValueId id : graph_.outputs) write_info(*proto.add_output(), id);
    std::set<ValueId> used(graph_.outputs.begin(), graph_.outputs.end());
    for (const NodeId id : graph_.order()) {
      for (const ValueId input : graph_.node(id).inputs) used.insert(input);
    }
    for (const ValueId id : used) {
      if (id != ValueId::none && graph_.value(id).is_constant())
        write_tensor(*proto.add_initializer(), name(id), graph_.value(id).constant);
    }
    for (const NodeId id : graph_.order()) write_node(*proto.add_node(), graph_.node(id));
  }

 private:
  std::string name(ValueId id) const {
    const auto outer = outer_names_.find(id);
    return outer != outer_names_.end() ? outer->second : prefix_ + graph_.value(id).name;
  }

  void write_info(onnx::ValueInfoProto& proto, ValueId id) const {
    proto.set_name(name(id));
    // What a body takes and gives may be known at a run only.
    if (graph_.value(id).type.dtype == DType::undefined) return;
    fill_onnx_type(without_inferred_symbols(graph_.value(id).type), *proto.mutable_type());
  }

  void write_tensor(onnx::TensorProto& proto, const std::string& tensor_name, const Tensor& tensor) {
    proto.set_name(tensor_name);
    proto.set_data_type(static_cast<int>(tensor.dtype()));
    for (const int64_t extent : tensor.dims()) proto.add_dims(extent);
    if (tensor.dtype() == DType::string) {
      for (const std::string& text : tensor.elements<std::string>()) proto.add_string_data(text);
      return;
    }
    bytes_ += tensor.bytes();
    if (bytes_ > kMostBytes)
      throw Error(ErrorCode::limit, "the model is too large for one ONNX file without external data");
    proto.set_raw_data(tensor.raw(), tensor.bytes());
  }

  void write_node(onnx::NodeProto& proto, const Node& node) {
    proto.set_op_type(std::string(node.op->name));
    proto.set_domain(std::string(node.op->domain));
    proto.set_name(prefix_ + node.name);
    for (size_t slot = 0; slot + static_cast<size_t>(node.captures) < node.inputs.size(); ++slot) {
      const ValueId id = node.inputs[slot];
      proto.add_input(id == ValueId::none ? "" : name(id));
    }
    for (const ValueId id : node.outputs) proto.add_output(id == ValueId::none ? "" : name(id));
    while (proto.input_size() > 0 && proto.input(proto.input_size() - 1).empty()) proto.mutable_input()->RemoveLast();
    while (proto.output_size() > 0 && proto.output(proto.output_size() - 1).empty())
      proto.mutable_output()->RemoveLast();
    for (const auto& [key, value] : node.attributes) write_attribute(*proto.add_attribute(), node, key, value);
  }

  void write_attribute(onnx::AttributeProto& proto, const Node& node, const std::string& key, const Attribute& value) {
    proto.set_name(key);
    if (const auto* integer = std::get_if<int64_t>(&value)) {
      proto.set_type(onnx::AttributeProto::INT);
      proto.set_i(*integer);
    } else if (const auto* real = std::get_if<float>(&value)) {
      proto.set_type(onnx::AttributeProto::FLOAT);
      proto.set_f(*real);
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      proto.set_type(onnx::AttributeProto::STRING);
      proto.set_s(*text);
    } else if (const auto* tensor = std::get_if<Tensor>(&value)) {
      proto.set_type(onnx::AttributeProto::TENSOR);
      write_tensor(*proto.mutable_t(), key, *tensor);
    } else if (const auto* body = std::get_if<std::shared_ptr<const Graph>>(&value)) {
      proto.set_type(onnx::AttributeProto::GRAPH);
      write_body(*proto.mutable_g(), node, key, **body);
    } else if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) {
      proto.set_type(onnx::AttributeProto::INTS);
      for (const int64_t each : *integers) proto.add_ints(each);
    } else if (const auto* reals = std::get_if<std::vector<float>>(&value)) {
      proto.set_type(onnx::AttributeProto::FLOATS);
      for (const float each : *reals) proto.add_floats(each);
    } else if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
      proto.set_type(onnx::AttributeProto::STRINGS);
      for (const std::string& each : *texts) proto.add_strings(each);
    } else if (const auto* type = std::get_if<TensorType>(&value)) {
      proto.set_type(onnx::AttributeProto::TYPE_PROTO);
      fill_onnx_type(*type, *proto.mutable_tp());
    } else {
      throw Error(ErrorCode::unsupported, "node '" + node.name + "' (" + std::string(node.op->name) + "): attribute '" +
                                              key + "' has no spelling");
    }
  }

  void write_body(onnx::GraphProto& proto, const Node& node, const std::string& key, const Graph& body) {
    const size_t captures = static_cast<size_t>(node.captures), formal = body.inputs.size() - captures;
    Names outer_names;
    for (size_t i = 0; i < captures; ++i) {
      outer_names[body.inputs[formal + i]] = name(node.inputs[node.inputs.size() - captures + i]);
    }
    Exporter(body, prefix_ + node.name + "/" + key + "/", std::move(outer_names)).write(proto);
  }

  const Graph& graph_;
  const std::string prefix_;
  const Names outer_names_;
  size_t bytes_ = 0;
};

// Every output is made by a node, once, and has the name that the user knows it by.
Graph with_named_outputs(Graph graph, const OpLookup& ops, int opset, const std::vector<std::string>& names) {
  std::set<ValueId> seen;
  for (size_t i = 0; i < graph.outputs.size(); ++i) {
    const ValueId id = graph.outputs[i];
    const bool is_own = graph.value(id).producer != NodeId::none && seen.insert(id).second;
    if (is_own) {
      if (i < names.size()) graph.value(id).name = names[i];
      continue;
    }
    const std::string name = i < names.size() ? names[i] : graph.value(id).name + "~output" + std::to_string(i);
    // What has the name is a copy's source; it goes by another one from now on.
    if (graph.value(id).name == name && !graph.is_input(id)) graph.value(id).name = name + "~inner";
    const ValueId copy = graph.add_value(name, graph.value(id).type);
    Node node;
    node.op = &ops.require("", "Identity", opset);
    node.version = opset;
    node.name = name + "~copy";
    node.inputs = {id};
    node.outputs = {copy};
    graph.add_node(std::move(node));
    graph.outputs[i] = copy;
  }
  return graph;
}

// The same for what bodies give.
Graph with_named_body_outputs(Graph graph, const OpLookup& ops, int opset) {
  for (const NodeId id : graph.order()) {
    std::vector<std::pair<std::string, Attribute>> named;
    for (const auto& [key, value] : graph.node(id).attributes) {
      const auto* body = std::get_if<std::shared_ptr<const Graph>>(&value);
      if (body == nullptr || *body == nullptr) continue;
      Graph inner = with_named_body_outputs(with_named_outputs(**body, ops, opset, {}), ops, opset);
      named.emplace_back(key, std::shared_ptr<const Graph>(std::make_shared<Graph>(std::move(inner))));
    }
    for (auto& [key, value] : named) graph.node(id).attributes.set(key, std::move(value));
  }
  return graph;
}

}  // namespace

void export_model_file(const std::string& path, const Graph& graph, const OpLookup& ops, const ExportOptions& options) {
  const auto known = options.opsets.find("");
  int opset = known == options.opsets.end() ? kNewestOpset : known->second;
  std::optional<Graph> spelled;
  std::string reason;
  for (; opset <= kNewestOpset && !spelled; ++opset) {
    try {
      Graph tried = with_named_outputs(spelled_out(graph, ops, opset), ops, opset, options.outputs);
      tried = with_named_body_outputs(std::move(tried), ops, opset);
      const std::optional<std::string> misfitting = misfit(tried, ops, opset);
      if (!misfitting) {
        spelled = std::move(tried);
        break;
      }
      reason = *misfitting;
    } catch (const Error& error) {
      reason = error.what();
    }
  }
  if (!spelled) throw Error(ErrorCode::unsupported, "no opset can say this graph: " + reason);

  onnx::ModelProto model;
  model.set_ir_version(options.ir_version);
  model.set_producer_name("lathe");
  auto* imported = model.add_opset_import();
  imported->set_domain("");
  imported->set_version(opset);
  for (const auto& [domain, version] : options.opsets) {
    if (domain.empty()) continue;
    auto* other = model.add_opset_import();
    other->set_domain(domain);
    other->set_version(version);
  }
  Exporter(*spelled).write(*model.mutable_graph());
  write_file(path, [&](std::ostream& file) { return model.SerializeToOstream(&file); });
}

}  // namespace lathe
