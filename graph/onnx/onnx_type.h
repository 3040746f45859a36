#pragma once
#include <optional>
#include <string>

#include "graph/type.h"

namespace onnx {
class TypeProto;
}

namespace lathe {

// A declared type; nullopt for sparse tensors and other types that Lathe lacks, and when the model declares nothing.
// Extents of -1 and absent ones are unknown. Throws Error(invalid_model) naming `place`.
std::optional<TensorType> type_of_onnx(const onnx::TypeProto& proto, const std::string& place);
// The inverse; inferred symbols should be gone. An object of unknown kind, which ONNX cannot name, stays without a
// type.
void fill_onnx_type(const TensorType& type, onnx::TypeProto& proto);
// "a sparse tensor", ...: what a type is, for messages.
std::string kind_of_type(const onnx::TypeProto& proto);

}  // namespace lathe
