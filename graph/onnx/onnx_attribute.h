#pragma once
#include <functional>
#include <memory>
#include <string>

#include "graph/attributes.h"
#include "graph/onnx/onnx_tensor.h"

namespace onnx {
class AttributeProto;
class GraphProto;
}  // namespace onnx

namespace lathe {

// Imports a body; the caller knows in which scope.
using BodyReader = std::function<std::shared_ptr<const Graph>(const onnx::GraphProto&)>;

// The value of an attribute that is no reference. A sparse tensor becomes a dense one. Throws Error(invalid_model) when
// type and value disagree, Error(unsupported); messages begin with `place`.
Attribute attribute_of(const onnx::AttributeProto& proto, const std::string& place, TensorReader& tensors,
                       const BodyReader& read_body);

// Bytes that a copy of the value holds by itself (tensors and bodies are shared): what repeated expansion multiplies.
size_t copied_bytes(const Attribute& attribute);

}  // namespace lathe
