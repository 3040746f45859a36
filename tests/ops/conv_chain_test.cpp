// Convolutions computed together in bands of rows: which ones are, and that their results are those of each by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lathe/error.h"
#include "ops/conv/conv_chain.h"
#include "ops/conv/conv_chain_lower.h"
#include "tests/isas_here.h"
#include "tests/ops/plain_node.h"
#include "tests/ops/step_memory.h"

namespace lathe {
namespace {

using testing::clipped_sum;
using testing::isas_here;
using testing::random_tensor;
using Ints = std::vector<int64_t>;

struct Window2 {
  int64_t size = 1, stride = 1, dilation = 1;
  Ints pads = {0, 0, 0, 0};
};

// A graph of convolutions, every value in blocks but a picture of few channels.
class Net {
 public:
  Net(Isa isa, uint32_t seed) : isa_(isa), block_(vector_lanes(isa)), random_(seed) {}

  Graph graph;
  bool is_constant = true;  // the weights

  Dims dims(ValueId id) const { return graph.value(id).type.extents(); }
  ValueId input(const Dims& dims) {
    TensorType type = TensorType::of(DType::f32, dims);
    type.layout.channel_block = dims[1] < block_ && dims[1] < 4 ? 0 : block_;
    graph.inputs.push_back(graph.add_value("x" + std::to_string(graph.value_count()), type));
    return graph.inputs.back();
  }
  ValueId conv(ValueId x, int64_t channels, int64_t groups, const Window2& window, const std::string& then = "clip",
               ValueId operand = ValueId::none) {
    Node node;
    node.attributes.set("strides", Ints{window.stride, window.stride});
    node.attributes.set("dilations", Ints{window.dilation, window.dilation});
    node.attributes.set("pads", window.pads);
    node.attributes.set("group", groups);
    node.inputs = {x, weights({channels, dims(x)[1] / groups, window.size, window.size}), ValueId::none};
    if (channels % 3 != 0) node.inputs[2] = weights({channels});
    if (then == "clip") node.epilogue = clipped_sum(false);
    if (then == "scale") {
      node.epilogue = clipped_sum(true);
      node.inputs.push_back(weights({channels, 1, 1}));
    }
    if (then == "sum") {
      node.epilogue = clipped_sum(true);
      node.inputs.push_back(operand);
    }
    return add("Conv", std::move(node));
  }
  ValueId depthwise(ValueId x, const Window2& window, const std::string& then = "clip") {
    return conv(x, dims(x)[1], dims(x)[1], window, then);
  }
  ValueId max_pool(ValueId x, const Window2& window) {
    Node node;
    node.attributes.set("kernel_shape", Ints{window.size, window.size});
    node.attributes.set("strides", Ints{window.stride, window.stride});
    node.attributes.set("pads", window.pads);
    node.inputs = {x};
    return add("MaxPool", std::move(node));
  }
  void output(ValueId id) { graph.outputs.push_back(id); }

  LoweredGraph lowered(int threads, size_t near_cache_bytes) {
    const Target target{isa_, threads, Accuracy::normal, near_cache_bytes};
    return lower_graph(graph, {OpRegistry::builtin(), target, packed_, plans_, nullptr});
  }

  // Runs steps on guarded memory and compares all outputs with the references'. `terms`: products in one element.
  void check(const LoweredGraph& lowered) {
    std::vector<Tensor> inputs;
    for (const ValueId id : graph.inputs) inputs.push_back(random_tensor(dims(id), random_));
    const testing::StepMemory memory(lowered);
    for (size_t i = 0; i < inputs.size(); ++i)
      testing::write_value(memory.at(lowered.inputs[i]), graph.value(graph.inputs[i]).type, inputs[i]);
    memory.run();
    const std::vector<Tensor> expected = run_reference_graph(graph, inputs);
    for (size_t output = 0; output < expected.size(); ++output) {
      const Tensor got =
          testing::read_value(memory.at(lowered.outputs[output]), graph.value(graph.outputs[output]).type);
      ASSERT_EQ(got.dims(), expected[output].dims());
      double largest = 1;
      for (const float x : expected[output].elements<float>()) largest = std::max<double>(largest, std::abs(x));
      // A few thousand products at most, in two or three layers.
      for (int64_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got.data<float>()[i], expected[output].data<float>()[i], 1e-5 * largest)
            << "output " << output << ", element " << i;
      }
    }
  }

 private:
  ValueId weights(const Dims& dims) {
    if (is_constant) return graph.add_constant("w" + std::to_string(graph.value_count()), random_tensor(dims, random_));
    const ValueId id = graph.add_value("w" + std::to_string(graph.value_count()), TensorType::of(DType::f32, dims));
    graph.inputs.push_back(id);
    return id;
  }
  ValueId add(const std::string& op, Node node) {
    node.op = &OpRegistry::builtin().require("", op, 12);
    node.version = 12;
    node.name = "n" + std::to_string(graph.value_count());
    const ValueId output = graph.add_value("y" + std::to_string(graph.value_count()), TensorType());
    node.outputs = {output};
    const NodeId id = graph.add_node(std::move(node));
    graph.value(output).type = infer_node(graph, graph.node(id))[0];
    graph.value(output).type.layout.channel_block = block_;
    return output;
  }

  Isa isa_;
  int block_;
  std::mt19937 random_;
  PackedWeights packed_;
  testing::FallbackPlans plans_;
};

size_t chains_in(const LoweredGraph& lowered) {
  return static_cast<size_t>(std::count_if(lowered.steps.begin(), lowered.steps.end(), [](const Step& step) {
    return step.kernel.find("bands of") != std::string::npos;
  }));
}

class Picker {
 public:
  explicit Picker(uint32_t seed) : random_(seed) {}
  int64_t operator()(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }
  Window2 window(int64_t most) {
    Window2 window;
    window.size = (*this)(1, most);
    window.stride = (*this)(1, (*this)(0, 3) == 0 ? 3 : 2);
    window.dilation = (*this)(0, 4) == 0 ? 2 : 1;
    for (int64_t& pad : window.pads) pad = (*this)(0, (window.size - 1) * window.dilation);
    return window;
  }

 private:
  std::mt19937 random_;
};

// Expand, depthwise and project, or a part of that.
void add_random_chain(Net& net, Picker& pick) {
  const bool is_picture = pick(0, 3) == 0;
  const int64_t channels = is_picture ? pick(1, 3) : pick(4, 40);
  const ValueId x = net.input({pick(1, 3), channels, pick(6, 30), pick(6, 24)});
  const int64_t form = is_picture ? pick(0, 1) : pick(0, 2);
  ValueId y = x;
  if (form == 2 && pick(0, 2) == 0) {
    const Window2 first = pick.window(3);
    Window2 window = pick.window(3);
    window.dilation = 1;
    for (int64_t& pad : window.pads) pad = pick(0, window.size - 1);
    y = net.conv(y, pick(8, 50), 1, first);
    if (net.dims(y)[2] < 1 || net.dims(y)[3] < 1) return;
    return net.output(net.max_pool(y, window));
  }
  if (form != 2) y = net.conv(y, pick(8, 50), 1, is_picture || pick(0, 2) == 0 ? pick.window(3) : Window2(), "scale");
  if (net.dims(y)[2] < 1 || net.dims(y)[3] < 1) return;
  y = net.depthwise(y, pick.window(5));
  if (form == 1) return net.output(y);
  const Dims out = net.dims(y);
  const int64_t outputs = pick(1, 40);
  const bool has_sum = pick(0, 1) == 1;
  const ValueId operand = has_sum ? net.input({out[0], std::max<int64_t>(4, outputs), out[2], out[3]}) : ValueId::none;
  net.output(net.conv(y, std::max<int64_t>(4, outputs), 1, Window2(), has_sum ? "sum" : "none", operand));
}

bool has_empty_values(const Net& net) {
  for (const NodeId id : net.graph.order())
    if (net.graph.value(net.graph.node(id).outputs[0]).type.storage_bytes() == 0) return true;
  return false;
}

TEST(ConvChain, AgreesWithTheReferencesOverRandomShapes) {
  size_t chains = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    for (const Isa isa : isas_here()) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " " << name_of(isa));
      Net net(isa, seed);
      Picker pick(seed);
      try {
        add_random_chain(net, pick);
      } catch (const Error&) {
        continue;  // a window that does not fit
      } catch (const std::invalid_argument&) {
        continue;
      }
      if (net.graph.outputs.empty() || has_empty_values(net)) continue;
      const LoweredGraph lowered = net.lowered(static_cast<int>(pick(1, 3)), static_cast<size_t>(1024) << pick(2, 6));
      chains += chains_in(lowered);
      net.check(lowered);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(chains, 50 * isas_here().size()) << "hardly anything was computed in bands";
}

// A picture of 40x40 whose values between the convolutions exceed this.
constexpr size_t kNear = 64 << 10;

Window2 window_of_3(int64_t stride = 1) { return {3, stride, 1, {1, 1, 1, 1}}; }

TEST(ConvChain, TakesExpansionDepthwiseAndProjectionAsOneStep) {
  Net net(isas_here().back(), 1);
  const ValueId x = net.input({1, 16, 40, 40});
  net.output(net.conv(net.depthwise(net.conv(x, 32, 1, {}), window_of_3()), 16, 1, {}, "sum", x));
  const LoweredGraph lowered = net.lowered(2, kNear);
  EXPECT_EQ(chains_in(lowered), 1u);
  EXPECT_EQ(lowered.steps.size(), 1u);
  net.check(lowered);
}

TEST(ConvChain, LeavesPicturesOfFewRowsToSeparateStepsWhereThreadsWouldRepeatThem) {
  Net net(isas_here().back(), 8);
  const ValueId x = net.input({1, 16, 6, 80});
  net.output(net.depthwise(net.conv(x, 64, 1, {}), {5, 1, 1, {2, 2, 2, 2}}));
  EXPECT_EQ(chains_in(net.lowered(1, kNear)), 1U);
  EXPECT_EQ(chains_in(net.lowered(2, kNear)), 0U) << "each thread needs five of the six rows";
}

TEST(ConvChain, TakesTheStemWithItsDepthwiseConvolution) {
  Net net(isas_here().back(), 2);
  const ValueId x = net.input({2, 3, 80, 60});
  net.output(net.conv(net.depthwise(net.conv(x, 32, 1, window_of_3(2)), window_of_3()), 16, 1, {}));
  const LoweredGraph lowered = net.lowered(3, kNear);
  EXPECT_EQ(lowered.steps.size(), 1u);
  net.check(lowered);
}

TEST(ConvChain, TakesAConvolutionWithThePoolBehindIt) {
  for (const Isa isa : isas_here()) {
    for (const int64_t size : {2, 3}) {
      for (const int64_t pad : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << name_of(isa) << " size " << size << " pad " << pad);
        Net net(isa, 7);
        const ValueId x = net.input({2, 3, 91, 75});
        net.output(net.max_pool(net.conv(x, 20, 1, window_of_3(2)), {size, 2, 1, {0, pad, pad, 0}}));
        const LoweredGraph lowered = net.lowered(2, kNear);
        EXPECT_EQ(chains_in(lowered), 1u);
        EXPECT_EQ(lowered.steps.size(), 1u);
        net.check(lowered);
      }
    }
  }
}

size_t pooled_in(const LoweredGraph& lowered) {
  return static_cast<size_t>(std::count_if(lowered.steps.begin(), lowered.steps.end(), [](const Step& step) {
    return step.kernel.find("winograd") != std::string::npos && step.kernel.find(" max pool") != std::string::npos;
  }));
}

TEST(ConvChain, PoolsOutputsOfWinogradsWhereTheyAreMade) {
  size_t pooled = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    for (const Isa isa : isas_here()) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << " " << name_of(isa));
      Net net(isa, seed);
      Picker pick(seed);
      // Odd extents lose their last row or column, tiles are whole and not, groups of tiles and all at once.
      const ValueId x = net.input({pick(1, 2), 16 * pick(1, 9), pick(8, 41), pick(8, 41)});
      const Window2 window{3, 1, 1, {pick(0, 1), pick(0, 1), 1, 1}};
      const ValueId y = net.conv(x, 16 * pick(1, 9) - pick(0, 2), 1, window, pick(0, 1) == 0 ? "clip" : "scale");
      net.output(net.max_pool(y, {2, 2, 1, {0, 0, 0, 0}}));
      const LoweredGraph lowered = net.lowered(static_cast<int>(pick(1, 3)), kNear);
      pooled += pooled_in(lowered) > 0 ? 1 : 0;
      net.check(lowered);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(pooled, 30 * isas_here().size()) << "hardly anything was pooled in registers";
}

TEST(ConvChain, LeavesWhatSomebodyElseReads) {
  Net net(isas_here().back(), 3);
  const ValueId x = net.input({1, 16, 40, 40});
  const ValueId expanded = net.conv(x, 32, 1, {}), filtered = net.depthwise(expanded, window_of_3());
  net.output(net.conv(filtered, 16, 1, {}));
  net.output(net.conv(expanded, 16, 1, {}));
  net.output(net.conv(filtered, 16, 1, {}, "none"));
  const LoweredGraph lowered = net.lowered(1, kNear);
  EXPECT_EQ(chains_in(lowered), 0u);
  net.check(lowered);
}

TEST(ConvChain, LeavesGraphOutputs) {
  Net net(isas_here().back(), 4);
  const ValueId filtered = net.depthwise(net.input({1, 32, 40, 40}), window_of_3());
  net.output(net.conv(filtered, 16, 1, {}));
  net.output(filtered);
  EXPECT_EQ(chains_in(net.lowered(1, kNear)), 0u);
}

TEST(ConvChain, LeavesWhatIsSmallOtherWindowsAndOpenWeights) {
  for (const int form : {0, 1, 2, 3}) {
    SCOPED_TRACE(form);
    Net net(isas_here().back(), 5);
    const ValueId x = net.input({1, 32, 40, 40});
    net.is_constant = form != 2;
    const ValueId filtered = net.depthwise(x, window_of_3());
    net.output(net.conv(filtered, 16, 1, form == 1 ? window_of_3() : Window2()));
    EXPECT_EQ(chains_in(net.lowered(1, form == 0 ? size_t{8} << 20 : kNear)), form == 3 ? 1u : 0u);
  }
}

TEST(ConvChain, LeavesWeightsThatWouldComeAnewForEachBand) {
  for (const int64_t channels : {64, 160}) {  // in and out: 16 and 100 KB of weights
    Net net(isas_here().back(), 9);
    net.output(net.conv(net.depthwise(net.input({1, channels, 40, 40}), window_of_3()), channels, 1, {}));
    EXPECT_EQ(chains_in(net.lowered(1, kNear)), channels == 64 ? 1U : 0U) << channels << " channels";
  }
}

TEST(ConvChain, LeavesASecondOperandOfTheReader) {
  Net net(isas_here().back(), 6);
  const ValueId x = net.input({1, 32, 40, 40});
  // The reader's residual, not what it convolves.
  net.output(net.conv(x, 32, 1, {}, "sum", net.depthwise(x, window_of_3())));
  EXPECT_EQ(chains_in(net.lowered(1, kNear)), 0u);
}

}  // namespace
}  // namespace lathe
