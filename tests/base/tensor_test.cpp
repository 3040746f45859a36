#include "lathe/tensor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "lathe/error.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

ErrorCode code_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "no Error was thrown";
  return ErrorCode::internal;
}

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

TEST(CheckedSize, MultipliesExtents) {
  EXPECT_EQ(checked_elements({}), 1);
  EXPECT_EQ(checked_elements({2, 3, 4}), 24);
  EXPECT_EQ(checked_elements({2, 0, 4}), 0);
}

TEST(CheckedSize, EmptyTensorIsEmptyEvenBesideHugeExtents) { EXPECT_EQ(checked_elements({kHuge, kHuge, 0}), 0); }

TEST(CheckedSize, RejectsNegativeExtents) {
  EXPECT_EQ(code_of([] { checked_elements({2, -1}); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { checked_elements({0, -1}); }), ErrorCode::invalid_argument);
}

TEST(CheckedSize, RejectsOverflow) {
  EXPECT_EQ(code_of([] { checked_elements({kHuge, 2}); }), ErrorCode::limit);
  EXPECT_EQ(code_of([] { checked_bytes(DType::c128, {kHuge}); }), ErrorCode::limit);
  EXPECT_EQ(code_of([] { checked_multiply(SIZE_MAX, 2); }), ErrorCode::limit);
  EXPECT_EQ(code_of([] { checked_add(SIZE_MAX, 1); }), ErrorCode::limit);
}

TEST(CheckedSize, PacksSubByteTypes) {
  EXPECT_EQ(checked_bytes(DType::i4, {3}), 2U);
  EXPECT_EQ(checked_bytes(DType::u2, {4}), 1U);
  EXPECT_EQ(checked_bytes(DType::u2, {5}), 2U);
  EXPECT_EQ(checked_bytes(DType::f64, {3}), 24U);
  EXPECT_EQ(checked_bytes(DType::i4, {kHuge}), size_t{1} << 62);
}

TEST(DTypes, KnowTheirNamesAndWidths) {
  EXPECT_EQ(name_of(DType::f32), "float32");
  EXPECT_EQ(name_of(DType::boolean), "bool");
  EXPECT_EQ(name_of(DType::f8e8m0), "float8e8m0");
  EXPECT_EQ(name_of(static_cast<DType>(200)), "undefined");
  EXPECT_EQ(bits_of(DType::i2), 2);
  EXPECT_EQ(bits_of(DType::bf16), 16);
  EXPECT_EQ(bits_of(DType::string), 0);
  EXPECT_TRUE(is_float(DType::f8e5m2));
  EXPECT_FALSE(is_float(DType::c64));
  EXPECT_TRUE(is_integer(DType::u4));
  EXPECT_FALSE(is_integer(DType::boolean));
  EXPECT_TRUE(is_signed(DType::i4));
  EXPECT_FALSE(is_signed(DType::u64));
}

TEST(Tensor, IsUndefinedByDefault) {
  EXPECT_FALSE(Tensor().defined());
  EXPECT_EQ(code_of([] { Tensor().data<float>(); }), ErrorCode::invalid_argument);
}

TEST(Tensor, IsZeroedAlignedAndReadableBehindItsEnd) {
  for (int64_t count : {0, 1, 7, 16, 1000, 300'000}) {
    const Tensor tensor(DType::f32, {count});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.raw()) % 64, 0U);
    const auto* bytes = static_cast<const unsigned char*>(tensor.raw());
    // Read by one vector beyond the end: AddressSanitizer would object to an overrun.
    EXPECT_EQ(std::accumulate(bytes, bytes + tensor.bytes() + 64, 0), 0) << count;
  }
}

TEST(Tensor, CopiesShareElementsAndClonesDoNot) {
  Tensor original = Tensor::from<int32_t>({3}, {1, 2, 3});
  const Tensor copy = original;
  const Tensor clone = original.clone();
  original.mutable_data<int32_t>()[1] = 9;
  EXPECT_EQ(copy.elements<int32_t>()[1], 9);
  EXPECT_EQ(clone.elements<int32_t>()[1], 2);
}

TEST(Tensor, HoldsAndClonesStrings) {
  Tensor words = Tensor::from<std::string>({2}, {"a word too long for the small-string buffer", "b"});
  const Tensor clone = words.clone();
  words.mutable_data<std::string>()[0] = "changed";
  EXPECT_EQ(clone.elements<std::string>()[0], "a word too long for the small-string buffer");
  EXPECT_EQ(clone.bytes(), 0U);
}

TEST(Tensor, ReadsOnlyAsAFittingType) {
  EXPECT_EQ(code_of([] { Tensor(DType::f32, {1}).data<int32_t>(); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { Tensor(DType::f32, {1}).data<uint16_t>(); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { Tensor(DType::u8, {1}).data<bool>(); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { Tensor(DType::string, {1}).data<uint8_t>(); }), ErrorCode::invalid_argument);
  EXPECT_NO_THROW(Tensor(DType::bf16, {1}).data<uint16_t>());
  EXPECT_NO_THROW(Tensor(DType::boolean, {1}).data<uint8_t>());
  EXPECT_NO_THROW(Tensor(DType::f8e5m2, {1}).data<uint8_t>());
  EXPECT_EQ(Tensor(DType::u4, {5}).elements<uint8_t>().size(), 3U);
}

TEST(Tensor, RefusesSizesThatTheMachineCannotHold) {
  EXPECT_EQ(code_of([] { Tensor(DType::f32, {kHuge, 3}); }), ErrorCode::limit);
  EXPECT_EQ(code_of([] { Tensor(DType::f32, {int64_t{1} << 50}); }), ErrorCode::limit);
  EXPECT_EQ(code_of([] { Tensor(DType::string, {int64_t{1} << 50}); }), ErrorCode::limit);
  EXPECT_EQ(code_of([] { Tensor(DType::f32, {-1}); }), ErrorCode::invalid_argument);
}

TEST(Tensor, ReshapesOnlyToEqualProducts) {
  const Tensor tensor = Tensor::from<float>({2, 3}, {0, 1, 2, 3, 4, 5});
  EXPECT_EQ(tensor.reshaped({3, 2}).raw(), tensor.raw());
  EXPECT_EQ(code_of([&] { tensor.reshaped({4, 2}); }), ErrorCode::invalid_argument);
}

TEST(Tensor, ViewKeepsItsOwnerAlive) {
  auto owner = std::make_shared<std::vector<float>>(4, 1.5F);
  const std::weak_ptr<std::vector<float>> watch = owner;
  Tensor view = Tensor::view(DType::f32, {4}, owner->data(), owner);
  owner.reset();
  EXPECT_FALSE(watch.expired());
  EXPECT_EQ(view.elements<float>()[3], 1.5F);
  view = Tensor();
  EXPECT_TRUE(watch.expired());
}

TEST(Tensor, PrintsItsShape) {
  EXPECT_EQ(to_string(Dims{1, 3, 224}), "1x3x224");
  EXPECT_EQ(to_string(Dims{}), "scalar");
}

}  // namespace
}  // namespace lathe
