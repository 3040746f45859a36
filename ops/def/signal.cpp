// HannWindow, HammingWindow, BlackmanWindow and MelWeightMatrix: tables for signal processing.
#include <cmath>
#include <numbers>

#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

constexpr int64_t kMostSamples = int64_t{1} << 40;  // sums and products of these cannot overflow

template <class Context>
DType output_type(const Context& context) {
  const auto dtype = context.node.attributes.get_int("output_datatype", static_cast<int64_t>(DType::f32));
  const auto type = static_cast<DType>(dtype);
  const bool is_real = dtype > 0 && dtype < kDTypeCount &&
                       (type == DType::f32 || type == DType::f64 || type == DType::f16 || type == DType::bf16);
  if (!is_real && !(dtype > 0 && dtype < kDTypeCount && is_integer(type) && bits_of(type) >= 8)) {
    context.fail("attribute 'output_datatype' is " + std::to_string(dtype));
  }
  return type;
}

template <class Context>
int64_t count_of(const Context& context, const Tensor& tensor, const std::string& what) {
  const int64_t count = integer_scalar(context, tensor, what);
  if (count < 0 || count > kMostSamples) context.fail(what + " is " + std::to_string(count));
  return count;
}

// ---- Windows

void infer_window(InferContext& context) {
  TensorType result = ranked(output_type(context), 1);
  if (const Tensor size = context.constant(0); size.defined()) {
    result.dims[0] = known_dim(count_of(context, size, "input 0 (size)"));
  }
  context.set_output(0, std::move(result));
}

// A sum of cosines: constant - first cos(phase) + second cos(2 phase).
struct Cosines {
  double constant, first, second;
};

Cosines cosines_of(std::string_view name) {
  if (name == "HannWindow") return {0.5, 0.5, 0};
  if (name == "HammingWindow") return {25.0 / 46, 21.0 / 46, 0};
  return {0.42, 0.5, 0.08};
}

void run_window(ReferenceContext& context) {
  const int64_t size = count_of(context, context.inputs[0], "input 0 (size)");
  const bool is_periodic = context.node.attributes.get_int("periodic", 1) != 0;
  const Cosines sum = cosines_of(context.node.op->name);
  Tensor result = make_output(context, output_type(context), {size});
  const int64_t period = is_periodic ? size : size - 1;
  for (int64_t i = 0; i < size; ++i) {
    const double phase = 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(period);
    const double value = sum.constant - sum.first * std::cos(phase) + sum.second * std::cos(2 * phase);
    store_real(result, i, period == 0 ? 1 : value);
  }
  context.outputs[0] = std::move(result);
}

// ---- MelWeightMatrix

void infer_mel(InferContext& context) {
  TensorType result = ranked(output_type(context), 2);
  if (const Tensor length = context.constant(1); length.defined()) {
    result.dims[0] = known_dim(count_of(context, length, "input 1 (dft_length)") / 2 + 1);
  }
  if (const Tensor bins = context.constant(0); bins.defined()) {
    result.dims[1] = known_dim(count_of(context, bins, "input 0 (num_mel_bins)"));
  }
  context.set_output(0, std::move(result));
}

double mel_of(double hertz) { return 2595 * std::log10(1 + hertz / 700); }
double hertz_of(double mel) { return 700 * (std::pow(10, mel / 2595) - 1); }

// The bins of the spectrogram at which the triangles begin, peak and end.
std::vector<int64_t> triangle_edges(const ReferenceContext& context, int64_t mel_bins, int64_t dft_length) {
  const int64_t rate = integer_scalar(context, context.inputs[2], "input 2 (sample_rate)");
  const double lower = real_scalar(context, context.inputs[3], "input 3 (lower_edge_hertz)");
  const double upper = real_scalar(context, context.inputs[4], "input 4 (upper_edge_hertz)");
  if (rate < 1) context.fail("the sample rate is " + std::to_string(rate));
  if (!(lower >= 0 && upper >= lower && std::isfinite(upper))) context.fail("the edges of the mel scale are no range");
  const double first = mel_of(lower), step = (mel_of(upper) - first) / static_cast<double>(mel_bins + 2);
  std::vector<int64_t> edges;
  for (int64_t i = 0; i < mel_bins + 2; ++i) {
    const double hertz = hertz_of(static_cast<double>(i) * step + first);
    const double bin = std::floor(static_cast<double>(dft_length + 1) * hertz / static_cast<double>(rate));
    if (!(bin <= static_cast<double>(dft_length / 2))) {
      context.fail("the edge at " + std::to_string(hertz) + " Hz is above half the sample rate");
    }
    edges.push_back(static_cast<int64_t>(bin));
  }
  return edges;
}

void run_mel(ReferenceContext& context) {
  const int64_t mel_bins = count_of(context, context.inputs[0], "input 0 (num_mel_bins)");
  const int64_t dft_length = count_of(context, context.inputs[1], "input 1 (dft_length)");
  Tensor result = make_output(context, output_type(context), {dft_length / 2 + 1, mel_bins});
  const std::vector<int64_t> edges = triangle_edges(context, mel_bins, dft_length);
  for (int64_t i = 0; i < mel_bins; ++i) {
    const auto edge = edges.begin() + i;
    const int64_t begin = edge[0], peak = edge[1], end = edge[2];
    for (int64_t j = begin; j < peak; ++j) {
      store_real(result, j * mel_bins + i, static_cast<double>(j - begin) / static_cast<double>(peak - begin));
    }
    store_real(result, peak * mel_bins + i, 1);
    for (int64_t j = peak; j < end; ++j) {
      store_real(result, j * mel_bins + i, static_cast<double>(end - j) / static_cast<double>(end - peak));
    }
  }
  context.outputs[0] = std::move(result);
}

OpDef window(const char* name) {
  using Kind = AttributeSpec::Kind;
  return {.schema = {.name = name,
                     .since = 17,
                     .attributes = {{"output_datatype", Kind::integer}, {"periodic", Kind::integer}},
                     .infer = infer_window,
                     .reference = run_window}};
}

}  // namespace

std::vector<OpDef> signal_ops() {
  using Kind = AttributeSpec::Kind;
  return {window("HannWindow"),
          window("HammingWindow"),
          window("BlackmanWindow"),
          {.schema = {.name = "MelWeightMatrix",
                      .since = 17,
                      .min_inputs = 5,
                      .max_inputs = 5,
                      .attributes = {{"output_datatype", Kind::integer}},
                      .infer = infer_mel,
                      .reference = run_mel}}};
}

}  // namespace lathe::ops
