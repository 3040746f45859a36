// Numbers made from the shapes of a graph's inputs are those that the graph computed.
#include "src/runtime/spelled_extents.h"

#include <cstring>

#include "tests/ops/pass_net.h"

namespace lathe {
namespace {

TEST(SpelledExtents, AreTheNumbersThatTheGraphComputes) {
  testing::PassNet net;
  const ValueId past = net.input({DType::f32, true, {{-1, "b"}, {-1, "past"}}, {}});
  const ValueId wide = net.op("Concat", {past, past, net.op("Identity", {past})}, {{"axis", int64_t{1}}});
  const ValueId shape = net.op("Shape", {wide});
  const ValueId rows = net.op("Gather", {shape, net.integers({0})}),
                columns = net.op("Gather", {shape, net.integers({1})});
  const ValueId less = net.op("Sub", {columns, net.integers({2})});
  const std::vector<std::pair<NodeId, int>> slots = [&] {
    std::vector<std::pair<NodeId, int>> found;
    const auto read = [&](ValueId result, int slot) {
      net.output(result);
      found.emplace_back(net.graph.value(result).producer, slot);
    };
    read(net.op("Slice", {wide, net.op("Sub", {columns, rows}), less, net.integers({1})}), 1);
    read(net.op("Slice", {wide, net.integers({0}), less, net.integers({1})}), 2);
    const ValueId both = net.op("Concat", {columns, rows, net.integers({1})}, {{"axis", int64_t{0}}});
    read(net.op("ConstantOfShape", {both}), 0);
    const ValueId one = net.op("Squeeze", {rows, net.integers({0})});
    read(net.op("Range", {net.constant(Tensor::scalar<int64_t>(0)), one, net.constant(Tensor::scalar<int64_t>(1))}), 1);
    return found;
  }();
  infer_types(net.graph);
  Graph spelled = net.graph;
  const ExtentSums sums(spelled);
  std::vector<Graph::Use> uses;
  for (const auto& [node, slot] : slots) {
    ASSERT_TRUE(can_spell(spelled, sums, spelled.node(node).inputs[static_cast<size_t>(slot)]));
    uses.push_back({node, slot});
  }
  spell_from_inputs(spelled, OpRegistry::builtin(), sums, uses);
  verify(spelled);
  infer_types(spelled);
  // Nothing but Shapes of the input is behind these slots.
  for (const auto& [node, slot] : slots)
    EXPECT_EQ(ExtentSums(spelled).elements(spelled.node(node).inputs[static_cast<size_t>(slot)]),
              sums.elements(net.graph.node(node).inputs[static_cast<size_t>(slot)]));
  for (const Dims& dims : {Dims{1, 2}, Dims{3, 5}, Dims{4, 1}, Dims{0, 3}}) {
    const std::vector<Tensor> inputs{net.noise(dims)};
    const auto expected = run_reference_graph(net.graph, inputs), got = run_reference_graph(spelled, inputs);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].dims(), expected[i].dims());
      EXPECT_EQ(std::memcmp(got[i].raw(), expected[i].raw(), got[i].bytes()), 0);
    }
  }
}

}  // namespace
}  // namespace lathe
