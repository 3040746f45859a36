// Sessions that see one shape after the other: what all of these share, and which are kept.
#include <gtest/gtest.h>

#include <set>

#include "graph/node_key.h"
#include "graph/text.h"
#include "jit/code_listener.h"
#include "jit/kernel.h"
#include "src/runtime/session_state.h"
#include "tests/runtime/expect_results.h"
#include "tests/runtime/small_models.h"

namespace lathe {
namespace {

using testing::expect_near;
using testing::ModelBuilder;
using testing::random_input;

Graph with_constants(const std::vector<Tensor>& tensors) {
  Graph graph;
  for (const Tensor& tensor : tensors) graph.add_constant("c" + std::to_string(graph.value_count()), tensor);
  return graph;
}
const void* address_of(const Graph& graph, int value) {
  return graph.value(static_cast<ValueId>(value)).constant.raw();
}

TEST(SharedConstants, EqualOnesBecomeOne) {
  SharedConstants shared;
  const Dims dims{64, 32};
  const Tensor first = random_input(dims, 1), other = random_input(dims, 2);
  Tensor nearly = first.clone();
  nearly.mutable_data<float>()[1000] += 1;
  Graph graph = with_constants({first, other, nearly}), again = with_constants({nearly.clone(), first.clone()});
  EXPECT_EQ(shared.share(graph), 3 * first.bytes());
  EXPECT_EQ(shared.share(graph), 0U);
  EXPECT_EQ(shared.share(again), 0U);
  EXPECT_EQ(address_of(again, 0), nearly.raw());
  EXPECT_EQ(address_of(again, 1), first.raw());
  // Of other extents, or so small that nobody needs to know.
  Graph reshaped = with_constants({first.clone().reshaped({32, 64}), random_input({8}, 1)});
  EXPECT_EQ(shared.share(reshaped), first.bytes());
}

TEST(SharedConstants, AreNotKeptAlive) {
  SharedConstants shared;
  std::weak_ptr<const void> owner;
  {
    Graph graph = with_constants({random_input({64, 32}, 1)});
    shared.share(graph);
    owner = graph.value(ValueId{0}).constant.owner();
  }
  EXPECT_TRUE(owner.expired());
  Graph again = with_constants({random_input({64, 32}, 1)});
  EXPECT_GT(shared.share(again), 0U);
}

// Passes put their weights side by side, anew for each shape of the picture.
TEST(ManyShapes, WeightsThatPassesMakeArePackedOnce) {
  constexpr int64_t kChannels = 16;
  ModelBuilder model;
  const std::string x = model.input("x", {1, kChannels, "height", "width"});
  std::vector<std::string> parts;
  for (int i = 0; i < 2; ++i) {
    const std::string weights = model.random_weight({2 * kChannels, kChannels, 3, 3}, 0.1F);
    const auto conv = model.node("Conv", {x, weights, model.random_weight({2 * kChannels})}).with("pads", {1, 1, 1, 1});
    parts.push_back(model.node("ReduceMax", {conv}).with("axes", {2, 3}));
  }
  model.output(model.node("Add", {parts[0], parts[1]}));
  const Session session = model.load({.threads = 1, .use_cache = false});
  const Session reference = model.load({.threads = 1, .optimization_level = 0, .use_cache = false});
  size_t packed = 0;
  for (int64_t size = 16; size < 64; size += 4) {
    const std::vector<Tensor> inputs{random_input({1, kChannels, size, size}, 3)};
    expect_near(session.run(inputs), reference.run(inputs));
    const Graph& graph = session.state()->runner->part_for(inputs)->head().graph();
    ASSERT_TRUE(std::any_of(graph.order().begin(), graph.order().end(), [&](NodeId id) {
      return graph.node(id).fused_from.ends_with(" x2");
    })) << to_text(graph);
    const size_t now = session.state()->context->packed->bytes();
    // Biases are not worth looking for.
    if (size > 40) {
      EXPECT_LT(now, packed + kComparedBytes);
    }
    packed = now;
  }
}

TEST(ManyShapes, AreKeptAsFarAsThereIsMemory) {
  const Session session = testing::perceptron().load({.threads = 1, .use_cache = false});
  GraphRunner& runner = *session.state()->runner;
  const auto part_of = [&](int64_t rows) {
    const Tensor input(DType::f32, {rows, 24});
    return runner.part_for(std::span(&input, 1));
  };
  const std::weak_ptr<const GraphPart> first = part_of(1);
  for (int64_t rows = 2; rows <= 200; ++rows) part_of(rows);
  EXPECT_EQ(part_of(1), first.lock());
  for (int64_t rows = 201; rows <= 900; ++rows) part_of(rows);
  EXPECT_TRUE(first.expired());
}

// What each of them makes of constants counts, too.
TEST(ManyShapes, OfLargeTablesFewAreKept) {
  constexpr int64_t kColumns = 512;
  ModelBuilder model;
  const std::string x = model.input("x", {"rows", kColumns});
  const std::string shape = model.node("Shape", {x});
  for (int i = 0; i < 2; ++i) {
    const std::string table = model.node("Expand", {model.random_weight({1, kColumns}), shape});
    model.output(model.node("MatMul", {x, model.node("Transpose", {table})}));
  }
  const Session session = model.load({.threads = 1, .use_cache = false});
  GraphRunner& runner = *session.state()->runner;
  const auto part_of = [&](int64_t rows) {
    const Tensor input(DType::f32, {rows, kColumns});
    return runner.part_for(std::span(&input, 1));
  };
  const std::weak_ptr<const GraphPart> first = part_of(200);
  EXPECT_GT(first.lock()->kept_bytes(), 200U * kColumns * 4);
  for (int64_t rows = 201; rows <= 210; ++rows) part_of(rows);
  EXPECT_FALSE(first.expired());
  for (int64_t rows = 211; rows <= 500; ++rows) part_of(rows);  // 400 MB
  EXPECT_TRUE(first.expired());
}

// Tiles of 3 rows by 7 (AVX-512) and of 1 by 8 (AVX2) fill both sizes.
TEST(ManyShapes, DepthwiseConvolutionsOfAllSizesShareTheirCode) {
  ModelBuilder model;
  const std::string x = model.input("x", {1, 32, "height", "width"});
  model.output(model.node("Relu", {model.node("Conv", {x, model.random_weight({32, 1, 3, 3})})
                                       .with("group", 32)
                                       .with("kernel_shape", {3, 3})
                                       .with("pads", {1, 1, 1, 1})}));
  const Session session = model.load({.threads = 1, .use_cache = false});
  const auto code_of = [&](const Dims& dims) {
    const CodeListener listener;
    const std::vector<Tensor> inputs{random_input(dims, 4)};
    expect_near(session.run(inputs),
                model.load({.threads = 1, .optimization_level = 0, .use_cache = false}).run(inputs));
    std::set<std::string> keys(listener.keys().begin(), listener.keys().end());
    std::erase_if(keys, [](const std::string& key) { return !key.starts_with("conv_depthwise/"); });
    return keys;
  };
  const std::set<std::string> code = code_of({1, 32, 57, 56});
  EXPECT_FALSE(code.empty());
  EXPECT_EQ(code_of({1, 32, 111, 112}), code);
}

// Layers that are alike.
TEST(ManyShapes, EqualProductsAreMadeOnce) {
  ModelBuilder model;
  std::string x = model.input("x", {"rows", 96});
  for (int i = 0; i < 6; ++i) x = model.node("Relu", {model.node("MatMul", {x, model.random_weight({96, 96}, 0.2F)})});
  model.output(x);
  const Session session = model.load({.threads = 1, .use_cache = false});
  const std::vector<Tensor> inputs{random_input({50, 96}, 3)};
  expect_near(session.run(inputs), model.load({.threads = 1, .optimization_level = 0, .use_cache = false}).run(inputs));
  const std::vector<Tensor> further{random_input({51, 96}, 3)};
  const KernelCacheStats before = kernel_cache_stats();
  session.run(further);
  const KernelCacheStats after = kernel_cache_stats();
  const Session one = [] {
    ModelBuilder single;
    const std::string rows = single.input("x", {"rows", 96});
    single.output(single.node("Relu", {single.node("MatMul", {rows, single.random_weight({96, 96}, 0.2F)})}));
    return single.load({.threads = 1, .use_cache = false});
  }();
  one.run(further);
  const KernelCacheStats last = kernel_cache_stats();
  EXPECT_EQ(after.hits + after.misses - before.hits - before.misses,
            last.hits + last.misses - after.hits - after.misses);
}

}  // namespace
}  // namespace lathe
