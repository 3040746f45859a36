#include "graph/onnx/onnx_type.h"

#include <onnx/onnx_pb.h>

#include "graph/onnx/onnx_tensor.h"
#include "lathe/error.h"

namespace lathe {

namespace {

constexpr int kDeepestType = 16;

[[noreturn]] void reject(const std::string& what) { throw Error(ErrorCode::invalid_model, what); }

TensorType tensor_type(const onnx::TypeProto::Tensor& tensor, const std::string& place) {
  TensorType type = TensorType::unranked(dtype_of_onnx(tensor.elem_type()));
  if (type.dtype == DType::undefined) reject(place + ": unknown element type " + std::to_string(tensor.elem_type()));
  if (!tensor.has_shape()) return type;
  type.has_rank = true;
  for (const auto& extent : tensor.shape().dim()) {
    Dim dim;
    if (extent.has_dim_param()) dim.symbol = extent.dim_param();
    if (extent.has_dim_value()) dim.extent = extent.dim_value();
    if (dim.extent < -1) reject(place + ": has an extent of " + std::to_string(dim.extent));
    type.dims.push_back(std::move(dim));
  }
  return type;
}

std::optional<TensorType> type_at_depth(const onnx::TypeProto& proto, const std::string& place, int depth) {
  if (depth > kDeepestType) throw Error(ErrorCode::limit, place + ": its type is nested too deeply");
  if (proto.has_tensor_type()) return tensor_type(proto.tensor_type(), place);
  const bool is_sequence = proto.has_sequence_type(), is_map = proto.has_map_type();
  if (!is_sequence && !is_map && !proto.has_optional_type()) return std::nullopt;
  const onnx::TypeProto& inner = is_sequence ? proto.sequence_type().elem_type()
                                 : is_map    ? proto.map_type().value_type()
                                             : proto.optional_type().elem_type();
  std::optional<TensorType> element = type_at_depth(inner, place, depth + 1);
  if (!element) reject(place + ": " + kind_of_type(proto) + " of something that has no type that is known");
  if (is_sequence) return TensorType::sequence_of(*std::move(element));
  if (!is_map) return TensorType::optional_of(*std::move(element));
  const DType key = dtype_of_onnx(proto.map_type().key_type());
  if (key != DType::string && !is_integer(key)) reject(place + ": a map with keys of " + std::string(name_of(key)));
  return TensorType::map_of(key, *std::move(element));
}

}  // namespace

std::optional<TensorType> type_of_onnx(const onnx::TypeProto& proto, const std::string& place) {
  return type_at_depth(proto, place, 0);
}

void fill_onnx_type(const TensorType& type, onnx::TypeProto& proto) {
  if (type.is_object()) {
    if (type.container == nullptr) return;
    const ContainerType& container = *type.container;
    switch (container.kind) {
      case ContainerType::Kind::sequence:
        return fill_onnx_type(container.element, *proto.mutable_sequence_type()->mutable_elem_type());
      case ContainerType::Kind::optional:
        return fill_onnx_type(container.element, *proto.mutable_optional_type()->mutable_elem_type());
      case ContainerType::Kind::map:
        proto.mutable_map_type()->set_key_type(static_cast<int>(container.key));
        return fill_onnx_type(container.element, *proto.mutable_map_type()->mutable_value_type());
    }
  }
  onnx::TypeProto::Tensor& tensor = *proto.mutable_tensor_type();
  tensor.set_elem_type(static_cast<int>(type.dtype));
  if (!type.has_rank) return;
  tensor.mutable_shape();
  for (const Dim& dim : type.dims) {
    auto* extent = tensor.mutable_shape()->add_dim();
    if (dim.known()) {
      extent->set_dim_value(dim.extent);
    } else if (!dim.symbol.empty()) {
      extent->set_dim_param(dim.symbol);
    }
  }
}

std::string kind_of_type(const onnx::TypeProto& proto) {
  if (proto.has_tensor_type()) return "a tensor";
  if (proto.has_sequence_type()) return "a sequence";
  if (proto.has_map_type()) return "a map";
  if (proto.has_optional_type()) return "an optional";
  if (proto.has_sparse_tensor_type()) return "a sparse tensor";
  return "of no type that is known";
}

}  // namespace lathe
