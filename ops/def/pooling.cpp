// Pooling: windows that slide (MaxPool, AveragePool, LpPool) and whole planes (Global*).
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/conv/conv_node.h"
#include "ops/expansion.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/pool/pool_lower.h"
#include "ops/pool/pool_windows.h"

namespace lathe::ops {
namespace {

bool rounds_up(const Node& node) { return node.attributes.get_int("ceil_mode", 0) != 0; }

Dims outputs_of(const Node& node, const Window& window, const Dims& in) {
  Dims out(in.begin(), in.begin() + 2);
  for (size_t i = 0; i < window.axes(); ++i) {
    out.push_back(is_global_pool(node) ? 1 : window_output(window, i, in[i + 2], rounds_up(node)));
  }
  return out;
}

void infer(InferContext& context) {
  const TensorType& in = context.input(0);
  TensorType type = TensorType::unranked(in.dtype);
  if (in.has_rank) {
    type.has_rank = true;
    type.dims = in.dims;
    named(context, [&] {
      check_pool_rank(in.dims.size());
      if (is_global_pool(context.node)) {
        std::fill(type.dims.begin() + 2, type.dims.end(), Dim{1, ""});
        return;
      }
      const Window window = read_pool_attributes(context.node, in.dims.size() - 2);
      const std::vector<Dim> out =
          window_outputs(window, {in.dims.begin() + 2, in.dims.end()}, rounds_up(context.node));
      std::copy(out.begin(), out.end(), type.dims.begin() + 2);
    });
  }
  if (context.output_count() > 1) {
    TensorType indices = type;
    indices.dtype = DType::i64;
    context.set_output(1, std::move(indices));
  }
  context.set_output(0, std::move(type));
}

// One window: where its elements are (flat within the plane), and how many it has with padding.
struct WindowElements {
  std::vector<int64_t> at;
  int64_t with_padding = 0;
};

WindowElements elements_of(const Window& window, const Dims& in, const Dims& out, int64_t pixel) {
  WindowElements elements;
  int64_t taps = 1;
  for (int64_t extent : window.kernel) taps *= extent;
  for (int64_t tap = 0; tap < taps; ++tap) {
    int64_t rest_pixel = pixel, rest_tap = tap, at = 0, step = 1;
    bool is_inside = true, is_padded = true;
    for (size_t i = window.axes(); i-- > 0;) {
      const int64_t position = rest_pixel % out[i + 2] * window.strides[i] +
                               rest_tap % window.kernel[i] * window.dilations[i] - window.pads_begin[i];
      is_inside = is_inside && position >= 0 && position < in[i + 2];
      is_padded = is_padded && position < in[i + 2] + window.pads_end[i];
      at += position * step;
      step *= in[i + 2];
      rest_pixel /= out[i + 2];
      rest_tap /= window.kernel[i];
    }
    if (is_inside) elements.at.push_back(at);
    if (is_padded) ++elements.with_padding;
  }
  return elements;
}

// Runs body(image * channels + channel, output pixel, elements) for all outputs.
template <class Body>
void for_windows(ReferenceContext& context, const Window& window, const Dims& out, Body body) {
  const Dims& in = context.inputs[0].dims();
  int64_t pixels = 1;
  for (size_t i = 2; i < out.size(); ++i) pixels *= out[i];
  for (int64_t pixel = 0; pixel < pixels; ++pixel) {
    const WindowElements elements = elements_of(window, in, out, pixel);
    for (int64_t plane = 0; plane < in[0] * in[1]; ++plane) body(plane, pixel, elements);
  }
}

struct PoolOutput {
  Window window;
  Dims dims;
  int64_t in_pixels = 1, out_pixels = 1;
  std::vector<double> values;
};

PoolOutput prepare(ReferenceContext& context) {
  PoolOutput pool;
  const Tensor& in = context.inputs[0];
  named(context, [&] {
    pool.window = read_pool(context.node, in.dims());
    pool.dims = outputs_of(context.node, pool.window, in.dims());
  });
  for (size_t i = 2; i < pool.dims.size(); ++i) {
    pool.in_pixels *= in.dims()[i];
    pool.out_pixels *= pool.dims[i];
  }
  pool.values = reals_of(in);
  return pool;
}

// The element's number when the last axis of the plane is outermost.
int64_t column_major(int64_t at, const Dims& in) {
  int64_t result = 0;
  Dims position(in.size(), 0);
  for (size_t i = in.size(); i-- > 2;) {
    position[i] = at % in[i];
    at /= in[i];
  }
  for (size_t i = in.size(); i-- > 2;) result = result * in[i] + position[i];
  return result;
}

void reference_max(ReferenceContext& context) {
  const PoolOutput pool = prepare(context);
  const Tensor& in = context.inputs[0];
  Tensor out(in.dtype(), pool.dims), indices;
  const bool wants_indices = context.outputs.size() > 1;
  if (wants_indices) indices = Tensor(DType::i64, pool.dims);
  const bool by_columns = context.node.attributes.get_int("storage_order", 0) == 1;
  const double least =
      is_float(in.dtype()) ? -std::numeric_limits<double>::infinity() : (is_signed(in.dtype()) ? -128.0 : 0.0);
  for_windows(context, pool.window, pool.dims, [&](int64_t plane, int64_t pixel, const WindowElements& elements) {
    double best = least;
    int64_t best_at = -1;
    for (int64_t at : elements.at) {
      const double value = pool.values[static_cast<size_t>(plane * pool.in_pixels + at)];
      if (best_at >= 0 && !(value > best)) continue;
      best = value;
      best_at = at;
    }
    store_real(out, plane * pool.out_pixels + pixel, best);
    if (!wants_indices) return;
    const int64_t at = by_columns && best_at >= 0 ? column_major(best_at, in.dims()) : best_at;
    indices.mutable_data<int64_t>()[plane * pool.out_pixels + pixel] = plane * pool.in_pixels + at;
  });
  context.outputs[0] = std::move(out);
  if (wants_indices) context.outputs[1] = std::move(indices);
}

void reference_average(ReferenceContext& context) {
  const PoolOutput pool = prepare(context);
  Tensor out(context.inputs[0].dtype(), pool.dims);
  const bool with_padding = context.node.attributes.get_int("count_include_pad", 0) != 0;
  for_windows(context, pool.window, pool.dims, [&](int64_t plane, int64_t pixel, const WindowElements& elements) {
    double sum = 0;
    for (int64_t at : elements.at) sum += pool.values[static_cast<size_t>(plane * pool.in_pixels + at)];
    const auto count =
        static_cast<double>(with_padding ? elements.with_padding : static_cast<int64_t>(elements.at.size()));
    store_real(out, plane * pool.out_pixels + pixel, sum / count);
  });
  context.outputs[0] = std::move(out);
}

void reference_lp(ReferenceContext& context) {
  const PoolOutput pool = prepare(context);
  Tensor out(context.inputs[0].dtype(), pool.dims);
  const Attribute* attribute = context.node.attributes.find("p");
  // The first version had a real exponent.
  const bool is_real = attribute != nullptr && std::holds_alternative<float>(*attribute);
  const double p = is_real ? static_cast<double>(context.node.attributes.get_float("p", 2))
                           : static_cast<double>(context.node.attributes.get_int("p", 2));
  for_windows(context, pool.window, pool.dims, [&](int64_t plane, int64_t pixel, const WindowElements& elements) {
    double sum = 0;
    for (int64_t at : elements.at) {
      sum += std::pow(std::fabs(pool.values[static_cast<size_t>(plane * pool.in_pixels + at)]), p);
    }
    store_real(out, plane * pool.out_pixels + pixel, std::pow(sum, 1 / p));
  });
  context.outputs[0] = std::move(out);
}

// The root of the mean of powers times their number: the pools and reductions that have kernels. The padding is zeros,
// which count; only windows that reach beyond it (ceil_mode) do not have all of their elements.
bool expand_lp(ExpandContext& context) {
  const Node& node = context.node;
  const TensorType type = context.input_type(0);
  const Attribute* attribute = node.attributes.find("p");
  if (attribute != nullptr && !std::holds_alternative<int64_t>(*attribute)) return false;
  const int64_t p = node.attributes.get_int("p", 2);
  if (type.dtype != DType::f32 || !type.has_rank || type.rank() < 3 || p < 1 || rounds_up(node)) return false;
  const auto number = [&](double value) { return add_scalar(context, DType::f32, value); };
  const ValueId x = context.input(0), size = p == 2 ? x : context.add("Abs", {x});
  ValueId sum = p == 1   ? size
                : p == 2 ? context.add("Mul", {x, x})
                         : context.add("Pow", {size, number(static_cast<double>(p))});
  if (is_global_pool(node)) {
    std::vector<int64_t> axes;
    for (int64_t axis = 2; axis < type.rank(); ++axis) axes.push_back(axis);
    const Dims count{static_cast<int64_t>(axes.size())};
    sum =
        context.add("ReduceSum", {sum, context.constant(Tensor::from<int64_t>(count, std::span<const int64_t>(axes)))});
  } else {
    Attributes window = copied_attributes(node, {"auto_pad", "dilations", "kernel_shape", "pads", "strides"});
    window.set("count_include_pad", int64_t{1});
    double taps = 1;
    for (const int64_t extent : node.attributes.get_ints("kernel_shape")) taps *= static_cast<double>(extent);
    sum = context.add("Mul", {context.add("AveragePool", {sum}, std::move(window)), number(taps)});
  }
  if (p == 2) sum = context.add("Sqrt", {sum});
  if (p > 2) sum = context.add("Pow", {sum, number(1 / static_cast<double>(p))});
  context.set_output(0, sum);
  return true;
}

bool accepts_blocked(const Node& node, std::span<const TensorType> inputs, int) {
  if (node.outputs.size() > 1 && node.outputs[1] != ValueId::none) return false;
  const bool has_kernel = inputs[0].dtype == DType::f32 || (is_byte(inputs[0].dtype) && node.op->name == "MaxPool");
  return has_kernel && inputs[0].rank() >= 3 && inputs[0].rank() <= 5;
}

bool lower_max(LowerContext& context) { return lower_pool(context, PoolKind::max); }
bool lower_average(LowerContext& context) { return lower_pool(context, PoolKind::average); }

OpDef pool(std::string_view name, ReferenceFn* reference, LowerFn* lower, std::vector<AttributeSpec> attributes) {
  OpDef def{.schema = {.name = name, .attributes = std::move(attributes), .infer = infer, .reference = reference},
            .lower = lower};
  if (lower != nullptr) {
    def.schema.layout = LayoutRole::blocked;
    def.schema.accepts_blocked = accepts_blocked;
  }
  if (name == "MaxPool") def.schema.max_outputs = 2;
  return def;
}

}  // namespace

std::vector<OpDef> pooling_ops() {
  using Kind = AttributeSpec::Kind;
  std::vector<AttributeSpec> window = {{"auto_pad", Kind::string},    {"ceil_mode", Kind::integer},
                                       {"dilations", Kind::integers}, {"kernel_shape", Kind::integers},
                                       {"pads", Kind::integers},      {"strides", Kind::integers}};
  auto with = [&](AttributeSpec extra) {
    std::vector<AttributeSpec> attributes = window;
    attributes.push_back(extra);
    return attributes;
  };
  const auto lp = [](std::string_view name, std::vector<AttributeSpec> attributes) {
    OpDef def = pool(name, reference_lp, nullptr, std::move(attributes));
    def.schema.expand = expand_lp;
    return def;
  };
  return {pool("MaxPool", reference_max, lower_max, with({"storage_order", Kind::integer})),
          pool("AveragePool", reference_average, lower_average, with({"count_include_pad", Kind::integer})),
          lp("LpPool", with({"p", Kind::any})),
          pool("GlobalMaxPool", reference_max, lower_max, {}),
          pool("GlobalAveragePool", reference_average, lower_average, {}),
          lp("GlobalLpPool", {{"p", Kind::any}})};
}

}  // namespace lathe::ops
