// Products and sums in a cheaper order: where passes fire, and near misses.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;
using Ints = std::vector<int64_t>;

// ---- order-products

std::string shapes_of(const Graph& graph) {
  std::string text;
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (node.op->name != "MatMul") continue;
    text += (text.empty() ? "" : " ") + to_string(graph.value(node.outputs[0]).type.extents());
  }
  return text;
}

std::string ordered(PassNet& net) { return shapes_of(rewritten(net, {passes::order_products})); }

TEST(OrderProducts, MultipliesInTheCheaperOrder) {
  PassNet right;  // (200x3 3x200) 200x2
  right.output(
      right.op("MatMul", {right.op("MatMul", {right.input({200, 3}), right.input({3, 200})}), right.input({200, 2})}));
  EXPECT_EQ(ordered(right), "3x2 200x2");
  PassNet left;
  left.output(
      left.op("MatMul", {left.input({2, 200}), left.op("MatMul", {left.input({200, 3}), left.input({3, 200})})}));
  EXPECT_EQ(ordered(left), "2x3 2x200");
  PassNet stacks;
  stacks.output(stacks.op(
      "MatMul", {stacks.op("MatMul", {stacks.input({5, 20, 3}), stacks.input({5, 3, 20})}), stacks.input({5, 20, 2})}));
  EXPECT_EQ(ordered(stacks), "5x3x2 5x20x2");
}

TEST(OrderProducts, JoinsConstantsWithoutKnowingTheRows) {
  PassNet net;
  TensorType open = TensorType::of(DType::f32, {3, 4, 8});
  open.dims[0] = {-1, "batch"};
  net.output(net.op("MatMul", {net.op("MatMul", {net.input(open), net.weights({8, 16})}), net.weights({16, 5})}));
  const Graph after = rewritten(net, {passes::order_products, passes::fold_constants});
  EXPECT_EQ(ops_of(after), "MatMul");
}

TEST(OrderProducts, LeavesWhatIsCheapOrUnknownOrShared) {
  PassNet low_rank;
  low_rank.output(low_rank.op("MatMul", {low_rank.op("MatMul", {low_rank.input({9, 64}), low_rank.weights({64, 4})}),
                                         low_rank.weights({4, 64})}));
  EXPECT_EQ(ordered(low_rank), "9x4 9x64");
  PassNet shared;
  const ValueId inner = shared.op("MatMul", {shared.input({200, 3}), shared.input({3, 200})});
  shared.output(shared.op("MatMul", {inner, shared.input({200, 2})}));
  shared.output(inner);
  EXPECT_EQ(ordered(shared), "200x200 200x2");
  PassNet square;  // (A B)(A B)
  const ValueId twice = square.op("MatMul", {square.input({20, 2}), square.input({2, 20})});
  square.output(square.op("MatMul", {twice, twice}));
  EXPECT_EQ(ordered(square), "20x20 20x20");
  PassNet stacks;  // one matrix for all of a stack, but a stack of the others
  stacks.output(stacks.op(
      "MatMul", {stacks.op("MatMul", {stacks.input({20, 3}), stacks.input({5, 3, 20})}), stacks.input({5, 20, 2})}));
  EXPECT_EQ(ordered(stacks), "5x20x20 5x20x2");
  PassNet active;
  active.output(
      active.op("MatMul", {active.op("Relu", {active.op("MatMul", {active.input({200, 3}), active.input({3, 200})})}),
                           active.input({200, 2})}));
  EXPECT_EQ(ordered(active), "200x200 200x2");
}

// ---- reassociate

std::string reassociated(PassNet& net) {
  return ops_of(rewritten(net, {passes::reassociate, passes::fold_constants, passes::remove_dead}));
}

TEST(Reassociate, JoinsConstantsOfSumsAndOfProducts) {
  for (const auto& [first, second, result] : {std::tuple{"Add", "Add", "Add"},
                                              {"Add", "Sub", "Add"},
                                              {"Sub", "Add", "Add"},
                                              {"Sub", "Sub", "Sub"},
                                              {"Mul", "Mul", "Mul"},
                                              {"Mul", "Div", "Mul"},
                                              {"Div", "Mul", "Mul"},
                                              {"Div", "Div", "Div"}}) {
    PassNet net;
    const ValueId x = net.op(first, {net.input({3, 4}), net.weights({4}, 0.5F, 2)});
    net.output(net.op(second, {x, net.weights({3, 4}, 0.5F, 2)}));
    EXPECT_EQ(reassociated(net), result) << first << " " << second;
  }
  PassNet swapped;
  swapped.output(
      swapped.op("Add", {swapped.weights({4}), swapped.op("Add", {swapped.weights({1, 4}), swapped.input({3, 4})})}));
  EXPECT_EQ(reassociated(swapped), "Add");
}

TEST(Reassociate, LeavesWhatWouldGrowOrDiffer) {
  PassNet grows;
  grows.output(grows.op("Add", {grows.op("Add", {grows.input({3, 4}), grows.weights({4})}), grows.weights({3, 1})}));
  EXPECT_EQ(reassociated(grows), "Add Add");
  PassNet mixed;
  mixed.output(mixed.op("Mul", {mixed.op("Add", {mixed.input({3, 4}), mixed.weights({4})}), mixed.weights({4})}));
  EXPECT_EQ(reassociated(mixed), "Add Mul");
  PassNet reversed;  // a - x
  reversed.output(
      reversed.op("Add", {reversed.op("Sub", {reversed.weights({4}), reversed.input({3, 4})}), reversed.weights({4})}));
  EXPECT_EQ(reassociated(reversed), "Sub Add");
  PassNet shared;
  const ValueId inner = shared.op("Add", {shared.input({3, 4}), shared.weights({4})});
  shared.output(shared.op("Add", {inner, shared.weights({4})}));
  shared.output(inner);
  EXPECT_EQ(reassociated(shared), "Add Add");
  PassNet rounding;  // adding 2^23 and taking it away again rounds
  rounding.output(rounding.op(
      "Sub", {rounding.op("Add", {rounding.input({3, 4}), rounding.scalar(8388608)}), rounding.scalar(8388608)}));
  EXPECT_EQ(reassociated(rounding), "Add Sub");
  PassNet overflow;
  overflow.output(overflow.op(
      "Mul", {overflow.op("Mul", {overflow.input({3, 4}), overflow.scalar(1e-30F)}), overflow.scalar(1e-30F)}));
  EXPECT_EQ(reassociated(overflow), "Mul Mul");
}

// ---- bypass-expand

std::string bypassed(PassNet& net) { return ops_of(rewritten(net, {passes::bypass_expand, passes::remove_dead})); }

TEST(BypassExpand, LetsReadersBroadcast) {
  PassNet sum;
  const ValueId row = sum.op("Expand", {sum.input({1, 4}), sum.integers({2, 3, 4})});
  sum.output(sum.op("Sub", {sum.input({2, 3, 4}), row}));
  EXPECT_EQ(bypassed(sum), "Sub");
  PassNet masked;
  const ValueId mask = masked.op("Greater", {masked.input({2, 1, 1, 4}), masked.scalar(0)});
  const ValueId wide = masked.op("Expand", {mask, masked.integers({2, 3, 4, 4})});
  masked.output(masked.op("Where", {wide, masked.input({2, 3, 4, 4}), masked.scalar(-1)}));
  EXPECT_EQ(bypassed(masked), "Greater Where");
}

TEST(BypassExpand, LeavesWhatGivesTheResultItsShape) {
  PassNet alone;
  alone.output(alone.op("Add", {alone.input({1, 4}), alone.op("Expand", {alone.input({4}), alone.integers({3, 4})})}));
  EXPECT_EQ(bypassed(alone), "Expand Add");
  PassNet itself;
  const ValueId twice = itself.op("Expand", {itself.input({4}), itself.integers({3, 4})});
  itself.output(itself.op("Mul", {twice, twice}));
  EXPECT_EQ(bypassed(itself), "Expand Mul");
  PassNet both;  // one of them has to stay
  const ValueId a = both.op("Expand", {both.input({4}), both.integers({3, 4})});
  const ValueId b = both.op("Expand", {both.input({3, 1}), both.integers({3, 4})});
  both.output(both.op("Add", {a, b}));
  EXPECT_EQ(bypassed(both), "Expand Add");
  PassNet unknown;
  TensorType open = TensorType::of(DType::f32, {3, 4});
  open.dims[0] = {-1, "rows"};
  const ValueId c = unknown.op("Expand", {unknown.input({4}), unknown.integers({3, 4})});
  unknown.output(unknown.op("Add", {c, unknown.input(open)}));
  EXPECT_EQ(bypassed(unknown), "Expand Add");
  PassNet other;
  const ValueId d = other.op("Expand", {other.input({4}), other.integers({3, 4})});
  other.output(other.op("Concat", {d, other.input({3, 4})}, {{"axis", int64_t{0}}}));
  EXPECT_EQ(bypassed(other), "Expand Concat");
}

TEST(BypassExpand, NarrowsConstantsThatRepeat) {
  const auto repeated = [](PassNet& net) {  // [2, 3, 4, 4], the same for each of the 2 and of the first 4
    Tensor tensor(DType::f32, {2, 3, 4, 4});
    for (int i = 0; i < 2 * 3 * 4 * 4; ++i) static_cast<float*>(tensor.mutable_raw())[i] = i / 16 % 3 * 4.F + i % 4;
    return net.constant(tensor);
  };
  PassNet mask;
  const ValueId bias = repeated(mask);
  mask.output(mask.op("Add", {mask.input({2, 3, 4, 4}), bias}));
  mask.output(mask.op("Sub", {bias, mask.input({2, 3, 4, 4})}));
  const Graph narrow = rewritten(mask, {passes::bypass_expand});
  const Node &add = narrow.node(narrow.order()[0]), &sub = narrow.node(narrow.order()[1]);
  EXPECT_EQ(narrow.value(add.inputs[1]).constant.dims(), (Dims{1, 3, 1, 4}));
  EXPECT_EQ(add.inputs[1], sub.inputs[0]);

  PassNet zeros;
  const ValueId none = zeros.constant(Tensor::from<float>({2, 2, 2}, {0, 0, 0, 0, 0, 0, 0, 0}));
  zeros.output(zeros.op("Relu", {zeros.op("Add", {zeros.input({2, 2, 2}), none})}));
  EXPECT_EQ(ops_of(rewritten(zeros, {passes::bypass_expand, passes::remove_identities})), "Relu");

  PassNet wider;  // gives the result its shape
  wider.output(wider.op("Add", {wider.input({3, 4, 4}), repeated(wider)}));
  const Graph left = rewritten(wider, {passes::bypass_expand});
  EXPECT_EQ(left.value(left.node(left.order()[0]).inputs[1]).constant.dims(), (Dims{2, 3, 4, 4}));
}

TEST(BypassExpand, GatherElementsReadsPlacesThatAreTheSameForAll) {
  const Dims all{2, 3, 5};
  const auto gathered = [&](const Dims& once, const Dims& data, int64_t axis, bool is_constant) {
    PassNet net;
    Tensor tensor(DType::i64, once);
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<int64_t>()[i] = i % 3;
    const ValueId made =
        net.op("Cast", {net.op("Mul", {net.input(once), net.scalar(3)})}, {{"to", static_cast<int64_t>(DType::i64)}});
    const ValueId places = is_constant ? net.constant(tensor) : made;
    const ValueId spread = net.op("Expand", {places, net.integers({all[0], all[1], all[2]})});
    net.output(net.op("GatherElements", {net.input(data), spread}, {{"axis", axis}}));
    return ops_of(is_constant ? rewritten(net, {passes::fold_constants, passes::bypass_expand, passes::remove_dead})
                              : rewritten(net, {passes::bypass_expand, passes::remove_dead}));
  };
  for (const bool is_constant : {false, true}) {
    const std::string places = is_constant ? "" : "Mul Cast ";
    EXPECT_EQ(gathered({1, 3, 5}, {2, 3, 7}, -1, is_constant), places + "TakeAlongAxis");
    EXPECT_EQ(gathered({1, 3, 1}, {2, 9, 5}, 1, is_constant), places + "TakeAlongAxis");
    EXPECT_EQ(gathered({3, 5}, {2, 3, 7}, 2, is_constant),
              places + (is_constant ? "TakeAlongAxis" : "Reshape TakeAlongAxis"));
    // More data than places, and places that repeat along their own axis.
    const std::string left = places + (is_constant ? "GatherElements" : "Expand GatherElements");
    EXPECT_EQ(gathered({1, 3, 5}, {4, 3, 7}, 2, is_constant), left);
    EXPECT_EQ(gathered({2, 3, 1}, {2, 3, 7}, 2, is_constant), left);
  }
}

// ---- reduce-first

std::string reduced(PassNet& net) { return ops_of(rewritten(net, {passes::reduce_first})); }

TEST(ReduceFirst, MultipliesWhatIsLeft) {
  PassNet mean;
  mean.output(mean.op("ReduceMean", {mean.op("Mul", {mean.input({2, 3, 4}), mean.scalar(3)})}, {{"axes", Ints{-1}}}));
  EXPECT_EQ(reduced(mean), "ReduceMean Mul");
  PassNet gated;
  const ValueId gate = gated.input({2, 3, 1, 1});
  gated.output(gated.op("GlobalAveragePool", {gated.op("Mul", {gate, gated.input({2, 3, 4, 5})})}));
  EXPECT_EQ(reduced(gated), "GlobalAveragePool Mul");
  PassNet sum;
  sum.output(
      sum.op("ReduceSum", {sum.op("Div", {sum.input({2, 3, 4}), sum.weights({3, 1}, 1, 2)}), sum.integers({0, 2})}));
  EXPECT_EQ(reduced(sum), "ReduceSum Div");
  PassNet dropped;
  dropped.output(dropped.op("ReduceMean", {dropped.op("Mul", {dropped.input({2, 3, 4}), dropped.scalar(3)})},
                            {{"axes", Ints{1}}, {"keepdims", int64_t{0}}}));
  EXPECT_EQ(reduced(dropped), "ReduceMean Mul");
  PassNet window;
  window.output(window.op("AveragePool", {window.op("Mul", {window.input({1, 3, 5, 5}), window.weights({3, 1, 1})})},
                          {{"kernel_shape", Ints{3, 3}}, {"pads", Ints{1, 1, 1, 1}}}));
  EXPECT_EQ(reduced(window), "AveragePool Mul");
}

TEST(ReduceFirst, LeavesFactorsThatDifferAlongWhatIsReduced) {
  PassNet row;
  row.output(row.op("ReduceMean", {row.op("Mul", {row.input({2, 3, 4}), row.weights({4})})}, {{"axes", Ints{-1}}}));
  EXPECT_EQ(reduced(row), "Mul ReduceMean");
  PassNet dropped;  // [3, 1] has no place in [2, 3]
  dropped.output(dropped.op("ReduceMean", {dropped.op("Mul", {dropped.input({2, 3, 4}), dropped.weights({3, 1})})},
                            {{"axes", Ints{2}}, {"keepdims", int64_t{0}}}));
  EXPECT_EQ(reduced(dropped), "Mul ReduceMean");
  PassNet largest;
  largest.output(
      largest.op("ReduceMax", {largest.op("Mul", {largest.input({2, 3}), largest.scalar(-1)})}, {{"axes", Ints{1}}}));
  EXPECT_EQ(reduced(largest), "Mul ReduceMax");
  PassNet shared;
  const ValueId scaled = shared.op("Mul", {shared.input({2, 3}), shared.scalar(2)});
  shared.output(shared.op("ReduceMean", {scaled}, {{"axes", Ints{1}}}));
  shared.output(scaled);
  EXPECT_EQ(reduced(shared), "Mul ReduceMean");
  PassNet square;
  const ValueId x = square.input({2, 1});
  square.output(square.op("ReduceMean", {square.op("Mul", {x, x})}, {{"axes", Ints{1}}}));
  EXPECT_EQ(reduced(square), "Mul ReduceMean");
  PassNet quotient;  // 1 / x
  quotient.output(quotient.op("ReduceMean", {quotient.op("Div", {quotient.scalar(1), quotient.input({2, 3})})},
                              {{"axes", Ints{1}}}));
  EXPECT_EQ(reduced(quotient).substr(0, 3), "Div");
  PassNet spreading;
  spreading.output(spreading.op("ReduceSum", {spreading.op("Mul", {spreading.input({2, 1}), spreading.weights({2, 3})}),
                                              spreading.integers({1})}));
  EXPECT_EQ(reduced(spreading), "Mul ReduceSum");
}

}  // namespace
}  // namespace lathe
