// Products of which GatherElements takes columns at known places.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::PassNet;

constexpr int64_t kHeads = 2, kRows = 5, kDepth = 8, kColumns = 300;

// Of each row r, places from first - r on.
Tensor places(int64_t first, int64_t count, const Dims& before = {kHeads}) {
  Dims dims = before;
  dims.insert(dims.end(), {kRows, count});
  Tensor tensor(DType::i64, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<int64_t>()[i] = first - i / count % kRows + i % count;
  return tensor;
}

ValueId product(PassNet& net) {
  return net.op("MatMul", {net.input(Dims{kHeads, kRows, kDepth}), net.weights({kHeads, kDepth, kColumns})});
}
ValueId gather(PassNet& net, ValueId data, ValueId at) {
  return net.op("GatherElements", {data, at}, {{"axis", int64_t{-1}}});
}
// Columns of the graph's products.
std::vector<int64_t> trimmed(PassNet& net) {
  const Graph after = testing::rewritten(net, {passes::trim_columns, passes::fold_constants, passes::remove_dead});
  std::vector<int64_t> columns;
  for (const NodeId id : after.order())
    if (after.node(id).op->name.starts_with("MatMul"))
      columns.push_back(after.value(after.node(id).outputs[0]).type.extents().back());
  return columns;
}

TEST(TrimColumns, OnlyThoseThatAreReadAreMade) {
  PassNet net;
  net.output(gather(net, product(net), net.constant(places(100, 9))));
  net.output(gather(net, product(net), net.constant(places(290, 9))));
  // The same for all heads.
  const ValueId y = net.op("GatherElements", {product(net), net.constant(places(4, 40))}, {{"axis", int64_t{-1}}});
  Node& node = net.graph.node(net.graph.value(y).producer);
  node.op = &OpRegistry::builtin().require("lathe", "TakeAlongAxis", node.version = 1);
  node.inputs[1] = net.constant(places(4, 40, {1}));
  net.output(y);
  EXPECT_EQ(trimmed(net), (std::vector<int64_t>{32, 44, 64}));
}

TEST(TrimColumns, OfWeightsWhoseAxesAreTurned) {
  PassNet net;
  const ValueId x = net.input(Dims{kHeads, kRows, kDepth}), weights = net.weights({kHeads, kColumns, kDepth});
  const ValueId y = net.op("MatMul", {x, weights}, {{"perm_b", std::vector<int64_t>{0, 2, 1}}});
  Node& node = net.graph.node(net.graph.value(y).producer);
  node.op = &OpRegistry::builtin().require("lathe", "MatMulViews", node.version = 1);
  net.output(gather(net, y, net.constant(places(100, 9))));
  EXPECT_EQ(trimmed(net), (std::vector<int64_t>{32}));
}

TEST(TrimColumns, AllWhereMostAreRead) {
  PassNet net;
  net.output(gather(net, product(net), net.constant(places(4, 280))));
  EXPECT_EQ(trimmed(net), (std::vector<int64_t>{kColumns}));
}

TEST(TrimColumns, AllWhereMoreReadThem) {
  PassNet net;
  const ValueId read_too = product(net), result = product(net);
  net.output(gather(net, read_too, net.constant(places(100, 9))));
  net.output(net.op("ReduceMax", {read_too}));
  net.output(gather(net, result, net.constant(places(100, 9))));
  net.output(result);
  EXPECT_EQ(trimmed(net), (std::vector<int64_t>{kColumns, kColumns}));
}

TEST(TrimColumns, AllWherePlacesCountFromTheEndOrFallAlongAnotherAxis) {
  PassNet net;
  net.output(gather(net, product(net), net.constant(places(1, 9))));
  Tensor rows(DType::i64, {kHeads, 1, kColumns});
  std::fill_n(rows.mutable_data<int64_t>(), rows.size(), 1);
  net.output(net.op("GatherElements", {product(net), net.constant(rows)}, {{"axis", int64_t{1}}}));
  EXPECT_EQ(trimmed(net), (std::vector<int64_t>{kColumns, kColumns}));
}

}  // namespace
}  // namespace lathe
