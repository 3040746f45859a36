#pragma once
// TensorProto and SparseTensorProto to Tensor, in every encoding of ONNX.
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/onnx/external_data.h"
#include "graph/onnx/onnx_wire.h"
#include "lathe/tensor.h"
#include "src/base/limits.h"

namespace onnx {
class TensorProto;
class SparseTensorProto;
}  // namespace onnx

namespace lathe {

// Large elements become views into the model's bytes or into mapped external files, kept alive by the Tensor. A view
// has 64 readable bytes behind it like any Tensor, but is aligned only as the file is: code that needs aligned vectors
// must use unaligned loads or pack. Small elements (below 64 KiB) that are misaligned for their type are copied. Errors
// name the tensor. Sizes are checked before anything is allocated.
class TensorReader {
 public:
  struct Source {
    std::vector<wire::Payload> payloads;
    std::shared_ptr<const void> owner;  // of the payloads' bytes
    std::string_view bytes;             // the whole model, for what lies behind its end
    bool is_padded = false;             // 64 bytes behind `bytes` are readable
    std::string directory;              // of external data; empty: none is allowed
  };
  TensorReader(Source source, const Limits& limits);

  // The same message gives the same elements: a function's constants are read once, however often it is expanded.
  // `place` names the tensor in messages.
  Tensor read(const onnx::TensorProto& proto, const std::string& place);
  Tensor read_sparse(const onnx::SparseTensorProto& proto, const std::string& place);

  std::vector<std::shared_ptr<const MappedFile>> external_files() const { return external_.files(); }

 private:
  Tensor read_elements(const onnx::TensorProto& proto);
  Tensor read_raw(DType dtype, const Dims& dims, std::string_view bytes);
  Tensor view(DType dtype, const Dims& dims, std::string_view bytes, const std::shared_ptr<const void>& owner,
              bool is_padded) const;
  Tensor read_external(DType dtype, const Dims& dims, const onnx::TensorProto& proto);
  Tensor densify(const onnx::SparseTensorProto& proto, const std::string& place);

  Source source_;
  const Limits& limits_;
  ExternalData external_;
  std::unordered_map<const void*, Tensor> done_;
};

// Writes type, extents and elements. Throws Error(limit) for what a TensorProto cannot hold.
void fill_tensor_proto(const Tensor& tensor, onnx::TensorProto& proto);

// ONNX's number of an element type; undefined when Lathe (or ONNX) has no such type.
DType dtype_of_onnx(int number);

}  // namespace lathe
