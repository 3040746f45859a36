// Slices that move up to the products, Reshapes that move down; and those that stay.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;
using Ints = std::vector<int64_t>;

Dims shape_of_input(const Graph& graph, const std::string& op, size_t slot) {
  for (const NodeId id : graph.order()) {
    if (graph.node(id).op->name == op) return graph.value(graph.node(id).inputs[slot]).type.extents();
  }
  return {};
}

ValueId slice(PassNet& net, ValueId x, int64_t begin, int64_t end, int64_t axis) {
  return net.op("Slice", {x, net.integers({begin}), net.integers({end}), net.integers({axis})});
}
ValueId place(PassNet& net, ValueId x, int64_t at, int64_t axis) {
  return net.op("Gather", {x, net.constant(Tensor::scalar<int64_t>(at))}, {{"axis", axis}});
}
Graph hoisted(PassNet& net) {
  return rewritten(net, {passes::hoist_slices, passes::merge_common, passes::remove_dead});
}

TEST(HoistSlices, TheFirstTokenIsTheOnlyOneThatALastLayerMakes) {
  PassNet net;
  const ValueId x = net.op("Tanh", {net.input(Dims{2, 6, 8})});
  ValueId y = net.op("LayerNormalization", {x, net.weights({8}), net.weights({8})});
  y = net.op("Sigmoid", {net.op("Add", {net.op("MatMul", {y, net.weights({8, 12})}), net.weights({12})})});
  y = net.op("Add", {x, net.op("MatMul", {y, net.weights({12, 8})})});
  net.output(place(net, net.op("LayerNormalization", {y, net.weights({8}), net.weights({8})}), 0, 1));
  const Graph after = hoisted(net);
  EXPECT_EQ(ops_of(after).substr(0, 11), "Tanh Slice ") << ops_of(after);
  EXPECT_EQ(shape_of_input(after, "MatMul", 0), (Dims{2, 1, 8}));
}

TEST(HoistSlices, AListOfOnePlaceKeepsItsAxis) {
  PassNet net;
  const ValueId y = net.op("MatMul", {net.input(Dims{2, 6, 8}), net.weights({8, 4})});
  net.output(net.op("Relu", {net.op("Gather", {y, net.integers({-1})}, {{"axis", int64_t{1}}})}));
  const ValueId z = net.op("MatMul", {net.input(Dims{2, 6, 8}), net.weights({8, 4})});
  net.output(net.op("Relu", {net.op("Gather", {z, net.integers({2, 1})}, {{"axis", int64_t{1}}})}));
  EXPECT_EQ(ops_of(hoisted(net)), "Slice MatMul Relu MatMul Gather Relu");
}

TEST(HoistSlices, ARowOfAMaskForAllLengthsIsTheOnlyOneThatIsMade) {
  PassNet net;
  const auto mask = [&](int64_t rows) {
    const ValueId y = net.op("Add", {net.input(Dims{rows, 6}), net.input(Dims{1, 6})});
    net.output(place(net, net.op("Sigmoid", {y}), 2, 0));
  };
  mask(32);
  mask(7);  // few rows are made anyhow
  const ValueId y = net.op("Cos", {net.input(Dims{40, 6})});
  net.output(slice(net, y, 3, 6, 0));
  net.output(place(net, y, 39, 0));
  EXPECT_EQ(ops_of(hoisted(net)), "Slice Add Sigmoid Squeeze Add Sigmoid Gather Slice Cos Slice Cos Squeeze");
}

TEST(HoistSlices, OfRowsAndColumnsTheSmallerOnesAreCutFirst) {
  PassNet net;
  const ValueId mask = net.op("Cos", {net.input(Dims{40, 60})});
  net.output(place(net, net.op("Sin", {slice(net, mask, 0, 30, 1)}), 7, 0));
  const Graph after = hoisted(net);
  EXPECT_EQ(ops_of(after), "Slice Cos Slice Sin Squeeze");
  EXPECT_EQ(shape_of_input(after, "Cos", 0), (Dims{1, 60}));
  PassNet even;
  even.output(slice(even, slice(even, even.op("Cos", {even.input(Dims{40, 40})}), 0, 2, 1), 3, 5, 0));
  EXPECT_EQ(ops_of(hoisted(even)), "Slice Slice Cos");
}

TEST(HoistSlices, RowsOfColumnsThatWereHoistedFollowThem) {
  PassNet net;
  const ValueId columns = slice(net, net.op("Neg", {net.op("Cos", {net.input(Dims{40, 90})})}), 0, 6, 1);
  const ValueId masked = net.op("Where", {net.op("Equal", {columns, net.scalar(0)}), net.input(Dims{1, 6}), columns});
  net.output(place(net, masked, 7, 0));
  EXPECT_EQ(shape_of_input(hoisted(net), "Cos", 0), (Dims{1, 6}));
}

TEST(HoistSlices, RowsOfAnAttentionAreRowsOfItsQueries) {
  PassNet net;
  const ValueId x = net.op("Tanh", {net.input(Dims{1, 6, 8})});
  const auto heads = [&](const Ints& perm) {
    const ValueId y = net.op("Add", {net.op("MatMul", {x, net.weights({8, 8})}), net.weights({8})});
    return net.transpose(net.reshape(y, {1, 6, 2, 4}), perm);
  };
  const ValueId q = heads({0, 2, 1, 3}), k = heads({0, 2, 3, 1}), v = heads({0, 2, 1, 3});
  const ValueId scores = net.op("Add", {net.op("MatMul", {q, k}), net.input(Dims{1, 1, 6, 6})});
  const ValueId mixed = net.op("MatMul", {net.op("Softmax", {scores}, {{"axis", int64_t{-1}}}), v});
  const ValueId joined = net.reshape(net.transpose(mixed, {0, 2, 1, 3}), {1, 6, 8});
  net.output(slice(net, net.op("MatMul", {joined, net.weights({8, 8})}), 4, 6, 1));
  const Graph after = hoisted(net);
  EXPECT_EQ(shape_of_input(after, "Softmax", 0), (Dims{1, 2, 2, 6}));
  EXPECT_EQ(shape_of_input(after, "MatMul", 0), (Dims{1, 2, 8}));
}

TEST(HoistSlices, StayWithoutAProductAbove) {
  PassNet net;
  net.output(slice(net, net.op("Relu", {net.input(Dims{1, 8, 4})}), 0, 2, 1));
  EXPECT_EQ(ops_of(hoisted(net)), "Relu Slice");
}

TEST(HoistSlices, StayWhereTheWholeIsReadToo) {
  PassNet net;
  const ValueId y = net.op("MatMul", {net.input(Dims{1, 8, 4}), net.weights({4, 4})});
  net.output(slice(net, y, 0, 2, 1));
  net.output(net.op("Relu", {y}));
  const ValueId z = net.op("MatMul", {net.input(Dims{1, 8, 4}), net.weights({4, 4})});
  net.output(z);
  net.output(slice(net, z, 0, 2, 1));
  EXPECT_EQ(ops_of(hoisted(net)), "MatMul Slice Relu MatMul Slice");
}

TEST(HoistSlices, StayWhereTheyCutColumnsOrSpareLittle) {
  PassNet net;
  const ValueId y = net.op("MatMul", {net.input(Dims{1, 8, 4}), net.weights({4, 4})});
  net.output(slice(net, y, 0, 2, 2));
  const ValueId z = net.op("MatMul", {net.input(Dims{1, 8, 4}), net.weights({4, 4})});
  net.output(slice(net, z, 0, 5, 1));
  EXPECT_EQ(ops_of(hoisted(net)), "MatMul Slice MatMul Slice");
}

TEST(HoistSlices, StayBehindASoftmaxOrNormOverTheirAxis) {
  PassNet net;
  ValueId y = net.op("MatMul", {net.input(Dims{8, 4}), net.weights({4, 4})});
  net.output(slice(net, net.op("Softmax", {y}, {{"axis", int64_t{0}}}), 0, 1, 0));
  y = net.op("MatMul", {net.input(Dims{8, 4}), net.weights({4, 4})});
  net.output(slice(net, net.op("LayerNormalization", {y, net.weights({8, 4})}, {{"axis", int64_t{0}}}), 0, 1, 0));
  EXPECT_EQ(ops_of(hoisted(net)), "MatMul Softmax Slice MatMul LayerNormalization Slice");
}

TEST(SinkReshapes, LetPointwiseNodesMeetTheirProducts) {
  PassNet net;
  ValueId y = net.op("MatMul", {net.input(Dims{2, 6, 8}), net.weights({8, 4})});
  y = net.op("Mul", {net.op("Relu", {net.reshape(y, {2, 24})}), net.scalar(0.5f)});
  net.output(net.op("Neg", {net.reshape(y, {2, 6, 4})}));
  EXPECT_EQ(ops_of(rewritten(net, {passes::sink_reshapes, passes::remove_identities, passes::remove_dead})),
            "MatMul Relu Mul Neg");
}

TEST(SinkReshapes, GoBelowSeveralReadersOfWhichOneResultLeaves) {
  PassNet net;
  const ValueId product = net.op("MatMul", {net.input(Dims{6, 8}), net.weights({8, 4})});
  const ValueId x = net.reshape(product, {2, 3, 4});
  const ValueId half = net.op("Mul", {x, net.scalar(0.5f)});
  const ValueId gelu = net.op("Mul", {half, net.op("Add", {net.op("Erf", {x}), net.scalar(1)})});
  net.output(net.op("MatMul", {gelu, net.weights({2, 4, 3})}));
  EXPECT_EQ(ops_of(rewritten(net, {passes::sink_reshapes})), "MatMul Mul Erf Add Mul Reshape MatMul");
}

TEST(SinkReshapes, StayBeforeReadersOfWhichSeveralResultsLeave) {
  PassNet net;
  const ValueId x = net.reshape(net.input(Dims{6, 8}), {2, 3, 8});
  net.output(net.op("Exp", {x}));
  net.output(net.op("Neg", {x}));
  // The mean of a root mean square, which passes know by the value that it is the mean of.
  const ValueId rows = net.reshape(net.input(Dims{6, 8}), {2, 3, 8});
  const ValueId mean = net.op("ReduceMean", {net.op("Mul", {rows, rows})}, {{"axes", std::vector<int64_t>{2}}});
  net.output(net.op("Div", {rows, net.op("Sqrt", {mean})}));
  EXPECT_EQ(ops_of(rewritten(net, {passes::sink_reshapes})), "Reshape Exp Neg Reshape Mul ReduceMean Sqrt Div");
}

TEST(SinkReshapes, StayBeforeOperandsWithAxesAndWhereOthersRead) {
  PassNet net;
  const ValueId a = net.reshape(net.input(Dims{2, 12}), {2, 3, 4});
  net.output(net.op("Mul", {a, net.weights({4})}));
  const ValueId b = net.reshape(net.input(Dims{2, 12}), {2, 3, 4});
  net.output(net.op("Relu", {b}));
  net.output(b);
  const ValueId one = net.reshape(net.input(Dims{}), {1});
  net.output(net.op("Add", {one, net.weights({1})}));
  EXPECT_EQ(ops_of(rewritten(net, {passes::sink_reshapes})), "Reshape Mul Reshape Relu Reshape Add");
}

// --- masks of windows

// Scores of pictures * windows, to which a constant of these extents is added for each picture and window.
std::string with_mask(int64_t pictures, const Dims& mask, const char* op = "Add", const Dims& behind = {6, 2, 4, 4}) {
  PassNet net;
  const ValueId scores = net.op("MatMul", {net.input(Dims{6, 2, 4, 3}), net.input(Dims{6, 2, 3, 4})});
  const ValueId cut = net.reshape(scores, {pictures, 6 / pictures, 2, 4, 4});
  const ValueId masked = net.op(op, {net.weights(mask), cut});
  net.output(net.op("Softmax", {net.reshape(masked, behind)}, {{"axis", int64_t{-1}}}));
  return ops_of(rewritten(net, {passes::sink_cuts}));
}

TEST(SinkCuts, JoinsAMaskOfEachWindow) {
  for (const int64_t pictures : {1, 2, 3, 6}) {
    const int64_t windows = 6 / pictures;
    for (const Dims& mask : {Dims{1, windows, 1, 4, 4}, Dims{windows, 1, 4, 4}, Dims{pictures, 1, 2, 4, 4},
                             Dims{2, 4, 4}, Dims{pictures, windows, 1, 1, 4}, Dims{1, 1, 1, 4, 4}, Dims{}}) {
      EXPECT_EQ(with_mask(pictures, mask), "MatMul Add Softmax") << to_string(mask) << " for " << pictures;
    }
  }
  EXPECT_EQ(with_mask(2, {1, 3, 1, 4, 4}, "Sub"), "MatMul Sub Softmax");
}

TEST(SinkCuts, LeavesOtherCuts) {
  EXPECT_EQ(with_mask(2, {1, 3, 1, 4, 4}, "Add", {3, 2, 2, 4, 4}), "MatMul Reshape Add Reshape Softmax");
  EXPECT_EQ(with_mask(2, {1, 3, 1, 4, 4}, "Max"), "MatMul Reshape Max Reshape Softmax");
  PassNet net;  // a mask that is no constant, and another reader
  const ValueId scores = net.input(Dims{6, 2, 4, 4}), cut = net.reshape(scores, {2, 3, 2, 4, 4});
  net.output(net.reshape(net.op("Add", {cut, net.input(Dims{3, 1, 4, 4})}), {6, 2, 4, 4}));
  const ValueId second = net.reshape(scores, {3, 2, 2, 4, 4});
  net.output(net.reshape(net.op("Add", {second, net.weights({2, 1, 4, 4})}), {6, 2, 4, 4}));
  net.output(second);
  EXPECT_EQ(ops_of(rewritten(net, {passes::sink_cuts})), "Reshape Add Reshape Reshape Add Reshape");
}

}  // namespace
}  // namespace lathe
