// read_value_proto, write_value_proto: one value of any type in a file. The bytes do not tell which proto they are, so
// the type must be known.
#include <onnx/onnx-data_pb.h>
#include <onnx/onnx_pb.h>

#include <fstream>

#include "graph/model.h"
#include "graph/onnx/external_data.h"
#include "graph/onnx/onnx_tensor.h"
#include "graph/text.h"
#include "lathe/error.h"
#include "src/base/box.h"
#include "src/base/write_file.h"

namespace lathe {
namespace {

using Kind = ContainerType::Kind;
constexpr int kDeepestValue = 16;

[[noreturn]] void reject(const std::string& what) { throw Error(ErrorCode::invalid_argument, what); }

// ---- Reading

class ValueReader {
 public:
  explicit ValueReader(const Limits& limits) : tensors_(TensorReader::Source(), limits) {}

  AnyValue read(const onnx::TensorProto& proto) { return tensors_.read(proto, "tensor " + in_quotes(proto.name())); }

  AnyValue read(const onnx::MapProto& proto, int depth) {
    const auto integers = std::vector<int64_t>(proto.keys().begin(), proto.keys().end());
    const auto texts = std::vector<std::string>(proto.string_keys().begin(), proto.string_keys().end());
    if (!integers.empty() && !texts.empty()) reject("a map has its keys in more than one field");
    const bool is_text = proto.key_type() == static_cast<int>(DType::string);
    return AnyValue::map(is_text ? list_of(texts) : list_of(integers), joined(read(proto.values(), depth + 1).items()));
  }

  AnyValue read(const onnx::SequenceProto& proto, int depth) {
    if (depth > kDeepestValue) reject("values are nested too deeply");
    std::vector<AnyValue> items;
    for (const auto& item : proto.tensor_values()) items.push_back(read(item));
    for (const auto& item : proto.sequence_values()) items.push_back(read(item, depth + 1));
    for (const auto& item : proto.map_values()) items.push_back(read(item, depth + 1));
    for (const auto& item : proto.optional_values()) items.push_back(read(item, depth + 1));
    if (proto.sparse_tensor_values_size() > 0) reject("sparse tensors are not supported");
    return AnyValue::sequence(std::move(items));
  }

  AnyValue read(const onnx::OptionalProto& proto, int depth) {
    if (depth > kDeepestValue) reject("values are nested too deeply");
    if (proto.has_tensor_value()) return read(proto.tensor_value());
    if (proto.has_sequence_value()) return read(proto.sequence_value(), depth + 1);
    if (proto.has_map_value()) return read(proto.map_value(), depth + 1);
    if (proto.has_optional_value()) return read(proto.optional_value(), depth + 1);
    return {};
  }

 private:
  template <class T>
  static Tensor list_of(const std::vector<T>& items) {
    return Tensor::from<T>({static_cast<int64_t>(items.size())}, std::span<const T>(items));
  }

  template <class T>
  static Tensor joined_as(const std::vector<AnyValue>& items) {
    std::vector<T> all;
    for (const AnyValue& item : items) {
      if (item.tensor().size() != 1) reject("a value of a map has " + to_string(item.tensor().dims()) + " elements");
      all.push_back(*item.tensor().data<T>());
    }
    return list_of(all);
  }

  // The values of a map, one element each, as one tensor.
  static Tensor joined(const std::vector<AnyValue>& items) {
    const DType dtype = items.empty() ? DType::f32 : items[0].tensor().dtype();
    if (dtype == DType::f32) return joined_as<float>(items);
    if (dtype == DType::f64) return joined_as<double>(items);
    if (dtype == DType::i64) return joined_as<int64_t>(items);
    if (dtype == DType::string) return joined_as<std::string>(items);
    reject("maps to " + std::string(name_of(dtype)) + " are not supported");
  }

  TensorReader tensors_;
};

template <class Proto>
Proto parsed(const MappedFile& file, const char* kind) {
  Proto proto;
  const auto bytes = file.bytes();
  if (!proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) reject(std::string("not a ") + kind);
  return proto;
}

AnyValue read_object(const std::string& path, Kind kind) {
  const Limits limits;
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path, (size_t{1} << 31) - 1);
  ValueReader reader(limits);
  switch (kind) {
    case Kind::sequence:
      return reader.read(parsed<onnx::SequenceProto>(*file, "SequenceProto"), 0);
    case Kind::optional:
      return reader.read(parsed<onnx::OptionalProto>(*file, "OptionalProto"), 0);
    case Kind::map:
      return reader.read(parsed<onnx::MapProto>(*file, "MapProto"), 0);
  }
  return {};
}

// ---- Writing

void fill(const AnyValue& value, onnx::SequenceProto& proto);

template <class T>
Tensor element_of(const Tensor& tensor, int64_t i) {
  return Tensor::scalar<T>(tensor.data<T>()[i]);
}

void fill(const Map& map, onnx::MapProto& proto) {
  proto.set_key_type(static_cast<int>(map.keys.dtype()));
  if (map.keys.dtype() == DType::string) {
    for (const std::string& key : map.keys.elements<std::string>()) proto.add_string_keys(key);
  } else {
    for (const int64_t key : map.keys.elements<int64_t>()) proto.add_keys(key);
  }
  std::vector<AnyValue> values;
  for (int64_t i = 0; i < map.values.size(); ++i) {
    const DType dtype = map.values.dtype();
    values.push_back(dtype == DType::string ? element_of<std::string>(map.values, i)
                     : dtype == DType::i64  ? element_of<int64_t>(map.values, i)
                     : dtype == DType::f64  ? element_of<double>(map.values, i)
                                            : element_of<float>(map.values, i));
  }
  fill(AnyValue::sequence(std::move(values)), *proto.mutable_values());
}

void fill(const AnyValue& value, onnx::SequenceProto& proto) {
  for (const AnyValue& item : value.items()) {
    if (item.is_sequence()) {
      proto.set_elem_type(onnx::SequenceProto::SEQUENCE);
      fill(item, *proto.add_sequence_values());
    } else if (item.is_map()) {
      proto.set_elem_type(onnx::SequenceProto::MAP);
      fill(item.pairs(), *proto.add_map_values());
    } else {
      proto.set_elem_type(onnx::SequenceProto::TENSOR);
      fill_tensor_proto(item.tensor(), *proto.add_tensor_values());
    }
  }
  if (value.items().empty()) proto.set_elem_type(onnx::SequenceProto::TENSOR);
}

void fill(const AnyValue& value, onnx::OptionalProto& proto) {
  if (value.is_tensor()) {
    proto.set_elem_type(onnx::OptionalProto::TENSOR);
    fill_tensor_proto(value.tensor(), *proto.mutable_tensor_value());
  } else if (value.is_sequence()) {
    proto.set_elem_type(onnx::OptionalProto::SEQUENCE);
    fill(value, *proto.mutable_sequence_value());
  } else if (value.is_map()) {
    proto.set_elem_type(onnx::OptionalProto::MAP);
    fill(value.pairs(), *proto.mutable_map_value());
  }
}

template <class Proto, class Content>
void write(const std::string& path, const std::string& name, const Content& content) {
  Proto proto;
  proto.set_name(name);
  if constexpr (std::is_same_v<Proto, onnx::TensorProto>) {
    fill_tensor_proto(content, proto);
  } else {
    fill(content, proto);
  }
  write_file(path, [&](std::ostream& file) { return proto.SerializeToOstream(&file); });
}

// What a value itself says when the type does not: an optional is taken for what it holds.
void write_value(const std::string& path, const std::string& name, const AnyValue& value, const TensorType& type) {
  const bool is_optional = type.container && type.container->kind == Kind::optional;
  if (is_optional) return write<onnx::OptionalProto>(path, name, value);
  if (value.is_sequence()) return write<onnx::SequenceProto>(path, name, value);
  if (value.is_map()) return write<onnx::MapProto>(path, name, value.pairs());
  write<onnx::TensorProto>(path, name, value.tensor());
}

}  // namespace

Tensor read_value_proto(const std::string& path, const TensorType& type) {
  if (!type.container) return read_tensor_proto(path);
  try {
    return box(read_object(path, type.container->kind));
  } catch (const Error& error) {
    const bool is_content = error.code() == ErrorCode::invalid_model;
    throw Error(is_content ? ErrorCode::invalid_argument : error.code(), in_quotes(path) + ": " + error.what());
  }
}

void write_value_proto(const std::string& path, const std::string& name, const Tensor& value, const TensorType& type) {
  try {
    write_value(path, name, unbox(value), type);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::io) throw;
    throw Error(error.code(), in_quotes(path) + ": " + error.what());
  }
}

}  // namespace lathe
