// Decoders whose cache grows by a token a run: results at every length, and what a further length costs.
#include <gtest/gtest.h>

#include "jit/kernel.h"
#include "src/runtime/session_state.h"
#include "src/runtime/staged_graph.h"
#include "tests/runtime/expect_results.h"
#include "tests/runtime/small_models.h"

namespace lathe {
namespace {

using testing::expect_near;
using testing::ModelBuilder;
using testing::random_input;
using testing::run_into_buffers;

constexpr int64_t kWidth = 32, kHeads = 4, kKeyHeads = 2, kSize = 8, kLayers = 3, kLongest = 256;

// How a model attends to the cache; table: with a mask for all lengths, of which each layer cuts its columns.
enum class Style { group_query, plain, table };

// tokens [batch, 1, width], mask [batch, total], past keys and values of each layer [batch, key heads, past, size].
class Decoder {
 public:
  explicit Decoder(Style style) : style_(style) {
    std::string x = model_.input("tokens", {"batch", "length", kWidth});
    model_.input("mask", {"batch", "total"}, DType::i64);
    prepare();
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      const std::string attended =
          dense(attend(dense(x, kWidth, (kHeads + 2 * kKeyHeads) * kSize), layer), kWidth, kWidth);
      const std::string sum = model_.node("Add", {x, attended});
      const std::string active = model_.node("Relu", {dense(sum, kWidth, 2 * kWidth)});
      x = model_.node("Add", {sum, dense(active, 2 * kWidth, kWidth)});
    }
    model_.output(x);
    for (const std::string& cache : caches_) model_.output(cache);
  }

  Session load(int level, int threads = 1) const {
    SessionOptions options;
    options.optimization_level = level;
    options.threads = threads;
    options.use_cache = false;
    const std::string bytes = model_.bytes(21);
    return Session::load(std::as_bytes(std::span(bytes)), "", options);
  }

 private:
  std::string dense(const std::string& x, int64_t from, int64_t to) {
    return model_.node("MatMul", {x, model_.random_weight({from, to}, 0.3F)});
  }
  std::string ints(std::initializer_list<int64_t> values) { return model_.longs(values); }

  // What all layers share.
  void prepare() {
    if (style_ == Style::group_query) {
      const std::string count = model_.node("ReduceSum", {"mask", ints({1})}).with("keepdims", int64_t{0});
      lengths_ = model_.node("Cast", {model_.node("Sub", {count, ints({1})})}).with("to", int64_t{6});
      const std::string all = model_.node("Gather", {model_.node("Shape", {"mask"}), ints({1})});
      total_ = model_.node("Cast", {all}).with("to", int64_t{6});
      cos_ = model_.random_weight({kLongest, kSize / 2});
      sin_ = model_.random_weight({kLongest, kSize / 2});
      return;
    }
    const std::string real = model_.node("Cast", {"mask"}).with("to", int64_t{1});
    const std::string absent = model_.node("Sub", {model_.weight(Tensor::scalar(1.0F)), real});
    const std::string bias = model_.node("Mul", {absent, model_.weight(Tensor::scalar(-1e9F))});
    bias_ = model_.node("Unsqueeze", {bias, ints({1, 2})});
    if (style_ != Style::table) return;
    const std::string two = model_.weight(Tensor::scalar<int64_t>(2)), one = model_.weight(Tensor::scalar<int64_t>(1));
    const std::string past = model_.node("Gather", {model_.node("Shape", {"key0"}), two});
    position_ = model_.node("Range", {past, model_.node("Add", {past, one}), one});
    const std::string batch = model_.node("Gather", {model_.node("Shape", {"mask"}), ints({0})});
    const std::string shape = model_.node("Concat", {batch, ints({1, 1, 1})}).with("axis", int64_t{0});
    table_ = model_.node("Exp", {model_.node("Expand", {model_.random_weight({1, 1, kLongest, kLongest}), shape})});
  }

  // The row of this token, and as many columns as there are keys.
  std::string row_of_table(const std::string& keys) {
    const std::string count = model_.node("Gather", {model_.node("Shape", {keys}), ints({2})});
    const std::string columns = model_.node("Slice", {table_, ints({0}), count, ints({3})});
    return model_.node("Gather", {columns, position_}).with("axis", int64_t{2});
  }

  std::string attend(const std::string& qkv, int64_t layer) {
    const std::string number = std::to_string(layer);
    const std::string past_key = model_.input("key" + number, {"batch", kKeyHeads, "past", kSize});
    const std::string past_value = model_.input("value" + number, {"batch", kKeyHeads, "past", kSize});
    return style_ == Style::group_query ? group_query(qkv, past_key, past_value) : plain(qkv, past_key, past_value);
  }

  std::string group_query(const std::string& qkv, const std::string& past_key, const std::string& past_value) {
    auto node =
        model_.node("GroupQueryAttention", {qkv, "", "", past_key, past_value, lengths_, total_, cos_, sin_}, 3);
    node.of_domain("com.microsoft").with("num_heads", kHeads).with("kv_num_heads", kKeyHeads);
    node.with("do_rotary", int64_t{1});
    caches_.push_back(node.result(1));
    caches_.push_back(node.result(2));
    return node.result();
  }

  // Of torch's exporter: heads of keys are repeated by Expand, to a shape that is computed.
  std::string repeated(const std::string& cache) {
    const std::string shape = model_.node("Shape", {cache});
    const std::string batch = model_.node("Gather", {shape, ints({0})}),
                      rows = model_.node("Gather", {shape, ints({2})});
    const std::string wide = model_.node("Concat", {batch, ints({kKeyHeads, kHeads / kKeyHeads}), rows, ints({kSize})})
                                 .with("axis", int64_t{0});
    const std::string flat =
        model_.node("Concat", {batch, ints({kHeads}), rows, ints({kSize})}).with("axis", int64_t{0});
    return model_.node("Reshape", {model_.node("Expand", {model_.node("Unsqueeze", {cache, ints({2})}), wide}), flat});
  }

  std::string plain(const std::string& qkv, const std::string& past_key, const std::string& past_value) {
    auto parts = model_.node("Split", {qkv, ints({kHeads * kSize, kKeyHeads * kSize, kKeyHeads * kSize})}, 3);
    parts.with("axis", int64_t{-1});
    const auto heads = [&](int part, int64_t count) -> std::string {
      return model_.node("Transpose", {model_.node("Reshape", {parts.result(part), ints({0, 0, count, kSize})})})
          .with("perm", {0, 2, 1, 3});
    };
    const std::string key = model_.node("Concat", {past_key, heads(1, kKeyHeads)}).with("axis", int64_t{2});
    const std::string value = model_.node("Concat", {past_value, heads(2, kKeyHeads)}).with("axis", int64_t{2});
    caches_.push_back(key);
    caches_.push_back(value);
    const std::string all = repeated(key);
    const std::string turned = model_.node("Transpose", {all}).with("perm", {0, 1, 3, 2});
    const std::string bias = style_ == Style::table ? model_.node("Add", {bias_, row_of_table(all)}).result() : bias_;
    const std::string scores =
        model_.node("Mul", {model_.node("MatMul", {heads(0, kHeads), turned}), model_.weight(Tensor::scalar(0.35F))});
    const std::string weights = model_.node("Softmax", {model_.node("Add", {scores, bias})}).with("axis", int64_t{-1});
    const std::string mixed = model_.node("MatMul", {weights, repeated(value)});
    return model_.node("Reshape", {model_.node("Transpose", {mixed}).with("perm", {0, 2, 1, 3}), ints({0, 0, kWidth})});
  }

  Style style_;
  ModelBuilder model_;
  std::string lengths_, total_, cos_, sin_, bias_, table_, position_;
  std::vector<std::string> caches_;
};

// What a caller keeps from run to run.
struct Sequence {
  int64_t batch;
  std::vector<Tensor> caches;
  unsigned seed = 1;

  explicit Sequence(int64_t sequences, int64_t past = 1) : batch(sequences) {
    for (int64_t i = 0; i < 2 * kLayers; ++i)
      caches.push_back(random_input({batch, kKeyHeads, past, kSize}, static_cast<unsigned>(i)));
  }
  // Of the next token. Sequence b has b tokens less than the longest, which stand at its end.
  std::vector<Tensor> inputs() {
    const int64_t total = caches[0].dims()[2] + 1;
    Tensor mask(DType::i64, {batch, total});
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t i = 0; i < total; ++i)
        mask.mutable_data<int64_t>()[b * total + i] = i < std::max<int64_t>(1, total - b);
    std::vector<Tensor> all{random_input({batch, 1, kWidth}, ++seed), mask};
    all.insert(all.end(), caches.begin(), caches.end());
    return all;
  }
  void append(const std::vector<Tensor>& outputs) { caches.assign(outputs.begin() + 1, outputs.end()); }
};

class GrowingCache : public ::testing::TestWithParam<std::tuple<Style, int64_t, int>> {
 protected:
  Style style() const { return std::get<0>(GetParam()); }
  int64_t batch() const { return std::get<1>(GetParam()); }
  int threads() const { return std::get<2>(GetParam()); }
};

TEST_P(GrowingCache, GivesTheReferenceAtEveryLength) {
  const Decoder decoder(style());
  const Session session = decoder.load(99, threads()), reference = decoder.load(0);
  Sequence sequence(batch());
  for (int token = 0; token < 40; ++token) {
    SCOPED_TRACE("token " + std::to_string(token));
    const std::vector<Tensor> inputs = sequence.inputs();
    const std::vector<Tensor> got = session.run(inputs);
    expect_near(got, reference.run(inputs));
    if (HasFatalFailure()) return;
    sequence.append(got);
  }
  // It ran by stages, of which those of all layers that see the cache are one.
  const auto staged = session.state()->runner->staged_for(sequence.inputs());
  ASSERT_NE(staged, nullptr);
  EXPECT_GE(staged->counts().open_stages, size_t{kLayers});
  EXPECT_LE(staged->counts().open_runners, 2U);
}

TEST_P(GrowingCache, WritesIntoBuffersOfTheCaller) {
  const Decoder decoder(style());
  const Session session = decoder.load(99, threads());
  Sequence sequence(batch());
  for (int token = 0; token < 8; ++token) {
    sequence.append(run_into_buffers(session, sequence.inputs()));
  }
}

// The code of a kernel may depend on what is left of a length behind whole vectors; there are few such kernels.
TEST_P(GrowingCache, NeitherEmitsNorPacksAtFurtherLengths) {
  const Decoder decoder(style());
  const Session session = decoder.load(99, threads());
  Sequence sequence(batch(), 64);
  const auto advance = [&](int tokens) {
    for (int token = 0; token < tokens; ++token) sequence.append(session.run(sequence.inputs()));
  };
  advance(64);
  const size_t misses = kernel_cache_stats().misses, packed = session.state()->context->packed->bytes();
  advance(64);
  EXPECT_EQ(kernel_cache_stats().misses, misses);
  EXPECT_EQ(session.state()->context->packed->bytes(), packed);
}

// Their columns are as many as a layer has keys, which follows from the cache's shape, too.
TEST(OpenStages, RowsOfAMaskForAllLengthsAreCutOnceForAllLayers) {
  const Decoder decoder(Style::table);
  const Session session = decoder.load(99);
  Sequence sequence(1);
  std::vector<Dims> shapes[2];
  std::vector<DType> dtypes;
  for (std::vector<Dims>& of_token : shapes) {
    const std::vector<Tensor> inputs = sequence.inputs();
    dtypes.clear();
    for (const Tensor& input : inputs) {
      of_token.push_back(input.dims());
      dtypes.push_back(input.dtype());
    }
    sequence.append(session.run(inputs));
  }
  const Session::State& state = *session.state();
  const auto stages = stages_of(state.runner->graph(), *state.context, dtypes, shapes[0], shapes[1]);
  ASSERT_TRUE(stages);
  size_t slices = 0;
  for (const Stage& stage : stages->stages)
    for (const NodeId id : stage.nodes) slices += stages->graph->node(id).op->name == "Slice" ? 1 : 0;
  EXPECT_EQ(slices, 1U);
}

INSTANTIATE_TEST_SUITE_P(Decoders, GrowingCache,
                         ::testing::Combine(::testing::Values(Style::group_query, Style::plain, Style::table),
                                            ::testing::Values(int64_t{1}, int64_t{3}), ::testing::Values(1, 2)));

// Two samples agree on an extent that a third length changes.
TEST(OpenStages, AnExtentThatOnlySeemedFixedIsNoticed) {
  ModelBuilder model;
  std::string x = model.input("x", {"rows", 16});
  x = model.node("Slice", {x, model.longs({0}), model.longs({5}), model.longs({0})});
  for (int i = 0; i < 6; ++i) x = model.node("Relu", {model.node("MatMul", {x, model.random_weight({16, 16}, 0.4F)})});
  model.output(x);
  const Session session = model.load({.threads = 1, .use_cache = false});
  const Session reference = model.load({.threads = 1, .optimization_level = 0, .use_cache = false});
  for (const int64_t rows : {7, 8, 9, 10, 3, 4, 11, 12, 13, 2, 5}) {
    const std::vector<Tensor> inputs{random_input({rows, 16}, 3)};
    if (rows == 10) {
      EXPECT_NE(session.state()->runner->staged_for(inputs), nullptr);
    }
    expect_near(session.run(inputs), reference.run(inputs));
  }
}

// Everything depends on the length: one specialization of the whole.
TEST(OpenStages, AnEncoderIsNotCut) {
  const Session session = testing::transformer_block().load({.threads = 1, .use_cache = false});
  for (int64_t length = 4; length < 12; ++length) {
    const std::vector<Tensor> inputs{random_input({2, length, 48}, 1), random_input({2, 1, 1, length}, 2)};
    EXPECT_EQ(session.state()->runner->staged_for(inputs), nullptr);
    session.run(inputs);
  }
}

// A shape that comes again and again is worth a specialization of its own.
TEST(OpenStages, AShapeThatStaysIsSpecializedAsAWhole) {
  const Decoder decoder(Style::plain);
  const Session session = decoder.load(99);
  Sequence sequence(1);
  for (int token = 0; token < 6; ++token) sequence.append(session.run(sequence.inputs()));
  const std::vector<Tensor> inputs = sequence.inputs();
  const std::vector<Tensor> first = session.run(inputs);
  for (int run = 0; run < 20; ++run) expect_near(session.run(inputs), first);
  EXPECT_EQ(session.state()->runner->staged_for(inputs), nullptr);
}

// The next sequence goes through the lengths of the last one.
TEST(OpenStages, LengthsOfALongSequenceAreKept) {
  const Session session = testing::perceptron().load({.threads = 1, .use_cache = false});
  const Session::State& state = *session.state();
  GraphRunner stage(std::make_unique<Graph>(state.runner->graph()), state.context, 0, Growing::replayed);
  const auto part_of = [&](int64_t rows) {
    const Tensor input(DType::f32, {rows, 24});
    return stage.part_for(std::span(&input, 1));
  };
  std::vector<std::shared_ptr<const GraphPart>> parts;
  for (int64_t rows = 1; rows <= 200; ++rows) parts.push_back(part_of(rows));
  for (int64_t rows = 1; rows <= 200; ++rows) EXPECT_EQ(part_of(rows), parts[static_cast<size_t>(rows) - 1]);
  // Not for ever: the oldest go.
  for (int64_t rows = 201; rows <= 600; ++rows) part_of(rows);
  EXPECT_NE(part_of(1), parts[0]);
  EXPECT_EQ(part_of(200), parts[199]);
}

TEST(OpenStages, LengthsOfManyNodesAreFewer) {
  ModelBuilder model;
  std::string x = model.input("x", {"rows", 4});
  constexpr int kNodes = 300, kMostKept = 240;
  for (int i = 0; i < kNodes; ++i) x = model.node("MatMul", {x, model.random_weight({4, 4})});
  model.output(x);
  const Session session = model.load({.threads = 1, .optimization_level = 0, .use_cache = false});
  const Session::State& state = *session.state();
  GraphRunner stage(std::make_unique<Graph>(state.runner->graph()), state.context, 0, Growing::replayed);
  const auto part_of = [&](int64_t rows) {
    const Tensor input(DType::f32, {rows, 4});
    return stage.part_for(std::span(&input, 1));
  };
  const std::weak_ptr<const GraphPart> first = part_of(1);
  for (int64_t rows = 2; rows <= 40; ++rows) part_of(rows);
  EXPECT_FALSE(first.expired());
  for (int64_t rows = 41; rows <= kMostKept; ++rows) part_of(rows);
  EXPECT_TRUE(first.expired());
}

}  // namespace
}  // namespace lathe
