#include "ops/conv/conv_rows.h"

#include "ops/gemm/gemm_lower.h"

namespace lathe {
namespace {

bool is_of_one_pixel(const ConvProblem& problem) {
  const ConvShape& shape = problem.phases[0];
  return problem.phases.size() == 1 && problem.groups == 1 && !problem.is_transposed &&
         problem.frames == ConvFrames() && problem.window_y * problem.window_x == 1 && shape.y.in * shape.x.in == 1 &&
         problem.out_pixels() == 1;
}

// From one picture's channels to the next one's, of which nothing lies between them.
bool fills_blocks(const TensorType& type) {
  const int block = type.layout.channel_block;
  return block == 0 || type.extents()[1] % block == 0;
}

Expression sum_with_bias() {
  Expression sum;
  sum.inputs = {DType::f32, DType::f32};
  sum.add({ExprOp::add, sum.add({ExprOp::input, 0}), sum.add({ExprOp::input, 1})});
  return sum;
}

Expression as_it_is() {
  Expression same;
  same.inputs = {DType::f32};
  same.add({ExprOp::input, 0});
  return same;
}

}  // namespace

bool lower_rows(LowerContext& context, const ConvProblem& problem, const BoundEpilogue& bound) {
  const TensorType &in = context.input_type(0), &out = context.output_type(0);
  if (!is_of_one_pixel(problem) || !context.constant(1).defined() || !fills_blocks(in) || !fills_blocks(out))
    return false;
  const int64_t inputs = in.extents()[1], outputs = out.extents()[1];
  // Below, a convolution of eight pictures is as soon done.
  constexpr int64_t kFewestWeights = 32 << 10;
  if (inputs * outputs < kFewestWeights) return false;
  StridedProduct product;
  product.m = problem.batch;
  product.k = inputs;
  product.n = outputs;
  product.a_strides = {inputs};
  product.b_strides = {1, inputs};
  product.c_strides = {outputs};
  product.a = context.buffer(context.input(0));
  product.c = context.buffer(context.output(0));
  product.constant_b = context.input(1);
  GemmEpilogue epilogue{bound.epilogue.expression.value_or(as_it_is()), {}};
  for (size_t i = 0; i < bound.buffers.size(); ++i) {
    const bool is_scalar = bound.epilogue.operands[i] == ConvOperand::scalar;
    epilogue.inputs.push_back(is_scalar ? GemmInputAccess::uniform : GemmInputAccess::columns);
    const int64_t stride = bound.batch_bytes[i] / int64_t{sizeof(float)};
    const bool covers_output = bound.epilogue.operands[i] == ConvOperand::full && stride == outputs;
    product.inputs.push_back({bound.buffers[i], stride, 0, covers_output});
  }
  if (context.has_input(2)) {
    epilogue.expression = extend_input(epilogue.expression, 0, sum_with_bias());
    epilogue.inputs.push_back(GemmInputAccess::columns);
    product.inputs.push_back({context.buffer(context.input(2)), 0, 0, false});
  }
  if (!epilogue.inputs.empty() || bound.epilogue.expression) product.epilogue = std::move(epilogue);
  return lower_strided_product(context, product);
}

}  // namespace lathe
