#include "graph/graph.h"

#include <random>

#include "tests/graph/import_fixture.h"

namespace lathe {
namespace {

using import_test::error_of;
using import_test::test_ops;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const TensorType kMatrix = TensorType::of(DType::f32, {2, 2});

NodeId add(Graph& graph, std::string_view op, const std::string& name, std::vector<ValueId> inputs,
           std::vector<ValueId> outputs) {
  Node node;
  node.op = &test_ops().require("", op, 21);
  node.name = name;
  node.inputs = std::move(inputs);
  node.outputs = std::move(outputs);
  return graph.add_node(std::move(node));
}

// x -> a -> b -> y, and the nodes that make a, b and y.
struct Chain {
  Graph graph;
  ValueId x = graph.add_value("x", kMatrix), a = graph.add_value("a", kMatrix), b = graph.add_value("b", kMatrix),
          y = graph.add_value("y", kMatrix);
  NodeId first = add(graph, "Relu", "first", {x}, {a});
  NodeId second = add(graph, "Relu", "second", {a}, {b});
  NodeId third = add(graph, "Add", "third", {a, b}, {y});
  Chain() {
    graph.inputs = {x};
    graph.outputs = {y};
  }
};

TEST(Graph, ReferencesSurviveWhatIsAdded) {
  Chain chain;
  const Node& first = chain.graph.node(chain.first);
  const Value& x = chain.graph.value(chain.x);
  for (int i = 0; i < 1000; ++i) {
    add(chain.graph, "Relu", "more" + std::to_string(i), {chain.x}, {chain.graph.add_value("", kMatrix)});
  }
  EXPECT_EQ(&first, &chain.graph.node(chain.first));
  EXPECT_EQ(&x, &chain.graph.value(chain.x));
}

TEST(Graph, SortPutsProducersFirstAndKeepsTheRest) {
  Chain chain;
  chain.graph.set_order({chain.third, chain.second, chain.first});
  chain.graph.sort();
  EXPECT_THAT(chain.graph.order(), ElementsAre(chain.first, chain.second, chain.third));
}

TEST(Graph, SortKeepsASortedOrderOfIndependentNodes) {
  Graph graph;
  const ValueId x = graph.add_value("x", kMatrix);
  std::vector<NodeId> order;
  for (int i = 0; i < 50; ++i) {
    order.push_back(add(graph, "Relu", "n" + std::to_string(i), {x}, {graph.add_value("", kMatrix)}));
  }
  std::shuffle(order.begin(), order.end(), std::mt19937(7));
  graph.set_order(order);
  graph.sort();
  EXPECT_EQ(graph.order(), order);
}

TEST(Graph, SortNamesANodeOfACycle) {
  Chain chain;
  chain.graph.node(chain.first).inputs = {chain.b};
  const Error error = error_of([&] { chain.graph.sort(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_model);
  EXPECT_THAT(error.what(), HasSubstr("'first' (Relu)"));
}

TEST(Graph, UsesListEverySlot) {
  Chain chain;
  const auto uses = chain.graph.uses();
  ASSERT_EQ(uses[index_of(chain.a)].size(), 2u);
  EXPECT_EQ(uses[index_of(chain.a)][1].node, chain.third);
  EXPECT_EQ(uses[index_of(chain.a)][1].slot, 0);
  EXPECT_TRUE(uses[index_of(chain.y)].empty());
}

TEST(Graph, DropsOnlyConstantsThatNobodyUses) {
  Chain chain;
  const ValueId used = chain.graph.add_constant("used", Tensor::scalar<float>(1));
  const ValueId unused = chain.graph.add_constant("unused", Tensor::scalar<float>(2));
  chain.graph.node(chain.third).inputs[1] = used;
  chain.graph.drop_unused_constants();
  EXPECT_TRUE(chain.graph.value(used).is_constant());
  EXPECT_FALSE(chain.graph.value(unused).is_constant());
}

TEST(Graph, AnOutputHasOneProducer) {
  Chain chain;
  EXPECT_THROW(add(chain.graph, "Relu", "again", {chain.x}, {chain.y}), Error);
}

TEST(TensorType, StorageOfBlockedChannelsIsPadded) {
  TensorType type = TensorType::of(DType::f32, {1, 20, 5, 7});
  EXPECT_EQ(type.storage_bytes(), 1u * 20 * 5 * 7 * 4);
  type.layout.channel_block = 16;
  EXPECT_THAT(type.storage_dims(), ElementsAre(1, 2, 5, 7, 16));
  EXPECT_EQ(type.storage_bytes(), 1u * 32 * 5 * 7 * 4);
  EXPECT_EQ(to_string(type), "float32[1,20,5,7]{c16}");
}

TEST(TensorType, PrintsSymbolsUnknownExtentsAndRanks) {
  TensorType type{DType::i64, true, {{-1, "batch"}, {3, ""}, {-1, ""}}, {}};
  EXPECT_FALSE(type.is_static());
  EXPECT_EQ(to_string(type), "int64[batch,3,?]");
  EXPECT_EQ(to_string(TensorType::unranked(DType::f32)), "float32[...]");
  EXPECT_EQ(to_string(TensorType::of(DType::f32, {})), "float32[]");
}

TEST(Attributes, NamesAnAttributeOfAnotherKind) {
  Attributes attributes;
  attributes.set("axis", std::string("one"));
  EXPECT_EQ(attributes.get_int("keepdims", 1), 1);
  const Error error = error_of([&] { attributes.get_int("axis", 0); });
  EXPECT_STREQ(error.what(), "attribute 'axis' is a string, expected an int");
}

TEST(Text, ShowsConstantsAttributesEpilogueAndNames) {
  Chain chain;
  const ValueId w = chain.graph.add_constant("w", Tensor::from<float>({2}, {1.5f, -2}));
  Node& node = chain.graph.node(chain.third);
  node.inputs = {chain.a, w, chain.b};
  node.attributes.set("axis", std::vector<int64_t>{1, 2});
  Expression expression;
  expression.inputs = {DType::f32, DType::f32};
  const int own = expression.add({.op = ExprOp::input, .a = 0});
  const int other = expression.add({.op = ExprOp::input, .a = 1});
  expression.add({.op = ExprOp::add, .a = own, .b = other});
  node.epilogue = Epilogue{expression, 1};
  EXPECT_EQ(to_text(chain.graph),
            "graph main\n"
            "in %x: float32[2,2]\n"
            "const %w: float32[2] [1.5, -2]\n"
            "%a: float32[2,2] = Relu(%x)\n"
            "%b: float32[2,2] = Relu(%a)\n"
            "%y: float32[2,2] = Add[axis=[1, 2]](%a, %w) then " +
                to_string(expression) + " with (%b)\nout %y\n");
}

TEST(Text, EscapesAndCutsNames) {
  EXPECT_EQ(in_quotes("a\nb\x01"), "'a\\nb\\x01'");
  EXPECT_THAT(in_quotes(std::string(5000, 'a')), HasSubstr("... (5000 bytes)"));
}

}  // namespace
}  // namespace lathe
