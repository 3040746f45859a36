// Assignments to slices, as exporters spell them: ScatterND over grids of indices.
#include <algorithm>
#include <numeric>

#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

using testing::ops_of;
using testing::PassNet;
using testing::rewritten;
using Ints = std::vector<int64_t>;

struct Case {
  Dims data;
  Ints begin, extents;  // of the axes that indices name
  bool are_parts = false;
};

// The places of the block, as one list, or as spread parts side by side.
ValueId indices_of(PassNet& net, const Case& c) {
  const size_t depth = c.extents.size();
  std::vector<ValueId> parts;
  Tensor all(DType::i64, [&] {
    Dims dims = c.extents;
    dims.push_back(static_cast<int64_t>(depth));
    return dims;
  }());
  for (size_t axis = 0; axis < depth; ++axis) {
    Dims once(depth - axis, 1);
    once[0] = c.extents[axis];
    Tensor range(DType::i64, once);
    std::iota(range.mutable_data<int64_t>(), range.mutable_data<int64_t>() + range.size(), c.begin[axis]);
    const ValueId whole = net.op("Expand", {net.constant(range), net.integers(c.extents)});
    parts.push_back(net.op("Unsqueeze", {whole, net.integers({-1})}));
    int64_t inner = 1;
    for (size_t i = axis + 1; i < depth; ++i) inner *= c.extents[i];
    for (int64_t i = 0; i < all.size() / static_cast<int64_t>(depth); ++i) {
      all.mutable_data<int64_t>()[i * static_cast<int64_t>(depth) + static_cast<int64_t>(axis)] =
          c.begin[axis] + i / inner % c.extents[axis];
    }
  }
  return c.are_parts ? net.op("Concat", parts, {{"axis", int64_t{-1}}}) : net.constant(all);
}

ValueId assignment(PassNet& net, const Case& c, const char* reduction = "none") {
  Dims updates = c.extents;
  updates.insert(updates.end(), c.data.begin() + static_cast<std::ptrdiff_t>(c.extents.size()), c.data.end());
  const ValueId indices = indices_of(net, c);
  return net.op("ScatterND", {net.op("Relu", {net.input(c.data)}), indices, net.input(updates)},
                {{"reduction", std::string(reduction)}});
}

std::string assigned(PassNet& net, const Case& c, const char* reduction = "none") {
  net.output(assignment(net, c, reduction));
  return ops_of(rewritten(net, {passes::assign_slices, passes::remove_dead, passes::remove_identities}));
}

TEST(AssignSlices, PutsTheUpdatesBetweenThePartsAround) {
  for (const bool are_parts : {false, true}) {
    const std::pair<Case, std::string> cases[] = {
        {{{2, 3, 20}, {0, 0, 0}, {2, 3, 17}}, "Relu Slice Concat"},
        {{{2, 3, 40}, {0, 0, 3}, {2, 3, 37}}, "Relu Slice Concat"},
        {{{2, 6, 20}, {0, 1}, {2, 3}}, "Relu Slice Slice Concat"},
        {{{4, 6, 20}, {1, 2}, {2, 1}}, "Relu Slice Slice Concat Slice Slice Concat"},
        {{{4, 5, 64}, {-3, 2, 4}, {2, 3, 50}}, "Relu Slice Slice Concat Slice Concat Slice Slice Concat"},
        {{{1, 6, 32}, {0, 4}, {1, 2}}, "Relu Slice Concat"},
    };
    for (const auto& [c, expected] : cases) {
      PassNet net;
      Case each = c;
      each.are_parts = are_parts;
      EXPECT_EQ(assigned(net, each), expected) << to_string(c.data) << " parts " << are_parts;
    }
  }
}

TEST(AssignSlices, TheWholeIsTheUpdates) {
  PassNet net;
  EXPECT_EQ(assigned(net, {{2, 3, 4}, {0, 0, 0}, {2, 3, 4}, true}).find("Scatter"), std::string::npos);
}

TEST(AssignSlices, LeavesNarrowAndSmallBlocksAndSums) {
  const auto is_left = [](const Case& c, const char* reduction) {
    PassNet net;
    return assigned(net, c, reduction).find("ScatterND") != std::string::npos;
  };
  EXPECT_TRUE(is_left({{2, 30, 20}, {0, 0, 0}, {2, 30, 4}}, "none"));  // runs of 4
  EXPECT_TRUE(is_left({{64, 4, 20}, {7}, {1}}, "none"));               // one of 64
  EXPECT_TRUE(is_left({{2, 3, 20}, {0, 0, 0}, {2, 3, 17}}, "add"));
}

TEST(AssignSlices, TakesSmallBlocksThatAreReadInPart) {
  const Case narrow{{2, 30, 20}, {0, 0, 0}, {2, 30, 4}};
  for (const bool is_result : {false, true}) {
    PassNet net;
    const ValueId whole = assignment(net, narrow);
    net.output(net.op("Slice", {whole, net.integers({3}), net.integers({4}), net.integers({1})}));
    if (is_result) net.output(whole);
    const std::string ops = ops_of(rewritten(net, {passes::assign_slices}));
    EXPECT_EQ(ops.find("ScatterND") != std::string::npos, is_result) << ops;
  }
  PassNet net;
  net.output(net.op("Relu", {assignment(net, narrow)}));
  EXPECT_NE(ops_of(rewritten(net, {passes::assign_slices})).find("ScatterND"), std::string::npos);
}

TEST(AssignSlices, LeavesIndicesInAnotherOrder) {
  PassNet net;
  const ValueId data = net.op("Relu", {net.input(Dims{4, 32})});
  net.output(net.op("ScatterND", {data, net.constant(Tensor::from<int64_t>({2, 1}, {1, 0})), net.input(Dims{2, 32})}));
  net.output(net.op("ScatterND", {data, net.constant(Tensor::from<int64_t>({2, 1}, {1, 1})), net.input(Dims{2, 32})}));
  net.output(
      net.op("ScatterND", {data, net.constant(Tensor::from<int64_t>({3, 1}, {0, 1, 3})), net.input(Dims{3, 32})}));
  EXPECT_EQ(ops_of(rewritten(net, {passes::assign_slices})), "Relu ScatterND ScatterND ScatterND");
}

}  // namespace
}  // namespace lathe
