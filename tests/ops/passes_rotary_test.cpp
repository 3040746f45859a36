// Rotary embedding from its parts, in two spellings, and what only looks like it.
#include <limits>

#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;

constexpr int64_t kSize = 8, kEnd = std::numeric_limits<int64_t>::max();

std::string fused(PassNet& net) {
  return ops_of(rewritten(net, {passes::split_slices, passes::fuse_rotary, passes::remove_dead}));
}

ValueId part(PassNet& net, ValueId x, int64_t begin, int64_t end, int64_t step = 1) {
  return net.op("Slice", {x, net.integers({begin}), net.integers({end}), net.integers({-1}), net.integers({step})});
}
ValueId joined(PassNet& net, ValueId a, ValueId b, int64_t axis = -1) {
  return net.op("Concat", {a, b}, {{"axis", axis}});
}
ValueId rotate_half(PassNet& net, ValueId x, int64_t at = kSize / 2) {
  const ValueId first = part(net, x, 0, at), second = part(net, x, at, kEnd);
  return joined(net, net.op("Neg", {second}), first);
}
ValueId rotate_every_two(PassNet& net, ValueId x, const Dims& dims) {
  const auto column = [&](ValueId value) { return net.op("Unsqueeze", {value, net.integers({-1})}); };
  const ValueId odd = column(net.op("Neg", {part(net, x, 1, kEnd, 2)})), even = column(part(net, x, 0, kEnd, 2));
  return net.reshape(joined(net, odd, even), dims);
}
ValueId turned_by(PassNet& net, ValueId x, ValueId turned, const Dims& table) {
  return net.op("Add", {net.op("Mul", {x, net.weights(table)}), net.op("Mul", {net.weights(table), turned})});
}

TEST(FuseRotary, TakesHalvesAsHuggingFaceWritesThem) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 3, 5, kSize});
  net.output(turned_by(net, x, rotate_half(net, x), {1, 1, 5, kSize}));
  net.output(turned_by(net, x, rotate_half(net, x), {kSize}));
  EXPECT_EQ(fused(net), "Rotary Rotary");
}

TEST(FuseRotary, TakesNeighboursAsGptJWritesThem) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 5, 3, kSize});
  net.output(turned_by(net, x, rotate_every_two(net, x, {2, 5, 3, kSize}), {2, 5, 1, kSize}));
  EXPECT_EQ(fused(net), "Rotary");
}

// Each number of a table for both elements of its pair, as the operator RotaryEmbedding has them.
TEST(FuseRotary, TakesTablesOfPairs) {
  const auto turned = [](PassNet& net, ValueId x, ValueId exchanged, auto spread) {
    const auto table = [&] { return spread(net.op("Abs", {net.input(Dims{1, 5, 1, kSize / 2})})); };
    return net.op("Add", {net.op("Mul", {x, table()}), net.op("Mul", {exchanged, table()})});
  };
  PassNet halves;
  const ValueId x = halves.input(Dims{2, 5, 3, kSize});
  halves.output(turned(halves, x, rotate_half(halves, x), [&](ValueId table) { return joined(halves, table, table); }));
  EXPECT_EQ(fused(halves), "Abs Abs Rotary");
  PassNet pairs;
  const ValueId y = pairs.input(Dims{2, 5, 3, kSize});
  pairs.output(turned(pairs, y, rotate_every_two(pairs, y, {2, 5, 3, kSize}), [&](ValueId table) {
    const ValueId column = pairs.op("Unsqueeze", {table, pairs.integers({-1})});
    return pairs.reshape(joined(pairs, column, column), {1, 5, 1, kSize});
  }));
  EXPECT_EQ(fused(pairs), "Abs Abs Rotary");
}

TEST(FuseRotary, LetsTransposesThrough) {
  PassNet net;
  const ValueId x = net.transpose(net.input(Dims{2, 5, 3, kSize}), {0, 2, 1, 3});
  net.output(net.op("Relu", {net.transpose(turned_by(net, x, rotate_half(net, x), {5, kSize}), {0, 2, 1, 3})}));
  EXPECT_EQ(
      ops_of(rewritten(net, {passes::split_slices, passes::fuse_rotary, passes::remove_dead, passes::sink_transposes,
                             passes::fold_constants, passes::remove_identities, passes::remove_dead})),
      "Rotary Relu");
}

TEST(FuseRotary, LeavesOtherPartsAndSigns) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 3, 5, kSize});
  net.output(turned_by(net, x, rotate_half(net, x, 3), {kSize}));  // not halves
  const ValueId first = part(net, x, 0, 4), second = part(net, x, 4, kEnd);
  net.output(turned_by(net, x, joined(net, second, net.op("Neg", {first})), {kSize}));  // the other one is negative
  net.output(turned_by(net, x, joined(net, net.op("Neg", {first}), second), {kSize}));  // in their places
  EXPECT_EQ(fused(net).find("Rotary"), std::string::npos) << fused(net);
}

TEST(FuseRotary, LeavesAnotherValueAndTablesOfOneElement) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 5, kSize}), y = net.input(Dims{2, 5, kSize});
  net.output(turned_by(net, x, rotate_half(net, y), {kSize}));
  net.output(turned_by(net, x, rotate_half(net, x), {1}));
  net.output(turned_by(net, x, rotate_half(net, x), {3, 2, 5, kSize}));  // raises the rank
  EXPECT_EQ(fused(net).find("Rotary"), std::string::npos) << fused(net);
}

TEST(FuseRotary, LeavesAProductThatOthersRead) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 5, kSize});
  const ValueId product = net.op("Mul", {rotate_half(net, x), net.weights({kSize})});
  net.output(net.op("Add", {net.op("Mul", {x, net.weights({kSize})}), product}));
  net.output(product);
  EXPECT_EQ(fused(net).find("Rotary"), std::string::npos) << fused(net);
}

}  // namespace
}  // namespace lathe
