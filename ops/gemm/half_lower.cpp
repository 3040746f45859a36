#include "ops/gemm/half_lower.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>

#include "ops/gemm/bf16_product.h"
#include "ops/gemm/gemm_plan.h"
#include "ops/pointwise/broadcast.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/half.h"
#include "src/base/half_rows.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// A 16-bit float is 4 bytes as float32; a conversion moves about 1 element a ns.
int conversion_threads(int64_t elements, int threads) {
  return worthwhile_threads(static_cast<double>(elements) * 100, threads);
}

float widened(DType dtype, uint16_t bits) noexcept {
  return dtype == DType::bf16 ? bfloat_to_float(bits) : half_to_float(bits);
}

void widen(DType dtype, const uint16_t* from, int64_t count, float* to) noexcept {
  dtype == DType::bf16 ? bfloats_to_floats(from, count, to) : halves_to_floats(from, count, to);
}

void narrow(DType dtype, const float* from, int64_t count, uint16_t* to) noexcept {
  dtype == DType::bf16 ? floats_to_bfloats(from, count, to) : floats_to_halves(from, count, to);
}

// A row of `count` elements that lie `stride` apart.
void widen_strided(DType dtype, const uint16_t* from, int64_t stride, int64_t count, float* to) noexcept {
  for (int64_t i = 0; i < count; ++i) to[i] = widened(dtype, from[i * stride]);
}

Tensor widened(const Tensor& tensor, int64_t rows, int64_t columns, bool turned) {
  Tensor result = allocate_weights(DType::f32, {tensor.size()});
  auto* out = result.mutable_data<float>();
  const auto* from = static_cast<const uint16_t*>(tensor.raw());
  if (!turned) {
    widen(tensor.dtype(), from, tensor.size(), out);
    return result;
  }
  for (int64_t row = 0; row < rows; ++row)
    widen_strided(tensor.dtype(), from + row, rows, columns, out + row * columns);
  return result;
}

// An operand as float32: constants ahead of time, others by a step. `turned`: from [columns x rows].
BufferId widened_operand(LowerContext& context, int input, int64_t rows, int64_t columns, bool turned) {
  const Tensor constant = context.constant(input);
  if (constant.defined()) {
    const std::string text = turned ? "widened and turned" : "widened";
    return context.constant_buffer(context.packed(context.input(input), text + std::to_string(rows),
                                                  [&] { return widened(constant, rows, columns, turned); }));
  }
  const DType dtype = context.input_type(input).dtype;
  const int64_t count = checked_elements(context.input_type(input).extents());
  const BufferId from = context.buffer(context.input(input));
  const BufferId to = context.scratch(checked_bytes(DType::f32, {count}));
  Step step;
  step.kernel = "widen to float32";
  step.reads = {from};
  step.writes = {to};
  step.bytes = 6.0 * static_cast<double>(count);
  step.threads = conversion_threads(count, context.target.threads);
  step.run = [=](const StepArgs& args) {
    const auto* in = args.at<const uint16_t>(from);
    auto* out = args.at<float>(to);
    if (!turned) {
      const Range mine = split_evenly(count, args.share, args.shares);
      return widen(dtype, in + mine.begin, mine.end - mine.begin, out + mine.begin);
    }
    const Range mine = split_evenly(rows, args.share, args.shares);
    for (int64_t row = mine.begin; row < mine.end; ++row)
      widen_strided(dtype, in + row, rows, columns, out + row * columns);
  };
  context.add(std::move(step));
  return to;
}

// output = alpha * product + beta * input 2, rounded.
struct Narrowing {
  DType dtype;
  int64_t rows, columns;  // of the whole output
  float alpha, beta;
  BufferId product, bias, out;
  std::array<int64_t, 2> bias_strides = {};

  void operator()(const StepArgs& args) const noexcept {
    const Range mine = split_evenly(rows, args.share, args.shares);
    const auto* bias_at = bias == BufferId::none ? nullptr : args.at<const uint16_t>(bias);
    for (int64_t row = mine.begin; row < mine.end; ++row) {
      const float* in = args.at<const float>(product) + row * columns;
      uint16_t* to = args.at<uint16_t>(out) + row * columns;
      if (bias_at == nullptr && alpha == 1) {
        narrow(dtype, in, columns, to);
        continue;
      }
      std::array<float, 256> piece;
      for (int64_t begin = 0; begin < columns; begin += std::ssize(piece)) {
        const int64_t count = std::min<int64_t>(std::ssize(piece), columns - begin);
        for (int64_t i = 0; i < count; ++i) {
          const float added = bias_at == nullptr
                                  ? 0.0F
                                  : widened(dtype, bias_at[row * bias_strides[0] + (begin + i) * bias_strides[1]]);
          piece[static_cast<size_t>(i)] = alpha * in[begin + i] + beta * added;
        }
        narrow(dtype, piece.data(), count, to + begin);
      }
    }
  }
};

void add_narrowing(LowerContext& context, const MatMulShape& shape, const ProductForm& form, BufferId product) {
  Narrowing narrowing{context.output_type(0).dtype,
                      shape.batches() * shape.m,
                      shape.n,
                      form.alpha,
                      form.beta,
                      product,
                      BufferId::none,
                      context.buffer(context.output(0))};
  Step step;
  step.kernel = "round to 16 bits";
  step.reads = {product};
  if (context.has_input(2) && form.beta != 0) {
    narrowing.bias = context.buffer(context.input(2));
    const std::vector<int64_t> strides = broadcast_strides(context.input_type(2).extents(), {shape.m, shape.n});
    narrowing.bias_strides = {strides[0], strides[1]};
    step.reads.push_back(narrowing.bias);
  }
  step.writes = {narrowing.out};
  step.bytes = 6.0 * static_cast<double>(narrowing.rows * narrowing.columns);
  step.threads = conversion_threads(narrowing.rows * narrowing.columns, context.target.threads);
  step.run = narrowing;
  context.add(std::move(step));
}

// Strides of matrices of `rows` x `columns` along the batch's axes.
std::vector<int64_t> strides_of_batch(const std::vector<int64_t>& steps, int64_t rows, int64_t columns) {
  std::vector<int64_t> strides;
  for (const int64_t step : steps) strides.push_back(step * rows * columns);
  return strides;
}

bool lower_widened(LowerContext& context, const MatMulShape& shape, const ProductForm& form) {
  StridedProduct product;
  product.batch = shape.batch;
  product.m = shape.m;
  product.n = shape.n;
  product.k = shape.k;
  product.a_strides = strides_of_batch(shape.a_steps, shape.m, shape.k);
  product.a_strides.push_back(shape.k);
  product.b_strides = strides_of_batch(shape.b_steps, shape.k, shape.n);
  product.b_strides.push_back(form.transpose_b ? 1 : shape.n);
  product.b_strides.push_back(form.transpose_b ? shape.k : 1);
  int64_t matrix = shape.m * shape.n;
  product.c_strides = {shape.n};
  for (size_t i = shape.batch.size(); i-- > 0;) {
    product.c_strides.insert(product.c_strides.begin(), matrix);
    matrix *= shape.batch[i];
  }
  product.a = widened_operand(context, 0, shape.m, shape.k, form.transpose_a);
  product.b = widened_operand(context, 1, shape.k, shape.n, false);
  product.c = context.scratch(checked_bytes(DType::f32, {shape.batches(), shape.m, shape.n}));
  if (!lower_strided_product(context, product)) return false;
  add_narrowing(context, shape, form, product.c);
  return true;
}

// alpha * product + beta * bias, of a constant bias that is the same for all rows.
std::optional<GemmEpilogue> bf16_epilogue(const ProductForm& form, bool has_bias, bool is_uniform) {
  if (!has_bias && form.alpha == 1) return std::nullopt;
  GemmEpilogue epilogue;
  Expression& e = epilogue.expression;
  e.inputs = {DType::f32};
  int x = e.add({.op = ExprOp::input, .a = 0});
  if (form.alpha != 1) {
    const int alpha = e.add({.op = ExprOp::constant, .value = form.alpha});
    x = e.add({.op = ExprOp::mul, .a = x, .b = alpha});
  }
  if (!has_bias) return epilogue;
  e.inputs.push_back(DType::f32);
  int bias = e.add({.op = ExprOp::input, .a = 1});
  if (form.beta != 1) {
    const int beta = e.add({.op = ExprOp::constant, .value = form.beta});
    bias = e.add({.op = ExprOp::mul, .a = bias, .b = beta});
  }
  e.add({.op = ExprOp::add, .a = x, .b = bias});
  epilogue.inputs = {is_uniform ? GemmInputAccess::uniform : GemmInputAccess::columns};
  return epilogue;
}

struct BoundBf16 {
  std::shared_ptr<const Bf16Product> product;
  BufferId a, b, c, bias;

  void operator()(const StepArgs& args) const {
    Bf16Operands operands;
    operands.a = args.at<const uint16_t>(a);
    operands.b = args.at<const uint16_t>(b);
    operands.c = args.at<uint16_t>(c);
    if (bias != BufferId::none) operands.inputs[0] = args.at<const float>(bias);
    product->run(operands, args.share, args.shares);
  }
};

bool fits_bf16(const LowerContext& context, const MatMulShape& shape, const ProductForm& form) {
  if (context.input_type(0).dtype != DType::bf16 || context.target.isa != Isa::avx512_bf16) return false;
  if (form.transpose_a || shape.k % 2 != 0 || !context.constant(1).defined()) return false;
  if (context.input_type(1).extents().size() > 2) return false;  // one B for all rows
  if (!context.has_input(2) || form.beta == 0) return true;
  const Dims bias = context.input_type(2).extents();
  return context.constant(2).defined() && (bias.size() < 2 || bias[0] == 1);
}

bool lower_bf16(LowerContext& context, const MatMulShape& shape, const ProductForm& form) {
  const bool has_bias = context.has_input(2) && form.beta != 0;
  const bool is_uniform = has_bias && context.constant(2).size() == 1;
  Bf16Problem problem;
  problem.m = shape.batches() * shape.m;
  problem.n = shape.n;
  problem.k = shape.k;
  problem.epilogue = bf16_epilogue(form, has_bias, is_uniform);
  const double flop = 2.0 * static_cast<double>(problem.m) * static_cast<double>(shape.n * shape.k);
  problem.threads = worthwhile_threads(flop, context.target.threads);
  BoundBf16 bound{};
  try {
    bound.product = std::make_shared<const Bf16Product>(problem);
  } catch (const JitError&) {
    return false;
  }
  const Tensor constant = context.constant(1);
  const std::string text = bound.product->packed_key() + (form.transpose_b ? " turned" : "");
  const Tensor weights = context.packed(context.input(1), text, [&] {
    Tensor packed = allocate_weights(DType::bf16, {bound.product->packed_elements()});
    bound.product->pack(static_cast<const uint16_t*>(constant.raw()), form.transpose_b ? 1 : shape.n,
                        form.transpose_b ? shape.k : 1, static_cast<uint16_t*>(packed.mutable_raw()));
    return packed;
  });
  bound.a = context.buffer(context.input(0));
  bound.b = context.constant_buffer(weights);
  bound.c = context.buffer(context.output(0));
  bound.bias = has_bias ? widened_operand(context, 2, 1, shape.n, false) : BufferId::none;
  Step step;
  step.kernel = bound.product->key();
  step.reads = {bound.a, bound.b};
  if (has_bias) step.reads.push_back(bound.bias);
  step.writes = {bound.c};
  step.threads = problem.threads;
  step.flop = flop;
  step.bytes = 2.0 * static_cast<double>(problem.m * shape.k + shape.k * shape.n + problem.m * shape.n);
  step.weights = weights.raw();
  step.run = std::move(bound);
  context.add(std::move(step));
  return true;
}

bool has_plain_types(const LowerContext& context) {
  const DType dtype = context.output_type(0).dtype;
  for (int i = 0; i < context.input_count(); ++i) {
    if (!context.has_input(i)) continue;
    if (context.input_type(i).dtype != dtype || context.input_type(i).layout.channel_block != 0) return false;
  }
  return context.output_type(0).layout.channel_block == 0 && !context.node.epilogue;
}

}  // namespace

BufferId widened_operand(LowerContext& context, int input) {
  return widened_operand(context, input, 1, checked_elements(context.input_type(input).extents()), false);
}

void add_rounding(LowerContext& context, BufferId from) {
  const int64_t count = checked_elements(context.output_type(0).extents());
  MatMulShape shape;
  shape.m = count / std::max<int64_t>(1, context.output_type(0).extents().back());
  shape.n = context.output_type(0).extents().back();
  ProductForm form;
  form.beta = 0;  // input 2 is no bias
  add_narrowing(context, shape, form, from);
}

bool lower_half_product(LowerContext& context, const MatMulShape& shape, const ProductForm& form) {
  if (!has_plain_types(context)) return false;
  if (shape.m == 0 || shape.n == 0 || shape.batches() == 0) return true;
  if (shape.k == 0) return false;
  if (fits_bf16(context, shape, form) && lower_bf16(context, shape, form)) return true;
  return lower_widened(context, shape, form);
}

}  // namespace lathe
