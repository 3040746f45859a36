#pragma once
#include <optional>
#include <string>

#include "graph/type.h"

namespace onnx {
class TypeProto;
}

namespace lathe {

// A declared type; nullopt for sequences, maps, optionals and other types that are no dense tensors, and when the model
// declares nothing. Extents of -1 and absent ones are unknown. Throws Error(invalid_model) naming `place`.
std::optional<TensorType> tensor_type_of(const onnx::TypeProto& proto, const std::string& place);
// "a sequence", "a map", ...: what a type is, for messages.
std::string kind_of_type(const onnx::TypeProto& proto);

}  // namespace lathe
