#include "ops/gemm_lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ops/broadcast.h"
#include "ops/gemm_pack.h"
#include "ops/gemm_product.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kMostBatches = 1 << 20;  // their offsets are kept

// One operand of the epilogue: its buffer, and elements to step along batch..., m, n of the product.
struct ExtraInput {
  ValueId value = ValueId::none;
  std::vector<int64_t> strides;
  bool covers_output = false;  // every element once, in order
};

// Everything known of the product before a plan is chosen.
struct Product {
  MatMulShape shape;
  ProductForm form;
  Expression expression;  // of the product and `extra`, if any
  std::vector<ExtraInput> extra;
  // Along batch..., m: elements to step in A and C, and to step along batch... in B (for a packed B: matrices).
  std::vector<int64_t> a_strides, c_strides;
};

// `inner` (input 0: the product, then its own) under `outer`: input 0 of outer becomes inner's result; outer's other
// inputs come behind inner's.
Expression put_behind(const Expression& inner, const Expression& outer) {
  Expression result = inner;
  const int shift = static_cast<int>(inner.inputs.size()) - 1;
  const int inner_result = static_cast<int>(inner.nodes.size()) - 1;
  std::vector<int> moved;
  for (ExprNode node : outer.nodes) {
    if (node.op == ExprOp::input && node.a == 0) {
      moved.push_back(inner_result);
      continue;
    }
    if (node.op == ExprOp::input) {
      node.a += shift;
    } else {
      for (int* operand : {&node.a, &node.b, &node.c}) {
        if (*operand >= 0) *operand = moved[static_cast<size_t>(*operand)];
      }
    }
    moved.push_back(result.add(node));
  }
  // The last node is the result.
  if (moved.back() != static_cast<int>(result.nodes.size()) - 1) {
    const int zero = result.add({.op = ExprOp::constant, .value = 0});
    result.add({.op = ExprOp::add, .a = moved.back(), .b = zero});
  }
  result.inputs.insert(result.inputs.end(), outer.inputs.begin() + 1, outer.inputs.end());
  result.output = outer.output;
  return result;
}

// alpha (unless folded into packed weights) and beta * C.
Expression scale_and_bias(float alpha, float beta, bool has_bias) {
  Expression e;
  e.inputs = {DType::f32};
  int x = e.add({.op = ExprOp::input, .a = 0});
  if (alpha != 1) {
    const int factor = e.add({.op = ExprOp::constant, .value = alpha});
    x = e.add({.op = ExprOp::mul, .a = x, .b = factor});
  }
  if (has_bias) {
    e.inputs.push_back(DType::f32);
    int bias = e.add({.op = ExprOp::input, .a = 1});
    if (beta != 1) {
      const int factor = e.add({.op = ExprOp::constant, .value = beta});
      bias = e.add({.op = ExprOp::mul, .a = bias, .b = factor});
    }
    e.add({.op = ExprOp::add, .a = x, .b = bias});
  }
  return e;
}

bool is_plain_float(const TensorType& type) { return type.dtype == DType::f32 && type.layout.channel_block == 0; }

ExtraInput extra_input(const LowerContext& context, const Product& product, ValueId value) {
  ExtraInput extra;
  extra.value = value;
  Dims dims = context.type(value).extents();
  // The axes of promoted vectors are not in the output, to which the input broadcasts.
  const MatMulShape& shape = product.shape;
  if (shape.b_is_vector) dims.push_back(1);
  if (shape.a_is_vector && dims.size() > 1) dims.insert(dims.end() - 1, 1);
  const Dims full = shape.full_dims();
  extra.strides = broadcast_strides(dims, full);
  extra.covers_output = checked_elements(dims) == checked_elements(full);
  return extra;
}

bool collect_extra(const LowerContext& context, Product& product, bool folds_alpha) {
  const ProductForm& form = product.form;
  const bool has_bias = context.has_input(2) && form.beta != 0;
  product.expression = scale_and_bias(folds_alpha ? 1 : form.alpha, form.beta, has_bias);
  if (has_bias) {
    if (!is_plain_float(context.input_type(2))) return false;
    product.extra.push_back(extra_input(context, product, context.input(2)));
  }
  if (!context.node.epilogue) return true;
  product.expression = put_behind(product.expression, context.node.epilogue->expression);
  for (const ValueId value : context.epilogue_inputs()) {
    if (!is_plain_float(context.type(value))) return false;
    product.extra.push_back(extra_input(context, product, value));
  }
  const Expression& e = product.expression;
  return e.output == DType::f32 &&
         std::all_of(e.inputs.begin(), e.inputs.end(), [](DType t) { return t == DType::f32; }) &&
         product.extra.size() <= static_cast<size_t>(kMaxGemmInputs);
}

// Can axes `batch..., m` with these strides be walked as one axis? Gives its stride.
std::optional<int64_t> joint_stride(const Dims& batch, int64_t m, const std::vector<int64_t>& strides) {
  std::optional<int64_t> stride;
  int64_t extent = 1;
  for (size_t axis = batch.size() + 1; axis-- > 0;) {
    const int64_t here = axis == batch.size() ? m : batch[axis];
    if (here == 1) continue;
    if (!stride) {
      stride = strides[axis];
    } else if (strides[axis] != *stride * extent) {
      return std::nullopt;
    }
    extent *= here;
  }
  return stride.value_or(0);
}

// One product of many rows instead of a batch, where B is the same for all and the rows lie evenly.
void join_batches(Product& product) {
  MatMulShape& shape = product.shape;
  if (shape.batches() == 1 || product.form.transpose_a) return;
  for (size_t i = 0; i < shape.batch.size(); ++i) {
    if (shape.batch[i] != 1 && shape.b_steps[i] != 0) return;
  }
  const auto a = joint_stride(shape.batch, shape.m, product.a_strides);
  if (!a) return;
  std::vector<int64_t> joint;
  for (const ExtraInput& extra : product.extra) {
    const auto stride = joint_stride(shape.batch, shape.m, extra.strides);
    if (!stride) return;
    joint.push_back(*stride);
  }
  shape.m *= shape.batches();
  shape.batch.clear();
  shape.a_steps.clear();
  shape.b_steps.clear();
  product.a_strides = {*a};
  product.c_strides = {shape.n};
  for (size_t i = 0; i < joint.size(); ++i) product.extra[i].strides = {joint[i], product.extra[i].strides.back()};
}

Product describe(const LowerContext& context, const MatMulShape& shape, const ProductForm& form) {
  Product product;
  product.shape = shape;
  product.form = form;
  for (const int64_t steps : shape.a_steps) product.a_strides.push_back(steps * shape.m * shape.k);
  product.a_strides.push_back(shape.k);
  int64_t matrix = shape.m * shape.n;
  product.c_strides.assign(shape.batch.size() + 1, shape.n);
  for (size_t axis = shape.batch.size(); axis-- > 0;) {
    product.c_strides[axis] = matrix;
    matrix *= shape.batch[axis];
  }
  (void)context;
  return product;
}

std::vector<GemmOffsets> batch_offsets(const Product& product, int64_t b_matrix) {
  const MatMulShape& shape = product.shape;
  std::vector<GemmOffsets> offsets(static_cast<size_t>(shape.batches()));
  GemmOffsets at;
  Dims index(shape.batch.size(), 0);
  for (GemmOffsets& here : offsets) {
    here = at;
    for (size_t axis = index.size(); axis-- > 0;) {
      const bool wraps = ++index[axis] == shape.batch[axis];
      const int64_t steps = wraps ? 1 - shape.batch[axis] : 1;
      at.a += steps * product.a_strides[axis];
      at.b += steps * shape.b_steps[axis] * b_matrix;
      at.c += steps * product.c_strides[axis];
      for (size_t i = 0; i < product.extra.size(); ++i) at.inputs[i] += steps * product.extra[i].strides[axis];
      if (!wraps) break;
      index[axis] = 0;
    }
  }
  return offsets;
}

GemmProblem problem_of(const LowerContext& context, const Product& product, bool is_packed) {
  GemmProblem problem;
  problem.batches = product.shape.batches();
  problem.m = product.shape.m;
  problem.n = product.shape.n;
  problem.k = product.shape.k;
  problem.b = is_packed                  ? GemmOperandB::packed
              : product.form.transpose_b ? GemmOperandB::transposed
                                         : GemmOperandB::row_major;
  problem.isa = context.target.isa;
  problem.threads = worthwhile_threads(problem.flop(), context.target.threads);
  if (product.expression.nodes.size() > 1 || !product.extra.empty()) {
    GemmEpilogue epilogue;
    epilogue.expression = product.expression;
    for (const ExtraInput& extra : product.extra) {
      epilogue.inputs.push_back(extra.strides.back() == 0 ? GemmInputAccess::uniform : GemmInputAccess::columns);
    }
    problem.epilogue = std::move(epilogue);
  }
  return problem;
}

// All of the constant's matrices, packed one behind the other.
Tensor pack_constant(const LowerContext& context, const Product& product, const PanelFormat& format) {
  const Tensor constant = context.constant(1);
  const int64_t k = product.shape.k, n = product.shape.n;
  const bool transposed = product.form.transpose_b;
  const std::string text = fmt::format("gemm {} {}x{} lanes {} {} alpha {}", format.panel_columns, k, n, format.lanes,
                                       transposed ? "transposed" : "plain", product.form.alpha);
  return context.packed(context.input(1), text, [&] {
    const int64_t matrices = constant.size() / std::max<int64_t>(1, k * n);
    const int64_t size = format.elements(k, n);
    Tensor packed = allocate_weights(DType::f32, {matrices * size});
    for (int64_t i = 0; i < matrices; ++i) {
      MatrixView view{constant.data<float>() + i * k * n, k, n, n, 1};
      if (transposed) view = {constant.data<float>() + i * k * n, k, n, 1, k};
      pack_panels(view, format, 0, format.panels(n), product.form.alpha, packed.mutable_data<float>() + i * size);
    }
    return packed;
  });
}

// A as [m x k]: turned by a step of its own, or ahead of time when it is constant.
BufferId turned_a(LowerContext& context, const Product& product) {
  const int64_t m = product.shape.m, k = product.shape.k;
  const int64_t matrices = checked_elements(context.input_type(0).extents()) / std::max<int64_t>(1, m * k);
  const auto turn = [m, k](const float* from, float* to, Range rows) {
    // Rows of the result: matrix by matrix.
    for (long row = rows.begin; row < rows.end;) {
      const long matrix = row / m, end = std::min<long>(rows.end, (matrix + 1) * m), first = row - matrix * m;
      transpose(from + matrix * m * k + first, k, end - row, m, to + row * k, k);
      row = end;
    }
  };
  if (const Tensor constant = context.constant(0); constant.defined()) {
    return context.constant_buffer(context.packed(context.input(0), fmt::format("turned {}x{}", m, k), [&] {
      Tensor turned(DType::f32, {matrices, m, k});
      turn(constant.data<float>(), turned.mutable_data<float>(), {0, matrices * m});
      return turned;
    }));
  }
  const BufferId from = context.buffer(context.input(0));
  const BufferId to = context.scratch(checked_bytes(DType::f32, {matrices, m, k}));
  Step step;
  step.op = "Transpose";
  step.kernel = "transpose 16x16";
  step.reads = {from};
  step.writes = {to};
  step.bytes = 8.0 * static_cast<double>(matrices * m * k);
  step.threads = worthwhile_threads(step.bytes * 10, context.target.threads);
  step.run = [=, threads = step.threads](const StepArgs& args) {
    turn(args.at<const float>(from), args.at<float>(to), split_evenly(matrices * m, args.thread, threads));
  };
  context.add(std::move(step));
  return to;
}

// The step's call: buffers in place of addresses.
struct BoundProduct {
  std::shared_ptr<const GemmProduct> product;
  GemmOperands operands;  // strides; addresses come with each run
  BufferId a = BufferId::none, b = BufferId::none, c = BufferId::none, scratch = BufferId::none;
  std::vector<BufferId> inputs;
  std::shared_ptr<const void*> next_weights;

  void operator()(const StepArgs& args) const {
    GemmOperands bound = operands;
    bound.a = args.at<const float>(a);
    bound.b = args.at<const float>(b);
    bound.c = args.at<float>(c);
    for (size_t i = 0; i < inputs.size(); ++i) bound.inputs[i] = args.at<const float>(inputs[i]);
    bound.next_weights = *next_weights;
    if (scratch != BufferId::none) {
      bound.scratch = args.at<float>(scratch) + args.thread * product->scratch_elements();
    }
    product->run(bound, args.thread, args.threads);
  }
};

std::shared_ptr<const GemmProduct> emit(const GemmProblem& problem, const GemmPlan& plan,
                                        const std::vector<GemmOffsets>& offsets) {
  try {
    return std::make_shared<const GemmProduct>(problem, plan, offsets);
  } catch (const JitError&) {
    return nullptr;
  }
}

void add_product_step(LowerContext& context, const Product& product, const GemmProblem& problem, BoundProduct bound,
                      const Tensor& weights) {
  Step step;
  step.op = context.node.fused_from.empty() ? std::string(context.node.op->name) : context.node.fused_from;
  step.kernel = bound.product->plan().key();
  step.reads = {bound.a, bound.b};
  step.reads.insert(step.reads.end(), bound.inputs.begin(), bound.inputs.end());
  step.writes = {bound.c};
  if (bound.scratch != BufferId::none) {
    step.reads.push_back(bound.scratch);
    step.writes.push_back(bound.scratch);
  }
  // Only a product that visits each element of C once leaves a residual alone until it is read.
  for (size_t i = 0; i < product.extra.size() && problem.k <= bound.product->plan().k_block; ++i) {
    const bool is_operand = bound.inputs[i] == bound.a || bound.inputs[i] == bound.b;
    if (product.extra[i].covers_output && !is_operand) step.in_place.emplace_back(bound.c, bound.inputs[i]);
  }
  step.threads = problem.threads;
  step.flop = problem.flop();
  const double matrices = static_cast<double>(problem.batches);
  step.bytes = 4 * matrices * static_cast<double>(problem.m * problem.k + problem.m * problem.n) +
               4 * (weights.defined() ? 1 : matrices) * static_cast<double>(problem.k * problem.n);
  if (weights.defined()) step.weights = weights.raw();
  step.next_weights = bound.next_weights;
  step.run = std::move(bound);
  context.add(std::move(step));
}

}  // namespace

bool lower_product(LowerContext& context, const MatMulShape& shape, const ProductForm& form) {
  for (int i = 0; i < 2; ++i) {
    if (!is_plain_float(context.input_type(i))) return false;
  }
  const bool is_packed = context.constant(1).defined();
  Product product = describe(context, shape, form);
  if (!collect_extra(context, product, is_packed)) return false;
  if (shape.m == 0 || shape.n == 0 || shape.batches() == 0) return true;
  join_batches(product);
  if (product.shape.batches() > kMostBatches) return false;

  const GemmProblem problem = problem_of(context, product, is_packed);
  GemmPlan plan = choose_gemm_plan(problem, context.plans);
  const PanelFormat format{int64_t{plan.vecs} * vector_lanes(problem.isa), vector_lanes(problem.isa)};
  const int64_t matrix = is_packed ? format.elements(problem.k, problem.n) : problem.k * problem.n;
  BoundProduct bound;
  bound.product = emit(problem, plan, batch_offsets(product, matrix));
  if (!bound.product) return false;
  const Tensor weights = is_packed ? pack_constant(context, product, format) : Tensor();
  bound.a = form.transpose_a ? turned_a(context, product) : context.buffer(context.input(0));
  bound.b = is_packed ? context.constant_buffer(weights) : context.buffer(context.input(1));
  bound.c = context.buffer(context.output(0));
  for (const ExtraInput& extra : product.extra) bound.inputs.push_back(context.buffer(extra.value));
  const auto row_axis = product.shape.batch.size();
  bound.operands.a_stride = product.a_strides[row_axis];
  bound.operands.b_stride = form.transpose_b ? problem.k : problem.n;
  bound.operands.c_stride = problem.n;
  for (size_t i = 0; i < product.extra.size(); ++i) {
    bound.operands.input_strides[i] = product.extra[i].strides[row_axis];
  }
  if (const int64_t elements = bound.product->scratch_elements(); elements > 0) {
    bound.scratch = context.scratch(checked_bytes(DType::f32, {problem.threads, elements}));
  }
  bound.next_weights = std::make_shared<const void*>(nullptr);
  add_product_step(context, product, problem, std::move(bound), weights);
  return true;
}

}  // namespace lathe
