// Elementwise operators: references against values written by hand, lowerings against references.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "lathe/error.h"
#include "ops/pointwise/number_cast.h"
#include "src/base/cpu.h"
#include "src/base/half.h"
#include "tests/isas_here.h"
#include "tests/ops/one_node.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using testing::isas_here;
using testing::OneNode;
using testing::random_tensor;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kNewest = 28;

Tensor run_node(const std::string& op, std::vector<Tensor> inputs, Attributes attributes = {}, int version = kNewest,
                const std::string& domain = "") {
  Node node;
  node.op = &OpRegistry::builtin().require(domain, op, version);
  node.version = version;
  node.name = "tested";
  node.attributes = std::move(attributes);
  for (size_t i = 0; i < inputs.size(); ++i)
    node.inputs.push_back(inputs[i].defined() ? static_cast<ValueId>(i) : ValueId::none);
  node.outputs = {static_cast<ValueId>(inputs.size())};
  return run_reference(node, inputs, {})[0];
}

template <class T>
std::vector<T> values(const Tensor& tensor) {
  return std::vector<T>(tensor.data<T>(), tensor.data<T>() + tensor.size());
}

template <class T>
Tensor row(std::initializer_list<T> elements) {
  return Tensor::from<T>({static_cast<int64_t>(elements.size())}, elements);
}

Attributes with(const std::string& name, Attribute value) {
  Attributes attributes;
  attributes.set(name, std::move(value));
  return attributes;
}

TEST(Arithmetic, BroadcastsLikeNumpy) {
  const Tensor a = Tensor::from<float>({2, 1}, {1, 2}), b = row<float>({10, 20, 30});
  const Tensor sum = run_node("Add", {a, b});
  EXPECT_EQ(sum.dims(), (Dims{2, 3}));
  EXPECT_THAT(values<float>(sum), ElementsAre(11, 21, 31, 12, 22, 32));
  EXPECT_THROW(run_node("Add", {row<float>({1, 2}), row<float>({1, 2, 3})}), Error);
}

TEST(Arithmetic, AlignsTheOldAxisAttribute) {
  Attributes attributes = with("axis", int64_t{0});
  attributes.set("broadcast", int64_t{1});
  const Tensor sum = run_node("Add", {Tensor::from<float>({2, 2}, {0, 0, 0, 0}), row<float>({1, 2})}, attributes, 6);
  EXPECT_THAT(values<float>(sum), ElementsAre(1, 1, 2, 2));
}

TEST(Arithmetic, WrapsAndTruncatesIntegers) {
  EXPECT_THAT(values<uint8_t>(run_node("Add", {row<uint8_t>({250}), row<uint8_t>({10})})), ElementsAre(4));
  EXPECT_THAT(values<int32_t>(run_node("Mul", {row<int32_t>({INT32_MIN, 1 << 30}), row<int32_t>({-1, 4})})),
              ElementsAre(INT32_MIN, 0));
  EXPECT_THAT(values<int64_t>(run_node("Div", {row<int64_t>({-7, 7, INT64_MIN}), row<int64_t>({2, -2, -1})})),
              ElementsAre(-3, -3, INT64_MIN));
}

TEST(Arithmetic, TakesModuloByEitherSign) {
  const Tensor a = row<int32_t>({-4, 7, 5, 4, -7, 8}), b = row<int32_t>({2, -3, 8, -2, 3, 5});
  EXPECT_THAT(values<int32_t>(run_node("Mod", {a, b})), ElementsAre(0, -2, 5, 0, 2, 3));
  EXPECT_THAT(values<int32_t>(run_node("Mod", {a, b}, with("fmod", int64_t{1}))), ElementsAre(0, 1, 5, 0, -1, 3));
  EXPECT_THAT(values<float>(run_node("Mod", {row<float>({-4.5F}), row<float>({2})})), ElementsAre(1.5F));
}

TEST(Arithmetic, RaisesMixedTypesToPowers) {
  EXPECT_THAT(values<int64_t>(run_node("Pow", {row<int64_t>({2, -3, 2}), row<float>({3, 2, -1})})),
              ElementsAre(8, 9, 0));
  EXPECT_THAT(values<float>(run_node("Pow", {row<float>({2, 9}), row<int64_t>({3, -1})})),
              ElementsAre(8, FloatNear(1.0F / 9, 1e-7F)));
}

TEST(Variadic, LetsNanWin) {
  const Tensor a = row<float>({1, NAN, 3}), b = row<float>({2, 2, NAN}), c = row<float>({0, 0, 0});
  const std::vector<float> largest = values<float>(run_node("Max", {a, b, c}));
  EXPECT_EQ(largest[0], 2);
  EXPECT_TRUE(std::isnan(largest[1]) && std::isnan(largest[2]));
  EXPECT_THAT(values<float>(run_node("Mean", {row<float>({1, 2}), row<float>({4, 4})})), ElementsAre(2.5F, 3));
}

TEST(UnaryMath, RoundsHalvesToEven) {
  EXPECT_THAT(values<float>(run_node("Round", {row<float>({0.5F, 1.5F, -2.5F, 2.6F})})), ElementsAre(0, 2, -2, 3));
  EXPECT_THAT(values<int8_t>(run_node("Abs", {row<int8_t>({-128, -1, 5})})), ElementsAre(-128, 1, 5));
  EXPECT_THAT(values<bool>(run_node("IsInf", {row<float>({kInf, -kInf, 1})}, with("detect_negative", int64_t{0}))),
              ElementsAre(true, false, false));
}

TEST(Comparison, ComparesExactIntegers) {
  const Tensor a = row<int64_t>({1, (int64_t{1} << 53) + 1}), b = row<int64_t>({1, int64_t{1} << 53});
  EXPECT_THAT(values<bool>(run_node("Equal", {a, b})), ElementsAre(true, false));
  EXPECT_THAT(values<bool>(run_node("GreaterOrEqual", {a, b})), ElementsAre(true, true));
}

TEST(Bitwise, ShiftsWithoutUndefinedBehaviour) {
  const Tensor x = row<uint8_t>({16, 4, 1, 255}), by = row<uint8_t>({1, 2, 8, 3});
  EXPECT_THAT(values<uint8_t>(run_node("BitShift", {x, by}, with("direction", std::string("RIGHT")))),
              ElementsAre(8, 1, 0, 31));
  EXPECT_THAT(values<uint8_t>(run_node("BitShift", {x, by}, with("direction", std::string("LEFT")))),
              ElementsAre(32, 16, 0, 248));
  EXPECT_THAT(values<int8_t>(run_node("BitwiseNot", {row<int8_t>({0, -1, 5})})), ElementsAre(-1, 0, -6));
}

TEST(Activation, KeepsItsDefaults) {
  const auto at = [](const std::string& op, float x, int version = kNewest) {
    return values<float>(run_node(op, {row<float>({x})}, {}, version))[0];
  };
  EXPECT_FLOAT_EQ(at("LeakyRelu", -2), -0.02F);
  EXPECT_FLOAT_EQ(at("Elu", -1), -0.63212056F);
  EXPECT_FLOAT_EQ(at("Selu", 1), 1.05070102F);
  EXPECT_FLOAT_EQ(at("HardSigmoid", 1), 0.7F);
  EXPECT_FLOAT_EQ(at("HardSwish", 1), 2.0F / 3);
  EXPECT_FLOAT_EQ(at("Gelu", 1), 0.84134475F);
  EXPECT_FLOAT_EQ(at("Softplus", 100), 100);
  EXPECT_FLOAT_EQ(at("Mish", 1), 0.86509839F);
  EXPECT_FLOAT_EQ(at("Shrink", 0.4F), 0);
  EXPECT_FLOAT_EQ(at("Swish", 1), 0.73105858F);
}

TEST(Clip, TakesBoundsFromInputsOrAttributes) {
  const Tensor x = row<float>({-2, 0, 2});
  EXPECT_THAT(values<float>(run_node("Clip", {x, Tensor::scalar(-1.0F), Tensor::scalar(1.0F)})), ElementsAre(-1, 0, 1));
  EXPECT_THAT(values<float>(run_node("Clip", {x, Tensor(), Tensor::scalar(1.0F)})), ElementsAre(-2, 0, 1));
  EXPECT_THAT(values<float>(run_node("Clip", {x}, with("min", 0.0F), 6)), ElementsAre(0, 0, 2));
}

TEST(Cast, TruncatesWrapsAndSaturates) {
  EXPECT_THAT(values<int32_t>(run_node("Cast", {row<float>({-1.7F, 2.9F})}, with("to", int64_t{6}))),
              ElementsAre(-1, 2));
  EXPECT_THAT(values<int8_t>(run_node("Cast", {row<int16_t>({200, -1})}, with("to", int64_t{3}))),
              ElementsAre(-56, -1));
  EXPECT_THAT(values<bool>(run_node("Cast", {row<float>({0, 0.25F})}, with("to", int64_t{9}))),
              ElementsAre(false, true));
  const Tensor e4m3 = run_node("Cast", {row<float>({1, 1000, -0.5F, NAN})}, with("to", int64_t{17}));
  EXPECT_THAT(values<uint8_t>(e4m3), ElementsAre(0x38, 0x7e, 0xb0, 0x7f));
  const Tensor text = run_node("Cast", {row<float>({0.5F, 3})}, with("to", int64_t{8}));
  EXPECT_THAT(values<std::string>(text), ElementsAre("0.5", "3.0"));
  EXPECT_THAT(values<float>(run_node("Cast", {text}, with("to", int64_t{1}))), ElementsAre(0.5F, 3));
}

TEST(SmallFloats, RoundTripEveryCode) {
  for (const DType dtype :
       {DType::f8e4m3fn, DType::f8e4m3fnuz, DType::f8e5m2, DType::f8e5m2fnuz, DType::f4e2m1, DType::f8e8m0})
    for (int code = 0; code < (dtype == DType::f4e2m1 ? 16 : 256); ++code) {
      const double value = small_float_value(dtype, static_cast<uint8_t>(code));
      if (std::isnan(value)) continue;
      EXPECT_EQ(to_small_float(dtype, value, {.saturates = false}), code) << name_of(dtype);
    }
}

TEST(Half, RoundTripsEveryCode) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto code = static_cast<uint16_t>(bits);
    if (!std::isnan(half_to_float(code))) {
      EXPECT_EQ(float_to_half(half_to_float(code)), code);
    }
    if (!std::isnan(bfloat_to_float(code))) {
      EXPECT_EQ(float_to_bfloat(bfloat_to_float(code)), code);
    }
  }
  EXPECT_EQ(float_to_half(65519.9F), 0x7bff);
  EXPECT_EQ(float_to_half(65520.0F), 0x7c00);
  EXPECT_EQ(float_to_half(1.0F + 0x1p-11F), 0x3c00);  // a tie
  EXPECT_EQ(float_to_half(1.0F + 0x1.8p-10F), 0x3c02);
}

TEST(QuantizeLinear, RoundsToEvenAndSaturates) {
  const Tensor x = row<float>({0, 2, 3, 1000, -254, -1000}), scale = Tensor::scalar(2.0F);
  EXPECT_THAT(values<uint8_t>(run_node("QuantizeLinear", {x, scale, Tensor::scalar<uint8_t>(128)})),
              ElementsAre(128, 129, 130, 255, 1, 0));
  const Tensor by_axis = run_node("QuantizeLinear", {Tensor::from<float>({2, 2}, {4, 4, 4, 4}), row<float>({1, 2})},
                                  with("axis", int64_t{0}));
  EXPECT_THAT(values<uint8_t>(by_axis), ElementsAre(4, 4, 2, 2));
  Attributes blocked = with("axis", int64_t{1});
  blocked.set("block_size", int64_t{2});
  const Tensor real = run_node(
      "DequantizeLinear", {Tensor::from<int8_t>({1, 3}, {1, 2, 3}), Tensor::from<float>({1, 2}, {10, 100})}, blocked);
  EXPECT_THAT(values<float>(real), ElementsAre(10, 20, 300));
  blocked.set("axis", int64_t{0});
  const Tensor line = run_node("DequantizeLinear", {row<int8_t>({1, 2, 3, 4}), row<float>({10, 100})}, blocked);
  EXPECT_THAT(values<float>(line), ElementsAre(10, 20, 300, 400));
}

// --- lowering
// ----------------------------------------------------------------------------------------------------------

void expect_same(const OneNode& one, Isa isa, int threads, float tolerance) {
  const Tensor expected = one.expected();
  const std::optional<Tensor> got = one.run(isa, threads);
  ASSERT_TRUE(got.has_value()) << "the reference would run";
  ASSERT_EQ(got->dims(), expected.dims());
  for (int64_t i = 0; i < expected.size(); ++i) {
    const float want = expected.data<float>()[i], have = got->data<float>()[i];
    ASSERT_TRUE((std::isnan(want) && std::isnan(have)) ||
                std::fabs(want - have) <= tolerance * std::max(1.0F, std::fabs(want)))
        << "element " << i << ": " << have << " instead of " << want;
  }
}

TEST(PointwiseLowering, AgreesWithEveryActivationsReference) {
  std::mt19937 random(1);
  for (const std::string op : {"Relu",       "LeakyRelu", "ThresholdedRelu",
                               "Elu",        "Selu",      "Celu",
                               "Sigmoid",    "Tanh",      "HardSigmoid",
                               "HardSwish",  "Softplus",  "Softsign",
                               "Gelu",       "Mish",      "Swish",
                               "Shrink",     "Neg",       "Abs",
                               "Sqrt",       "Exp",       "Log",
                               "Reciprocal", "Floor",     "Ceil",
                               "Round",      "Sign",      "Sin",
                               "Cos",        "Erf",       "Clip",
                               "Sum",        "Mean",      "Max"})
    for (const Isa isa : isas_here()) {
      SCOPED_TRACE(op);
      OneNode one;
      one.inputs = {random_tensor({3, 77}, random, -6, 6)};
      one.is_constant = {false};
      one.make(op, kNewest, {}, {0}, 0);
      expect_same(one, isa, 1, 2e-6F);
    }
}

TEST(PointwiseLowering, BroadcastsRandomShapes) {
  std::mt19937 random(2);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 150; ++round) {
    Dims result;
    for (int64_t i = pick(0, 4); i > 0; --i) result.push_back(pick(0, 12) == 0 ? 0 : pick(1, pick(1, 40)));
    const auto operand = [&] {
      Dims dims(result.begin() + pick(0, static_cast<int64_t>(result.size())), result.end());
      for (int64_t& extent : dims)
        if (pick(0, 2) == 0) extent = 1;
      return dims;
    };
    const Isa isa = isas_here()[static_cast<size_t>(round) % isas_here().size()];
    OneNode one;
    one.inputs = {random_tensor(operand(), random), random_tensor(operand(), random), random_tensor(result, random)};
    one.is_constant = {false, round % 3 == 0, false};
    SCOPED_TRACE(::testing::Message() << to_string(one.inputs[0].dims()) << " and " << to_string(one.inputs[1].dims())
                                      << " to " << to_string(result));
    one.make("Max", kNewest, {}, {0, 0, 0}, 0);
    expect_same(one, isa, static_cast<int>(pick(1, 3)), 0);
    if (HasFatalFailure()) return;
  }
}

TEST(PointwiseLowering, RunsOnBlockedChannels) {
  std::mt19937 random(3);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 120; ++round) {
    const Isa isa = isas_here()[static_cast<size_t>(round) % isas_here().size()];
    const int block = vector_lanes(isa);
    const int64_t batch = pick(1, 2), channels = pick(1, 40), height = pick(1, 9), width = pick(1, 9);
    const Dims full = {batch, channels, height, width};
    const Dims others[] = {full, {1}, {channels, 1, 1}, {1, channels, 1, 1}, {batch, channels, 1, 1}, {}};
    const size_t kind = static_cast<size_t>(pick(0, 5));
    const bool is_blocked = kind == 0 || (kind == 4 && pick(0, 1) == 0);
    OneNode one;
    one.inputs = {random_tensor(full, random), random_tensor(others[kind], random)};
    one.is_constant = {false, !is_blocked && pick(0, 1) == 0};
    SCOPED_TRACE(::testing::Message() << to_string(full) << " + " << to_string(others[kind]) << " blocked "
                                      << is_blocked << " by " << block);
    one.make("Add", kNewest, {}, {block, is_blocked ? block : 0}, block);
    expect_same(one, isa, static_cast<int>(pick(1, 3)), 0);
    if (HasFatalFailure()) return;
  }
}

TEST(PointwiseLowering, SplitsLargeTensorsOverThreads) {
  std::mt19937 random(4);
  for (const Dims& dims : {Dims{300001}, Dims{3, 100003}, Dims{1000, 301}}) {
    OneNode one;
    one.inputs = {random_tensor(dims, random), random_tensor({dims.back()}, random)};
    one.is_constant = {false, false};
    one.make("Mul", kNewest, {}, {0, 0}, 0);
    expect_same(one, isas_here().back(), 3, 0);
  }
}

}  // namespace
}  // namespace lathe
