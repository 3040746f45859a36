// Concat and Split that undo each other, and parts of one wide product that attention reads where they lie.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;

std::string joined(PassNet& net) {
  return ops_of(rewritten(net, {passes::join_parts, passes::remove_identities, passes::remove_dead}));
}

std::vector<ValueId> split(PassNet& net, ValueId x, std::vector<int64_t> sizes, int64_t axis) {
  const int count = static_cast<int>(sizes.size());
  return net.op("Split", {x, net.integers(sizes)}, count, {{"axis", axis}});
}
ValueId concat(PassNet& net, std::vector<ValueId> parts, int64_t axis) {
  return net.op("Concat", std::move(parts), {{"axis", axis}});
}

TEST(JoinParts, PutsTheWholeInPlaceOfAllItsParts) {
  PassNet net;
  const ValueId x = net.op("Relu", {net.input(Dims{1, 6, 3, 3})});
  const std::vector<ValueId> parts = split(net, x, {2, 4}, 1);
  net.output(concat(net, {net.input(Dims{1, 2, 3, 3}), parts[0], parts[1], net.op("Relu", {parts[1]})}, -3));
  const Graph after = rewritten(net, {passes::join_parts});
  EXPECT_EQ(ops_of(after), "Relu Split Relu Concat");
  EXPECT_EQ(after.node(after.order().back()).inputs.size(), 3u);
}

TEST(JoinParts, RemovesBothWhenNothingElseIsLeft) {
  PassNet net;
  const std::vector<ValueId> parts = split(net, net.op("Relu", {net.input(Dims{1, 6})}), {1, 2, 3}, 1);
  net.output(net.op("Neg", {concat(net, parts, 1)}));
  EXPECT_EQ(joined(net), "Relu Neg");
}

TEST(JoinParts, LeavesPartsInAnotherOrderOrAlongAnotherAxisOrWithGaps) {
  PassNet net;
  const ValueId x = net.input(Dims{4, 4});
  const std::vector<ValueId> parts = split(net, x, {2, 2}, 1);
  net.output(concat(net, {parts[1], parts[0]}, 1));
  net.output(concat(net, {parts[0], parts[1]}, 0));
  net.output(concat(net, {parts[0], x, parts[1]}, 1));
  EXPECT_EQ(joined(net), "Split Concat Concat Concat");
}

TEST(JoinParts, JoinsConcatsOfConcats) {
  PassNet net;
  const ValueId inner = concat(net, {net.input(Dims{2, 3}), net.input(Dims{2, 1})}, 1);
  net.output(concat(net, {inner, net.input(Dims{2, 2})}, 1));
  EXPECT_EQ(joined(net), "Concat");
}

TEST(JoinParts, LeavesConcatsThatOthersReadOrAlongAnotherAxis) {
  PassNet net;
  const ValueId inner = concat(net, {net.input(Dims{2, 3}), net.input(Dims{2, 1})}, 1);
  net.output(concat(net, {inner, net.input(Dims{2, 2})}, 1));
  net.output(inner);
  const ValueId other = concat(net, {net.input(Dims{2, 3}), net.input(Dims{2, 3})}, 1);
  net.output(concat(net, {other, net.input(Dims{2, 6})}, 0));
  EXPECT_EQ(joined(net), "Concat Concat Concat Concat");
}

TEST(JoinParts, ASliceReadsThePartThatItLiesIn) {
  PassNet net;
  const ValueId a = net.op("Relu", {net.input(Dims{2, 5})}), b = net.op("Neg", {net.input(Dims{2, 6})});
  const ValueId whole = concat(net, {a, b}, 1);
  const auto slice = [&](int64_t begin, int64_t end) {
    return net.op("Slice", {whole, net.integers({begin}), net.integers({end}), net.integers({1})});
  };
  net.output(slice(6, 9));
  net.output(slice(-6, 100));
  EXPECT_EQ(joined(net), "Neg Slice");
  net.output(slice(4, 9));  // of both
  EXPECT_EQ(joined(net), "Relu Neg Concat Slice Slice");
}

TEST(JoinParts, UndoesASplitOfWhatWasJoined) {
  PassNet net;
  const ValueId a = net.op("Relu", {net.input(Dims{2, 3})}), b = net.op("Neg", {net.input(Dims{2, 1})});
  const std::vector<ValueId> parts = split(net, concat(net, {a, b}, 1), {3, 1}, 1);
  net.output(net.op("Sigmoid", {parts[0]}));
  net.output(net.op("Tanh", {parts[1]}));
  EXPECT_EQ(joined(net), "Relu Neg Sigmoid Tanh");
}

TEST(JoinParts, LeavesASplitAtOtherPlacesOrIntoOutputs) {
  PassNet net;
  const ValueId a = net.input(Dims{2, 3}), b = net.input(Dims{2, 1});
  net.output(net.op("Sigmoid", {split(net, concat(net, {a, b}, 1), {2, 2}, 1)[0]}));
  for (const ValueId part : split(net, concat(net, {b, a}, 1), {1, 3}, 1)) net.output(part);
  EXPECT_EQ(joined(net), "Concat Split Sigmoid Concat Split");
}

// --- heads

constexpr int64_t kLength = 5, kHeads = 3, kSize = 4;
enum class Pick { slice, gather, split };

ValueId part_of(PassNet& net, ValueId all, Pick pick, int64_t index) {
  if (pick == Pick::gather) {
    return net.op("Gather", {all, net.constant(Tensor::scalar<int64_t>(index))}, {{"axis", int64_t{0}}});
  }
  const ValueId one = pick == Pick::split
                          ? split(net, all, {1, 1, 1}, 0)[static_cast<size_t>(index)]
                          : net.op("Slice", {all, net.integers({index}), net.integers({index + 1}), net.integers({0})});
  return net.op("Squeeze", {one, net.integers({0})});
}

void add_packed_attention(PassNet& net, Pick pick, std::vector<int64_t> perm, int64_t keys_at = 1) {
  const ValueId y = net.op("MatMul", {net.input(Dims{2, kLength, 8}), net.weights({8, 3 * kHeads * kSize})});
  const ValueId all = net.transpose(net.reshape(y, {0, kLength, 3, kHeads, kSize}), std::move(perm));
  const ValueId q = net.op("Mul", {part_of(net, all, pick, 0), net.scalar(0.5f)});
  const ValueId k = net.transpose(part_of(net, all, pick, keys_at), {0, 1, 3, 2}), v = part_of(net, all, pick, 2);
  const ValueId shares = net.op("Softmax", {net.op("MatMul", {q, k})}, {{"axis", int64_t{-1}}});
  net.output(net.reshape(net.transpose(net.op("MatMul", {shares, v}), {0, 2, 1, 3}), {0, kLength, kHeads * kSize}));
}

const std::vector<testing::PassFn*> kAttention = {
    passes::sink_scales,  passes::absorb_transposes, passes::fuse_epilogue, passes::fuse_attention,
    passes::unpack_heads, passes::merge_products,    passes::remove_dead};

TEST(UnpackHeads, ReadsPartsOfOneProductHoweverTheyArePicked) {
  for (const Pick pick : {Pick::slice, Pick::gather, Pick::split}) {
    PassNet net;
    add_packed_attention(net, pick, {2, 0, 3, 1, 4}, pick == Pick::gather ? -2 : 1);
    EXPECT_EQ(ops_of(rewritten(net, kAttention)), "MatMul MatMul+Mul+Softmax+MatMul");
  }
}

// As sink-transposes leaves them, which has brought one order of axes to all of the three.
TEST(UnpackHeads, ReadsPartsThatAreTransposedOneByOne) {
  for (const int64_t axis : {int64_t{2}, int64_t{-3}}) {
    PassNet net;
    const ValueId y = net.op("MatMul", {net.input(Dims{2, kLength, 8}), net.weights({8, 3 * kHeads * kSize})});
    const std::vector<ValueId> parts = split(net, net.reshape(y, {0, kLength, 3, kHeads, kSize}), {1, 1, 1}, axis);
    const auto heads = [&](size_t i) {
      return net.transpose(net.op("Squeeze", {parts[i], net.integers({axis})}), {0, 2, 1, 3});
    };
    const ValueId q = net.op("Mul", {heads(0), net.scalar(0.5f)}), k = net.transpose(heads(1), {0, 1, 3, 2});
    const ValueId shares = net.op("Softmax", {net.op("MatMul", {q, k})}, {{"axis", int64_t{-1}}});
    const ValueId rows = net.transpose(net.op("MatMul", {shares, heads(2)}), {0, 2, 1, 3});
    net.output(net.reshape(rows, {0, kLength, kHeads * kSize}));
    EXPECT_EQ(ops_of(rewritten(net, kAttention)), "MatMul MatMul+Mul+Softmax+MatMul");
  }
}

TEST(UnpackHeads, ReadsWindowsWhoseRowsAndColumnsAreAxes) {
  PassNet net;
  const ValueId y = net.op("MatMul", {net.input(Dims{2, 3, kLength, 8}), net.weights({8, 3 * kHeads * kSize})});
  const ValueId apart = net.reshape(y, {2, 3 * kLength, 3, kHeads, kSize});
  const std::vector<ValueId> parts = split(net, apart, {1, 1, 1}, 2);
  const auto heads = [&](size_t i, std::vector<int64_t> perm) {
    return net.transpose(net.op("Squeeze", {parts[i], net.integers({2})}), std::move(perm));
  };
  const ValueId q = net.op("Mul", {heads(0, {0, 2, 1, 3}), net.scalar(0.5f)}), k = heads(1, {0, 2, 3, 1});
  const ValueId shares = net.op("Softmax", {net.op("MatMul", {q, k})}, {{"axis", int64_t{-1}}});
  net.output(net.op("MatMul", {shares, heads(2, {0, 2, 1, 3})}));
  EXPECT_EQ(ops_of(rewritten(net, kAttention)), "MatMul Reshape Reshape Reshape MatMul+Mul+Softmax+MatMul");
}

// Queries, keys and values beside one another, each with all its heads.
std::string of_columns(const std::vector<int64_t>& columns, int64_t axis, bool is_read_twice = false) {
  PassNet net;
  const ValueId y = net.op("MatMul", {net.input(Dims{2, kLength, 8}), net.weights({8, 3 * kHeads * kSize})});
  const std::vector<ValueId> parts = split(net, y, columns, axis);
  const auto heads = [&](ValueId x, std::vector<int64_t> perm) {
    return net.transpose(net.reshape(x, {0, kLength, kHeads, kSize}), std::move(perm));
  };
  const ValueId q = net.op("Mul", {heads(parts[0], {0, 2, 1, 3}), net.scalar(0.5f)});
  const ValueId k = heads(parts[1], {0, 2, 3, 1}), v = heads(parts[2], {0, 2, 1, 3});
  const ValueId shares = net.op("Softmax", {net.op("MatMul", {q, k})}, {{"axis", int64_t{-1}}});
  net.output(net.reshape(net.transpose(net.op("MatMul", {shares, v}), {0, 2, 1, 3}), {0, kLength, kHeads * kSize}));
  if (is_read_twice) net.output(net.op("Relu", {parts[2]}));
  return ops_of(rewritten(net, kAttention));
}

TEST(UnpackHeads, ReadsColumnsOfOneProduct) {
  constexpr int64_t kAll = kHeads * kSize;
  EXPECT_EQ(of_columns({kAll, kAll, kAll}, 2), "MatMul MatMul+Mul+Softmax+MatMul");
  EXPECT_EQ(of_columns({kAll, kAll, kAll}, -1), "MatMul MatMul+Mul+Softmax+MatMul");
  EXPECT_EQ(of_columns({kAll, kAll, kAll}, -1, true), "MatMul Split MatMul+Mul+Softmax+MatMul Relu");
}

TEST(UnpackHeads, LeavesAxesInAnotherOrder) {
  PassNet net;
  const ValueId y = net.input(Dims{2, kLength, kHeads * 3 * kSize});
  // Heads outside of queries, keys and values: no range of columns.
  const ValueId all = net.transpose(net.reshape(y, {0, kLength, kHeads, 3, kSize}), {3, 0, 2, 1, 4});
  const ValueId q = part_of(net, all, Pick::gather, 0), v = part_of(net, all, Pick::gather, 2);
  const ValueId k = net.transpose(part_of(net, all, Pick::gather, 1), {0, 1, 3, 2});
  net.output(net.op("MatMul", {net.op("Softmax", {net.op("MatMul", {q, k})}, {{"axis", int64_t{-1}}}), v}));
  EXPECT_EQ(ops_of(rewritten(net, kAttention)), "Reshape Transpose Gather Gather Gather MatMul+Softmax+MatMul");
}

}  // namespace
}  // namespace lathe
