#include "graph/onnx_type.h"

#include <onnx/onnx_pb.h>

#include "graph/onnx_tensor.h"
#include "lathe/error.h"

namespace lathe {

std::optional<TensorType> tensor_type_of(const onnx::TypeProto& proto, const std::string& place) {
  if (!proto.has_tensor_type()) return std::nullopt;
  const auto& tensor = proto.tensor_type();
  TensorType type = TensorType::unranked(dtype_of_onnx(tensor.elem_type()));
  if (type.dtype == DType::undefined) {
    throw Error(ErrorCode::invalid_model, place + ": unknown element type " + std::to_string(tensor.elem_type()));
  }
  if (!tensor.has_shape()) return type;
  type.has_rank = true;
  for (const auto& extent : tensor.shape().dim()) {
    Dim dim;
    if (extent.has_dim_param()) dim.symbol = extent.dim_param();
    if (extent.has_dim_value()) dim.extent = extent.dim_value();
    if (dim.extent < -1) {
      throw Error(ErrorCode::invalid_model, place + ": has an extent of " + std::to_string(dim.extent));
    }
    type.dims.push_back(std::move(dim));
  }
  return type;
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
