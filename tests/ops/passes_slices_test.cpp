// Slices that are parts of a whole, side by side or by every second pixel.
#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;

ValueId slice(PassNet& net, ValueId x, std::vector<int64_t> begin, std::vector<int64_t> end, std::vector<int64_t> axes,
              std::vector<int64_t> steps = {}) {
  std::vector<ValueId> inputs{x, net.integers(begin), net.integers(end), net.integers(axes)};
  if (!steps.empty()) inputs.push_back(net.integers(steps));
  return net.op("Slice", inputs);
}
constexpr int64_t kEnd = int64_t{1} << 40;

std::string split(PassNet& net) { return ops_of(rewritten(net, {passes::split_slices})); }

TEST(SplitSlices, TakesSlicesWithoutGapsHoweverTheyCount) {
  PassNet net;
  const ValueId x = net.input(Dims{2, 7, 3});
  net.output(slice(net, x, {-5}, {5}, {1}));
  net.output(slice(net, x, {5}, {kEnd}, {-2}));
  net.output(slice(net, x, {0}, {2}, {1}, {1}));
  EXPECT_EQ(split(net), "Slices");
}

TEST(SplitSlices, LeavesGapsOverlapsStepsAndSinglePieces) {
  PassNet net;
  const ValueId a = net.input(Dims{8}), b = net.input(Dims{8}), c = net.input(Dims{8}), d = net.input(Dims{8});
  net.output(slice(net, a, {0}, {3}, {0}));
  net.output(slice(net, a, {4}, {8}, {0}));
  net.output(slice(net, b, {0}, {5}, {0}));
  net.output(slice(net, b, {4}, {8}, {0}));
  net.output(slice(net, c, {0}, {kEnd}, {0}, {2}));
  net.output(slice(net, c, {1}, {kEnd}, {0}, {2}));
  net.output(slice(net, d, {0}, {4}, {0}));
  EXPECT_EQ(split(net), "Slice Slice Slice Slice Slice Slice Slice");
}

TEST(SplitSlices, LeavesSlicesOfTwoAxesAndOfDifferentOnes) {
  PassNet net;
  const ValueId x = net.input(Dims{4, 4});
  net.output(slice(net, x, {0, 0}, {2, 4}, {0, 1}));
  net.output(slice(net, x, {2}, {4}, {0}));
  net.output(slice(net, x, {0}, {2}, {1}));
  EXPECT_EQ(split(net), "Slice Slice Slice");
}

// --- every second pixel

enum class Spelling { one_slice, two_slices };

ValueId lattice(PassNet& net, ValueId x, int64_t row, int64_t column, Spelling spelling) {
  if (spelling == Spelling::one_slice) return slice(net, x, {row, column}, {kEnd, kEnd}, {2, 3}, {2, 2});
  return slice(net, slice(net, x, {row}, {kEnd}, {2}, {2}), {column}, {kEnd}, {-1}, {2});
}

std::string fused(PassNet& net) { return ops_of(rewritten(net, {passes::fuse_space_to_depth, passes::remove_dead})); }

TEST(FuseSpaceToDepth, TakesEitherOrderAndSpelling) {
  for (const Spelling spelling : {Spelling::one_slice, Spelling::two_slices}) {
    for (const bool by_rows : {true, false}) {
      PassNet net;
      const ValueId x = net.input(Dims{2, 3, 4, 6});
      std::vector<ValueId> parts;
      for (int64_t i = 0; i < 4; ++i) {
        parts.push_back(lattice(net, x, by_rows ? i / 2 : i % 2, by_rows ? i % 2 : i / 2, spelling));
      }
      net.output(net.op("Concat", parts, {{"axis", int64_t{1}}}));
      EXPECT_EQ(fused(net), by_rows ? "SpaceToDepth" : "Reshape Transpose Reshape");
    }
  }
}

TEST(FuseSpaceToDepth, LeavesOtherOrdersMissingPartsAndOtherValues) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 3, 4, 4}), z = net.input(Dims{1, 3, 4, 4});
  const auto part = [&](ValueId of, int64_t i) { return lattice(net, of, i / 2, i % 2, Spelling::one_slice); };
  net.output(net.op("Concat", {part(x, 0), part(x, 3), part(x, 1), part(x, 2)}, {{"axis", int64_t{1}}}));
  net.output(net.op("Concat", {part(x, 0), part(x, 1), part(x, 2)}, {{"axis", int64_t{1}}}));
  net.output(net.op("Concat", {part(x, 0), part(x, 1), part(z, 2), part(x, 3)}, {{"axis", int64_t{1}}}));
  net.output(net.op("Concat", {part(x, 0), part(x, 1), part(x, 2), part(x, 3)}, {{"axis", int64_t{2}}}));
  const Graph after = rewritten(net, {passes::fuse_space_to_depth});
  EXPECT_EQ(ops_of(after).find("SpaceToDepth"), std::string::npos);
  EXPECT_EQ(ops_of(after).find("Transpose"), std::string::npos);
}

// An extent of 0 is another word to a Reshape.
TEST(FuseSpaceToDepth, LeavesEmptyPictures) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 3, 2, 0});
  std::vector<ValueId> parts;
  for (int64_t i = 0; i < 4; ++i) parts.push_back(lattice(net, x, i % 2, i / 2, Spelling::one_slice));
  net.output(net.op("Concat", parts, {{"axis", int64_t{1}}}));
  EXPECT_EQ(fused(net), "Slice Slice Slice Slice Concat");
}

TEST(FuseSpaceToDepth, LeavesPicturesThatDoNotDivide) {
  PassNet net;
  const ValueId x = net.input(Dims{1, 3, 6, 6});
  std::vector<ValueId> parts;
  for (int64_t i = 0; i < 4; ++i) parts.push_back(slice(net, x, {i / 2, i % 2}, {5, 5}, {2, 3}, {2, 2}));
  parts.resize(1);
  net.output(net.op("Concat", parts, {{"axis", int64_t{1}}}));
  EXPECT_EQ(fused(net), "Slice Concat");
}

}  // namespace
}  // namespace lathe
