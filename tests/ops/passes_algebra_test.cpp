// Constants into weights, products and convolutions in a cheaper order: where they fire, and near misses.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;
using Ints = std::vector<int64_t>;

// ---- fold-affine

std::string folded(PassNet& net) { return ops_of(rewritten(net, {passes::fold_affine})); }

ValueId conv(PassNet& net, ValueId x, Dims weights, PassNet::NamedAttributes attributes = {}, bool has_bias = true) {
  std::vector<ValueId> operands{x, net.weights(weights)};
  if (has_bias) operands.push_back(net.weights({weights[0]}));
  return net.op("Conv", operands, std::move(attributes));
}

TEST(FoldAffine, TakesAChainBeforeAConvolution) {
  for (const bool has_bias : {true, false}) {
    PassNet net;
    const ValueId scaled = net.op("Mul", {net.weights({4, 1, 1}), net.input({2, 4, 5, 6})});
    const ValueId shifted = net.op("Sub", {net.weights({1, 4, 1, 1}), scaled});
    net.output(conv(net, net.op("Div", {shifted, net.scalar(3)}), {5, 4, 3, 3}, {}, has_bias));
    EXPECT_EQ(folded(net), "Mul+Sub+Div+Conv");
  }
}

TEST(FoldAffine, KnowsTheGroupsOfAConvolution) {
  PassNet net;
  const ValueId x =
      net.op("Add", {net.op("Mul", {net.input({1, 6, 4, 4}), net.weights({6, 1, 1})}), net.weights({6, 1, 1})});
  net.output(conv(net, x, {9, 2, 2, 2}, {{"group", int64_t{3}}}));
  EXPECT_EQ(folded(net), "Mul+Add+Conv");
}

TEST(FoldAffine, LeavesASumBeforeAPaddedConvolutionButTakesTheFactorBehindIt) {
  const std::pair<const char*, Attribute> borders[] = {{"pads", Ints{0, 1, 0, 0}},
                                                       {"auto_pad", std::string("SAME_UPPER")}};
  for (const auto& border : borders) {
    PassNet net;
    const ValueId sum = net.op("Add", {net.input({1, 4, 5, 6}), net.weights({4, 1, 1})});
    net.output(conv(net, net.op("Mul", {sum, net.weights({4, 1, 1})}), {5, 4, 3, 3}, {border}));
    EXPECT_EQ(folded(net), "Add Mul+Conv");
  }
}

TEST(FoldAffine, TakesRowsBeforeProducts) {
  PassNet net;
  const ValueId x = net.op("Add", {net.op("Mul", {net.input({2, 3, 4}), net.weights({4})}), net.weights({1, 4})});
  net.output(net.op("MatMul", {x, net.weights({4, 7})}));
  EXPECT_EQ(folded(net), "Mul+Add+MatMul Add");
}

TEST(FoldAffine, TakesRowsBeforeGemmsOfEitherOrder) {
  for (const int64_t is_transposed : {0, 1}) {
    PassNet net;
    const ValueId x = net.op("Add", {net.op("Mul", {net.input({3, 4}), net.weights({4})}), net.weights({4})});
    net.output(net.op("Gemm", {x, net.weights(is_transposed != 0 ? Dims{7, 4} : Dims{4, 7}), net.weights({7})},
                      {{"transB", is_transposed}, {"alpha", 0.5F}, {"beta", 2.F}}));
    EXPECT_EQ(folded(net), "Mul+Add+Gemm");
  }
}

TEST(FoldAffine, LeavesOneFactorForAllToRideBehindTheProduct) {
  PassNet net;
  net.output(net.op("MatMul", {net.op("Mul", {net.input({3, 4}), net.scalar(0.5F)}), net.weights({4, 7})}));
  EXPECT_EQ(folded(net), "Mul MatMul");
}

TEST(FoldAffine, KeepsWhatOthersRead) {
  PassNet second, output;
  const ValueId a = second.op("Mul", {second.input({1, 4, 5, 5}), second.weights({4, 1, 1})});
  second.output(conv(second, a, {5, 4, 1, 1}));
  second.output(second.op("Relu", {a}));
  EXPECT_EQ(folded(second), "Mul Conv Relu");
  const ValueId b = output.op("Mul", {output.input({1, 4, 5, 5}), output.weights({4, 1, 1})});
  output.output(conv(output, b, {5, 4, 1, 1}));
  output.output(b);
  EXPECT_EQ(folded(output), "Mul Conv");
}

TEST(FoldAffine, LeavesOtherAxesAndOtherExtents) {
  for (const Dims& constant : {Dims{4}, Dims{4, 1}, Dims{2, 1, 1, 1}, Dims{4, 4, 1}}) {
    PassNet net;
    net.output(conv(net, net.op("Mul", {net.input({2, 4, 4, 4}), net.weights(constant)}), {5, 4, 1, 1}));
    EXPECT_EQ(folded(net), "Mul Conv");
  }
  PassNet spreading;  // one channel becomes four
  spreading.output(conv(spreading, spreading.op("Mul", {spreading.input({2, 1, 4, 4}), spreading.weights({4, 1, 1})}),
                        {5, 4, 1, 1}));
  EXPECT_EQ(folded(spreading), "Mul Conv");
  PassNet rows;
  rows.output(rows.op("MatMul", {rows.op("Mul", {rows.input({4, 4}), rows.weights({4, 1})}), rows.weights({4, 7})}));
  EXPECT_EQ(folded(rows), "Mul MatMul");
  PassNet turned;
  turned.output(turned.op("Gemm",
                          {turned.op("Mul", {turned.input({4, 4}), turned.weights({4})}), turned.weights({4, 7})},
                          {{"transA", int64_t{1}}}));
  EXPECT_EQ(folded(turned), "Mul Gemm");
}

TEST(FoldAffine, LeavesFactorsThatWeightsCannotHold) {
  PassNet net;
  const ValueId x = net.op("Mul", {net.input({1, 2, 3, 3}), net.constant(Tensor::from<float>({2, 1, 1}, {1e30F, 1}))});
  const ValueId small = net.op("Mul", {x, net.constant(Tensor::from<float>({2, 1, 1}, {1e-30F, 1}))});
  net.output(net.op("Conv", {small, net.constant(Tensor::from<float>({1, 2, 1, 1}, {1e38F, 1}))}));
  EXPECT_EQ(ops_of(rewritten(net, {passes::fold_affine}, 1e30)), "Mul+Mul+Conv") << "both together are harmless";
  PassNet large;
  const ValueId y =
      large.op("Mul", {large.input({1, 2, 3, 3}), large.constant(Tensor::from<float>({2, 1, 1}, {1e30F, 1}))});
  large.output(large.op("Conv", {y, large.constant(Tensor::from<float>({1, 2, 1, 1}, {1e30F, 1}))}));
  Graph after = large.graph;
  const Limits limits;
  infer_types(after, limits);
  EXPECT_FALSE(passes::fold_affine(after, {OpRegistry::builtin(), limits, 8}));
}

TEST(FoldAffine, LeavesHalfFloats) {
  PassNet net;
  const ValueId half = net.input(TensorType::of(DType::f16, {1, 4, 3, 3}));
  const auto constant = [&](const Dims& dims) { return net.constant(Tensor(DType::f16, dims)); };
  net.output(net.op("Conv", {net.op("Mul", {half, constant({4, 1, 1})}), constant({2, 4, 1, 1})}));
  Graph after = net.graph;
  const Limits limits;
  infer_types(after, limits);
  EXPECT_FALSE(passes::fold_affine(after, {OpRegistry::builtin(), limits, 8}));
}

// ---- fold-batch-norm, of matrix products

std::string normed(PassNet& net) { return ops_of(rewritten(net, {passes::fold_batch_norm})); }

TEST(FoldBatchNorm, TakesFactorsPerColumnIntoAProduct) {
  PassNet net;
  const ValueId y = net.op("MatMul", {net.input({2, 3, 4}), net.weights({4, 6})});
  net.output(
      net.op("Add", {net.op("Mul", {net.op("Sub", {y, net.weights({6})}), net.weights({6})}), net.weights({6})}));
  EXPECT_EQ(normed(net), "MatMul+Sub+Mul+Add Add");
}

TEST(FoldBatchNorm, NormalizesTheColumnsOfAProduct) {
  PassNet net;
  const ValueId y = net.op("MatMul", {net.input({5, 4}), net.weights({4, 6})});
  net.output(net.op("BatchNormalization",
                    {y, net.weights({6}), net.weights({6}), net.weights({6}), net.weights({6}, 0.5F, 2)}));
  EXPECT_EQ(normed(net), "MatMul+BatchNormalization Add");
}

TEST(FoldBatchNorm, LeavesABiasAndAFactorForAllBehindAProduct) {
  PassNet net;
  const ValueId y = net.op("Add", {net.op("MatMul", {net.input({5, 4}), net.weights({4, 6})}), net.weights({6})});
  net.output(net.op("Mul", {y, net.scalar(0.5F)}));
  EXPECT_EQ(normed(net), "MatMul Add Mul");
}

TEST(FoldBatchNorm, LeavesRowsOfAProduct) {
  PassNet net;
  const ValueId y = net.op("MatMul", {net.input({2, 6, 4}), net.weights({4, 6})});
  net.output(net.op("Mul", {y, net.weights({6, 1})}));
  EXPECT_EQ(normed(net), "MatMul Mul");
}

// ---- join-convolutions

std::string joined(PassNet& net) { return ops_of(rewritten(net, {passes::join_convolutions})); }

TEST(JoinConvolutions, JoinsWhatIsLessToCompute) {
  struct Case {
    Dims first, second;
    Ints strides;
  };
  for (const Case& each : {Case{{16, 4, 1, 1}, {5, 16, 1, 1}, {1, 1}}, Case{{8, 3, 3, 3}, {4, 8, 1, 1}, {1, 1}},
                           Case{{4, 4, 1, 1}, {4, 4, 1, 1}, {2, 3}}}) {
    PassNet net;
    const ValueId between = conv(net, net.input({2, each.first[1], 9, 8}), each.first, {{"strides", Ints{2, 1}}});
    net.output(conv(net, between, each.second, {{"strides", each.strides}}));
    EXPECT_EQ(joined(net), "Conv+Conv") << to_string(each.first);
  }
}

TEST(JoinConvolutions, KeepsABorderOfTheFirst) {
  PassNet net;
  const ValueId between = conv(net, net.input({2, 3, 5, 6}), {8, 3, 3, 3}, {{"pads", Ints{1, 1, 0, 2}}});
  net.output(conv(net, between, {4, 8, 1, 1}, {}, false));
  EXPECT_EQ(joined(net), "Conv+Conv");
}

TEST(JoinConvolutions, LeavesBottlenecksAndWhatIsNotOneAfterTheOther) {
  PassNet bottleneck;
  bottleneck.output(conv(bottleneck, conv(bottleneck, bottleneck.input({1, 16, 4, 4}), {4, 16, 1, 1}), {16, 4, 1, 1}));
  EXPECT_EQ(joined(bottleneck), "Conv Conv");
  PassNet padded;  // the second's border is zero, not the first's bias
  padded.output(conv(padded, conv(padded, padded.input({1, 4, 4, 4}), {16, 4, 1, 1}), {4, 16, 1, 1},
                     {{"pads", Ints{1, 1, 1, 1}}}));
  EXPECT_EQ(joined(padded), "Conv Conv");
  PassNet grouped;
  grouped.output(
      conv(grouped, conv(grouped, grouped.input({1, 4, 4, 4}), {16, 4, 1, 1}), {4, 8, 1, 1}, {{"group", int64_t{2}}}));
  EXPECT_EQ(joined(grouped), "Conv Conv");
  PassNet window;
  window.output(conv(window, conv(window, window.input({1, 4, 4, 4}), {64, 4, 1, 1}), {4, 64, 3, 3}));
  EXPECT_EQ(joined(window), "Conv Conv");
  PassNet shared;
  const ValueId between = conv(shared, shared.input({1, 4, 4, 4}), {16, 4, 1, 1});
  shared.output(conv(shared, between, {4, 16, 1, 1}));
  shared.output(between);
  EXPECT_EQ(joined(shared), "Conv Conv");
  PassNet active;
  active.output(
      conv(active, active.op("Relu", {conv(active, active.input({1, 4, 4, 4}), {16, 4, 1, 1})}), {4, 16, 1, 1}));
  EXPECT_EQ(joined(active), "Conv Relu Conv");
}

TEST(JoinConvolutions, LeavesAFastConvolutionUnderAStride) {
  PassNet net;
  net.output(conv(net, conv(net, net.input({1, 8, 8, 8}), {8, 8, 3, 3}), {8, 8, 1, 1}, {{"strides", Ints{2, 2}}}));
  EXPECT_EQ(joined(net), "Conv Conv");
}

// ---- pull-strides

std::string pulled(PassNet& net) { return ops_of(rewritten(net, {passes::pull_strides})); }

struct Residual {
  PassNet net;
  ValueId x, sum;
  explicit Residual(int64_t kernel = 1) {
    x = net.input({2, 4, 7, 6});
    const int64_t pad = kernel / 2;
    sum = net.op("Add",
                 {conv(net, net.op("Relu", {x}), {4, 4, kernel, kernel}, {{"pads", Ints{pad, pad, pad, pad}}}), x});
    sum = net.op("Relu", {sum});
  }
  void read(Ints strides, int64_t kernel = 1) {
    net.output(conv(net, sum, {5, 4, kernel, kernel}, {{"strides", std::move(strides)}}));
  }
};

TEST(PullStrides, SkipsPixelsThatNobodyReads) {
  Residual block;
  block.read({2, 2});
  block.read({2, 2});
  EXPECT_EQ(pulled(block.net), "Relu Conv MaxPool Add Relu Conv Conv");
  PassNet wide;
  const ValueId gated = wide.op(
      "Mul", {conv(wide, wide.input({1, 4, 9, 9}), {6, 4, 1, 1}, {{"strides", Ints{1, 2}}}), wide.weights({6, 1, 1})});
  wide.output(conv(wide, gated, {5, 6, 1, 1}, {{"strides", Ints{3, 1}}}));
  const Graph after = rewritten(wide, {passes::pull_strides});
  EXPECT_EQ(after.node(after.order()[0]).attributes.get_ints("strides"), (Ints{3, 2}));
}

TEST(PullStrides, LeavesWhatSomeReaderNeeds) {
  Residual other, whole, window, output;
  other.read({2, 2});
  other.read({1, 2});
  EXPECT_EQ(pulled(other.net), "Relu Conv Add Relu Conv Conv");
  whole.read({2, 2});
  whole.net.output(whole.net.op("GlobalAveragePool", {whole.sum}));
  EXPECT_EQ(pulled(whole.net), "Relu Conv Add Relu Conv GlobalAveragePool");
  window.read({2, 2}, 3);
  EXPECT_EQ(pulled(window.net), "Relu Conv Add Relu Conv");
  output.read({2, 2});
  output.net.output(output.sum);
  EXPECT_EQ(pulled(output.net), "Relu Conv Add Relu Conv");
}

TEST(PullStrides, LeavesDenseWindowsToTheirFastAlgorithms) {
  Residual block(3);
  block.read({2, 2});
  EXPECT_EQ(pulled(block.net), "Relu Conv Add Relu Conv");
}

TEST(PullStrides, LeavesOperandsThatSpreadOverRows) {
  PassNet net;
  const ValueId x = conv(net, net.input({1, 4, 6, 6}), {4, 4, 1, 1});
  net.output(conv(net, net.op("Add", {x, net.weights({6, 1})}), {5, 4, 1, 1}, {{"strides", Ints{2, 2}}}));
  EXPECT_EQ(pulled(net), "Conv Add Conv");
}

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
