// RandomNormal, RandomUniform (and ...Like), Bernoulli and Multinomial.
//
// With the attribute `seed` every run draws the same numbers; without it every run draws others.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <random>
#include <span>

#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/pointwise/double_math.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

// SplitMix64: any seed is a good one, and it is the same on every machine.
class Draws {
 public:
  explicit Draws(const Node& node) : state_(seed_of(node)) {}

  uint64_t bits() {
    uint64_t z = state_ += kStep;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // in [0, 1)
  // By Marsaglia's polar method: two at a time, without trigonometry.
  double normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    double x = 0, y = 0, square = 0;
    do {
      x = 2 * uniform() - 1;
      y = 2 * uniform() - 1;
      square = x * x + y * y;
    } while (square >= 1 || square == 0);
    const double radius = std::sqrt(-2 * std::log(square) / square);
    spare_ = y * radius;
    has_spare_ = true;
    return x * radius;
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;

  static uint64_t seed_of(const Node& node) {
    if (node.attributes.has("seed")) return std::bit_cast<uint32_t>(node.attributes.get_float("seed", 0));
    static std::atomic<uint64_t> next{(uint64_t{std::random_device{}()} << 32) + std::random_device{}()};
    return next.fetch_add(kStep << 1);
  }

  uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
};

template <class Context>
DType dtype_of_node(const Context& context, DType fallback) {
  const int64_t dtype = context.node.attributes.get_int("dtype", static_cast<int64_t>(fallback));
  if (dtype < 0 || dtype >= kDTypeCount) context.fail("attribute 'dtype' is " + std::to_string(dtype));
  return static_cast<DType>(dtype);
}

bool is_real(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::f16 || dtype == DType::bf16;
}

template <class Context>
DType real_dtype(const Context& context, DType fallback) {
  const DType dtype = dtype_of_node(context, fallback);
  if (!is_real(dtype)) context.fail("cannot draw elements of type " + std::string(name_of(dtype)));
  return dtype;
}

// ---- RandomNormal, RandomUniform

void infer_random(InferContext& context) {
  const Dims dims = context.node.attributes.get_ints("shape");
  for (const int64_t extent : dims) {
    if (extent < 0) context.fail("attribute 'shape' has the extent " + std::to_string(extent));
  }
  context.set_output(0, TensorType::of(real_dtype(context, DType::f32), dims));
}

void infer_random_like(InferContext& context) {
  TensorType type = context.input(0);
  type.dtype = real_dtype(context, type.dtype);
  type.layout = {};
  context.set_output(0, std::move(type));
}

Tensor drawn(const ReferenceContext& context, DType dtype, const Dims& dims) {
  const Attributes& attributes = context.node.attributes;
  Draws draws(context.node);
  Tensor result = make_output(context, dtype, dims);
  const bool is_normal = context.node.op->name.substr(0, 12) == "RandomNormal";
  const double mean = attributes.get_float("mean", 0), scale = attributes.get_float("scale", 1);
  const double low = attributes.get_float("low", 0), high = attributes.get_float("high", 1);
  const auto draw = [&] { return is_normal ? mean + scale * draws.normal() : low + (high - low) * draws.uniform(); };
  if (dtype == DType::f32) {
    for (float& element : std::span(result.mutable_data<float>(), static_cast<size_t>(result.size())))
      element = static_cast<float>(draw());
  } else {
    for (int64_t i = 0; i < result.size(); ++i) store_real(result, i, draw());
  }
  return result;
}

void run_random(ReferenceContext& context) {
  context.outputs[0] = drawn(context, real_dtype(context, DType::f32), context.node.attributes.get_ints("shape"));
}

void run_random_like(ReferenceContext& context) {
  const Tensor& like = context.inputs[0];
  context.outputs[0] = drawn(context, real_dtype(context, like.dtype()), like.dims());
}

// ---- Bernoulli

void infer_bernoulli(InferContext& context) {
  TensorType type = context.input(0);
  type.dtype = dtype_of_node(context, type.dtype);
  type.layout = {};
  context.set_output(0, std::move(type));
}

void run_bernoulli(ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  const DType dtype = dtype_of_node(context, input.dtype());
  if (!is_real(dtype) && dtype != DType::boolean && !(is_integer(dtype) && bits_of(dtype) >= 8)) {
    context.fail("cannot draw elements of type " + std::string(name_of(dtype)));
  }
  Tensor result = make_output(context, dtype, input.dims());
  const std::vector<double> probabilities = reals_of(input);
  Draws draws(context.node);
  for (int64_t i = 0; i < result.size(); ++i) {
    store_real(result, i, draws.uniform() < probabilities[static_cast<size_t>(i)] ? 1 : 0);
  }
  context.outputs[0] = std::move(result);
}

// ---- Multinomial

template <class Context>
int64_t sample_size(const Context& context) {
  const int64_t samples = context.node.attributes.get_int("sample_size", 1);
  if (samples < 0) context.fail("attribute 'sample_size' is " + std::to_string(samples));
  return samples;
}

template <class Context>
DType index_dtype(const Context& context) {
  const DType dtype = dtype_of_node(context, DType::i32);
  if (dtype != DType::i32 && dtype != DType::i64) {
    context.fail("attribute 'dtype' is " + std::string(name_of(dtype)) + ", expected int32 or int64");
  }
  return dtype;
}

void infer_multinomial(InferContext& context) {
  const TensorType& input = context.input(0);
  TensorType result = ranked(index_dtype(context), 2);
  if (input.has_rank) {
    if (input.rank() != 2) context.fail("input 0 has rank " + std::to_string(input.rank()) + ", expected 2");
    result.dims[0] = input.dims[0];
  }
  result.dims[1] = known_dim(sample_size(context));
  context.set_output(0, std::move(result));
}

// Sums of the probabilities of the classes up to each, not normalized.
std::vector<double> cumulated(const ReferenceContext& context, std::span<const double> log_probabilities) {
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const double value : log_probabilities) largest = std::max(largest, value);
  std::vector<double> sums;
  sums.reserve(log_probabilities.size());
  for (const double value : log_probabilities) sums.push_back(value - largest);
  exp_row({.in = {sums.data()}, .stride = {1}, .out = sums.data(), .length = static_cast<int64_t>(sums.size())});
  for (double& each : sums) each = sum += each;
  if (!(sum > 0 && std::isfinite(sum))) context.fail("a row of input 0 is no distribution");
  return sums;
}

void run_multinomial(ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  if (input.rank() != 2) context.fail("input 0 has rank " + std::to_string(input.rank()) + ", expected 2");
  const auto classes = static_cast<size_t>(input.dims()[1]);
  const int64_t samples = sample_size(context);
  Tensor result = make_output(context, index_dtype(context), {input.dims()[0], samples});
  const std::vector<double> values = reals_of(input);
  Draws draws(context.node);
  for (int64_t row = 0; row < input.dims()[0] && samples > 0; ++row) {
    const std::span<const double> log_p(values.data() + static_cast<size_t>(row) * classes, classes);
    const std::vector<double> sums = cumulated(context, log_p);
    for (int64_t i = 0; i < samples; ++i) {
      const auto at = std::upper_bound(sums.begin(), sums.end() - 1, draws.uniform() * sums.back());
      store_real(result, row * samples + i, static_cast<double>(at - sums.begin()));
    }
  }
  context.outputs[0] = std::move(result);
}

using Kind = AttributeSpec::Kind;

OpDef random(const char* name, std::vector<AttributeSpec> attributes, int inputs, InferFn* infer,
             ReferenceFn* reference, int since = 1) {
  attributes.push_back({"dtype", Kind::integer});
  attributes.push_back({"seed", Kind::real});
  return {.schema = {.name = name,
                     .since = since,
                     .min_inputs = inputs,
                     .max_inputs = inputs,
                     .attributes = std::move(attributes),
                     .infer = infer,
                     .reference = reference,
                     .deterministic = false}};
}

}  // namespace

std::vector<OpDef> random_ops() {
  const AttributeSpec shape{"shape", Kind::integers, true}, mean{"mean", Kind::real}, scale{"scale", Kind::real},
      low{"low", Kind::real}, high{"high", Kind::real};
  return {random("RandomNormal", {shape, mean, scale}, 0, infer_random, run_random),
          random("RandomUniform", {shape, low, high}, 0, infer_random, run_random),
          random("RandomNormalLike", {mean, scale}, 1, infer_random_like, run_random_like),
          random("RandomUniformLike", {low, high}, 1, infer_random_like, run_random_like),
          random("Bernoulli", {}, 1, infer_bernoulli, run_bernoulli, 15),
          random("Multinomial", {{"sample_size", Kind::integer}}, 1, infer_multinomial, run_multinomial, 7)};
}

}  // namespace lathe::ops
