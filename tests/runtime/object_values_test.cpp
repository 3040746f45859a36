// Graphs in which sequences, optionals and strings flow: cut where they must be, specialized where they can be.
#include <gtest/gtest.h>

#include "lathe/error.h"
#include "lathe/session.h"
#include "ops/custom/custom_ops.h"
#include "ops/op_def.h"
#include "src/base/box.h"
#include "src/runtime/session_state.h"

namespace lathe {
namespace {

constexpr int kOpset = 21;

class GraphMaker {
 public:
  ValueId input(const std::string& name, const TensorType& type) {
    graph_->inputs.push_back(graph_->add_value(name, type));
    return graph_->inputs.back();
  }
  ValueId constant(Tensor tensor) {
    return graph_->add_constant("c" + std::to_string(graph_->value_count()), std::move(tensor));
  }
  ValueId node(const std::string& op, std::vector<ValueId> inputs, Attributes attributes = {}, int captures = 0) {
    Node node;
    node.op = &OpRegistry::builtin().require("", op, kOpset);
    node.version = kOpset;
    node.name = op + std::to_string(graph_->value_count());
    node.inputs = std::move(inputs);
    node.attributes = std::move(attributes);
    node.captures = captures;
    const ValueId made = graph_->add_value("v" + std::to_string(graph_->value_count()), {});
    node.outputs = {made};
    graph_->add_node(std::move(node));
    return made;
  }
  void output(ValueId id) { graph_->outputs.push_back(id); }
  std::shared_ptr<Graph> graph() const { return graph_; }
  Session::State state() const {
    Model model;
    model.graph = graph_;
    SessionOptions options;
    options.threads = 1;
    options.use_cache = false;
    return {std::move(model), registry_with({}), options};
  }

 private:
  std::shared_ptr<Graph> graph_ = std::make_shared<Graph>();
};

std::vector<AnyValue> run(const Session::State& state, const std::vector<AnyValue>& inputs) {
  std::vector<Tensor> boxed, results(state.outputs.size());
  for (const AnyValue& input : inputs) boxed.push_back(box(input));
  state.run(boxed, results, nullptr);
  return {results.begin(), results.end()};
}

TensorType floats(const Dims& dims) { return TensorType::of(DType::f32, dims); }
const TensorType kSequence = TensorType::sequence_of(TensorType::unranked(DType::f32));

TEST(ObjectValues, LetTensorsBeforeAndBehindThemRunSpecialized) {
  GraphMaker maker;
  const ValueId x = maker.input("x", floats({4}));
  const ValueId before = maker.node("Relu", {x});
  const ValueId parts = maker.node("SplitToSequence", {before, maker.constant(Tensor::scalar<int64_t>(3))});
  const ValueId last = maker.node("SequenceAt", {parts, maker.constant(Tensor::scalar<int64_t>(-1))});
  maker.output(maker.node("Neg", {last}));
  maker.output(parts);
  const Session::State state = maker.state();
  const Tensor given = Tensor::from<float>({4}, {-1, 2, 3, 4});
  const auto part = state.runner->part_for(std::vector<Tensor>{given});
  ASSERT_NE(part->behind(), nullptr);
  EXPECT_EQ(part->behind()->cut().size(), 2u);  // both nodes on sequences at once
  EXPECT_EQ(part->head().lowered().steps.size(), 1u);
  const auto results = run(state, {given});
  EXPECT_EQ(results[0].tensor().dims(), (Dims{1}));
  EXPECT_EQ(results[0].tensor().data<float>()[0], -4);
  EXPECT_EQ(results[1].items().size(), 2u);
  EXPECT_EQ(results[1].items()[0].tensor().data<float>()[0], 0);
  EXPECT_EQ(state.outputs[1].container, "seq(float32[...])");
}

TEST(ObjectValues, MayPassThroughUntouched) {
  GraphMaker maker;
  maker.output(maker.input("x", kSequence));
  const Session::State state = maker.state();
  EXPECT_EQ(run(state, {AnyValue::sequence({Tensor::scalar<float>(5)})})[0].items().size(), 1u);
}

TEST(ObjectValues, MayChangeTheirShapesFromRunToRun) {
  GraphMaker maker;
  const ValueId x = maker.input("x", kSequence);
  Attributes axis;
  axis.set("axis", int64_t{0});
  maker.output(maker.node("Relu", {maker.node("ConcatFromSequence", {x}, axis)}));
  maker.output(maker.node("SequenceLength", {x}));
  const Session::State state = maker.state();
  for (const int64_t count : {1, 3, 2}) {
    std::vector<AnyValue> items(static_cast<size_t>(count), Tensor::from<float>({count}, std::vector<float>(count, 2)));
    const auto results = run(state, {AnyValue::sequence(std::move(items))});
    EXPECT_EQ(results[0].tensor().dims(), (Dims{count * count}));
    EXPECT_EQ(*results[1].tensor().data<int64_t>(), count);
  }
}

TEST(ObjectValues, LetAnOptionalBeATensorOrNothing) {
  GraphMaker maker;
  const ValueId x = maker.input("x", TensorType::optional_of(TensorType::unranked(DType::f32)));
  maker.output(maker.node("OptionalHasElement", {x}));
  maker.output(x);
  const Session::State state = maker.state();
  for (const bool is_full : {false, true, false}) {
    const auto results = run(state, {is_full ? AnyValue(Tensor::scalar<float>(3)) : AnyValue()});
    EXPECT_EQ(*results[0].tensor().data<bool>(), is_full);
    EXPECT_EQ(results[1].is_nothing(), !is_full);
  }
}

TEST(ObjectValues, AreCheckedAgainstTheModel) {
  GraphMaker maker;
  maker.output(maker.node("SequenceLength", {maker.input("x", kSequence)}));
  const Session::State state = maker.state();
  for (const AnyValue& wrong :
       {AnyValue(Tensor::scalar<float>(1)), AnyValue(), AnyValue::sequence({Tensor::scalar<int64_t>(1)})}) {
    EXPECT_THROW(run(state, {wrong}), Error) << wrong.kind();
  }
}

TEST(ObjectValues, FlowThroughLoops) {
  // A loop that appends its iteration number to a sequence.
  GraphMaker body;
  const ValueId iteration = body.input("i", TensorType::of(DType::i64, {}));
  const ValueId condition = body.input("go", TensorType::of(DType::boolean, {}));
  const ValueId state_in = body.input("s", TensorType::sequence_of(TensorType::unranked(DType::i64)));
  body.output(body.node("Identity", {condition}));
  body.output(body.node("SequenceInsert", {state_in, iteration}));
  GraphMaker maker;
  const ValueId trips = maker.input("trips", TensorType::of(DType::i64, {}));
  Attributes dtype, attributes;
  dtype.set("dtype", int64_t{7});
  attributes.set("body", std::shared_ptr<const Graph>(body.graph()));
  const ValueId empty = maker.node("SequenceEmpty", {}, dtype);
  maker.output(maker.node("Loop", {trips, maker.constant(Tensor::scalar(true)), empty}, attributes));
  const auto results = run(maker.state(), {Tensor::scalar<int64_t>(3)});
  ASSERT_EQ(results[0].items().size(), 3u);
  EXPECT_EQ(*results[0].items()[2].tensor().data<int64_t>(), 2);
}

TEST(ObjectValues, ThatAreStringsAreWholeOnEveryWay) {
  GraphMaker maker;
  const ValueId x = maker.input("x", TensorType::of(DType::string, {2}));
  const ValueId joined = maker.node("StringConcat", {x, maker.constant(Tensor::scalar<std::string>("!"))});
  maker.output(x);
  maker.output(joined);
  maker.output(maker.node("Equal", {joined, x}));
  const Session::State state = maker.state();
  const auto results = run(state, {Tensor::from<std::string>({2}, {"a", "a text too long to lie in the object"})});
  EXPECT_EQ(results[0].tensor().data<std::string>()[0], "a");
  EXPECT_EQ(results[1].tensor().data<std::string>()[1], "a text too long to lie in the object!");
  EXPECT_FALSE(results[2].tensor().data<bool>()[0]);
}

}  // namespace
}  // namespace lathe
