// read_tensor_proto, write_tensor_proto: one TensorProto in a file.
#include <onnx/onnx_pb.h>

#include "graph/model.h"
#include "graph/onnx/external_data.h"
#include "graph/onnx/onnx_tensor.h"
#include "graph/onnx/onnx_wire.h"
#include "graph/text.h"
#include "lathe/error.h"

namespace lathe {

Tensor read_tensor_proto(const std::string& path) {
  const Limits limits;
  const std::shared_ptr<const MappedFile> file = MappedFile::open(path, limits.model_bytes);
  try {
    TensorReader::Source source;
    source.owner = file;
    source.bytes = {file->bytes().data(), file->bytes().size()};
    source.is_padded = true;
    wire::Skeleton skeleton = wire::skeleton_of_tensor(source.bytes);
    source.payloads = std::move(skeleton.payloads);
    onnx::TensorProto proto;
    if (!proto.ParseFromString(skeleton.bytes)) throw Error(ErrorCode::invalid_argument, "not a TensorProto");
    return TensorReader(std::move(source), limits).read(proto, "tensor " + in_quotes(proto.name()));
  } catch (const Error& error) {
    const bool is_content = error.code() == ErrorCode::invalid_model;
    throw Error(is_content ? ErrorCode::invalid_argument : error.code(), in_quotes(path) + ": " + error.what());
  }
}

void fill_tensor_proto(const Tensor& tensor, onnx::TensorProto& proto) {
  proto.set_data_type(static_cast<int>(tensor.dtype()));
  for (int64_t extent : tensor.dims()) proto.add_dims(extent);
  if (tensor.dtype() == DType::string) {
    for (const std::string& text : tensor.elements<std::string>()) proto.add_string_data(text);
  } else {
    if (tensor.bytes() >= (size_t{1} << 31) - (1 << 20)) {
      throw Error(ErrorCode::limit, "a TensorProto holds less than 2 GiB");
    }
    proto.set_raw_data(tensor.raw(), tensor.bytes());
  }
}

void write_tensor_proto(const std::string& path, const std::string& name, const Tensor& tensor) {
  write_value_proto(path, name, tensor, TensorType::unranked(tensor.dtype()));
}

}  // namespace lathe
