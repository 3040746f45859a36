// Attention from its parts, in the spellings of several exporters, and what only looks like it.
#include <limits>

#include "src/base/half.h"
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;

constexpr int64_t kLength = 5, kHeads = 3, kSize = 4, kWidth = kHeads * kSize;

const std::vector<testing::PassFn*> kPasses = {
    passes::sink_scales, passes::absorb_transposes, passes::fuse_epilogue, passes::fuse_attention,
    passes::remove_dead, passes::merge_products,    passes::remove_dead};

TensorType open_batch() {
  TensorType type = TensorType::of(DType::f32, {2, kLength, kWidth});
  type.dims[0] = {-1, "batch"};
  return type;
}

ValueId projected(PassNet& net, ValueId x, bool has_bias = true) {
  const ValueId y = net.op("MatMul", {x, net.weights({kWidth, kWidth})});
  return has_bias ? net.op("Add", {y, net.weights({kWidth})}) : y;
}

ValueId heads_of(PassNet& net, ValueId x, std::vector<int64_t> perm) {
  return net.transpose(net.reshape(x, {0, kLength, kHeads, kSize}), std::move(perm));
}

ValueId joined(PassNet& net, ValueId x) { return net.reshape(net.transpose(x, {0, 2, 1, 3}), {0, kLength, kWidth}); }

struct Parts {
  ValueId q, k, v;
};
Parts parts_of(PassNet& net, ValueId x, bool has_bias = true) {
  return {heads_of(net, projected(net, x, has_bias), {0, 2, 1, 3}), heads_of(net, projected(net, x), {0, 2, 3, 1}),
          heads_of(net, projected(net, x, has_bias), {0, 2, 1, 3})};
}

ValueId softmax(PassNet& net, ValueId scores, int64_t axis = -1) {
  return net.op("Softmax", {scores}, {{"axis", axis}});
}

TEST(FuseAttention, TakesAWholeLayerWithItsProjections) {
  PassNet net;
  const Parts parts = parts_of(net, net.input(open_batch()));
  ValueId scores = net.op("Div", {net.op("MatMul", {parts.q, parts.k}), net.scalar(2)});
  scores = net.op(
      "Add", {scores, net.input(TensorType{DType::f32, true, {{-1, "batch"}, {1, ""}, {1, ""}, {kLength, ""}}, {}})});
  net.output(joined(net, net.op("MatMul", {softmax(net, scores), parts.v})));
  EXPECT_EQ(ops_of(rewritten(net, kPasses)), "MatMul+MatMul+MatMul+Add MatMul+Div+Add+Softmax+MatMul");
}

TEST(FuseAttention, TakesQueriesThatAreScaledBefore) {
  PassNet net;
  const Parts parts = parts_of(net, net.input(open_batch()), false);
  const ValueId q = net.op("Mul", {parts.q, net.scalar(0.7f)}), k = net.op("Mul", {parts.k, net.scalar(0.7f)});
  net.output(joined(net, net.op("MatMul", {softmax(net, net.op("MatMul", {q, k})), parts.v})));
  EXPECT_EQ(ops_of(rewritten(net, kPasses)), "MatMul+MatMul+MatMul+Add MatMul+Mul+Mul+Softmax+MatMul");
}

TEST(FuseAttention, TakesAMaskBySelection) {
  PassNet net;
  const ValueId q = net.input(Dims{2, 3, kLength, kSize}), k = net.input(Dims{2, 3, kSize, 7});
  const ValueId mask = net.op("Greater", {net.input(Dims{2, 1, 1, 7}), net.scalar(0)});
  const ValueId weights = net.op("Cast", {mask}, {{"to", int64_t{1}}});
  const ValueId scores =
      net.op("Where", {net.op("Cast", {weights}, {{"to", int64_t{9}}}), net.op("MatMul", {q, k}), net.scalar(-1e9f)});
  net.output(net.op("MatMul", {softmax(net, scores), net.input(Dims{2, 3, 7, 6})}));
  EXPECT_EQ(ops_of(rewritten(net, kPasses)), "Greater Cast Cast Cast MatMul+Where+Softmax+MatMul");
}

TEST(FuseAttention, TakesACausalMaskAsDecodersWriteIt) {
  PassNet net;
  Tensor causal(DType::boolean, {1, 1, kLength, kLength});
  for (int64_t i = 0; i < kLength * kLength; ++i)
    static_cast<bool*>(causal.mutable_raw())[i] = i % kLength <= i / kLength;
  const ValueId q = net.input(Dims{2, 3, kLength, kSize}), k = net.input(Dims{2, 3, kSize, kLength});
  const ValueId scores = net.op("Div", {net.op("MatMul", {q, k}), net.scalar(2)});
  const ValueId masked = net.op("Where", {net.constant(causal), scores, net.scalar(-3.4e38f)});
  net.output(net.op("MatMul", {softmax(net, masked), net.input(Dims{2, 3, kLength, 6})}));
  auto all = kPasses;
  all.push_back(passes::fold_constants);
  EXPECT_EQ(ops_of(rewritten(net, all)), "MatMul+Div+Where+Softmax+MatMul");
}

Tensor bfloat_scalar(float value) {
  Tensor tensor(DType::bf16, {});
  *static_cast<uint16_t*>(tensor.mutable_raw()) = float_to_bfloat(value);
  return tensor;
}

// q [2, 5, 3, 4] and the like, as projections leave them, scaled by `scale` and masked.
PassNet bfloat_net(const Tensor& scale, const Dims& mask) {
  PassNet net;
  const auto heads = [&](std::vector<int64_t> perm) {
    return net.transpose(net.input(TensorType::of(DType::bf16, {2, kLength, kHeads, kSize})), std::move(perm));
  };
  const ValueId q = heads({0, 2, 1, 3}), k = heads({0, 2, 3, 1}), v = heads({0, 2, 1, 3});
  ValueId scores = net.op("Mul", {net.constant(scale), net.op("MatMul", {q, k})});
  scores = net.op("Add", {scores, net.input(TensorType::of(DType::bf16, mask))});
  net.output(net.op("MatMul", {softmax(net, scores), v}));
  return net;
}

TEST(FuseAttention, TakesBfloat16WithItsScaleMaskAndTransposes) {
  PassNet net = bfloat_net(bfloat_scalar(0.5F), {2, 1, 1, kLength});
  // Each step rounds to 8 bits before, one does after.
  const Graph after = rewritten(net, {passes::fuse_attention, passes::remove_dead}, 0.03);
  EXPECT_EQ(ops_of(after), "MatMul+Softmax+MatMul");
}

TEST(FuseAttention, LeavesBfloat16ThatIsScaledByWhatVaries) {
  Tensor scale(DType::bf16, {kLength});
  for (int64_t i = 0; i < kLength; ++i) static_cast<uint16_t*>(scale.mutable_raw())[i] = float_to_bfloat(0.5F);
  PassNet net = bfloat_net(scale, {2, 1, 1, kLength});
  EXPECT_EQ(ops_of(rewritten(net, {passes::fuse_attention, passes::remove_dead}, 0.03)),
            "Transpose Transpose Transpose MatMul Mul Add Softmax MatMul");
}

const std::vector<testing::PassFn*> kBiasPasses = {passes::sink_scales,    passes::absorb_transposes,
                                                   passes::gather_biases,  passes::fuse_epilogue,
                                                   passes::fuse_attention, passes::remove_dead};

constexpr int64_t kRows = 3, kColumns = 5, kPlaces = kRows * kColumns;

// Attention between the places of a picture; `biased` adds to the scores [2, kPlaces, kPlaces].
template <class Biased>
ValueId picture_attention(PassNet& net, Biased biased) {
  const Dims places{2, kPlaces, kSize};
  const ValueId q = net.input(places), k = net.input(places), v = net.input(places);
  const ValueId scores = net.op("Mul", {net.op("MatMul", {q, net.transpose(k, {0, 2, 1})}), net.scalar(0.4f)});
  return net.op("MatMul", {softmax(net, biased(scores)), v});
}
ValueId by_row(PassNet& net) { return net.input(Dims{2, kRows, kColumns, kRows, 1}); }
ValueId by_column(PassNet& net) { return net.input(Dims{2, kRows, kColumns, 1, kColumns}); }
const std::vector<int64_t> kApart = {2, kRows, kColumns, kRows, kColumns}, kJoined = {2, kPlaces, kPlaces};

TEST(FuseAttention, TakesBiasesOfRowsAndColumnsBehindAReshape) {
  PassNet net;
  net.output(picture_attention(net, [&](ValueId scores) {
    const ValueId apart = net.op("Add", {net.reshape(scores, kApart), by_row(net)});
    return net.reshape(net.op("Add", {apart, by_column(net)}), kJoined);
  }));
  EXPECT_EQ(ops_of(rewritten(net, kBiasPasses)), "Reshape Reshape MatMul+Mul+Add+Softmax+MatMul");
}

TEST(FuseAttention, TakesBiasesOfRowsAndColumnsThatWereAddedBefore) {
  PassNet net;
  net.output(picture_attention(net, [&](ValueId scores) {
    return net.op("Add", {scores, net.reshape(net.op("Add", {by_column(net), by_row(net)}), kJoined)});
  }));
  EXPECT_EQ(ops_of(rewritten(net, kBiasPasses)), "Reshape Reshape MatMul+Mul+Add+Softmax+MatMul");
}

TEST(FuseAttention, LeavesASumOfBiasesThatOthersRead) {
  PassNet net;
  net.output(picture_attention(net, [&](ValueId scores) {
    const ValueId sum = net.op("Add", {by_column(net), by_row(net)});
    net.output(sum);
    return net.op("Add", {scores, net.reshape(sum, kJoined)});
  }));
  EXPECT_EQ(ops_of(rewritten(net, kBiasPasses)), "Add Reshape MatMul+Mul+Add+Softmax+MatMul");
}

// A bias of whole rows is none that repeats along columns.
TEST(FuseAttention, LeavesASumOfOtherBiases) {
  PassNet net;
  net.output(picture_attention(net, [&](ValueId scores) {
    const ValueId whole = net.input(Dims{2, kRows, kColumns, kRows, kColumns});
    return net.op("Add", {scores, net.reshape(net.op("Add", {whole, by_row(net)}), kJoined)});
  }));
  EXPECT_EQ(ops_of(rewritten(net, kBiasPasses)), "Add Reshape MatMul+Mul+Add+Softmax+MatMul");
}

TEST(GatherBiases, LeavesOneThatRepeats) {
  PassNet net;
  net.output(picture_attention(net, [&](ValueId scores) {
    return net.reshape(net.op("Add", {net.reshape(scores, kApart), by_row(net)}), kJoined);
  }));
  EXPECT_EQ(ops_of(rewritten(net, {passes::gather_biases})), "Transpose MatMul Mul Reshape Add Reshape Softmax MatMul");
}

TEST(GatherBiases, LeavesScoresThatAreJoinedOtherwise) {
  PassNet net;
  const ValueId a = net.input(Dims{2, kPlaces, kSize}), b = net.input(Dims{2, kSize, kPlaces});
  const ValueId apart = net.op("Add", {net.reshape(net.op("MatMul", {a, b}), kApart), by_row(net)});
  const ValueId sum = net.op("Add", {apart, by_column(net)});
  net.output(softmax(net, net.reshape(sum, {2, kPlaces * kRows, kColumns})));
  EXPECT_EQ(ops_of(rewritten(net, {passes::gather_biases})), "MatMul Reshape Add Add Reshape Softmax");
}

TEST(FuseEpilogue, LeavesMasksThatAreAsLargeAsTheResultOrLarger) {
  for (const Dims& dims : {Dims{3, 5, 7}, Dims{2, 3, 5, 7}}) {
    PassNet net;
    const ValueId scores = net.op("MatMul", {net.input(Dims{3, 5, 4}), net.input(Dims{3, 4, 7})});
    net.output(net.op("Where", {net.op("Greater", {net.input(dims), net.scalar(0)}), scores, net.scalar(-1)}));
    EXPECT_EQ(ops_of(rewritten(net, {passes::fuse_epilogue})), "MatMul Greater Where");
  }
}

TEST(FuseAttention, TakesTheGuardOfRowsThatAreAllMasked) {
  PassNet net;
  const ValueId scores = net.op("MatMul", {net.input(Dims{2, 5, 4}), net.input(Dims{2, 4, 7})});
  Tensor mask(DType::f32, {5, 7});
  for (int64_t i = 7; i < 14; ++i) mask.mutable_data<float>()[i] = -std::numeric_limits<float>::infinity();
  const ValueId shares = softmax(net, net.op("Add", {scores, net.constant(mask)}));
  const ValueId kept = net.op("Where", {net.op("IsNaN", {shares}), net.scalar(0), shares});
  net.output(net.op("MatMul", {kept, net.input(Dims{2, 7, 3})}));
  EXPECT_EQ(ops_of(rewritten(net, kPasses)), "MatMul+Add+Softmax+MatMul");
}

TEST(FuseAttention, LeavesAGuardThatGivesAnotherNumber) {
  PassNet net;
  const ValueId shares = softmax(net, net.op("MatMul", {net.input(Dims{2, 5, 4}), net.input(Dims{2, 4, 7})}));
  const ValueId kept = net.op("Where", {net.op("IsNaN", {shares}), net.scalar(1), shares});
  net.output(net.op("MatMul", {kept, net.input(Dims{2, 7, 3})}));
  EXPECT_EQ(ops_of(rewritten(net, kPasses)), "MatMul Softmax IsNaN Where MatMul");
}

TEST(FuseAttention, TakesOtherLengthsOfKeysAndBroadcastHeads) {
  PassNet net;
  const ValueId q = net.input(Dims{2, 3, kLength, kSize}), k = net.input(Dims{2, 1, kSize, 7}),
                v = net.input(Dims{1, 3, 7, 6});
  net.output(net.op("MatMul", {softmax(net, net.op("MatMul", {q, k})), v}));
  EXPECT_EQ(ops_of(rewritten(net, kPasses)), "MatMul+Softmax+MatMul");
}

TEST(FuseAttention, TakesStacksOfMatricesOfRankThree) {
  PassNet net;
  const ValueId k = net.transpose(net.input(Dims{6, 7, 4}), {0, 2, 1});
  net.output(
      net.op("MatMul", {softmax(net, net.op("MatMul", {net.input(Dims{6, 5, 4}), k}), 2), net.input(Dims{6, 7, 3})}));
  EXPECT_EQ(ops_of(rewritten(net, kPasses)), "MatMul+Softmax+MatMul");
}

// q k -> softmax -> v, of whole matrices, with something done to each value on the way.
struct Bare {
  PassNet net;
  ValueId scores, shares;
  explicit Bare(int64_t axis = -1) {
    scores = net.op("MatMul", {net.input(Dims{2, 6, 6}), net.input(Dims{2, 6, 6})});
    shares = softmax(net, scores, axis);
  }
  std::string finish() {
    net.output(net.op("MatMul", {shares, net.input(Dims{2, 6, 6})}));
    return ops_of(rewritten(net, kPasses));
  }
};

TEST(FuseAttention, LeavesScoresThatAreAnOutput) {
  Bare bare;
  bare.net.output(bare.scores);
  EXPECT_EQ(bare.finish(), "MatMul Softmax MatMul");
}

TEST(FuseAttention, LeavesSharesThatAreAnOutput) {
  Bare bare;
  bare.net.output(bare.shares);
  EXPECT_EQ(bare.finish(), "MatMul Softmax MatMul");
}

TEST(FuseAttention, LeavesSharesThatOthersRead) {
  Bare bare;
  bare.net.output(bare.net.op("Relu", {bare.shares}));
  EXPECT_EQ(bare.finish(), "MatMul Softmax Relu MatMul");
}

TEST(FuseAttention, LeavesASoftmaxAlongAnotherAxis) {
  EXPECT_EQ(Bare(1).finish(), "MatMul Softmax MatMul");
  EXPECT_EQ(Bare(0).finish(), "MatMul Softmax MatMul");
}

TEST(FuseAttention, LeavesSharesOnTheRight) {
  Bare bare;
  bare.net.output(bare.net.op("MatMul", {bare.net.input(Dims{2, 6, 6}), bare.shares}));
  EXPECT_EQ(ops_of(rewritten(bare.net, kPasses)), "MatMul Softmax MatMul");
}

TEST(FuseAttention, LeavesSharesTimesThemselves) {
  Bare bare;
  bare.net.output(bare.net.op("MatMul", {bare.shares, bare.shares}));
  EXPECT_EQ(ops_of(rewritten(bare.net, kPasses)), "MatMul Softmax MatMul");
}

TEST(FuseAttention, KeepsAReshapeThatIsNotOfHeads) {
  PassNet net;
  const ValueId q = net.reshape(net.input(Dims{2, 10, 12}), {2, 3, 10, 4});  // not the last axis taken apart
  net.output(net.op("MatMul",
                    {softmax(net, net.op("MatMul", {q, net.input(Dims{2, 3, 4, 7})})), net.input(Dims{2, 3, 7, 5})}));
  EXPECT_EQ(ops_of(rewritten(net, kPasses)), "Reshape MatMul+Softmax+MatMul");
}

// --- products side by side

TEST(MergeProducts, LeavesProjectionsOfDifferentValues) {
  PassNet net;
  const ValueId x = net.input(open_batch()), z = net.input(open_batch());
  const ValueId q = heads_of(net, projected(net, x), {0, 2, 1, 3}), k = heads_of(net, projected(net, z), {0, 2, 3, 1});
  const ValueId v = heads_of(net, projected(net, z), {0, 2, 1, 3});
  net.output(joined(net, net.op("MatMul", {softmax(net, net.op("MatMul", {q, k})), v})));
  EXPECT_EQ(ops_of(rewritten(net, kPasses)), "MatMul+Add MatMul+Add MatMul+Add MatMul+Softmax+MatMul");
}

TEST(MergeProducts, LeavesAProjectionThatOthersRead) {
  PassNet net;
  const ValueId x = net.input(open_batch()), keys = projected(net, x);
  const ValueId q = heads_of(net, projected(net, x), {0, 2, 1, 3}), k = heads_of(net, keys, {0, 2, 3, 1});
  const ValueId v = heads_of(net, projected(net, x), {0, 2, 1, 3});
  net.output(joined(net, net.op("MatMul", {softmax(net, net.op("MatMul", {q, k})), v})));
  net.output(keys);
  EXPECT_EQ(ops_of(rewritten(net, kPasses)), "MatMul+Add MatMul+Add MatMul+Add MatMul+Softmax+MatMul");
}

TEST(MergeProducts, LeavesProjectionsWithMoreThanABias) {
  PassNet net;
  const ValueId x = net.input(open_batch());
  const ValueId q = heads_of(net, net.op("Relu", {projected(net, x)}), {0, 2, 1, 3});
  const ValueId k = heads_of(net, projected(net, x), {0, 2, 3, 1}), v = heads_of(net, projected(net, x), {0, 2, 1, 3});
  net.output(joined(net, net.op("MatMul", {softmax(net, net.op("MatMul", {q, k})), v})));
  EXPECT_EQ(ops_of(rewritten(net, kPasses)), "MatMul+Add+Relu MatMul+Add MatMul+Add MatMul+Softmax+MatMul");
}

// --- factors

TEST(SinkScales, LeavesFactorsThatAreNoScalarsOrThatOthersRead) {
  PassNet net;
  const ValueId x = net.input(Dims{4, 6});
  net.output(net.op("MatMul", {net.op("Mul", {x, net.weights({6})}), net.weights({6, 5})}));
  const ValueId shared = net.op("Mul", {x, net.scalar(3)});
  net.output(net.op("MatMul", {shared, net.weights({6, 5})}));
  net.output(shared);
  net.output(net.op("MatMul", {net.op("Div", {net.scalar(3), x}), net.weights({6, 5})}));
  EXPECT_EQ(ops_of(rewritten(net, {passes::sink_scales})), "Mul MatMul Mul MatMul Div MatMul");
}

TEST(SinkScales, MovesBothFactorsBehindTheProduct) {
  PassNet net;
  const ValueId a = net.op("Mul", {net.scalar(3), net.input(Dims{4, 6})}),
                b = net.op("Div", {net.input(Dims{6, 5}), net.scalar(2)});
  net.output(net.op("MatMul", {a, b}));
  const std::string ops = ops_of(rewritten(net, {passes::sink_scales}));
  EXPECT_EQ(ops.substr(0, 6), "MatMul");
}

TEST(SinkScales, SeesThroughWhatMovesElements) {
  PassNet net;
  const ValueId scaled = net.op("Mul", {net.input(Dims{1, 4, 2, 6}), net.scalar(3)});
  const ValueId moved = net.transpose(net.reshape(scaled, {4, 2, 6}), {1, 0, 2});
  net.output(net.op("Softmax", {net.op("MatMul", {moved, net.weights({6, 5})})}));
  EXPECT_EQ(ops_of(rewritten(net, {passes::sink_scales})), "Reshape Transpose MatMul Mul Softmax");
}

TEST(SinkScales, LeavesFactorsWhoseMovedResultOthersRead) {
  PassNet net;
  const ValueId moved = net.reshape(net.op("Mul", {net.input(Dims{1, 4, 6}), net.scalar(3)}), {4, 6});
  net.output(net.op("MatMul", {moved, net.weights({6, 5})}));
  net.output(net.op("Softmax", {moved}));
  EXPECT_EQ(ops_of(rewritten(net, {passes::sink_scales})), "Mul Reshape MatMul Softmax");
}

}  // namespace
}  // namespace lathe
