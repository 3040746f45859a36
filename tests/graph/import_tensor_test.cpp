// Element data in every encoding; large data is viewed, not copied.
#include <cstring>
#include <filesystem>
#include <fstream>

#include "src/base/checked_size.h"
#include "tests/graph/import_fixture.h"

namespace lathe::import_test {
namespace {

using onnx::TensorProto;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tensor constant_of(const Model& model, const std::string& name) {
  for (size_t i = 0; i < model.graph->value_count(); ++i) {
    const Value& value = model.graph->value(static_cast<ValueId>(i));
    if (value.name == name) return value.constant;
  }
  ADD_FAILURE() << "no value " << name;
  return {};
}

TensorProto* add_tensor(onnx::ModelProto& model, int type, const std::vector<int64_t>& dims) {
  TensorProto* tensor = model.mutable_graph()->add_initializer();
  tensor->set_name("w");
  tensor->set_data_type(type);
  for (int64_t extent : dims) tensor->add_dims(extent);
  return tensor;
}

Tensor read(const std::function<void(TensorProto&)>& fill, int type, const std::vector<int64_t>& dims) {
  onnx::ModelProto model = relu_model();
  fill(*add_tensor(model, type, dims));
  return constant_of(import_model(model), "w");
}

Error read_error(const std::function<void(TensorProto&)>& fill, int type, const std::vector<int64_t>& dims) {
  return error_of([&] { read(fill, type, dims); });
}

template <class T>
std::vector<T> items(const Tensor& tensor) {
  return {tensor.elements<T>().begin(), tensor.elements<T>().end()};
}

std::vector<uint8_t> bytes_of(const Tensor& tensor) {
  const auto* bytes = static_cast<const uint8_t*>(tensor.raw());
  return {bytes, bytes + tensor.bytes()};
}

TEST(ImportTensor, ReadsTypedFields) {
  EXPECT_THAT(items<float>(read([](auto& t) { t.add_float_data(1.5f); }, 1, {1})), ElementsAre(1.5f));
  EXPECT_THAT(items<double>(read([](auto& t) { t.add_double_data(1.5); }, 11, {1})), ElementsAre(1.5));
  EXPECT_THAT(items<int64_t>(read([](auto& t) { t.add_int64_data(-7); }, 7, {1})), ElementsAre(-7));
  EXPECT_THAT(items<uint64_t>(read([](auto& t) { t.add_uint64_data(~0ull); }, 13, {1})), ElementsAre(~0ull));
  EXPECT_THAT(items<uint32_t>(read([](auto& t) { t.add_uint64_data(7); }, 12, {1})), ElementsAre(7u));
  EXPECT_THAT(items<int32_t>(read([](auto& t) { t.add_int32_data(-7); }, 6, {})), ElementsAre(-7));
  EXPECT_THAT(items<int8_t>(read([](auto& t) { t.add_int32_data(-7); }, 3, {1})), ElementsAre(-7));
  EXPECT_THAT(items<uint16_t>(read([](auto& t) { t.add_int32_data(0x3c00); }, 10, {1})), ElementsAre(0x3c00));
  EXPECT_THAT(items<bool>(read([](auto& t) { t.add_int32_data(2); }, 9, {1})), ElementsAre(true));
  EXPECT_THAT(items<std::string>(read([](auto& t) { t.add_string_data("a"); }, 8, {1})), ElementsAre("a"));
  EXPECT_THAT(bytes_of(read([](auto& t) { t.add_float_data(1), t.add_float_data(2); }, 14, {1})).size(), 8u);
}

TEST(ImportTensor, ReadsTypesThatThePackagedSchemaLacks) {
  const auto two_bytes = [](auto& t) { t.set_raw_data("\x12\x03"); };
  const auto two_entries = [](auto& t) { t.add_int32_data(0x12), t.add_int32_data(0x03); };
  for (int type : {17, 18, 19, 20, 24}) {  // float8 of every kind
    EXPECT_THAT(bytes_of(read(two_bytes, type, {2})), ElementsAre(0x12, 0x03)) << type;
    EXPECT_THAT(bytes_of(read(two_entries, type, {2})), ElementsAre(0x12, 0x03)) << type;
  }
  for (int type : {21, 22, 23}) {  // two in a byte, the last one half used
    EXPECT_THAT(bytes_of(read(two_bytes, type, {3})), ElementsAre(0x12, 0x03)) << type;
    EXPECT_THAT(bytes_of(read(two_entries, type, {3})), ElementsAre(0x12, 0x03)) << type;
  }
  for (int type : {25, 26}) EXPECT_THAT(bytes_of(read(two_bytes, type, {7})), ElementsAre(0x12, 0x03)) << type;
}

TEST(ImportTensor, BoolsBecomeZeroAndOne) {
  const auto odd = [](auto& t) { t.set_raw_data(std::string("\x00\x02\x01", 3)); };
  EXPECT_THAT(bytes_of(read(odd, 9, {3})), ElementsAre(0, 1, 1));
}

TEST(ImportTensor, RefusesWrongCountsTypesAndExtents) {
  const auto raw = [](size_t size) { return [size](TensorProto& t) { t.set_raw_data(std::string(size, '\0')); }; };
  const auto floats = [](int count) {
    return [count](TensorProto& t) {
      for (int i = 0; i < count; ++i) t.add_float_data(0);
    };
  };
  const auto none = [](TensorProto&) {};
  for (const Error& error :
       {read_error(raw(12), 1, {2, 2}), read_error(raw(20), 1, {2, 2}), read_error(raw(15), 1, {2, 2}),
        read_error(none, 1, {2, 2}), read_error(floats(3), 1, {2, 2}), read_error(floats(5), 1, {2, 2}),
        read_error(floats(4), 7, {2, 2}), read_error(raw(16), 1, {-2, -2}), read_error(raw(16), 0, {2, 2}),
        read_error(raw(16), 999, {2, 2}), read_error(raw(16), 8, {2, 2}), read_error(raw(2), 22, {9}),
        read_error(raw(16), 1, {int64_t{1} << 32, int64_t{1} << 32}), read_error(raw(16), 1, {(int64_t{1} << 62) + 4}),
        read_error(none, 1, {int64_t{1} << 40}), read_error(raw(2000), 1, {2, 2}), read_error(floats(2000), 7, {2000}),
        read_error([](TensorProto& t) { t.set_raw_data("1234"), t.add_float_data(1); }, 1, {1})}) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_model) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("initializer 'w'"));
  }
}

TEST(ImportTensor, LargeElementsStayInTheModelsBytes) {
  onnx::ModelProto model = relu_model();
  std::string raw(100'000 * sizeof(float), '\0');
  for (int i = 0; i < 100'000; ++i) {
    const float element = static_cast<float>(i);
    std::memcpy(&raw[static_cast<size_t>(i) * sizeof element], &element, sizeof element);
  }
  add_tensor(model, TensorProto::FLOAT, {100, 1000})->set_raw_data(raw);
  TensorProto* packed = add_tensor(model, TensorProto::FLOAT, {100'000});
  packed->set_name("p");
  for (int i = 0; i < 100'000; ++i) packed->add_float_data(static_cast<float>(-i));
  model.mutable_graph()->set_doc_string(std::string(64, 'd'));  // what ends the bytes is copied, to be readable beyond
  const auto bytes = std::make_shared<const std::string>(model.SerializeAsString());
  const Model imported = import_model_bytes(bytes, "", test_ops());
  const Tensor w = constant_of(imported, "w");
  const auto* begin = static_cast<const char*>(w.raw());
  EXPECT_GE(begin, bytes->data());
  EXPECT_LT(begin, bytes->data() + bytes->size());
  EXPECT_EQ(std::memcmp(begin, raw.data(), raw.size()), 0);
  // Packed float_data are the elements' bytes too.
  float last;
  std::memcpy(&last, static_cast<const char*>(constant_of(imported, "p").raw()) + 99'999 * sizeof last, sizeof last);
  EXPECT_EQ(last, -99'999.0f);
  EXPECT_EQ(constant_of(imported, "p").owner(), w.owner());
}

TEST(ImportTensor, SmallMisalignedElementsAreCopied) {
  for (size_t shift = 0; shift < 8; ++shift) {
    onnx::ModelProto model = relu_model();
    model.set_producer_name(std::string(shift, 'p'));
    add_tensor(model, TensorProto::DOUBLE, {1000})->set_raw_data(std::string(8000, '\0'));
    const Tensor w = constant_of(import_model(model), "w");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(w.raw()) % 8, 0u);
  }
}

TEST(ImportTensor, SparseElementsBecomeDense) {
  onnx::ModelProto model = relu_model();
  onnx::SparseTensorProto* sparse = model.mutable_graph()->add_sparse_initializer();
  sparse->mutable_values()->set_name("w");
  sparse->mutable_values()->set_data_type(TensorProto::FLOAT);
  sparse->mutable_values()->add_dims(2);
  sparse->mutable_values()->add_float_data(5);
  sparse->mutable_values()->add_float_data(6);
  sparse->mutable_indices()->set_data_type(TensorProto::INT64);
  sparse->mutable_indices()->add_dims(2);
  sparse->mutable_indices()->add_int64_data(1);
  sparse->mutable_indices()->add_int64_data(3);
  sparse->add_dims(2);
  sparse->add_dims(2);
  EXPECT_THAT(items<float>(constant_of(import_model(model), "w")), ElementsAre(0, 5, 0, 6));
  // The same by coordinates.
  sparse->mutable_indices()->add_dims(2);
  sparse->mutable_indices()->clear_int64_data();
  for (int64_t index : {0, 1, 1, 1}) sparse->mutable_indices()->add_int64_data(index);
  EXPECT_THAT(items<float>(constant_of(import_model(model), "w")), ElementsAre(0, 5, 0, 6));
  sparse->mutable_indices()->set_int64_data(3, 2);
  EXPECT_THAT(import_error(model).what(), HasSubstr("sparse initializer 'w': index 2 is out of range"));
}

TEST(TensorFile, RoundTrips) {
  const std::string path = ::testing::TempDir() + "lathe_tensor.pb";
  const Tensor large = Tensor(DType::f64, {30, 40});
  const Tensor texts = Tensor::from<std::string>({2}, {"a", "b"});
  for (const Tensor& tensor : {Tensor::from<float>({2}, {1, 2}), large, texts, Tensor(DType::i4, {3})}) {
    write_tensor_proto(path, "t", tensor);
    const Tensor read_back = read_tensor_proto(path);
    EXPECT_EQ(read_back.dtype(), tensor.dtype());
    EXPECT_EQ(read_back.dims(), tensor.dims());
    if (tensor.dtype() == DType::string) {
      EXPECT_EQ(items<std::string>(read_back), items<std::string>(tensor));
    } else {
      EXPECT_EQ(bytes_of(read_back), bytes_of(tensor));
    }
  }
  std::ofstream(path) << "no tensor at all";
  EXPECT_EQ(error_of([&] { read_tensor_proto(path); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([] { read_tensor_proto("/nowhere/x.pb"); }).code(), ErrorCode::io);
}

}  // namespace
}  // namespace lathe::import_test
