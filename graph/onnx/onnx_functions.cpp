#include "graph/onnx/onnx_functions.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <unordered_map>

#include "graph/text.h"
#include "lathe/error.h"

namespace lathe {
namespace {

constexpr int64_t kNewestOpset = 28;
// Fields that came after the packaged schema.
constexpr int kNodeOverload = 8;
constexpr int kFunctionAttributeProto = 11;
constexpr int kFunctionOverload = 13;

[[noreturn]] void reject(const std::string& what) { throw Error(ErrorCode::invalid_model, what); }

// Calls visit(bytes) for each length-delimited field of this number.
template <class Visit>
void visit_unknown(const google::protobuf::UnknownFieldSet& fields, int number, Visit&& visit) {
  for (int i = 0; i < fields.field_count(); ++i) {
    const google::protobuf::UnknownField& field = fields.field(i);
    if (field.number() == number && field.type() == google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) {
      visit(field.length_delimited());
    }
  }
}

std::string unknown_string(const google::protobuf::UnknownFieldSet& fields, int number) {
  std::string text;
  visit_unknown(fields, number, [&](const std::string& bytes) { text = bytes; });
  return text;
}

Function function_of(const onnx::FunctionProto& proto) {
  const std::string place = "function " + in_quotes(proto.name());
  Function function{&proto, opsets_of(proto.opset_import(), place), {}, {}};
  function.attributes.insert(proto.attribute().begin(), proto.attribute().end());
  visit_unknown(proto.unknown_fields(), kFunctionAttributeProto, [&](const std::string& bytes) {
    auto value = std::make_shared<onnx::AttributeProto>();
    if (!value->ParseFromString(bytes)) reject(place + ": an attribute default is malformed");
    function.attributes.insert(value->name());
    function.defaults[value->name()] = value;
  });
  return function;
}

// Counts the nodes of expanded functions; each function once.
class Counter {
 public:
  Counter(const FunctionTable& table, const Limits& limits) : table_(table), limits_(limits) {}

  template <class Nodes>
  int64_t count(const Nodes& nodes, int depth) {
    int64_t total = 0;
    for (const onnx::NodeProto& node : nodes) {
      total += 1;
      if (const Function* function = table_.find(node)) total += count_function(*function, depth + 1);
      for (const onnx::AttributeProto& attribute : node.attribute()) {
        if (attribute.has_g()) total += count(attribute.g().node(), depth);
        for (const onnx::GraphProto& body : attribute.graphs()) total += count(body.node(), depth);
        check(total);
      }
      check(total);
    }
    return total;
  }

 private:
  enum : int64_t { kActive = -1 };

  int64_t count_function(const Function& function, int depth) {
    const std::string place = "function " + in_quotes(function.proto->name());
    if (depth > limits_.function_depth) {
      throw Error(ErrorCode::limit,
                  place + ": functions call each other more than " + std::to_string(limits_.function_depth) + " deep");
    }
    const auto [known, is_new] = counts_.try_emplace(&function, kActive);
    if (!is_new) {
      if (known->second == kActive) reject(place + ": calls itself");
      return known->second;
    }
    const int64_t total = count(function.proto->node(), depth);
    return counts_[&function] = total;
  }

  void check(int64_t total) const {
    if (total > limits_.nodes) {
      throw Error(ErrorCode::limit, "the model has more than " + std::to_string(limits_.nodes) +
                                        " nodes when its functions are expanded");
    }
  }

  const FunctionTable& table_;
  const Limits& limits_;
  std::unordered_map<const Function*, int64_t> counts_;
};

}  // namespace

std::string domain_of(const std::string& written) { return written == "ai.onnx" ? "" : written; }

std::string shown_domain(const std::string& domain) { return domain.empty() ? "ai.onnx" : domain; }

template <class Imports>
Opsets opsets_of(const Imports& imports, const std::string& place) {
  Opsets opsets;
  for (const onnx::OperatorSetIdProto& import : imports) {
    const std::string domain = domain_of(import.domain());
    const std::string shown = place + ": opset " + std::to_string(import.version()) + " of " + shown_domain(domain);
    if (import.version() < 1) reject(shown + " does not exist");
    if (import.version() > (domain.empty() ? kNewestOpset : int64_t{1} << 20)) {
      throw Error(ErrorCode::unsupported,
                  shown + " is newer than the newest that is known, " + std::to_string(kNewestOpset));
    }
    const auto [entry, is_new] = opsets.emplace(domain, static_cast<int>(import.version()));
    if (!is_new && entry->second != import.version()) reject(shown + " is imported beside another opset of it");
  }
  return opsets;
}

template Opsets opsets_of(const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>&, const std::string&);

FunctionTable::FunctionTable(const onnx::ModelProto& model) {
  for (const onnx::FunctionProto& proto : model.functions()) {
    const Key key(domain_of(proto.domain()), proto.name(), unknown_string(proto.unknown_fields(), kFunctionOverload));
    if (!functions_.emplace(key, function_of(proto)).second) {
      reject("function " + in_quotes(proto.name()) + " (" + shown_domain(std::get<0>(key)) + ") is defined twice");
    }
  }
}

const Function* FunctionTable::find(const onnx::NodeProto& node) const {
  if (functions_.empty()) return nullptr;
  const auto found = functions_.find(
      Key(domain_of(node.domain()), node.op_type(), unknown_string(node.unknown_fields(), kNodeOverload)));
  return found == functions_.end() ? nullptr : &found->second;
}

int64_t FunctionTable::expanded_nodes(const onnx::GraphProto& graph, const Limits& limits) const {
  return Counter(*this, limits).count(graph.node(), 0);
}

}  // namespace lathe
