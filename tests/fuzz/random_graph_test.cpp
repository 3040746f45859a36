// A short run of what `make fuzz-graphs` does for longer.
#include <gtest/gtest.h>

#include "graph/passes/rewrite.h"
#include "tests/fuzz/differential.h"

namespace lathe::testing {
namespace {

constexpr uint32_t kGraphs = 150;

void expect_agreement(const RandomCase& what, const Check& check) {
  const std::optional<std::string> found = check(what);
  if (!found) return;
  const RandomCase small = shrunk(what, check);
  ADD_FAILURE() << *check(small) << "\n" << describe(small);
}

TEST(RandomGraphs, GiveTheSameResultsOptimizedAndNot) {
  for (uint32_t seed = 0; seed < kGraphs; ++seed) {
    const Setting setting = random_setting(seed);
    SCOPED_TRACE(to_string(setting));
    expect_agreement(random_case(seed), [&](const RandomCase& what) { return difference(what, setting); });
    if (HasFailure()) return;
  }
}

TEST(RandomGraphs, GiveTheSameResultsWithPassesInAnyOrder) {
  for (uint32_t seed = 0; seed < 2 * kGraphs; ++seed) {
    expect_agreement(random_case(seed), [&](const RandomCase& what) { return difference_in_any_order(what, seed); });
    if (HasFailure()) return;
  }
}

// A pass with a bug: a - b becomes b - a, where nobody else reads the difference.
bool turn_differences(Graph& graph, const PassContext&) {
  for (const NodeId id : graph.order()) {
    Node& node = graph.node(id);
    if (!is_op(node, "Sub") || node.inputs[0] == node.inputs[1] || node.attributes.has("turned")) continue;
    std::swap(node.inputs[0], node.inputs[1]);
    node.attributes.set("turned", int64_t{1});
    return true;
  }
  return false;
}

TEST(RandomGraphs, FindABugAndCutItDown) {
  const std::vector<Pass> passes = {{"turn-differences", turn_differences, 1}};
  const Check check = [&](const RandomCase& what) { return difference_with(what, passes, true); };
  int found = 0;
  for (uint32_t seed = 0; seed < kGraphs; ++seed) {
    if (!check(random_case(seed))) continue;
    ++found;
    EXPECT_LE(shrunk(random_case(seed), check).recipes.size(), 6u) << "seed " << seed;
  }
  EXPECT_GE(found, 10);
}

TEST(RandomGraphs, AreBuiltTheSameWayEachTime) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const RandomCase what = random_case(seed);
    EXPECT_EQ(describe(what), describe(what));
    const BuiltCase a = build(what), b = build(what);
    ASSERT_EQ(a.inputs.size(), b.inputs.size());
    EXPECT_EQ(a.inputs[0].data<float>()[0], b.inputs[0].data<float>()[0]);
  }
}

TEST(RandomGraphs, ShrinkToTheRecipeThatMatters) {
  RandomCase what = random_case(11);
  ASSERT_GT(what.recipes.size(), 4u);
  const uint32_t wanted = what.recipes[3].kind;
  const Check check = [wanted](const RandomCase& tried) -> std::optional<std::string> {
    for (const Recipe& recipe : tried.recipes) {
      if (recipe.kind == wanted) return "it is there";
    }
    return std::nullopt;
  };
  const RandomCase small = shrunk(what, check);
  ASSERT_EQ(small.recipes.size(), 1u);
  EXPECT_EQ(small.recipes[0].kind, wanted);
}

}  // namespace
}  // namespace lathe::testing
