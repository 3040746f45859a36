// Types of values that are no tensors: agreement, text, import, and their files.
#include <onnx/onnx-data_pb.h>

#include <filesystem>
#include <fstream>

#include "graph/onnx/onnx_type.h"
#include "src/base/box.h"
#include "tests/graph/import_fixture.h"

namespace lathe::import_test {
namespace {

const TensorType kFloats = TensorType::unranked(DType::f32);
const TensorType kSequence = TensorType::sequence_of(kFloats);

TEST(ValueType, PrintsWhatItHolds) {
  EXPECT_EQ(to_string(kSequence), "seq(float32[...])");
  EXPECT_EQ(to_string(TensorType::optional_of(kSequence)), "optional(seq(float32[...]))");
  EXPECT_EQ(to_string(TensorType::map_of(DType::string, TensorType::of(DType::f32, {}))), "map(string,float32[])");
}

TEST(ValueType, AgreesWhenSomeValueCouldBeOfBoth) {
  const TensorType integers = TensorType::unranked(DType::i64);
  EXPECT_TRUE(may_agree(kFloats, TensorType::of(DType::f32, {3})));
  EXPECT_FALSE(may_agree(kFloats, integers));
  EXPECT_FALSE(may_agree(kFloats, kSequence));
  EXPECT_FALSE(may_agree(kSequence, TensorType::sequence_of(integers)));
  EXPECT_TRUE(may_agree(TensorType::optional_of(kFloats), kFloats));
  EXPECT_FALSE(may_agree(TensorType::optional_of(kFloats), kSequence));
  EXPECT_TRUE(may_agree(TensorType::unranked(DType::object), kSequence));
}

TEST(ValueType, ComparesContainersByWhatTheyHold) {
  EXPECT_EQ(kSequence, TensorType::sequence_of(kFloats));
  EXPECT_NE(kSequence, TensorType::sequence_of(TensorType::unranked(DType::f64)));
  EXPECT_FALSE(kSequence.is_static());
  EXPECT_FALSE(TensorType::of(DType::string, {2}).fits_buffer());
  EXPECT_TRUE(TensorType::of(DType::f32, {2}).fits_buffer());
}

TEST(ValueType, IsReadFromTheModel) {
  onnx::TypeProto proto;
  auto& tensor = *proto.mutable_optional_type()->mutable_elem_type()->mutable_sequence_type()->mutable_elem_type();
  tensor.mutable_tensor_type()->set_elem_type(1);
  EXPECT_EQ(type_of_onnx(proto, "x"), TensorType::optional_of(kSequence));
  onnx::TypeProto map;
  map.mutable_map_type()->set_key_type(7);
  *map.mutable_map_type()->mutable_value_type() = tensor;
  EXPECT_EQ(type_of_onnx(map, "x"), TensorType::map_of(DType::i64, kFloats));
  map.mutable_map_type()->set_key_type(1);
  EXPECT_THROW((void)type_of_onnx(map, "x"), Error);
}

TEST(ValueType, IsWrittenAsItWasRead) {
  const TensorType tensor{DType::f32, true, {{3, ""}, {-1, "N"}, {}}, {}};
  for (const TensorType& type :
       {tensor, TensorType::optional_of(TensorType::sequence_of(tensor)), TensorType::map_of(DType::string, kFloats)}) {
    onnx::TypeProto proto;
    fill_onnx_type(type, proto);
    EXPECT_EQ(type_of_onnx(proto, "x"), type) << to_string(type);
  }
}

TEST(ValueType, IsNotFollowedForever) {
  onnx::TypeProto proto, *inner = &proto;
  for (int i = 0; i < 40; ++i) inner = inner->mutable_sequence_type()->mutable_elem_type();
  inner->mutable_tensor_type()->set_elem_type(1);
  EXPECT_EQ(error_of([&] { (void)type_of_onnx(proto, "x"); }).code(), ErrorCode::limit);
}

class ValueFile : public ::testing::Test {
 protected:
  AnyValue round_trip(const AnyValue& value, const TensorType& type) const {
    write_value_proto(path_, "x", box(value), type);
    return unbox(read_value_proto(path_, type));
  }
  void TearDown() override { std::filesystem::remove(path_); }
  const std::string path_ =
      (std::filesystem::temp_directory_path() / ("lathe_value_" + std::to_string(::getpid()) + ".pb")).string();
};

TEST_F(ValueFile, KeepsSequences) {
  const AnyValue two = AnyValue::sequence({Tensor::from<float>({2}, {1, 2}), Tensor::from<float>({1, 1}, {3})});
  const AnyValue read = round_trip(two, kSequence);
  ASSERT_EQ(read.items().size(), 2u);
  EXPECT_EQ(read.items()[0].tensor().data<float>()[1], 2);
  EXPECT_EQ(read.items()[1].tensor().dims(), (Dims{1, 1}));
  EXPECT_TRUE(round_trip(AnyValue::sequence({}), kSequence).items().empty());
}

TEST_F(ValueFile, KeepsOptionalsWithAndWithoutElement) {
  const TensorType type = TensorType::optional_of(kFloats);
  EXPECT_TRUE(round_trip({}, type).is_nothing());
  EXPECT_EQ(*round_trip(Tensor::scalar<float>(7), type).tensor().data<float>(), 7);
}

TEST_F(ValueFile, KeepsMaps) {
  const AnyValue map = AnyValue::map(Tensor::from<std::string>({2}, {"a", "b"}), Tensor::from<float>({2}, {1, 2}));
  const AnyValue read = round_trip(map, TensorType::map_of(DType::string, kFloats));
  EXPECT_EQ(read.pairs().keys.data<std::string>()[1], "b");
  EXPECT_EQ(read.pairs().values.data<float>()[1], 2);
}

TEST_F(ValueFile, RejectsOtherBytes) {
  std::ofstream(path_) << "no proto at all";
  EXPECT_EQ(error_of([&] { (void)read_value_proto(path_, kSequence); }).code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace lathe::import_test
