#pragma once
// The kinds of network that people run, small enough for the plain reference.
#include "tests/model_builder.h"

namespace lathe::testing {

// x[N, features] -> relu(x W + b) -> softmax(... W2)
inline ModelBuilder perceptron(int64_t features = 24) {
  ModelBuilder model;
  const std::string x = model.input("x", {"batch", features});
  const std::string hidden = model.node("Gemm", {x, model.random_weight({features, 33}), model.random_weight({33})});
  const std::string active = model.node("Relu", {hidden});
  const std::string scores = model.node("MatMul", {active, model.random_weight({33, 10}, 0.3F)});
  model.output(model.node("Softmax", {scores}).with("axis", -1));
  return model;
}

// A stem, a residual block with a grouped and a strided convolution, pooling, a classifier.
inline ModelBuilder conv_net() {
  ModelBuilder model;
  const auto conv = [&](const std::string& x, int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t group) {
    return model
        .node("Conv", {x, model.random_weight({out, in / group, kernel, kernel}, 0.2F), model.random_weight({out})})
        .with("kernel_shape", {kernel, kernel})
        .with("strides", {stride, stride})
        .with("pads", {kernel / 2, kernel / 2, kernel / 2, kernel / 2})
        .with("group", group)
        .result();
  };
  const std::string x = model.input("image", {"batch", 3, "height", "width"});
  const std::string stem = model.node("Relu", {conv(x, 3, 32, 3, 2, 1)});
  const std::string wide = model.node("HardSwish", {conv(stem, 32, 48, 1, 1, 1)});
  const std::string depthwise = model.node("Clip", {conv(wide, 48, 48, 3, 1, 48)});
  const std::string narrow = conv(depthwise, 48, 32, 1, 1, 1);
  const std::string sum = model.node("Relu", {model.node("Add", {narrow, stem})});
  const std::string pooled =
      model.node("MaxPool", {conv(sum, 32, 40, 3, 1, 2)}).with("kernel_shape", {2, 2}).with("strides", {2, 2});
  const std::string other = model.node("AveragePool", {sum}).with("kernel_shape", {2, 2}).with("strides", {2, 2});
  const std::string both = model.node("Concat", {pooled, other}).with("axis", 1);
  const std::string normal = model.node(
      "BatchNormalization", {both, model.random_weight({72}), model.random_weight({72}), model.random_weight({72}),
                             model.weight(Tensor::from<float>({72}, std::vector<float>(72, 0.5F)))});
  const std::string mean = model.node("GlobalAveragePool", {normal});
  const std::string flat = model.node("Flatten", {mean}).with("axis", 1);
  model.output(model.node("Gemm", {flat, model.random_weight({10, 72}), model.random_weight({10})}).with("transB", 1));
  return model;
}

// One encoder layer: attention of 4 heads with a mask, LayerNormalization from its parts, GELU from its parts.
inline ModelBuilder transformer_block(int64_t width = 48, int64_t heads = 4) {
  ModelBuilder model;
  const std::string x = model.input("tokens", {"batch", "length", width});
  const std::string mask = model.input("mask", {"batch", 1, 1, "length"});
  const auto dense = [&](const std::string& in, int64_t from, int64_t to) {
    const std::string product = model.node("MatMul", {in, model.random_weight({from, to}, 0.15F)});
    return model.node("Add", {model.random_weight({to}, 0.5F), product}).result();
  };
  const auto split_heads = [&](const std::string& in, std::initializer_list<int64_t> order) {
    const std::string four = model.node("Reshape", {in, model.longs({0, 0, heads, width / heads})});
    return model.node("Transpose", {four}).with("perm", order).result();
  };
  const auto scalar = [&](float value) { return model.weight(Tensor::scalar(value)); };
  const auto normalize = [&](const std::string& in) {
    const std::string mean = model.node("ReduceMean", {in}).with("axes", {-1});
    const std::string centred = model.node("Sub", {in, mean});
    const std::string square = model.node("Pow", {centred, scalar(2)});
    const std::string variance = model.node("ReduceMean", {square}).with("axes", {-1});
    const std::string deviation = model.node("Sqrt", {model.node("Add", {variance, scalar(1e-5F)})});
    const std::string scaled =
        model.node("Mul", {model.node("Div", {centred, deviation}), model.random_weight({width})});
    return model.node("Add", {scaled, model.random_weight({width})}).result();
  };
  const std::string q = split_heads(dense(x, width, width), {0, 2, 1, 3});
  const std::string k = split_heads(dense(x, width, width), {0, 2, 3, 1});
  const std::string v = split_heads(dense(x, width, width), {0, 2, 1, 3});
  const std::string scores = model.node("Div", {model.node("MatMul", {q, k}), scalar(3.4641F)});
  const std::string weights = model.node("Softmax", {model.node("Add", {scores, mask})}).with("axis", -1);
  const std::string mixed = model.node("Transpose", {model.node("MatMul", {weights, v})}).with("perm", {0, 2, 1, 3});
  const std::string joined = model.node("Reshape", {mixed, model.longs({0, 0, width})});
  const std::string attended = normalize(model.node("Add", {dense(joined, width, width), x}));
  const std::string wide = dense(attended, width, 4 * width);
  const std::string erf = model.node("Erf", {model.node("Div", {wide, scalar(1.41421356F)})});
  const std::string gelu =
      model.node("Mul", {model.node("Mul", {wide, model.node("Add", {erf, scalar(1)})}), scalar(0.5F)});
  model.output(normalize(model.node("Add", {dense(gelu, 4 * width, width), attended})));
  return model;
}

// A bidirectional LSTM over [length, batch, features] and a classifier of each step.
inline ModelBuilder recurrent_net() {
  ModelBuilder model;
  const std::string x = model.input("steps", {"length", "batch", 20});
  const std::string lstm =
      model
          .node("LSTM", {x, model.random_weight({2, 64, 20}, 0.3F), model.random_weight({2, 64, 16}, 0.3F),
                         model.random_weight({2, 128}, 0.3F)})
          .with("hidden_size", 16)
          .with("direction", "bidirectional");
  const std::string batch_first = model.node("Transpose", {lstm}).with("perm", {2, 0, 1, 3});  // [batch, length, 2, 16]
  const std::string flat = model.node("Reshape", {batch_first, model.longs({0, 0, 32})});
  model.output(model.node("MatMul", {flat, model.random_weight({32, 7})}));
  return model;
}

}  // namespace lathe::testing
