#include "graph/onnx/onnx_attribute.h"

#include <onnx/onnx_pb.h>

#include "graph/onnx/onnx_type.h"
#include "graph/text.h"
#include "lathe/error.h"

namespace lathe {
namespace {

using onnx::AttributeProto;

[[noreturn]] void reject(const std::string& what) { throw Error(ErrorCode::invalid_model, what); }

struct FieldInUse {
  AttributeProto::AttributeType type;
  bool is_used;
};

// Old writers leave the type out; then the field that is filled tells it. A type that disagrees with it is an error.
AttributeProto::AttributeType type_of(const AttributeProto& proto, const std::string& place) {
  const FieldInUse fields[] = {
      {AttributeProto::FLOAT, proto.has_f()},
      {AttributeProto::INT, proto.has_i()},
      {AttributeProto::STRING, proto.has_s()},
      {AttributeProto::TENSOR, proto.has_t()},
      {AttributeProto::GRAPH, proto.has_g()},
      {AttributeProto::SPARSE_TENSOR, proto.has_sparse_tensor()},
      {AttributeProto::TYPE_PROTO, proto.has_tp()},
      {AttributeProto::FLOATS, proto.floats_size() != 0},
      {AttributeProto::INTS, proto.ints_size() != 0},
      {AttributeProto::STRINGS, proto.strings_size() != 0},
      {AttributeProto::TENSORS, proto.tensors_size() != 0},
      {AttributeProto::GRAPHS, proto.graphs_size() != 0},
      {AttributeProto::SPARSE_TENSORS, proto.sparse_tensors_size() != 0},
      {AttributeProto::TYPE_PROTOS, proto.type_protos_size() != 0},
  };
  AttributeProto::AttributeType type = proto.type();
  for (const FieldInUse& field : fields) {
    if (!field.is_used) continue;
    if (type == AttributeProto::UNDEFINED) type = field.type;
    if (type != field.type) {
      reject(place + ": has a value of type " + AttributeProto::AttributeType_Name(field.type) + ", its type is " +
             AttributeProto::AttributeType_Name(type));
    }
  }
  if (type == AttributeProto::UNDEFINED) reject(place + ": has neither a type nor a value");
  return type;
}

template <class Item, class Protos, class Read>
std::vector<Item> list_of(const Protos& protos, Read&& read) {
  std::vector<Item> items;
  items.reserve(static_cast<size_t>(protos.size()));
  for (const auto& proto : protos) items.push_back(read(proto));
  return items;
}

TensorType type_value(const onnx::TypeProto& proto, const std::string& place) {
  if (std::optional<TensorType> type = type_of_onnx(proto, place)) return *std::move(type);
  throw Error(ErrorCode::unsupported, place + ": the type is " + kind_of_type(proto) + ", which is not supported");
}

}  // namespace

Attribute attribute_of(const AttributeProto& proto, const std::string& place, TensorReader& tensors,
                       const BodyReader& read_body) {
  const auto read_tensor = [&](const onnx::TensorProto& tensor) {
    return tensors.read(tensor, place + ", tensor " + in_quotes(tensor.name()));
  };
  const auto read_sparse = [&](const onnx::SparseTensorProto& tensor) {
    return tensors.read_sparse(tensor, place + ", sparse tensor " + in_quotes(tensor.values().name()));
  };
  switch (type_of(proto, place)) {
    case AttributeProto::FLOAT:
      return proto.f();
    case AttributeProto::INT:
      return int64_t{proto.i()};
    case AttributeProto::STRING:
      return proto.s();
    case AttributeProto::TENSOR:
      return read_tensor(proto.t());
    case AttributeProto::SPARSE_TENSOR:
      return read_sparse(proto.sparse_tensor());
    case AttributeProto::GRAPH:
      return read_body(proto.g());
    case AttributeProto::TYPE_PROTO:
      return type_value(proto.tp(), place);
    case AttributeProto::FLOATS:
      return std::vector<float>(proto.floats().begin(), proto.floats().end());
    case AttributeProto::INTS:
      return std::vector<int64_t>(proto.ints().begin(), proto.ints().end());
    case AttributeProto::STRINGS:
      return std::vector<std::string>(proto.strings().begin(), proto.strings().end());
    case AttributeProto::TENSORS:
      return list_of<Tensor>(proto.tensors(), read_tensor);
    case AttributeProto::SPARSE_TENSORS:
      return list_of<Tensor>(proto.sparse_tensors(), read_sparse);
    case AttributeProto::GRAPHS:
      return list_of<std::shared_ptr<const Graph>>(proto.graphs(), read_body);
    default:
      throw Error(ErrorCode::unsupported, place + ": lists of types are not supported");
  }
}

size_t copied_bytes(const Attribute& attribute) {
  if (const auto* text = std::get_if<std::string>(&attribute)) return text->size();
  if (const auto* ints = std::get_if<std::vector<int64_t>>(&attribute)) return ints->size() * sizeof(int64_t);
  if (const auto* floats = std::get_if<std::vector<float>>(&attribute)) return floats->size() * sizeof(float);
  if (const auto* texts = std::get_if<std::vector<std::string>>(&attribute)) {
    size_t bytes = 0;
    for (const std::string& each : *texts) bytes += each.size() + sizeof(std::string);
    return bytes;
  }
  if (const auto* tensors = std::get_if<std::vector<Tensor>>(&attribute)) return tensors->size() * sizeof(Tensor);
  return 0;
}

}  // namespace lathe
