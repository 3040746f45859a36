// widen-halves: float16 nets compute in float32.
#include <gtest/gtest.h>

#include "src/base/half.h"
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;

Tensor as_half(const Tensor& tensor) {
  Tensor narrow(DType::f16, tensor.dims());
  for (int64_t i = 0; i < tensor.size(); ++i)
    static_cast<uint16_t*>(narrow.mutable_raw())[i] = float_to_half(tensor.data<float>()[i]);
  return narrow;
}

Graph widened(PassNet& net) {
  Graph after = net.graph;
  const Limits limits;
  const PassContext context{OpRegistry::builtin(), limits, 8};
  infer_types(after, limits);
  for (int i = 0; i < 4 && passes::widen_halves(after, context); ++i) {
    passes::remove_dead(after, context);
    verify(after);
    infer_types(after, limits);
  }
  EXPECT_FALSE(passes::widen_halves(after, context)) << "it never settles";
  for (const ValueId output : after.outputs) EXPECT_EQ(after.value(output).type.dtype, DType::f16);
  return after;
}

ValueId half_input(PassNet& net, const Dims& dims) { return net.input(TensorType::of(DType::f16, dims)); }
ValueId half_weights(PassNet& net, const Dims& dims) { return net.constant(as_half(net.noise(dims))); }

TEST(WidenHalves, CastsAtTheBordersOnly) {
  PassNet net;
  ValueId x = half_input(net, {1, 3, 64, 64});
  x = net.op("Conv", {x, half_weights(net, {4, 3, 3, 3}), half_weights(net, {4})});
  x = net.op("Relu", {x});
  x = net.transpose(x, {0, 2, 3, 1});
  net.output(net.op("Softmax", {x}));
  EXPECT_EQ(ops_of(widened(net)), "Cast Conv Relu Transpose Softmax Cast");
}

TEST(WidenHalves, LeavesWhatIsOnlyMoved) {
  PassNet net;
  const ValueId past = half_input(net, {1, 8, 50, 64}), x = half_input(net, {1, 8, 1, 64});
  net.output(net.op("Concat", {past, x}, {{"axis", int64_t{2}}}));
  EXPECT_EQ(ops_of(widened(net)), "Concat");
}

TEST(WidenHalves, KeepsTablesNarrow) {
  PassNet net;
  const ValueId ids = net.input(TensorType::of(DType::i64, {1, 5}));
  const ValueId rows = net.op("Gather", {half_weights(net, {1000, 8}), ids});
  net.output(net.op("MatMul", {rows, half_weights(net, {8, 8})}));
  EXPECT_EQ(ops_of(widened(net)), "Gather Cast MatMul Cast");
}

TEST(WidenHalves, SkipsTheModelsOwnRoundings) {
  PassNet net;
  ValueId x = half_input(net, {600, 8});
  x = net.op("Cast", {x}, {{"to", int64_t{1}}});
  x = net.op("Sqrt", {x});
  x = net.op("Cast", {x}, {{"to", int64_t{10}}});
  x = net.op("Mul", {x, half_weights(net, {8})});
  net.output(net.op("Exp", {x}));
  EXPECT_EQ(ops_of(widened(net)), "Cast Sqrt Mul Exp Cast");
}

TEST(WidenHalves, LeavesSmallGraphsToTheirReferences) {
  PassNet net;
  net.output(net.op("Exp", {half_input(net, {3, 8})}));
  EXPECT_EQ(ops_of(widened(net)), "Exp");
}

TEST(WidenHalves, GivesTheSameNumbers) {
  PassNet net;
  const ValueId in = half_input(net, {2, 600, 8});
  const ValueId x = net.op("MatMul", {in, half_weights(net, {8, 8})});
  const std::vector<ValueId> parts = net.op("Split", {x}, 2, {{"axis", int64_t{2}}, {"num_outputs", int64_t{2}}}, 18);
  const ValueId mean = net.op("ReduceMean", {parts[0]}, {{"axes", std::vector<int64_t>{-1}}});
  net.output(net.op("Add", {parts[1], mean}));
  const Graph after = widened(net);
  Graph before = net.graph;
  infer_types(before, Limits());
  const Tensor x_value = as_half(net.noise({2, 600, 8}));
  const auto expected = run_reference_graph(before, std::vector{x_value}),
             result = run_reference_graph(after, std::vector{x_value});
  ASSERT_EQ(result[0].dims(), expected[0].dims());
  for (int64_t i = 0; i < expected[0].size(); ++i) {
    EXPECT_NEAR(half_to_float(result[0].data<uint16_t>()[i]), half_to_float(expected[0].data<uint16_t>()[i]), 0.02f);
  }
}

}  // namespace
}  // namespace lathe
