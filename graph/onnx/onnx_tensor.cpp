#include "graph/onnx/onnx_tensor.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "lathe/error.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

constexpr size_t kLargestAligningCopy = 64 << 10;
constexpr size_t kReadableBehind = 64;

[[noreturn]] void reject(const std::string& what) { throw Error(ErrorCode::invalid_model, what); }

// Runs `read`; its errors get the tensor's place in front, and a bad size is the model's fault.
template <class Read>
Tensor at_place(const std::string& place, Read&& read) {
  try {
    return read();
  } catch (const Error& error) {
    const bool is_size = error.code() == ErrorCode::invalid_argument;
    throw Error(is_size ? ErrorCode::invalid_model : error.code(), place + ": " + error.what());
  }
}

void expect_count(const char* field, int64_t found, int64_t wanted) {
  if (found != wanted) {
    reject(std::string(field) + " has " + std::to_string(found) + " entries, the extents need " +
           std::to_string(wanted));
  }
}

// Which typed field carries the elements of a type, how many entries it has, and whether other fields are in use.
struct TypedFields {
  int float_data, int32_data, int64_data, double_data, uint64_data, string_data;
  explicit TypedFields(const onnx::TensorProto& proto)
      : float_data(proto.float_data_size()),
        int32_data(proto.int32_data_size()),
        int64_data(proto.int64_data_size()),
        double_data(proto.double_data_size()),
        uint64_data(proto.uint64_data_size()),
        string_data(proto.string_data_size()) {}
  int64_t total() const {
    return int64_t{float_data} + int32_data + int64_data + double_data + uint64_data + string_data;
  }
};

template <class To, class From>
Tensor converted(DType dtype, const Dims& dims, const From& entries, const char* field, int64_t wanted) {
  expect_count(field, entries.size(), wanted);
  Tensor tensor(dtype, dims);
  To* out = static_cast<To*>(tensor.mutable_raw());
  for (int i = 0; i < entries.size(); ++i) out[i] = static_cast<To>(entries[i]);
  return tensor;
}

// The elements of the typed field that ONNX assigns to `dtype`; nullopt when that type has none.
std::optional<Tensor> read_typed(DType dtype, const Dims& dims, const onnx::TensorProto& proto) {
  const int64_t count = checked_elements(dims);
  switch (dtype) {
    case DType::f32:
      return converted<float>(dtype, dims, proto.float_data(), "float_data", count);
    case DType::c64:
      return converted<float>(dtype, dims, proto.float_data(), "float_data", 2 * count);
    case DType::f64:
      return converted<double>(dtype, dims, proto.double_data(), "double_data", count);
    case DType::c128:
      return converted<double>(dtype, dims, proto.double_data(), "double_data", 2 * count);
    case DType::i64:
      return converted<int64_t>(dtype, dims, proto.int64_data(), "int64_data", count);
    case DType::u64:
      return converted<uint64_t>(dtype, dims, proto.uint64_data(), "uint64_data", count);
    case DType::u32:
      return converted<uint32_t>(dtype, dims, proto.uint64_data(), "uint64_data", count);
    case DType::i32:
      return converted<int32_t>(dtype, dims, proto.int32_data(), "int32_data", count);
    case DType::u16:
    case DType::i16:
    case DType::f16:
    case DType::bf16:
      return converted<uint16_t>(dtype, dims, proto.int32_data(), "int32_data", count);
    case DType::boolean:
      return converted<bool>(dtype, dims, proto.int32_data(), "int32_data", count);
    case DType::undefined:
    case DType::string:
      return std::nullopt;
    default:  // one byte an entry: a whole element, or several packed ones
      return converted<uint8_t>(dtype, dims, proto.int32_data(), "int32_data",
                                static_cast<int64_t>(checked_bytes(dtype, dims)));
  }
}

// Elements that the extents claim, none of them allocated. No file holds as many as overflow: such extents are a lie of
// the model and not a limit of the machine.
int64_t claimed_elements(DType dtype, const Dims& dims) {
  try {
    if (dtype != DType::string) checked_bytes(dtype, dims);
    return checked_elements(dims);
  } catch (const Error& error) {
    throw Error(ErrorCode::invalid_model, error.what());
  }
}

// True when the only typed field in use is the one that belongs to `dtype`.
bool in_right_field(DType dtype, const TypedFields& fields) {
  int64_t right = fields.int32_data;
  if (dtype == DType::f32 || dtype == DType::c64) right = fields.float_data;
  if (dtype == DType::f64 || dtype == DType::c128) right = fields.double_data;
  if (dtype == DType::i64) right = fields.int64_data;
  if (dtype == DType::u64 || dtype == DType::u32) right = fields.uint64_data;
  if (dtype == DType::string) right = fields.string_data;
  return right == fields.total();
}

Tensor read_strings(const Dims& dims, const onnx::TensorProto& proto) {
  expect_count("string_data", proto.string_data_size(), checked_elements(dims));
  Tensor tensor(DType::string, dims);
  auto* out = static_cast<std::string*>(tensor.mutable_raw());
  for (const std::string& text : proto.string_data()) *out++ = text;
  return tensor;
}

ExternalLocation location_of(const onnx::TensorProto& proto) {
  ExternalLocation where;
  bool has_location = false;
  for (const onnx::StringStringEntryProto& entry : proto.external_data()) {
    if (entry.key() == "location") {
      if (has_location) reject("external data with two locations");
      has_location = true;
      where.location = entry.value();
    } else if (entry.key() == "offset" || entry.key() == "length") {
      const std::optional<size_t> bytes = parse_extent(entry.value());
      if (!bytes) reject("external data: " + entry.key() + " is not a number of bytes");
      if (entry.key() == "offset") where.offset = *bytes;
      if (entry.key() == "length") where.length = bytes;
    }
  }
  if (!has_location) reject("external data without a location");
  return where;
}

size_t alignment_of(DType dtype) {
  const int bits = bits_of(dtype);
  const int unit = dtype == DType::c64 || dtype == DType::c128 ? bits / 2 : bits;
  return unit <= 8 ? 1 : static_cast<size_t>(unit / 8);
}

Tensor copy_of(DType dtype, const Dims& dims, std::string_view bytes) {
  Tensor tensor(dtype, dims);
  if (!bytes.empty()) std::memcpy(tensor.mutable_raw(), bytes.data(), bytes.size());
  return tensor;
}

// A bool of another value than 0 and 1 would be undefined behaviour in C++; to ONNX it is true.
Tensor copy_of_bools(const Dims& dims, std::string_view bytes) {
  Tensor tensor(DType::boolean, dims);
  auto* out = static_cast<uint8_t*>(tensor.mutable_raw());
  std::transform(bytes.begin(), bytes.end(), out, [](char c) { return c != 0 ? 1 : 0; });
  return tensor;
}

std::optional<size_t> payload_of(const onnx::TensorProto& proto) {
  const auto& unknown = proto.unknown_fields();
  for (int i = 0; i < unknown.field_count(); ++i) {
    const auto& field = unknown.field(i);
    if (field.number() == wire::kPayloadField && field.type() == google::protobuf::UnknownField::TYPE_VARINT) {
      return field.varint();
    }
  }
  return std::nullopt;
}

}  // namespace

DType dtype_of_onnx(int number) {
  return number > 0 && number < kDTypeCount ? static_cast<DType>(number) : DType::undefined;
}

TensorReader::TensorReader(Source source, const Limits& limits)
    : source_(std::move(source)), limits_(limits), external_(source_.directory) {}

Tensor TensorReader::read(const onnx::TensorProto& proto, const std::string& place) {
  Tensor& tensor = done_[&proto];
  if (!tensor.defined()) tensor = at_place(place, [&] { return read_elements(proto); });
  return tensor;
}

Tensor TensorReader::read_elements(const onnx::TensorProto& proto) {
  const DType dtype = dtype_of_onnx(proto.data_type());
  if (dtype == DType::undefined) reject("unknown element type " + std::to_string(proto.data_type()));
  if (proto.dims_size() > limits_.rank) {
    throw Error(ErrorCode::limit, "has " + std::to_string(proto.dims_size()) + " dimensions, the limit is " +
                                      std::to_string(limits_.rank));
  }
  if (proto.has_segment()) throw Error(ErrorCode::unsupported, "tensors in segments are not supported");
  const Dims dims(proto.dims().begin(), proto.dims().end());
  const int64_t count = claimed_elements(dtype, dims);

  const TypedFields fields(proto);
  const std::optional<size_t> payload = payload_of(proto);
  const bool is_external = proto.data_location() == onnx::TensorProto::EXTERNAL;
  const int sources = (fields.total() != 0) + (payload || (proto.has_raw_data() && !proto.raw_data().empty())) +
                      static_cast<int>(is_external);
  if (sources > 1) reject("has its elements in more than one field");
  if (dtype == DType::string) {
    if (is_external || payload || proto.has_raw_data() || !in_right_field(dtype, fields)) {
      reject("strings must be in string_data");
    }
    return read_strings(dims, proto);
  }
  if (is_external) return read_external(dtype, dims, proto);
  if (payload) {
    if (*payload >= source_.payloads.size()) reject("has no elements");
    const wire::Payload& cut = source_.payloads[*payload];
    const bool is_float = cut.field == 4 && (dtype == DType::f32 || dtype == DType::c64);
    const bool is_double = cut.field == 10 && (dtype == DType::f64 || dtype == DType::c128);
    if (cut.field != 9 && !is_float && !is_double) reject("has its elements in the field of another type");
    return read_raw(dtype, dims, cut.bytes);
  }
  if (proto.has_raw_data() && fields.total() == 0) return read_raw(dtype, dims, proto.raw_data());
  if (count == 0 && fields.total() == 0) return Tensor(dtype, dims);
  if (!in_right_field(dtype, fields)) reject("has its elements in the field of another type");
  // Counted before allocated: the entries exist, so the tensor is no larger than the file, times a small factor.
  return *read_typed(dtype, dims, proto);
}

Tensor TensorReader::read_raw(DType dtype, const Dims& dims, std::string_view bytes) {
  const size_t wanted = checked_bytes(dtype, dims);
  if (bytes.size() != wanted) {
    reject("has " + std::to_string(bytes.size()) + " bytes of elements, " + std::string(name_of(dtype)) + "[" +
           to_string(dims) + "] needs " + std::to_string(wanted));
  }
  const char* model_end = source_.bytes.data() + source_.bytes.size();
  const bool is_inside = bytes.data() >= source_.bytes.data() && bytes.data() < model_end;
  if (!is_inside || bytes.size() < wire::kSmallestPayload) {
    return dtype == DType::boolean ? copy_of_bools(dims, bytes) : copy_of(dtype, dims, bytes);
  }
  const bool is_padded =
      source_.is_padded || static_cast<size_t>(model_end - (bytes.data() + bytes.size())) >= kReadableBehind;
  return view(dtype, dims, bytes, source_.owner, is_padded);
}

Tensor TensorReader::view(DType dtype, const Dims& dims, std::string_view bytes,
                          const std::shared_ptr<const void>& owner, bool is_padded) const {
  if (dtype == DType::boolean) return copy_of_bools(dims, bytes);
  const bool is_aligned = reinterpret_cast<uintptr_t>(bytes.data()) % alignment_of(dtype) == 0;
  if (!is_padded || (!is_aligned && bytes.size() < kLargestAligningCopy)) return copy_of(dtype, dims, bytes);
  return Tensor::view(dtype, dims, bytes.data(), owner);
}

Tensor TensorReader::read_external(DType dtype, const Dims& dims, const onnx::TensorProto& proto) {
  const size_t bytes = checked_bytes(dtype, dims);
  if (bytes > limits_.tensor_bytes) throw Error(ErrorCode::limit, "is larger than the limit for one tensor");
  const ExternalData::View found = external_.resolve(location_of(proto), bytes);
  return view(dtype, dims, {found.bytes.data(), found.bytes.size()}, found.owner, true);
}

Tensor TensorReader::read_sparse(const onnx::SparseTensorProto& proto, const std::string& place) {
  Tensor& tensor = done_[&proto];
  if (!tensor.defined()) tensor = densify(proto, place);
  return tensor;
}

Tensor TensorReader::densify(const onnx::SparseTensorProto& proto, const std::string& place) {
  const Tensor values = read(proto.values(), place + ": values");
  const Tensor indices = read(proto.indices(), place + ": indices");
  return at_place(place, [&] {
    const Dims dims(proto.dims().begin(), proto.dims().end());
    if (proto.dims_size() > limits_.rank) throw Error(ErrorCode::limit, "has too many dimensions");
    const int64_t count = checked_elements(dims);
    const size_t unit = static_cast<size_t>(bits_of(values.dtype()) / 8);
    if (unit == 0) throw Error(ErrorCode::unsupported, "sparse elements of this type are not supported");
    if (checked_bytes(values.dtype(), dims) > limits_.tensor_bytes) {
      throw Error(ErrorCode::limit, to_string(dims) + " elements are more than the limit for one tensor");
    }
    const int64_t filled = values.size();
    const bool is_linear = indices.rank() == 1;
    const int64_t width = is_linear ? 1 : proto.dims_size();
    if (values.rank() != 1 || indices.dtype() != DType::i64 || indices.rank() > 2 || indices.rank() < 1 ||
        indices.size() != filled * width || indices.dims()[0] != filled) {
      reject("indices do not fit the values and extents");
    }
    Tensor dense(values.dtype(), dims);
    const auto* from = static_cast<const char*>(values.raw());
    auto* to = static_cast<char*>(dense.mutable_raw());
    const auto* index = static_cast<const char*>(indices.raw());
    for (int64_t i = 0; i < filled; ++i) {
      int64_t at = 0;
      for (int64_t d = 0; d < width; ++d, index += sizeof(int64_t)) {
        int64_t step;
        std::memcpy(&step, index, sizeof step);  // the view may be misaligned
        const int64_t extent = is_linear ? count : dims[static_cast<size_t>(d)];
        if (step < 0 || step >= extent) reject("index " + std::to_string(step) + " is out of range");
        at = at * extent + step;
      }
      std::memcpy(to + static_cast<size_t>(at) * unit, from + static_cast<size_t>(i) * unit, unit);
    }
    return dense;
  });
}

}  // namespace lathe
