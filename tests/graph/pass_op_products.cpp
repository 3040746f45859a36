// Convolution, products, norms and reductions.
#include <algorithm>
#include <cmath>

#include "graph/infer.h"
#include "graph/passes/rewrite.h"
#include "tests/graph/pass_op_meanings.h"

namespace lathe::testing {

// ---- convolution and products

void infer_conv(InferContext& context) {
  const TensorType &x = context.input(0), &w = context.input(1);
  if (!x.has_rank || !w.is_static()) return context.set_output(0, TensorType::unranked(x.dtype));
  TensorType y = x;
  y.dims[1] = w.dims[0];
  const auto pads = context.node.attributes.get_ints("pads", {0, 0, 0, 0});
  const auto strides = context.node.attributes.get_ints("strides", {1, 1});
  for (size_t d = 0; d < 2; ++d) {
    const Dim in = x.dims[2 + d];
    y.dims[2 + d] =
        in.known() ? Dim{(in.extent + pads[d] + pads[d + 2] - w.dims[2 + d].extent) / strides[d] + 1, ""} : Dim();
  }
  context.set_output(0, y);
}

void reference_conv(ReferenceContext& context) {
  const Tensor &x = context.inputs[0], &w = context.inputs[1];
  const auto pads = context.node.attributes.get_ints("pads", {0, 0, 0, 0});
  const auto strides = context.node.attributes.get_ints("strides", {1, 1});
  const int64_t groups = context.node.attributes.get_int("group", 1), each = w.dims()[0] / groups;
  const int64_t in_h = x.dims()[2], in_w = x.dims()[3], kernel_h = w.dims()[2], kernel_w = w.dims()[3];
  const int64_t out_h = (in_h + pads[0] + pads[2] - kernel_h) / strides[0] + 1;
  const int64_t out_w = (in_w + pads[1] + pads[3] - kernel_w) / strides[1] + 1;
  Tensor y(DType::f32, {x.dims()[0], w.dims()[0], out_h, out_w});
  float* to = y.mutable_data<float>();
  for (int64_t n = 0; n < y.dims()[0]; ++n)
    for (int64_t m = 0; m < y.dims()[1]; ++m)
      for (int64_t i = 0; i < out_h; ++i)
        for (int64_t j = 0; j < out_w; ++j) {
          double sum = context.has_input(2) ? context.inputs[2].data<float>()[m] : 0;
          for (int64_t c = 0; c < w.dims()[1]; ++c)
            for (int64_t a = 0; a < kernel_h; ++a)
              for (int64_t b = 0; b < kernel_w; ++b) {
                const int64_t row = i * strides[0] + a - pads[0], column = j * strides[1] + b - pads[1];
                if (row < 0 || column < 0 || row >= in_h || column >= in_w) continue;
                const int64_t channel = m / each * w.dims()[1] + c;
                sum +=
                    static_cast<double>(x.data<float>()[((n * x.dims()[1] + channel) * in_h + row) * in_w + column]) *
                    w.data<float>()[((m * w.dims()[1] + c) * kernel_h + a) * kernel_w + b];
              }
          *to++ = static_cast<float>(sum);
        }
  context.outputs[0] = y;
}

bool conv_accepts_blocked(const Node& node, std::span<const TensorType>, int) {
  return node.attributes.get_int("group", 1) == 1;
}

void infer_matmul(InferContext& context) {
  TensorType y = context.input(0);
  if (y.has_rank) y.dims.back() = context.input(1).dims.back();
  context.set_output(0, y);
}

void reference_matmul(ReferenceContext& context) {
  const Tensor &a = context.inputs[0], &b = context.inputs[1];
  Dims dims = a.dims();
  const int64_t depth = dims.back(), columns = b.dims().back(), rows = a.size() / depth;
  dims.back() = columns;
  Tensor y(DType::f32, dims);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < depth; ++k) {
        sum += static_cast<double>(a.data<float>()[i * depth + k]) * b.data<float>()[k * columns + j];
      }
      y.mutable_data<float>()[i * columns + j] = static_cast<float>(sum);
    }
  context.outputs[0] = y;
}

void infer_same(InferContext& context) { context.set_output(0, context.input(0)); }

void reference_batch_norm(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  Tensor y(DType::f32, x.dims());
  const int64_t channels = x.dims()[1];
  int64_t inner = 1;
  for (size_t d = 2; d < x.dims().size(); ++d) inner *= x.dims()[d];
  const double epsilon = context.node.attributes.get_float("epsilon", 1e-5f);
  for (int64_t i = 0; i < x.size(); ++i) {
    const int64_t c = i / inner % channels;
    const auto p = [&](size_t slot) { return static_cast<double>(context.inputs[slot].data<float>()[c]); };
    y.mutable_data<float>()[i] =
        static_cast<float>((x.data<float>()[i] - p(3)) / std::sqrt(p(4) + epsilon) * p(1) + p(2));
  }
  context.outputs[0] = y;
}

// ---- rows

void infer_reduce_mean(InferContext& context) {
  TensorType y = context.input(0);
  y.dims.back() = Dim{1, ""};
  context.set_output(0, y);
}

void reference_reduce_mean(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  Dims dims = x.dims();
  const int64_t columns = dims.back();
  dims.back() = 1;
  Tensor y(DType::f32, dims);
  for (int64_t i = 0; i < y.size(); ++i) {
    double sum = 0;
    for (int64_t j = 0; j < columns; ++j) sum += x.data<float>()[i * columns + j];
    y.mutable_data<float>()[i] = static_cast<float>(sum / static_cast<double>(columns));
  }
  context.outputs[0] = y;
}

void reference_layer_norm(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const int64_t columns = x.dims().back();
  Tensor y(DType::f32, x.dims());
  for (int64_t i = 0; i < x.size() / columns; ++i) {
    const float* row = x.data<float>() + i * columns;
    double mean = 0, variance = 0;
    for (int64_t j = 0; j < columns; ++j) mean += row[j] / static_cast<double>(columns);
    for (int64_t j = 0; j < columns; ++j) variance += (row[j] - mean) * (row[j] - mean) / static_cast<double>(columns);
    const double scale = 1 / std::sqrt(variance + context.node.attributes.get_float("epsilon", 1e-5f));
    for (int64_t j = 0; j < columns; ++j) {
      const double bias = context.has_input(2) ? context.inputs[2].data<float>()[j] : 0;
      y.mutable_data<float>()[i * columns + j] =
          static_cast<float>((row[j] - mean) * scale * context.inputs[1].data<float>()[j] + bias);
    }
  }
  context.outputs[0] = y;
}

void infer_pool(InferContext& context) {
  TensorType y = context.input(0);
  for (size_t d = 2; d < y.dims.size(); ++d) y.dims[d] = Dim{1, ""};
  context.set_output(0, y);
}

void reference_pool(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  Tensor y(DType::f32, {x.dims()[0], x.dims()[1], 1, 1});
  const int64_t inner = x.size() / y.size();
  for (int64_t i = 0; i < x.size(); ++i)
    y.mutable_data<float>()[i / inner] += x.data<float>()[i] / static_cast<float>(inner);
  context.outputs[0] = y;
}

bool always_blocked(const Node&, std::span<const TensorType>, int) { return true; }

}  // namespace lathe::testing
