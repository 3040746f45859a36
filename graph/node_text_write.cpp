// Nodes to text: see node_text.h.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "graph/node_text.h"
#include "graph/op_schema.h"

namespace lathe {
namespace {

constexpr int64_t kSpelledElements = 64;  // of a constant; of more integers, the range alone
constexpr int64_t kSpelledReals = 8;      // more are weights
constexpr size_t kLongestString = 1000;   // of an attribute
constexpr size_t kMostItems = 4096;       // of an attribute's list

struct CannotSpell {};

bool is_word(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

template <class T>
std::string number(T value) {
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  std::string text(digits, end);
  // What tells a real number from an integer.
  if (std::is_floating_point_v<T> && text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string quoted(const std::string& text) {
  if (text.size() > kLongestString) throw CannotSpell();
  std::string result = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) throw CannotSpell();
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

template <class T, class Print>
std::string joined(std::span<const T> items, Print print) {
  std::string text;
  for (const T& item : items) text += (text.empty() ? "" : ", ") + print(item);
  return text;
}

template <class T>
std::string range_of(std::span<const T> values) {
  if (std::is_floating_point_v<T> &&
      std::any_of(values.begin(), values.end(), [&](T value) { return !(value == values[0]); })) {
    return "";
  }
  const auto [least, largest] = std::minmax_element(values.begin(), values.end());
  return "{" + number(*least) + ".." + number(*largest) + "}";
}

template <class T>
std::string elements_of(const Tensor& tensor) {
  const std::span<const T> values = tensor.elements<T>();
  if (values.empty()) return "";
  if constexpr (std::is_same_v<T, uint64_t>) {
    constexpr auto kLargest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (std::any_of(values.begin(), values.end(), [](uint64_t value) { return value > kLargest; })) throw CannotSpell();
  }
  const bool is_long = tensor.size() > (std::is_floating_point_v<T> ? kSpelledReals : kSpelledElements);
  const bool is_uniform = std::all_of(values.begin(), values.end(), [&](T value) { return value == values[0]; });
  if (is_long || (is_uniform && tensor.size() > kSpelledReals)) return range_of(values);
  return "{" + joined(values, [](T value) { return number(value); }) + "}";
}

std::string elements_of(const Tensor& tensor) {
  switch (tensor.dtype()) {
    case DType::f32:
      return elements_of<float>(tensor);
    case DType::f64:
      return elements_of<double>(tensor);
    case DType::i8:
      return elements_of<int8_t>(tensor);
    case DType::u8:
      return elements_of<uint8_t>(tensor);
    case DType::boolean:
      return elements_of<uint8_t>(tensor);
    case DType::i16:
      return elements_of<int16_t>(tensor);
    case DType::i32:
      return elements_of<int32_t>(tensor);
    case DType::u32:
      return elements_of<uint32_t>(tensor);
    case DType::i64:
      return elements_of<int64_t>(tensor);
    case DType::u64:
      return elements_of<uint64_t>(tensor);
    default:
      return "";
  }
}

std::string constant_text(const Tensor& tensor) {
  if (tensor.dtype() == DType::string || tensor.dtype() == DType::object) throw CannotSpell();
  return to_string(TensorType::of(tensor.dtype(), tensor.dims())) + elements_of(tensor);
}

struct AttributeText {
  std::string operator()(int64_t value) const { return number(value); }
  std::string operator()(float value) const { return number(value); }
  std::string operator()(const std::string& value) const { return quoted(value); }
  std::string operator()(const Tensor& value) const {
    if (!value.defined() || value.size() > kSpelledElements || elements_of(value).empty()) throw CannotSpell();
    return "tensor " + constant_text(value);
  }
  std::string operator()(const std::vector<int64_t>& value) const { return list("ints", value, number<int64_t>); }
  std::string operator()(const std::vector<float>& value) const { return list("floats", value, number<float>); }
  std::string operator()(const std::vector<std::string>& value) const { return list("strings", value, quoted); }
  template <class Other>
  std::string operator()(const Other&) const {
    throw CannotSpell();
  }

 private:
  template <class T, class Print>
  static std::string list(const char* kind, const std::vector<T>& items, Print print) {
    if (items.size() > kMostItems) throw CannotSpell();
    return (items.empty() ? kind : "") + ("[" + joined(std::span<const T>(items), print) + "]");
  }
};

class Writer {
 public:
  explicit Writer(const Graph& graph) : graph_(graph) {}

  std::string write(std::span<const NodeId> nodes) {
    for (const NodeId id : nodes) {
      if (!text_.empty()) text_ += " ; ";
      write(graph_.node(id));
    }
    return std::move(text_);
  }

 private:
  void write(const Node& node) {
    if (node.captures > 0) throw CannotSpell();
    if (!node.op->domain.empty()) text_ += std::string(node.op->domain) + ".";
    text_ += std::string(node.op->name) + "@" + std::to_string(node.version);
    write_attributes(node);
    const size_t extra = node.epilogue ? static_cast<size_t>(node.epilogue->inputs) : 0;
    const std::span<const ValueId> inputs(node.inputs);
    text_ += "(" + operands(inputs.first(inputs.size() - extra)) + ") -> ";
    text_ += joined(std::span<const ValueId>(node.outputs), [this](ValueId id) { return result(id); });
    if (!node.epilogue) return;
    text_ += " then " + to_string(node.epilogue->expression);
    if (extra > 0) text_ += " with (" + operands(inputs.last(extra)) + ")";
  }

  void write_attributes(const Node& node) {
    std::string text;
    for (const auto& [name, value] : node.attributes) {
      if (!is_word(name)) throw CannotSpell();
      text += (text.empty() ? "" : ", ") + name + "=" + std::visit(AttributeText(), value);
    }
    if (!text.empty()) text_ += "[" + text + "]";
  }

  std::string operands(std::span<const ValueId> ids) {
    return joined(ids, [this](ValueId id) { return operand(id); });
  }

  std::string operand(ValueId id) {
    if (id == ValueId::none) return "_";
    const auto [place, is_new] = numbers_.emplace(id, numbers_.size());
    if (!is_new) return "#" + std::to_string(place->second);
    const Value& value = graph_.value(id);
    return value.is_constant() ? "const " + constant_text(value.constant) : type_text(value.type);
  }

  std::string result(ValueId id) {
    if (id == ValueId::none) return "_";
    numbers_.emplace(id, numbers_.size());
    return type_text(graph_.value(id).type);
  }

  static std::string type_text(const TensorType& type) {
    if (!type.fits_buffer() || type.is_object()) throw CannotSpell();
    return to_string(type);
  }

  const Graph& graph_;
  std::string text_;
  std::map<ValueId, size_t> numbers_;
};

}  // namespace

std::optional<std::string> node_text(const Graph& graph, std::span<const NodeId> nodes) {
  try {
    return Writer(graph).write(nodes);
  } catch (const CannotSpell&) {
    return std::nullopt;
  }
}

}  // namespace lathe
