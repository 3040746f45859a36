#include "graph/node_text.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "graph/made_up_tensor.h"
#include "lathe/error.h"
#include "ops/lower.h"
#include "tests/ops/one_node.h"
#include "tests/ops/step_memory.h"

namespace lathe {
namespace {

// A line of each family; B: channels in a block.
constexpr const char* kLines[] = {
    "LayerNormalization@17[axis=-1, epsilon=1e-05](float32[4,33], const float32[33], const float32[33]) -> "
    "float32[4,33]",
    "RMSNormalization@23[axis=-1, epsilon=1e-05](float32[4,33], const float32[33]) -> float32[4,33]",
    "GroupNormalization@21[num_groups=2](float32[1,12,5,6], const float32[12], const float32[12]) -> float32[1,12,5,6]",
    "InstanceNormalization@6(float32[1,12,5,6], const float32[12], const float32[12]) -> float32[1,12,5,6]",
    "Softmax@13[axis=-1](float32[3,5,37]) -> float32[3,5,37]",
    "ReduceMean@18[keepdims=0](float32[3,5,37], const int64[2]{0, 2}) -> float32[5]",
    "MaxPool@12[kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]](float32[1,20,9,9]{cB}) -> "
    "float32[1,20,5,5]{cB}",
    "GlobalAveragePool@1(float32[1,20,9,9]{cB}) -> float32[1,20,1,1]{cB}",
    "Resize@13[coordinate_transformation_mode=\"asymmetric\", mode=\"nearest\", nearest_mode=\"floor\"]"
    "(float32[1,16,3,4]{cB}, _, const float32[4]{1.0, 1.0, 2.0, 2.0}) -> float32[1,16,6,8]{cB}",
    "Gather@13[axis=0](const float32[50,24], const int64[7]{3, 0, 49, 1, 2, 2, 2}) -> float32[7,24]",
    "Gather@13[axis=0](const float32[50,24], const int64[70]{0..49}) -> float32[70,24]",
    "Transpose@13[perm=[0, 2, 1]](float32[2,19,33]) -> float32[2,33,19]",
    "Concat@13[axis=1](float32[2,3,4], float32[2,5,4], #0) -> float32[2,11,4]",
    "Split@13[axis=1](float32[2,8,4], const int64[2]{3, 5}) -> float32[2,3,4], float32[2,5,4]",
    "Pad@13[mode=\"reflect\"](float32[1,5,12], const int64[6]{0, 0, 2, 0, 0, 3}) -> float32[1,5,17]",
    "TopK@11[axis=-1, largest=1, sorted=1](float32[3,40], const int64[1]{5}) -> float32[3,5], int64[3,5]",
    "LSTM@14[hidden_size=16](float32[3,1,8], const float32[1,64,8], const float32[1,64,16], const float32[1,128], _, "
    "float32[1,1,16], float32[1,1,16]) -> float32[3,1,1,16], _, float32[1,1,16]",
    "GRU@14[hidden_size=16](float32[3,1,8], const float32[1,48,8], const float32[1,48,16]) -> float32[3,1,1,16]",
    "lathe.Pointwise@1(float32[1,20,9,9]{cB}) -> float32[1,20,9,9]{cB} then max((x0 * x1) + x2, 0) with "
    "(const float32[20,1,1], float32[1,20,9,9]{cB})",
    "Conv@11[kernel_shape=[3, 3], pads=[1, 1, 1, 1]](float32[1,20,9,9]{cB}, const float32[33,20,3,3], "
    "const float32[33]) -> float32[1,33,9,9]{cB} then t0 = x0 + x1; t0 * sigmoid(t0) with (float32[1,33,9,9]{cB})",
    "Conv@11[kernel_shape=[1, 1]](float32[1,20,9,9]{cB}, const float32[33,20,1,1]) -> float32[1,33,9,9]{cB} ; "
    "Conv@11[group=33, kernel_shape=[3, 3], pads=[1, 1, 1, 1]](#2, const float32[33,1,3,3]) -> float32[1,33,9,9]{cB}",
    "lathe.QuantizedConv@1[kernel_shape=[1, 1]](uint8[1,64,9,9]{cB}, const int8[32,64,1,1]{-127..127}, "
    "const float32[32], const uint8[]{0}, const int8[32]{0..0}, const int32[32]{5..5}) -> uint8[1,32,9,9]{cB} then "
    "min(max(round_even(x0 / 0.5), 0), 255) [float32 -> uint8]",
    "Softmax@13[axis=-1](float32[3,40]) -> uint8[3,40] then min(max(round_even(x0 / 0.004), 0), 255) [float32 -> "
    "uint8]",
    "LayerNormalization@17[axis=-1](float32[3,40], const float32[40], const float32[40]) -> uint8[3,40] then "
    "min(max(round_even(x0 / 0.02) + 128, 0), 255) [float32 -> uint8]",
    "MatMul@13(float32[7,24], const float32[24,40]) -> float32[7,40] then max(x0 + x1, 0) with (const float32[40])",
    "MatMul@13(float16[7,24], const float16[24,40]) -> float16[7,40]",
    "MatMulInteger@10(uint8[7,24], const int8[24,40]{-127..127}) -> int32[7,40]",
    "com.microsoft.MatMulNBits@1[K=32, N=24, bits=4, block_size=32](float32[5,32], const uint8[24,1,16]{0..255}, "
    "const float32[24]) -> float32[5,24]",
    "lathe.Attention@1[heads=[2, 2, 2, 2], parts=[0, 32, 32, 32, 64, 32], perm_k=[0, 2, 3, 1], perm_q=[0, 2, 1, 3], "
    "perm_v=[0, 2, 1, 3], perm_y=[0, 2, 1, 3], scores=[0, 0, -1, -1, 1, -1, -1, -1, 21, 0, 1, -1], "
    "scores_constants=[0.0, 0.25, 0.0]](float32[1,9,96], #0, #0) -> float32[1,9,32]",
    "lathe.Reorder@1[channel_block=0](float32[1,20,9,9]{cB}) -> float32[1,20,9,9]",
    "Constant@13[value=tensor int64[2]{1, 2}]() -> int64[2]",
};

std::string with_block(std::string line, int block) {
  for (size_t at = 0; (at = line.find("{cB}", at)) != std::string::npos;)
    line.replace(at, 4, "{c" + std::to_string(block) + "}");
  return line;
}

class RulePlans : public PlanSource {
 public:
  Candidate choose(const TuningTask& task) override { return task.space.fallback; }
};

LoweredGraph lowered(const Graph& graph, Isa isa, PackedWeights& packed) {
  RulePlans plans;
  return lower_graph(graph, {OpRegistry::builtin(), {isa, 1}, packed, plans, nullptr});
}

// Nothing is written past a buffer's end.
void run(const Graph& graph, Isa isa) {
  PackedWeights packed;
  const LoweredGraph steps = lowered(graph, isa, packed);
  std::vector<std::unique_ptr<testing::GuardedMemory>> memory;
  std::vector<void*> addresses;
  for (const Buffer& buffer : steps.buffers) {
    memory.push_back(buffer.fixed ? nullptr : std::make_unique<testing::GuardedMemory>(buffer.bytes));
    addresses.push_back(buffer.fixed ? const_cast<void*>(buffer.fixed) : memory.back()->data());
  }
  for (size_t b = 0; b < steps.buffers.size(); ++b) {
    const auto [root, offset] = steps.root(static_cast<BufferId>(b));
    addresses[b] = static_cast<char*>(addresses[static_cast<size_t>(root)]) + offset;
  }
  for (const ValueId id : graph.inputs) {
    const TensorType& type = graph.value(id).type;
    const Tensor tensor = made_up_tensor(type.dtype, type.storage_dims());
    std::memcpy(addresses[static_cast<size_t>(steps.of_value[index_of(id)])], tensor.raw(), tensor.bytes());
  }
  for (const Step& step : steps.steps) {
    step.run({addresses.data(), 0, 1});
    EXPECT_NE(step.kernel, "reference") << step.op;
  }
}

std::string text_of(const Graph& graph) { return node_text(graph, graph.order()).value_or("cannot be spelled"); }

std::vector<Isa> isas() {
  return usable_isa() > Isa::avx2 ? std::vector<Isa>{Isa::avx2, usable_isa()} : std::vector<Isa>{Isa::avx2};
}

TEST(NodeText, LinesOfAllFamiliesComeBackAndRun) {
  for (const Isa isa : isas()) {
    for (const char* line : kLines) {
      const std::string text = with_block(line, vector_lanes(isa));
      SCOPED_TRACE(text);
      const Graph graph = read_nodes(text, OpRegistry::builtin(), vector_lanes(isa));
      EXPECT_EQ(text_of(graph), text);
      if (!text.starts_with("Constant")) run(graph, isa);
    }
  }
}

TEST(NodeText, ExtentsAndAttributesOfAnySizeComeBack) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    const auto pick = [&](int least, int most) {
      return std::to_string(least + static_cast<int>(random() % unsigned(most - least + 1)));
    };
    const std::string shape = pick(1, 9) + "," + pick(1, 40) + "," + pick(1, 40);
    const std::string type = (random() % 2 == 0 ? "float32[" : "int32[") + shape + "]";
    std::string text =
        "Clip@13(" + type + ", _, const " + type.substr(0, type.find('[')) + "[]{" + pick(-9, 9) + ".0}) -> " + type;
    if (type[0] == 'i') text.replace(text.find(".0}"), 3, "}");
    EXPECT_EQ(text_of(read_nodes(text, OpRegistry::builtin(), 16)), text);
  }
}

TEST(NodeText, RangesOfIntegersKeepTheirEnds) {
  const Graph graph =
      read_nodes("Gather@13(float32[50], const int64[100]{-50..49}) -> float32[100]", OpRegistry::builtin(), 16);
  const Tensor indices = graph.value(graph.node(graph.order()[0]).inputs[1]).constant;
  const auto values = indices.elements<int64_t>();
  EXPECT_EQ(*std::min_element(values.begin(), values.end()), -50);
  EXPECT_EQ(*std::max_element(values.begin(), values.end()), 49);
}

TEST(NodeText, NonsenseIsRefusedWithItsPlace) {
  for (const char* text : {"",
                           "Relu",
                           "Relu@",
                           "Relu@14",
                           "Relu@14(",
                           "Relu@14(float32[4])",
                           "Relu@14(float32[4]) -> float32[5]",
                           "Relu@14(float32[4]) -> int32[4]",
                           "Relu@14(float32[4]) -> float32[4] then x0 + x1",
                           "Relu@14(float32[4], float32[4]) -> float32[4]",
                           "Relu@14[alpha=1](float32[4]) -> float32[4]",
                           "Nothing@14(float32[4]) -> float32[4]",
                           "Relu@-1(float32[4]) -> float32[4]",
                           "Relu@14(#7) -> float32[4]",
                           "Relu@14(float32[-4]) -> float32[-4]",
                           "Relu@14(string[4]) -> string[4]",
                           "Relu@14(float32[99999999999]) -> float32[99999999999]",
                           "Relu@14(float32[9223372036854775807,9223372036854775807]) -> float32[4]",
                           "Relu@14(float32[1,4,4,4]{c16}) -> float32[1,4,4,4]",
                           "Relu@14(float32[1,4,4,4]) -> float32[1,4,4,4]{c16}",
                           "Softmax@13(float32[1,4,4,4]{c16}) -> float32[1,4,4,4]{c16}",
                           "Relu@14(float32[4]{c16}) -> float32[4]{c16}",
                           "Add@14(float32[1,4,4,4]{c16}, float32[1,4,4,4]) -> float32[1,4,4,4]{c16}",
                           "NonZero@13(float32[4]) -> int64[1,2]",
                           "Gather@13(float32[4], const int64[2]{1}) -> float32[2]",
                           "Gather@13(float32[4], const uint8[2]{1, 300}) -> float32[2]",
                           "MatMul@13(float32[7,24], float32[24,40]) -> float32[7,40] then x0 + x1 with (float32[41])",
                           "MatMul@13(float32[7,24], float32[24,40]) -> float32[7,40] then x0 + x1 with (int32[40])",
                           "Cast@13[to=1](float32[4]) -> float32[4] then max(x0, 0)",
                           "Relu@14(float32[4]) -> float32[4] ; ",
                           "Pad@13[mode=\"reflect](float32[4], const int64[2]{1, 1}) -> float32[6]"}) {
    try {
      (void)read_nodes(text, OpRegistry::builtin(), 16);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << text << ": " << error.what();
    }
  }
  EXPECT_THROW((void)read_nodes(std::string(100'000, '('), OpRegistry::builtin(), 16), Error);
  const std::string deep = "Relu@14(float32[4]) -> float32[4] then " + std::string(100'000, '(');
  EXPECT_THROW((void)read_nodes(deep, OpRegistry::builtin(), 16), Error);
}

// What a changed line says is refused, or lowered like any other.
TEST(NodeText, ChangedLinesAreHandledLikeModels) {
  std::mt19937 random(11);
  const std::string letters = "0123456789,[](){}#._-@=;xcB \"aeft";
  int accepted = 0;
  for (int round = 0; round < 20'000; ++round) {
    const Isa isa = isas()[random() % isas().size()];
    std::string text = with_block(kLines[random() % std::size(kLines)], vector_lanes(isa));
    for (unsigned edit = 0; edit <= random() % 3; ++edit) {
      const size_t at = random() % text.size();
      if (random() % 3 == 0) {
        text.erase(at, 1 + random() % 3);
      } else {
        text[at] = letters[random() % letters.size()];
      }
    }
    SCOPED_TRACE(text);
    try {
      const Graph graph = read_nodes(text, OpRegistry::builtin(), vector_lanes(isa));
      PackedWeights packed;
      (void)lowered(graph, isa, packed);
      ++accepted;
    } catch (const Error& error) {
      EXPECT_NE(error.code(), ErrorCode::internal) << error.what();
    }
  }
  EXPECT_GT(accepted, 150);
}

}  // namespace
}  // namespace lathe
