// Patterns of networks over pictures: convolutions, pools, and what moves pixels and channels.
#include <utility>

#include "tests/fuzz/graph_maker.h"

namespace lathe::testing {

ValueId convolved(GraphMaker& maker, const GraphMaker::Made& x, const Recipe& recipe) {
  static constexpr int64_t kOutputs[] = {8, 16, 20, 4};
  const int64_t channels = x.dims[1], size = recipe.picks[1] % 2 == 0 ? 1 : 3;
  const bool is_depthwise = recipe.picks[2] % 4 == 0;
  const int64_t outputs = is_depthwise ? channels : one_of(kOutputs, recipe.picks[2] / 4);
  const int64_t group = is_depthwise ? channels : 1, stride = recipe.picks[3] % 5 == 0 ? 2 : 1, pad = size / 2;
  std::vector<ValueId> operands{x.id, maker.weights({outputs, channels / group, size, size}, -0.3f, 0.3f)};
  if (recipe.picks[3] % 3 != 0) operands.push_back(maker.weights({outputs}));
  return maker.node("Conv", operands,
                    {{"pads", std::vector<int64_t>{pad, pad, pad, pad}},
                     {"strides", std::vector<int64_t>{stride, stride}},
                     {"group", group}});
}

namespace {

// Between picture orders, as TensorFlow's exports do.
void picture_transpose(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* x = maker.pick_of_rank(recipe.picks[0], 4);
  if (x == nullptr) return;
  const std::vector<int64_t> to_last{0, 2, 3, 1}, to_first{0, 3, 1, 2};
  maker.keep(maker.node("Transpose", {x->id}, {{"perm", recipe.picks[1] % 2 == 0 ? to_last : to_first}}));
}

void conv(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* x = maker.pick_of_rank(recipe.picks[0], 4);
  if (x != nullptr) maker.keep(convolved(maker, *x, recipe));
}

void conv_and_norm(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* x = maker.pick_of_rank(recipe.picks[0], 4);
  if (x == nullptr) return;
  const ValueId y = convolved(maker, *x, recipe);
  const int64_t channels = maker.dims_of(y)[1];
  const ValueId scaled =
      maker.node("BatchNormalization", {y, maker.weights({channels}, 0.5f, 1.5f), maker.weights({channels}),
                                        maker.weights({channels}), maker.weights({channels}, 0.5f, 2)});
  maker.keep(recipe.picks[3] % 2 == 0 ? maker.node("Relu", {scaled}) : scaled);
}

void norm_alone(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made& x = maker.pick(recipe.picks[0]);
  if (x.dims.size() < 2) return;
  const int64_t channels = x.dims[1];
  maker.keep(maker.node("BatchNormalization", {x.id, maker.weights({channels}, 0.5f, 1.5f), maker.weights({channels}),
                                               maker.weights({channels}), maker.weights({channels}, 0.5f, 2)}));
}

// What mobile networks are made of: expansion, depthwise convolution, projection, or a pool; with readers in
// between now and then.
void inverted_bottleneck(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* found = maker.pick_of_rank(recipe.picks[0], 4);
  if (found == nullptr) return;
  const GraphMaker::Made x = *found;
  static constexpr int64_t kChannels[] = {20, 16, 33};
  const int64_t channels = one_of(kChannels, recipe.picks[1]), size = recipe.picks[2] % 3 == 0 ? 5 : 3, pad = size / 2;
  const int64_t stride = recipe.picks[2] % 4 == 1 ? 2 : 1;
  ValueId y = maker.node("Conv", {x.id, maker.weights({channels, x.dims[1], 1, 1}, -0.3f, 0.3f)});
  if (recipe.picks[1] % 2 == 0) y = maker.node("Relu", {y});
  if (recipe.picks[3] % 7 == 0) maker.keep(y);
  if (recipe.picks[3] % 7 == 2) {
    return maker.keep(maker.node(
        "MaxPool", {y}, {{"kernel_shape", std::vector<int64_t>{2, 2}}, {"pads", std::vector<int64_t>{1, 1, 1, 1}}}));
  }
  y = maker.node("Conv", {y, maker.weights({channels, 1, size, size}, -0.3f, 0.3f), maker.weights({channels})},
                 {{"pads", std::vector<int64_t>{pad, pad, pad, pad}},
                  {"strides", std::vector<int64_t>{stride, stride}},
                  {"group", channels}});
  if (recipe.picks[2] % 5 == 0) y = maker.node("HardSwish", {y});
  if (recipe.picks[3] % 7 == 1) maker.keep(y);
  y = maker.node("Conv", {y, maker.weights({x.dims[1], channels, 1, 1}, -0.3f, 0.3f)});
  const bool is_residual = stride == 1 && recipe.picks[3] % 2 == 0;
  maker.keep(is_residual ? maker.node("Add", {x.id, y}) : y);
}

// Several convolutions of one value, as in the heads of detectors.
void parallel_convs(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* found = maker.pick_of_rank(recipe.picks[0], 4);
  if (found == nullptr) return;
  const GraphMaker::Made x = *found;
  const int64_t size = recipe.picks[1] % 2 == 0 ? 1 : 3, pad = size / 2;
  for (uint32_t i = 0; i < 2; ++i) {
    const ValueId y = maker.node("Conv", {x.id, maker.weights({16, x.dims[1], size, size}, -0.3f, 0.3f)},
                                 {{"pads", std::vector<int64_t>{pad, pad, pad, pad}}});
    maker.keep(recipe.picks[2] % 3 == 0 ? y : maker.node(recipe.picks[2] % 3 == 1 ? "Relu" : "Sigmoid", {y}));
  }
}

// Residual: a convolution added to a value of its shape, then an activation.
void residual(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* x = maker.pick_of_rank(recipe.picks[0], 4);
  if (x == nullptr) return;
  const int64_t channels = x->dims[1];
  const ValueId y = maker.node("Conv", {x->id, maker.weights({channels, channels, 1, 1}, -0.3f, 0.3f)});
  const ValueId sum = recipe.picks[1] % 2 == 0 ? maker.node("Add", {y, x->id}) : maker.node("Sum", {x->id, y});
  maker.keep(recipe.picks[2] % 2 == 0 ? maker.node("Relu", {sum}) : sum);
}

void pad_then_conv(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* x = maker.pick_of_rank(recipe.picks[0], 4);
  if (x == nullptr) return;
  std::vector<int64_t> pads(8, 0);
  for (const size_t i : {2u, 3u, 6u, 7u}) pads[i] = (recipe.picks[1] >> i) % 3;
  if (recipe.picks[1] % 7 == 0) pads[1] = 1;  // channels: a near miss
  std::vector<ValueId> operands{x->id, maker.integers(pads)};
  if (recipe.picks[2] % 4 == 0) operands.push_back(maker.scalar(recipe.picks[2] % 8 == 0 ? 0.5f : 0.f));
  static constexpr const char* kModes[] = {"constant", "constant", "reflect", "edge", "wrap"};
  const ValueId padded = maker.node("Pad", operands, {{"mode", std::string(one_of(kModes, recipe.picks[3] / 3))}});
  const Dims dims = maker.dims_of(padded);
  if (recipe.picks[3] % 3 == 0 && dims[2] > 1 && dims[3] > 1)
    return maker.keep(maker.node("MaxPool", {padded}, {{"kernel_shape", std::vector<int64_t>{2, 2}}}));
  if (recipe.picks[3] % 3 == 1) return maker.keep(padded);
  maker.keep(maker.node("Conv", {padded, maker.weights({8, dims[1], 3, 3}, -0.3f, 0.3f)},
                        {{"pads", std::vector<int64_t>{1, 1, 1, 1}}}));
}

void pool(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* x = maker.pick_of_rank(recipe.picks[0], 4);
  if (x == nullptr) return;
  if (recipe.picks[1] % 3 == 0) return maker.keep(maker.node("GlobalAveragePool", {x->id}));
  if (x->dims[2] < 2 || x->dims[3] < 2) return;
  maker.keep(maker.node(recipe.picks[1] % 3 == 1 ? "MaxPool" : "AveragePool", {x->id},
                        {{"kernel_shape", std::vector<int64_t>{2, 2}},
                         {"strides", std::vector<int64_t>(2, 1 + static_cast<int64_t>(recipe.picks[2] % 2))}}));
}

// Each second row and column, in four parts: space to depth.
void space_to_depth(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* x = maker.pick_of_rank(recipe.picks[0], 4);
  if (x == nullptr || x->dims[2] % 2 != 0 || x->dims[3] % 2 != 0) return;
  std::vector<ValueId> parts;
  for (int64_t i = 0; i < 4; ++i) {
    parts.push_back(maker.node("Slice", {x->id, maker.integers({i % 2, i / 2}), maker.integers({1 << 20, 1 << 20}),
                                         maker.integers({2, 3}), maker.integers({2, 2})}));
  }
  if (recipe.picks[1] % 3 == 0) std::swap(parts[0], parts[3]);
  maker.keep(maker.node("Concat", parts, {{"axis", int64_t{1}}}));
}

void shuffle_channels(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* x = maker.pick_of_rank(recipe.picks[0], 4);
  if (x == nullptr || x->dims[1] % 4 != 0) return;
  const Dims& dims = x->dims;
  const int64_t groups = recipe.picks[1] % 2 == 0 ? 2 : 4;
  const ValueId parts = maker.node("Reshape", {x->id, maker.integers({0, groups, dims[1] / groups, dims[2], dims[3]})});
  const ValueId turned = maker.node("Transpose", {parts}, {{"perm", std::vector<int64_t>{0, 2, 1, 3, 4}}});
  maker.keep(maker.node("Reshape", {turned, maker.integers({0, dims[1], dims[2], dims[3]})}));
}

void resize(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* x = maker.pick_of_rank(recipe.picks[0], 4);
  if (x == nullptr) return;
  const ValueId doubled =
      maker.node("Concat", {maker.weights({2}, 1, 1), maker.weights({2}, 2, 2)}, {{"axis", int64_t{0}}});
  maker.keep(maker.node("Resize", {x->id, ValueId::none, doubled},
                        {{"mode", std::string("nearest")},
                         {"coordinate_transformation_mode", std::string("asymmetric")},
                         {"nearest_mode", std::string("floor")}}));
}

// Convolutions of the parts of a value, joined in their order or another.
void convs_of_parts(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* found = maker.pick_of_rank(recipe.picks[0], 4);
  if (found == nullptr || found->dims[1] % 2 != 0) return;
  const int64_t channels = found->dims[1] / 2, outputs = recipe.picks[1] % 2 == 0 ? 8 : 3;
  const std::vector<ValueId> parts =
      maker.nodes("Split", {found->id, maker.integers({channels, channels})}, 2, {{"axis", int64_t{1}}});
  std::vector<ValueId> made;
  for (size_t i = 0; i < 2; ++i) {
    std::vector<ValueId> operands{parts[i], maker.weights({outputs, channels, 3, 3}, -0.3f, 0.3f)};
    if (recipe.picks[2] % 3 != i) operands.push_back(maker.weights({outputs}));
    const int64_t pad = recipe.picks[3] % 7 == 0 ? static_cast<int64_t>(i) + 1 : 1;
    const std::vector<int64_t> dilations{pad, pad};
    made.push_back(
        maker.node("Conv", operands, {{"pads", std::vector<int64_t>{pad, pad, pad, pad}}, {"dilations", dilations}}));
  }
  if (recipe.picks[2] % 5 == 0) std::swap(made[0], made[1]);
  if (recipe.picks[3] % 5 == 0) maker.keep(made[1]);
  if (recipe.picks[3] % 11 == 0) maker.keep(parts[0]);
  maker.keep(maker.node("Concat", made, {{"axis", int64_t{recipe.picks[3] % 13 == 0 ? 2 : 1}}}));
}

// Pixels as the rows of a sequence, and back: borders between channel blocks and plain values.
void picture_as_rows(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* found = maker.pick_of_rank(recipe.picks[0], 4);
  if (found == nullptr) return;
  ValueId y = convolved(maker, *found, recipe);
  const Dims dims = maker.dims_of(y);
  const bool flattens = recipe.picks[1] % 3 != 0;
  std::vector<int64_t> to_last{0, 2, 3, 1}, to_first{0, 3, 1, 2};
  if (flattens) {
    y = maker.node("Reshape", {y, maker.integers({0, dims[1], dims[2] * dims[3]})});
    to_last = to_first = {0, 2, 1};
  }
  if (recipe.picks[2] % 7 == 0) maker.keep(y);
  y = maker.node("Transpose", {y}, {{"perm", to_last}});
  if (recipe.picks[2] % 5 == 0) maker.keep(y);
  y = maker.node("Softmax", {y}, {{"axis", int64_t{-1}}});
  y = maker.node("Transpose", {y}, {{"perm", to_first}});
  if (recipe.picks[3] % 5 == 0) maker.keep(y);
  if (flattens) y = maker.node("Reshape", {y, maker.integers({0, dims[1], dims[2], dims[3]})});
  maker.keep(maker.node("Conv", {y, maker.weights({12, dims[1], 1, 1}, -0.3f, 0.3f)}));
}

}  // namespace

const std::vector<PatternFn*>& picture_patterns() {
  static const std::vector<PatternFn*> kPatterns = {conv,
                                                    conv_and_norm,
                                                    norm_alone,
                                                    residual,
                                                    pool,
                                                    space_to_depth,
                                                    resize,
                                                    conv,
                                                    pad_then_conv,
                                                    shuffle_channels,
                                                    picture_transpose,
                                                    parallel_convs,
                                                    conv,
                                                    convs_of_parts,
                                                    picture_as_rows,
                                                    inverted_bottleneck};
  return kPatterns;
}

}  // namespace lathe::testing
