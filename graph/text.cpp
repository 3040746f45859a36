#include "graph/text.h"

#include <charconv>
#include <set>

#include "graph/op_schema.h"

namespace lathe {
namespace {

constexpr size_t kLongestName = 200;    // characters of a name in a message
constexpr int64_t kListedElements = 8;  // of a constant or an attribute's list

std::string escaped(std::string_view name) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text;
  for (char c : name.substr(0, kLongestName)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      text += "\\n";
    } else if (c == '\t') {
      text += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      text += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    } else {
      text += c;
    }
  }
  if (name.size() > kLongestName) text += "... (" + std::to_string(name.size()) + " bytes)";
  return text;
}

template <class T>
std::string number(T value) {
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  return std::string(digits, end);
}

template <class T>
std::string list(std::span<const T> items) {
  std::string text = "[";
  for (size_t i = 0; i < items.size(); ++i) {
    if (i != 0) text += ", ";
    if (i == static_cast<size_t>(kListedElements)) return text + "... " + std::to_string(items.size()) + "]";
    if constexpr (std::is_same_v<T, std::string>) {
      text += '"' + escaped(items[i]) + '"';
    } else if constexpr (std::is_same_v<T, bool>) {
      text += items[i] ? "true" : "false";
    } else {
      text += number(items[i]);
    }
  }
  return text + "]";
}

std::string elements(const Tensor& tensor) {
  switch (tensor.dtype()) {
    case DType::f32:
      return list(tensor.elements<float>());
    case DType::f64:
      return list(tensor.elements<double>());
    case DType::i32:
      return list(tensor.elements<int32_t>());
    case DType::i64:
      return list(tensor.elements<int64_t>());
    case DType::boolean:
      return list(tensor.elements<bool>());
    case DType::string:
      return list(tensor.elements<std::string>());
    default:
      return "";
  }
}

std::string tensor_text(const Tensor& tensor) {
  if (!tensor.defined()) return "none";
  std::string text = to_string(TensorType::of(tensor.dtype(), tensor.dims()));
  if (tensor.size() > kListedElements) return text;
  const std::string shown = elements(tensor);
  return shown.empty() ? text : text + " " + shown;
}

struct AttributeText {
  std::string operator()(int64_t value) const { return number(value); }
  std::string operator()(float value) const { return number(value); }
  std::string operator()(const std::string& value) const { return '"' + escaped(value) + '"'; }
  std::string operator()(const Tensor& value) const { return tensor_text(value); }
  std::string operator()(const std::shared_ptr<const Graph>&) const { return "{...}"; }
  std::string operator()(const std::vector<int64_t>& value) const { return list(std::span<const int64_t>(value)); }
  std::string operator()(const std::vector<float>& value) const { return list(std::span<const float>(value)); }
  std::string operator()(const std::vector<std::string>& value) const {
    return list(std::span<const std::string>(value));
  }
  std::string operator()(const std::vector<Tensor>& value) const { return std::to_string(value.size()) + " tensors"; }
  std::string operator()(const std::vector<std::shared_ptr<const Graph>>& value) const {
    return std::to_string(value.size()) + " graphs";
  }
  std::string operator()(const TensorType& value) const { return to_string(value); }
};

class Printer {
 public:
  explicit Printer(const Graph& graph, std::string indent) : graph_(graph), indent_(std::move(indent)) {}

  std::string print() {
    line("graph " + (graph_.name.empty() ? std::string("main") : escaped(graph_.name)));
    for (ValueId id : graph_.inputs) line("in " + typed(id));
    print_constants();
    for (NodeId id : graph_.order()) print_node(graph_.node(id));
    for (ValueId id : graph_.outputs) line("out " + name(id));
    return std::move(text_);
  }

 private:
  void line(const std::string& content) { text_ += indent_ + content + "\n"; }

  std::string name(ValueId id) const {
    if (id == ValueId::none) return "_";
    const std::string& value_name = graph_.value(id).name;
    return value_name.empty() ? "%#" + std::to_string(index_of(id)) : "%" + escaped(value_name);
  }

  std::string typed(ValueId id) const {
    return id == ValueId::none ? "_" : name(id) + ": " + to_string(graph_.value(id).type);
  }

  // Names separated by commas: the slots [begin, end).
  std::string names(const std::vector<ValueId>& ids, size_t begin, size_t end) const {
    std::string text;
    for (size_t i = begin; i < end; ++i) text += (i == begin ? "" : ", ") + name(ids[i]);
    return text;
  }

  void print_constants() {
    std::set<ValueId> used(graph_.outputs.begin(), graph_.outputs.end());
    for (NodeId id : graph_.order()) used.insert(graph_.node(id).inputs.begin(), graph_.node(id).inputs.end());
    for (ValueId id : used) {
      if (id != ValueId::none && graph_.value(id).is_constant()) {
        line("const " + name(id) + ": " + tensor_text(graph_.value(id).constant));
      }
    }
  }

  void print_node(const Node& node) {
    std::string text;
    for (size_t i = 0; i < node.outputs.size(); ++i) text += (i == 0 ? "" : ", ") + typed(node.outputs[i]);
    text += " = ";
    if (!node.op->domain.empty()) text += std::string(node.op->domain) + ".";
    text += std::string(node.op->name) + attributes(node);
    const size_t extra = node.epilogue ? static_cast<size_t>(node.epilogue->inputs) : 0;
    const size_t outer_end = node.inputs.size() - extra;
    const size_t own_end = outer_end - static_cast<size_t>(node.captures);
    text += "(" + names(node.inputs, 0, own_end);
    if (node.captures != 0) text += "; " + names(node.inputs, own_end, outer_end);
    text += ")";
    if (node.epilogue) {
      text += " then " + to_string(node.epilogue->expression);
      if (extra != 0) text += " with (" + names(node.inputs, outer_end, node.inputs.size()) + ")";
    }
    line(text);
    print_bodies(node);
  }

  static std::string attributes(const Node& node) {
    std::string text;
    for (const auto& [key, value] : node.attributes) {
      text += (text.empty() ? "[" : ", ") + escaped(key) + "=" + std::visit(AttributeText(), value);
    }
    return text.empty() ? text : text + "]";
  }

  void print_bodies(const Node& node) {
    for (const auto& [key, value] : node.attributes) {
      if (const auto* body = std::get_if<std::shared_ptr<const Graph>>(&value)) {
        line("  " + escaped(key) + ":");
        text_ += Printer(**body, indent_ + "    ").print();
      }
    }
  }

  const Graph& graph_;
  std::string indent_;
  std::string text_;
};

}  // namespace

std::string to_text(const Graph& graph) { return Printer(graph, "").print(); }

std::string in_quotes(std::string_view name) { return "'" + escaped(name) + "'"; }

std::string describe(const Node& node) {
  return "node " + in_quotes(node.name) + " (" + (node.op != nullptr ? std::string(node.op->name) : "?") + ")";
}

}  // namespace lathe
