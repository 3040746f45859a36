#include "graph/node_key.h"

#include <cstring>

#include "graph/op_schema.h"

namespace lathe {
namespace {

void append(std::string& key, const void* data, size_t bytes) { key.append(static_cast<const char*>(data), bytes); }
template <class T>
void append_number(std::string& key, const T& number) {
  append(key, &number, sizeof(T));
}
template <class T>
void append_numbers(std::string& key, const std::vector<T>& numbers) {
  append_number(key, numbers.size());
  append(key, numbers.data(), numbers.size() * sizeof(T));
}

}  // namespace

std::string sample_of(const Tensor& tensor) {
  constexpr size_t kPieces = 4, kPieceBytes = 64;
  std::string sample = to_string(tensor.dims()) + static_cast<char>(tensor.dtype());
  const auto* bytes = static_cast<const char*>(tensor.raw());
  for (size_t piece = 0; piece < kPieces; ++piece) {
    sample.append(bytes + (tensor.bytes() - kPieceBytes) / (kPieces - 1) * piece, kPieceBytes);
  }
  return sample;
}

bool are_equal(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.dims() != b.dims()) return false;
  return a.raw() == b.raw() || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

bool append_tensor_key(std::string& key, const Tensor& tensor) {
  if (tensor.dtype() == DType::string) return false;
  append_number(key, tensor.dtype());
  append_numbers(key, tensor.dims());
  if (tensor.bytes() <= kComparedBytes) {
    append(key, tensor.raw(), tensor.bytes());
  } else {
    append_number(key, reinterpret_cast<uintptr_t>(tensor.raw()));
  }
  return true;
}

namespace {

bool append_attribute(std::string& key, const Attribute& attribute) {
  append_number(key, attribute.index());
  if (const auto* integer = std::get_if<int64_t>(&attribute)) return append_number(key, *integer), true;
  if (const auto* real = std::get_if<float>(&attribute)) return append_number(key, *real), true;
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&attribute)) return append_numbers(key, *integers), true;
  if (const auto* reals = std::get_if<std::vector<float>>(&attribute)) return append_numbers(key, *reals), true;
  if (const auto* tensor = std::get_if<Tensor>(&attribute)) return append_tensor_key(key, *tensor);
  if (const auto* text = std::get_if<std::string>(&attribute)) {
    append_number(key, text->size());
    key += *text;
    return true;
  }
  return false;
}

bool append_epilogue(std::string& key, const Node& node) {
  if (!node.epilogue) return true;
  append_number(key, node.epilogue->inputs);
  const Expression& expression = node.epilogue->expression;
  append_number(key, expression.output);
  append_numbers(key, expression.inputs);
  for (const ExprNode& each : expression.nodes) {
    append_number(key, each.op);
    for (const int operand : {each.a, each.b, each.c}) append_number(key, operand);
    append_number(key, each.value);
  }
  return true;
}

}  // namespace

std::string node_key(const Graph& graph, const Node& node) {
  if (!node.op->deterministic || node.captures > 0) return {};
  constexpr size_t kUsualBytes = 256;
  std::string key;
  key.reserve(kUsualBytes);
  append_number(key, reinterpret_cast<uintptr_t>(node.op));
  append_number(key, node.version);
  append_numbers(key, node.inputs);
  append_number(key, node.outputs.size());
  for (const ValueId id : node.outputs) append_number(key, id == ValueId::none);
  for (const ValueId id : node.outputs) {
    if (id != ValueId::none) append_number(key, graph.value(id).type.layout.channel_block);
  }
  for (const auto& [name, attribute] : node.attributes) {
    key += name;
    key += '\0';
    if (!append_attribute(key, attribute)) return {};
  }
  return append_epilogue(key, node) ? key : std::string();
}

}  // namespace lathe
