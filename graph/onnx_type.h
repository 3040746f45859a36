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
// "a sparse tensor", ...: what a type is, for messages.
std::string kind_of_type(const onnx::TypeProto& proto);

}  // namespace lathe
