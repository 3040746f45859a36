// Nodes that mean nothing by what they are told, by where they stand, or by what stands next to them.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;
using Ints = std::vector<int64_t>;

std::string cleaned(PassNet& net) { return ops_of(rewritten(net, {passes::remove_identities, passes::remove_dead})); }

PassNet::NamedAttributes to(DType dtype) { return {{"to", static_cast<int64_t>(dtype)}}; }

TEST(RedundantNodes, PoolsOfOnePixelAndReductionsOfOneElementGo) {
  PassNet net;
  ValueId y = net.input(Dims{1, 3, 4, 1});
  y = net.op("MaxPool", {y}, {{"kernel_shape", Ints{1, 1}}});
  y = net.op("AveragePool", {y}, {{"kernel_shape", Ints{1, 1}}, {"strides", Ints{1, 1}}, {"pads", Ints(4, 0)}});
  y = net.op("ReduceMean", {y}, {{"axes", Ints{-1}}});
  y = net.op("ReduceSum", {y, net.integers({0, 3})});
  net.output(net.op("Relu", {y}));
  EXPECT_EQ(cleaned(net), "Relu");
}

TEST(RedundantNodes, PoolsAndReductionsThatDoSomethingStay) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 3, 4, 1});
  net.output(net.op("MaxPool", {x}, {{"kernel_shape", Ints{1, 1}}, {"strides", Ints{2, 1}}}));
  net.output(net.op("AveragePool", {x}, {{"kernel_shape", Ints{2, 1}}}));
  net.output(net.op("ReduceL2", {x}, {{"axes", Ints{-1}}}));  // the absolute value
  net.output(net.op("ReduceMean", {x}, {{"axes", Ints{-1}}, {"keepdims", int64_t{0}}}));
  EXPECT_EQ(cleaned(net), "MaxPool AveragePool ReduceL2 ReduceMean");
}

TEST(RedundantNodes, WhereGoesThatAlwaysTakesTheSame) {
  PassNet chosen;
  const ValueId yes = chosen.constant(Tensor::from<bool>({1, 1}, {true}));
  chosen.output(chosen.op("Relu", {chosen.op("Where", {yes, chosen.input({3, 4}), chosen.scalar(-1)})}));
  EXPECT_EQ(ops_of(rewritten(chosen, {passes::remove_identities})), "Relu");
  PassNet other;
  const ValueId no = other.constant(Tensor::from<bool>({1, 1}, {false}));
  other.output(other.op("Relu", {other.op("Where", {no, other.scalar(-1), other.input({3, 4})})}));
  EXPECT_EQ(ops_of(rewritten(other, {passes::remove_identities})), "Relu");
  PassNet spread;  // the other operand gives the result its shape
  const ValueId one = spread.constant(Tensor::from<bool>({1}, {true}));
  spread.output(spread.op("Where", {one, spread.input({4}), spread.input({3, 4})}));
  EXPECT_EQ(ops_of(rewritten(spread, {passes::remove_identities})), "Where");
}

TEST(RedundantNodes, ReshapesMeetBehindTransposesOfOnes) {
  PassNet net;
  ValueId y = net.op("Relu", {net.input(Dims{2, 6, 1, 1})});
  y = net.transpose(y, {0, 2, 3, 1});
  y = net.op("Flatten", {y});
  net.output(net.op("Sigmoid", {net.op("Unsqueeze", {y, net.integers({2})})}));
  EXPECT_EQ(cleaned(net), "Relu Reshape Sigmoid");
}

TEST(RedundantNodes, ReshapesMeetWhereTheirFirstExtentIsOpen) {
  PassNet net;
  ValueId y = net.input({DType::f32, true, {{-1, "n"}, {6, ""}, {1, ""}, {1, ""}}, {}, nullptr});
  y = net.op("Squeeze", {net.op("Relu", {y}), net.integers({3})});
  y = net.op("Squeeze", {y, net.integers({2})});
  net.output(net.op("Sigmoid", {net.reshape(y, {0, 2, 3})}));
  EXPECT_EQ(cleaned(net), "Relu Reshape Sigmoid");
}

TEST(RedundantNodes, TransposesThatMoveElementsStay) {
  PassNet net;
  ValueId y = net.op("Relu", {net.input(Dims{2, 6, 1, 4})});
  net.output(net.op("Sigmoid", {net.op("Flatten", {net.transpose(y, {0, 2, 3, 1})})}));
  EXPECT_EQ(cleaned(net), "Relu Transpose Flatten Sigmoid");
}

TEST(RedundantNodes, TheFirstOfTwoCastsGoesWhereItLosesNothing) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 3});
  net.output(net.op("Neg", {net.op("Cast", {net.op("Cast", {x}, to(DType::f64))}, to(DType::f32))}));
  const ValueId truth = net.op("Greater", {x, net.scalar(0)});
  net.output(net.op("Cast", {net.op("Cast", {truth}, to(DType::i64))}, to(DType::f32)));
  EXPECT_EQ(cleaned(net), "Neg Greater Cast");
}

TEST(RedundantNodes, TheFirstOfTwoCastsStaysWhereItLosesSomething) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 3});
  net.output(net.op("Cast", {net.op("Cast", {x}, to(DType::i32))}, to(DType::f32)));
  net.output(net.op("Cast", {net.op("Cast", {x}, to(DType::f16))}, to(DType::f32)));
  net.output(net.op("Cast", {net.op("Cast", {x}, to(DType::boolean))}, to(DType::f32)));
  EXPECT_EQ(cleaned(net), "Cast Cast Cast Cast Cast Cast");
}

ValueId requantized(PassNet& net, ValueId bytes, float first, float second, uint8_t zero = 7) {
  const auto scale = [&](float value) { return net.scalar(value); };
  const ValueId from = net.constant(Tensor::scalar<uint8_t>(7)), to = net.constant(Tensor::scalar<uint8_t>(zero));
  return net.op("QuantizeLinear", {net.op("DequantizeLinear", {bytes, scale(first), from}), scale(second), to});
}

TEST(RedundantNodes, BytesComeBackFromTheScaleTheyWereGiven) {
  PassNet net;
  const ValueId bytes = net.op(
      "QuantizeLinear", {net.input(Dims{20, 30}), net.scalar(0.01f), net.constant(Tensor::scalar<uint8_t>(120))});
  net.output(net.op("Cast", {requantized(net, bytes, 0.037f, 0.037f)}, to(DType::f32)));
  EXPECT_EQ(cleaned(net), "QuantizeLinear Cast");
}

TEST(RedundantNodes, BytesOfAnotherScaleOrZeroPointDoNot) {
  PassNet net;
  const ValueId bytes = net.op(
      "QuantizeLinear", {net.input(Dims{20, 30}), net.scalar(0.01f), net.constant(Tensor::scalar<uint8_t>(120))});
  net.output(net.op("Cast", {requantized(net, bytes, 0.037f, 0.038f)}, to(DType::f32)));
  net.output(net.op("Cast", {requantized(net, bytes, 0.037f, 0.037f, 8)}, to(DType::f32)));
  const std::string ops = cleaned(net);
  EXPECT_EQ(ops, "QuantizeLinear DequantizeLinear QuantizeLinear Cast DequantizeLinear QuantizeLinear Cast");
}

}  // namespace
}  // namespace lathe
