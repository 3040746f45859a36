// Sequences, optionals and strings: references against hand-made values.
#include <gtest/gtest.h>

#include "src/base/box.h"
#include "tests/ops/op_tester.h"

namespace lathe::testing {
namespace {

Tensor sequence(std::vector<AnyValue> items) { return box(AnyValue::sequence(std::move(items))); }

// Runs the reference alone: what a boxed value holds is nothing that inference could foretell.
class Call {
 public:
  explicit Call(std::string op, std::vector<Tensor> inputs) : inputs_(std::move(inputs)) {
    node_.op = &OpRegistry::builtin().require("", op, 28);
    node_.version = 28;
    node_.name = "tested";
    node_.inputs.assign(inputs_.size(), ValueId::none);
    node_.outputs.assign(1, static_cast<ValueId>(0));
  }
  template <class T>
  Call& with(const std::string& name, T value) {
    node_.attributes.set(name, std::move(value));
    return *this;
  }
  Tensor result() const { return run_reference(node_, inputs_, {})[0]; }
  AnyValue value() const { return unbox(result()); }
  std::string error() const {
    try {
      (void)result();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  Node node_;
  std::vector<Tensor> inputs_;
};

std::vector<float> floats_of(const AnyValue& value) { return list<float>(value.tensor()); }

TEST(Sequence, IsMadeOfItsInputsInOrder) {
  const AnyValue made = Call("SequenceConstruct", {floats({1, 2}), floats({3})}).value();
  ASSERT_EQ(made.items().size(), 2u);
  EXPECT_EQ(floats_of(made.items()[0]), (std::vector<float>{1, 2}));
  EXPECT_EQ(floats_of(made.items()[1]), (std::vector<float>{3}));
}

TEST(Sequence, CountsPositionsFromEitherEnd) {
  const Tensor three = sequence({floats({1}), floats({2}), floats({3})});
  for (const auto& [position, element] : {std::pair<int64_t, float>{0, 1}, {2, 3}, {-1, 3}, {-3, 1}}) {
    EXPECT_EQ(floats_of(Call("SequenceAt", {three, Tensor::scalar(position)}).result())[0], element) << position;
  }
  for (const int64_t outside : {3, -4}) {
    EXPECT_NE(Call("SequenceAt", {three, Tensor::scalar(outside)}).error().find("out of range"), std::string::npos);
  }
}

TEST(Sequence, InsertsBeforeAPositionOrAtTheEnd) {
  const Tensor two = sequence({floats({1}), floats({2})});
  const auto inserted = [&](std::vector<Tensor> inputs) {
    std::vector<float> order;
    const AnyValue made = Call("SequenceInsert", std::move(inputs)).value();
    for (const AnyValue& item : made.items()) order.push_back(floats_of(item)[0]);
    return order;
  };
  EXPECT_EQ(inserted({two, floats({9})}), (std::vector<float>{1, 2, 9}));
  EXPECT_EQ(inserted({two, floats({9}), Tensor::scalar<int64_t>(0)}), (std::vector<float>{9, 1, 2}));
  EXPECT_EQ(inserted({two, floats({9}), Tensor::scalar<int64_t>(-1)}), (std::vector<float>{1, 9, 2}));
  EXPECT_EQ(inserted({two, floats({9}), Tensor::scalar<int64_t>(2)}), (std::vector<float>{1, 2, 9}));
}

TEST(Sequence, HoldsOneElementType) {
  const Tensor two = sequence({floats({1}), floats({2})});
  EXPECT_NE(Call("SequenceInsert", {two, longs({1})}).error().find("cannot hold int64"), std::string::npos);
  EXPECT_NE(Call("SequenceConstruct", {floats({1}), longs({1})}).error().find("cannot hold"), std::string::npos);
}

TEST(Sequence, LosesItsLastItemOrOneByPosition) {
  const Tensor three = sequence({floats({1}), floats({2}), floats({3})});
  EXPECT_EQ(floats_of(Call("SequenceErase", {three}).value().items().back())[0], 2);
  const AnyValue rest = Call("SequenceErase", {three, Tensor::scalar<int64_t>(0)}).value();
  EXPECT_EQ(floats_of(rest.items().front())[0], 2);
  EXPECT_EQ(*Call("SequenceLength", {box(rest)}).result().data<int64_t>(), 2);
  EXPECT_NE(Call("SequenceErase", {sequence({})}).error().find("empty"), std::string::npos);
}

TEST(SplitToSequence, CutsChunksOfWhichTheLastIsSmaller) {
  const Tensor data = tensor<float>({5, 2}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  const AnyValue parts = Call("SplitToSequence", {data, Tensor::scalar<int64_t>(2)}).value();
  ASSERT_EQ(parts.items().size(), 3u);
  EXPECT_EQ(parts.items()[2].tensor().dims(), (Dims{1, 2}));
  EXPECT_EQ(floats_of(parts.items()[1]), (std::vector<float>{4, 5, 6, 7}));
}

TEST(SplitToSequence, CutsColumnsByExtentOrOneByOne) {
  const Tensor data = tensor<float>({2, 3}, {0, 1, 2, 3, 4, 5});
  const AnyValue parts = Call("SplitToSequence", {data, longs({1, 2})}).with("axis", int64_t{1}).value();
  EXPECT_EQ(floats_of(parts.items()[0]), (std::vector<float>{0, 3}));
  EXPECT_EQ(floats_of(parts.items()[1]), (std::vector<float>{1, 2, 4, 5}));
  const AnyValue rows = Call("SplitToSequence", {data}).with("keepdims", int64_t{0}).value();
  EXPECT_EQ(rows.items()[1].tensor().dims(), (Dims{3}));
}

TEST(SplitToSequence, RejectsExtentsThatDoNotAddUp) {
  const Tensor data = floats({1, 2, 3});
  for (const Tensor& split : {longs({1, 1}), longs({4}), longs({-1, 4}), Tensor::scalar<int64_t>(0)}) {
    EXPECT_NE(Call("SplitToSequence", {data, split}).error().find("input 1 (split)"), std::string::npos);
  }
  const Tensor long_and_empty(DType::f32, {int64_t{1} << 40, 0});
  EXPECT_NE(Call("SplitToSequence", {long_and_empty}).error().find("parts"), std::string::npos);
}

TEST(ConcatFromSequence, JoinsOnAnOldOrANewAxis) {
  const Tensor two = sequence({tensor<float>({1, 2}, {1, 2}), tensor<float>({2, 2}, {3, 4, 5, 6})});
  const Tensor joined = Call("ConcatFromSequence", {two}).with("axis", int64_t{0}).result();
  EXPECT_EQ(joined.dims(), (Dims{3, 2}));
  EXPECT_EQ(list<float>(joined), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  const Tensor equal = sequence({floats({1, 2}), floats({3, 4})});
  const Tensor stacked =
      Call("ConcatFromSequence", {equal}).with("axis", int64_t{-1}).with("new_axis", int64_t{1}).result();
  EXPECT_EQ(stacked.dims(), (Dims{2, 2}));
  EXPECT_EQ(list<float>(stacked), (std::vector<float>{1, 3, 2, 4}));
  EXPECT_NE(Call("ConcatFromSequence", {two}).with("axis", int64_t{1}).error().find("joined"), std::string::npos);
}

TEST(Optional, IsItsElementOrNothing) {
  const Tensor full = Call("Optional", {floats({4})}).result();
  EXPECT_EQ(list<float>(full), (std::vector<float>{4}));
  EXPECT_TRUE(*Call("OptionalHasElement", {full}).result().data<bool>());
  const Tensor empty = Call("Optional", {}).with("type", TensorType::unranked(DType::f32)).result();
  EXPECT_FALSE(*Call("OptionalHasElement", {empty}).result().data<bool>());
  EXPECT_FALSE(*Call("OptionalHasElement", {}).result().data<bool>());
  EXPECT_EQ(list<float>(Call("OptionalGetElement", {full}).result()), (std::vector<float>{4}));
  EXPECT_NE(Call("OptionalGetElement", {empty}).error().find("empty"), std::string::npos);
}

TEST(Objects, AreRefusedByOperatorsOnTensors) {
  EXPECT_NE(Call("Relu", {sequence({})}).error().find("input 0 is a sequence, expected a tensor"), std::string::npos);
  EXPECT_THROW(OpTester("Relu").input(sequence({})).reference(), Error);
}

}  // namespace
}  // namespace lathe::testing
