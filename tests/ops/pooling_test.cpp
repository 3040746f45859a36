#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "src/base/cpu.h"
#include "tests/isas_here.h"
#include "tests/ops/one_node.h"

namespace lathe {
namespace {

using testing::isas_here;
using testing::OneNode;
using testing::random_tensor;

void check(OneNode& one, Isa isa, int threads) {
  const Tensor expected = one.expected();
  const std::optional<Tensor> got = one.run(isa, threads);
  ASSERT_TRUE(got.has_value()) << "the reference would run";
  ASSERT_EQ(got->dims(), expected.dims());
  for (int64_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(got->data<float>()[i], expected.data<float>()[i], 1e-5) << "element " << i;
  }
}

TEST(Pooling, AgreesWithTheReferenceOverRandomWindows) {
  std::mt19937 random(1);
  auto pick = [&](int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); };
  for (int i = 0; i < 200; ++i) {
    const auto axes = static_cast<size_t>(std::array{1, 2, 2, 3}[static_cast<size_t>(pick(0, 3))]);
    Dims in = {pick(1, 2), pick(1, 40)}, kernel, strides, dilations, pads(axes * 2);
    for (size_t axis = 0; axis < axes; ++axis) {
      kernel.push_back(pick(1, 5));
      strides.push_back(pick(1, 3));
      dilations.push_back(pick(0, 3) == 0 ? 2 : 1);
      in.push_back(pick(1, axes == 3 ? 9 : 30) + (kernel.back() - 1) * dilations.back());
      pads[axis] = pick(0, kernel.back() - 1);
      pads[axis + axes] = pick(0, kernel.back() - 1);
      if (dilations.back() > 1) pads[axis] = pads[axis + axes] = 0;
    }
    const bool is_max = pick(0, 1) == 1;
    for (Isa isa : isas_here()) {
      OneNode one;
      one.inputs = {random_tensor(in, random)};
      one.is_constant = {false};
      Attributes attributes;
      attributes.set("kernel_shape", kernel);
      attributes.set("strides", strides);
      attributes.set("pads", pads);
      attributes.set("ceil_mode", static_cast<int64_t>(i % 2));
      attributes.set("dilations", dilations);
      if (!is_max) attributes.set("count_include_pad", static_cast<int64_t>(i / 2 % 2));
      one.make(is_max ? "MaxPool" : "AveragePool", 19, attributes, {vector_lanes(isa)}, vector_lanes(isa));
      SCOPED_TRACE(::testing::Message() << (is_max ? "max " : "average ") << to_string(in) << " kernel "
                                        << to_string(kernel) << " strides " << to_string(strides) << " pads "
                                        << to_string(pads) << " dilations " << to_string(dilations) << " "
                                        << name_of(isa));
      check(one, isa, static_cast<int>(pick(1, 3)));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Pooling, PicksTheLargestOfBytes) {
  std::mt19937 random(3);
  for (const DType dtype : {DType::u8, DType::i8}) {
    for (const Dims& in : {Dims{1, 20, 12, 15}, Dims{2, 8, 9}}) {
      for (Isa isa : isas_here()) {
        SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << to_string(in) << " " << name_of(isa));
        OneNode one;
        one.inputs = {Tensor(dtype, in)};
        for (int64_t i = 0; i < one.inputs[0].size(); ++i) {
          static_cast<uint8_t*>(one.inputs[0].mutable_raw())[i] = static_cast<uint8_t>(random());
        }
        one.is_constant = {false};
        const size_t axes = in.size() - 2;
        Attributes attributes;
        attributes.set("kernel_shape", Dims(axes, 3));
        attributes.set("strides", Dims(axes, 2));
        attributes.set("pads", Dims(axes * 2, 1));
        one.make("MaxPool", 12, attributes, {vector_lanes(isa)}, vector_lanes(isa));
        const Tensor expected = one.expected();
        const std::optional<Tensor> got = one.run(isa, 2);
        ASSERT_TRUE(got.has_value()) << "the reference would run";
        ASSERT_EQ(got->dtype(), dtype);
        EXPECT_EQ(std::memcmp(got->raw(), expected.raw(), expected.bytes()), 0);
      }
    }
  }
}

// Rows long enough for several pixels at a time, with what is left on both sides.
TEST(Pooling, PicksTheLargestOfBytesInAllWindows) {
  std::mt19937 random(4);
  const auto pick = [&](int64_t least, int64_t most) { return std::uniform_int_distribution(least, most)(random); };
  for (int i = 0; i < 60; ++i) {
    const DType dtype = i % 2 == 0 ? DType::u8 : DType::i8;
    const int64_t taps = pick(1, 6), stride = pick(1, 3), dilation = pick(0, 3) == 0 ? 2 : 1;
    const int64_t pad = dilation > 1 ? 0 : pick(0, taps - 1);
    const Dims in = {1, pick(1, 33), pick(1, 4) + 2 * taps, pick(1, 50) + 2 * taps};
    for (Isa isa : isas_here()) {
      SCOPED_TRACE(::testing::Message() << name_of(dtype) << " " << to_string(in) << " taps " << taps << " stride "
                                        << stride << " dilation " << dilation << " pad " << pad << " " << name_of(isa));
      OneNode one;
      one.inputs = {Tensor(dtype, in)};
      for (int64_t k = 0; k < one.inputs[0].size(); ++k) {
        // Small numbers of i8 would lose against a zero that slips in.
        static_cast<uint8_t*>(one.inputs[0].mutable_raw())[k] =
            static_cast<uint8_t>(dtype == DType::u8 ? random() : 128 + random() % 100);
      }
      one.is_constant = {false};
      Attributes attributes;
      attributes.set("kernel_shape", Dims(2, taps));
      attributes.set("strides", Dims(2, stride));
      attributes.set("dilations", Dims(2, dilation));
      attributes.set("pads", Dims(4, pad));
      one.make("MaxPool", 12, attributes, {vector_lanes(isa)}, vector_lanes(isa));
      const Tensor expected = one.expected();
      const std::optional<Tensor> got = one.run(isa, static_cast<int>(pick(1, 3)));
      ASSERT_TRUE(got.has_value()) << "the reference would run";
      ASSERT_EQ(std::memcmp(got->raw(), expected.raw(), expected.bytes()), 0);
    }
  }
}

TEST(Pooling, GlobalAgreesWithTheReference) {
  std::mt19937 random(2);
  for (const char* op : {"GlobalMaxPool", "GlobalAveragePool"}) {
    for (const Dims& in : {Dims{2, 5, 7, 7}, Dims{1, 33, 1, 1}, Dims{3, 16, 19}, Dims{1, 64, 40, 30}}) {
      for (Isa isa : isas_here()) {
        SCOPED_TRACE(::testing::Message() << op << " " << to_string(in) << " " << name_of(isa));
        OneNode one;
        one.inputs = {random_tensor(in, random, -3, -1)};  // a zero that slips in is seen
        one.is_constant = {false};
        one.make(op, 11, {}, {vector_lanes(isa)}, vector_lanes(isa));
        check(one, isa, 2);
      }
    }
  }
}

TEST(Pooling, TheReferenceFindsMaximaAndTheirIndices) {
  OneNode one;
  one.inputs = {Tensor::from<float>({1, 1, 3, 3}, {1, 5, 2, 8, 3, 9, 4, 7, 6})};
  one.is_constant = {false};
  Attributes attributes;
  attributes.set("kernel_shape", Dims{2, 2});
  one.make("MaxPool", 12, attributes, {0}, 0);
  one.graph.node(one.node).outputs.push_back(ValueId::none);
  const std::vector<Tensor> got = run_reference(one.graph.node(one.node), one.inputs, {});
  const std::vector<float> values(got[0].elements<float>().begin(), got[0].elements<float>().end());
  const std::vector<int64_t> indices(got[1].elements<int64_t>().begin(), got[1].elements<int64_t>().end());
  EXPECT_EQ(values, (std::vector<float>{8, 9, 8, 9}));
  EXPECT_EQ(indices, (std::vector<int64_t>{3, 5, 3, 5}));
}

TEST(Pooling, TheReferenceAveragesWithAndWithoutPadding) {
  for (const int64_t with_padding : {0, 1}) {
    OneNode one;
    one.inputs = {Tensor::from<float>({1, 1, 2}, {3, 5})};
    one.is_constant = {false};
    Attributes attributes;
    attributes.set("kernel_shape", Dims{2});
    attributes.set("pads", Dims{1, 1});
    attributes.set("count_include_pad", with_padding);
    one.make("AveragePool", 11, attributes, {0}, 0);
    const Tensor got = one.expected();
    EXPECT_FLOAT_EQ(got.data<float>()[0], with_padding ? 1.5f : 3.0f);
    EXPECT_FLOAT_EQ(got.data<float>()[1], 4.0f);
    EXPECT_FLOAT_EQ(got.data<float>()[2], with_padding ? 2.5f : 5.0f);
  }
}

}  // namespace
}  // namespace lathe
