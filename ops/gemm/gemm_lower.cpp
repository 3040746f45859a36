#include "ops/gemm/gemm_lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ops/gemm/bfp20_pack.h"
#include "ops/gemm/bfp24_pack.h"
#include "ops/gemm/dot_lower.h"
#include "ops/gemm/gemm_node.h"
#include "ops/gemm/gemm_pack.h"
#include "ops/gemm/gemm_product.h"
#include "ops/gemm/half_pack.h"
#include "ops/gemm/product_steps.h"
#include "ops/gemm/sparse_row_lower.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kMostBatches = 1 << 20;  // their offsets are kept

GemmProblem problem_of(const LowerContext& context, const ProductNode& product, bool is_packed) {
  GemmProblem problem;
  problem.batches = product.shape.batches();
  problem.m = product.shape.m;
  problem.n = product.shape.n;
  problem.k = product.shape.k;
  problem.b = product.b_form(is_packed);
  if (product.a_strides.back() != problem.k) problem.a_stride = product.a_strides.back();
  if (!is_packed && product.b_row_stride() != (problem.b == GemmOperandB::transposed ? problem.k : problem.n)) {
    problem.b_stride = product.b_row_stride();
  }
  problem.isa = context.target.isa;
  problem.threads = worthwhile_threads(problem.flop(), context.target.threads);
  if (problem.has_few_rows()) {
    const double streamed = 4.0 * static_cast<double>(problem.batches * problem.n * problem.k);
    problem.threads = std::max(problem.threads, worthwhile_readers(streamed, context.target.threads));
  }
  problem.allows_strassen = is_packed && problem.batches == 1 && context.target.accuracy != Accuracy::strict;
  problem.longest_sum = longest_product_sum(context.target.accuracy);
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

void pack_panels_as(WeightFormat weights, const MatrixView& view, const PanelFormat& format, int64_t first,
                    int64_t last, float alpha, float* packed) {
  if (weights == WeightFormat::f32) return pack_panels(view, format, first, last, alpha, packed);
  if (weights == WeightFormat::bfp20) return pack_bfp20(view, format, first, last, alpha, packed);
  if (weights == WeightFormat::bfp24) return pack_bfp24(view, format, first, last, alpha, packed);
  pack_halves(view, format, first, last, alpha, weights, packed);
}

// Panel after panel, so many at a time that little of a large matrix is in memory beside what is packed.
void pack_in_parts(const LowerContext& context, const MatrixView& view, const GemmProduct& product, float alpha,
                   float* packed) {
  constexpr int64_t kPartBytes = 8 << 20;
  const PanelFormat format = product.format();
  const int64_t panel_elements = product.packed_rows(view.rows) * format.panel_columns;
  const int64_t panel_bytes = std::max<int64_t>(1, panel_elements * 4);
  const int64_t panels = format.panels(view.columns), at_a_time = std::max<int64_t>(1, kPartBytes / panel_bytes);
  for (int64_t first = 0; first < panels; first += at_a_time) {
    const int64_t end = std::min(panels, first + at_a_time);
    pack_panels_as(product.plan().weights, view, format, first, end, alpha, packed + first * panel_elements);
    if (end < panels) context.has_packed(static_cast<size_t>((end - first) * panel_bytes));
  }
}

Tensor pack_constant(const LowerContext& context, const ConstantMatrix& b, const GemmProduct& product) {
  const int64_t k = b.view.rows, n = b.view.columns;
  const PanelFormat format = product.format();
  const std::string text = fmt::format("gemm {} {} {}x{} lanes {} {}", name_of(product.plan().weights),
                                       format.panel_columns, k, n, format.lanes, b.text);
  return context.packed(b.constant, text, [&] {
    const int64_t size = product.packed_elements();
    Tensor packed = allocate_weights(DType::f32, {b.count * size});
    MatrixView view = b.view;
    for (int64_t i = 0; i < b.count; ++i, view.data += k * n) {
      pack_in_parts(context, view, product, b.scale, packed.mutable_data<float>() + i * size);
    }
    return packed;
  });
}

ConstantMatrix strided_b(const LowerContext& context, const StridedProduct& product) {
  const int64_t k_stride = product.b_strides[product.b_strides.size() - 2], n_stride = product.b_strides.back();
  ConstantMatrix b;
  b.constant = product.constant_b;
  b.text = fmt::format("strides {}:{}", k_stride, n_stride);
  b.view = {context.graph.value(product.constant_b).constant.data<float>(), product.k, product.n, k_stride, n_stride};
  return b;
}

// A as [m x k]: turned by a step of its own, or ahead of time when it is constant.
BufferId turned_a(LowerContext& context, const ProductNode& product) {
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
    turn(args.at<const float>(from), args.at<float>(to), split_evenly(matrices * m, args.share, threads));
  };
  context.add(std::move(step));
  return to;
}

// The format with which the elements of B and the accuracy level agree. Of what caches hold, nobody waits for memory.
WeightFormat narrow_format(const LowerContext& context, const GemmProblem& problem, const ConstantMatrix& b) {
  constexpr int64_t kLeastBytes = 1 << 20, kMostRows = 48;  // which no core known waits with
  if (problem.m > kMostRows || problem.batches > 1 || b.count > 1 || problem.n * problem.k * 4 < kLeastBytes)
    return WeightFormat::f32;
  if (!problem.has_few_rows()) {
    if (context.target.accuracy == Accuracy::strict || problem.k % Bfp24::kGroupRows != 0) return WeightFormat::f32;
    const bool fits = is_true_of(context, b, "fits bfp24", [&] { return fits_bfp24(b.view, b.scale); });
    return fits ? WeightFormat::bfp24 : WeightFormat::f32;
  }
  for (const WeightFormat halves : {WeightFormat::f16, WeightFormat::bf16}) {
    const std::string question = fmt::format("fits {}", name_of(halves));
    if (is_true_of(context, b, question, [&] { return fits_halves(b.view, b.scale, halves); })) return halves;
  }
  if (context.target.accuracy == Accuracy::strict || problem.k % Bfp20::kGroupRows != 0) return WeightFormat::f32;
  const bool fits = is_true_of(context, b, "fits bfp20", [&] { return fits_bfp20(b.view, b.scale); });
  return fits ? WeightFormat::bfp20 : WeightFormat::f32;
}

// None: there is no code for it.
std::optional<EmittedProduct> emit(const LowerContext& context, const ProductNode& product, const GemmProblem& problem,
                                   const std::optional<ConstantMatrix>& b) {
  const GemmPlan plan =
      *context.shared<GemmPlan>(fmt::format("gemm plan {} threads {}", problem.key(), problem.threads),
                                [&] { return choose_gemm_plan(problem, context.plans); });
  const PanelFormat format{int64_t{plan.vecs} * vector_lanes(problem.isa), vector_lanes(problem.isa)};
  try {
    return emit_product(context, problem, plan, b ? &*b : nullptr,
                        batch_offsets(product, b ? format.elements(problem.k, problem.n) : 0));
  } catch (const JitError&) {
    return std::nullopt;
  }
}

// `buffers`: all, but for a constant B.
void add_steps(const LowerContext& context, const GemmProblem& problem, const EmittedProduct& product,
               const std::optional<ConstantMatrix>& b, ProductBuffers buffers) {
  if (product.blocks) return add_block_product(context, problem, product.blocks, *b, std::move(buffers));
  Tensor weights;
  if (b) {
    weights = pack_constant(context, *b, *product.plain);
    buffers.b = context.constant_buffer(weights);
  }
  add_product(context, problem, product.plain, std::move(buffers), weights);
}

void set_strides(const ProductNode& product, GemmOperands& operands) {
  operands.a_stride = product.a_strides.back();
  operands.b_stride = product.b_row_stride();
  operands.c_stride = product.c_strides.back();
}

// Buffers and strides that every product has.
ProductBuffers bind_buffers(const LowerContext& context, const ProductNode& product) {
  ProductBuffers buffers;
  buffers.c = context.buffer(context.output(0));
  for (const ExtraInput& extra : product.extra) {
    const int64_t row_stride = extra.strides[product.shape.batch.size()];
    buffers.inputs.push_back({context.buffer(extra.value), row_stride, 0, extra.covers_output});
  }
  set_strides(product, buffers.operands);
  return buffers;
}

ConstantMatrix constant_b(const LowerContext& context, const ProductNode& product) {
  const int64_t k = product.shape.k, n = product.shape.n;
  const bool transposed = product.form.transpose_b;
  ConstantMatrix b;
  b.constant = context.input(1);
  b.text = fmt::format("{} alpha {}", transposed ? "transposed" : "plain", product.form.alpha);
  b.view = {context.constant(1).data<float>(), k, n, transposed ? 1 : n, transposed ? k : 1};
  b.count = context.constant(1).size() / std::max<int64_t>(1, k * n);
  b.scale = product.form.alpha;
  return b;
}

}  // namespace

bool lower_product(LowerContext& context, const MatMulShape& shape, const ProductForm& form) {
  const bool is_packed = context.constant(1).defined() && form.b_perm.empty();
  const std::optional<ProductNode> described = describe_product(context, shape, form, is_packed);
  if (!described) return false;
  if (shape.m == 0 || shape.n == 0 || shape.batches() == 0) return true;
  const ProductNode& product = *described;
  if (product.shape.batches() > kMostBatches) return false;

  GemmProblem problem = problem_of(context, product, is_packed);
  if (!form.transpose_a &&
      lower_thin_product(context, product, problem,
                         {context.buffer(context.input(0)), context.buffer(context.input(1)),
                          context.buffer(context.output(0)), is_packed ? context.input(1) : ValueId::none})) {
    return true;
  }
  std::optional<ConstantMatrix> b;
  if (is_packed) b = constant_b(context, product);
  if (b) problem.narrow = narrow_format(context, problem, *b);
  if (b && lower_sparse_row(context, product, problem, *b)) return true;
  const std::optional<EmittedProduct> emitted = emit(context, product, problem, b);
  if (!emitted) return false;
  ProductBuffers buffers = bind_buffers(context, product);
  buffers.a = form.transpose_a ? turned_a(context, product) : context.buffer(context.input(0));
  if (!b) buffers.b = context.buffer(context.input(1));
  add_steps(context, problem, *emitted, b, std::move(buffers));
  return true;
}

bool lower_strided_product(LowerContext& context, const StridedProduct& strided) {
  ProductNode product;
  product.shape.batch = strided.batch;
  product.shape.m = strided.m;
  product.shape.n = strided.n;
  product.shape.k = strided.k;
  product.shape.a_steps.assign(strided.batch.size(), 0);
  product.shape.b_steps.assign(strided.batch.size(), 0);
  product.expression.inputs = {DType::f32};
  product.expression.add({.op = ExprOp::input, .a = 0});
  product.a_strides = strided.a_strides;
  product.b_strides = strided.b_strides;
  product.c_strides = strided.c_strides;
  const bool is_shared =
      std::all_of(strided.b_strides.begin(), strided.b_strides.end() - 2, [](int64_t stride) { return stride == 0; });
  const bool is_packed = strided.constant_b != ValueId::none && is_shared;
  if (product.shape.batches() > kMostBatches) return false;

  GemmProblem problem = problem_of(context, product, is_packed);
  problem.epilogue = strided.epilogue;
  if (!problem.epilogue &&
      lower_thin_product(context, product, problem,
                         {strided.a, strided.b, strided.c, is_packed ? strided.constant_b : ValueId::none})) {
    return true;
  }
  std::optional<ConstantMatrix> b;
  if (is_packed) b = strided_b(context, strided);
  if (b) problem.narrow = narrow_format(context, problem, *b);
  const std::optional<EmittedProduct> emitted = emit(context, product, problem, b);
  if (!emitted) return false;
  ProductBuffers buffers;
  buffers.a = strided.a;
  buffers.b = strided.b;
  buffers.c = strided.c;
  buffers.inputs = strided.inputs;
  set_strides(product, buffers.operands);
  add_steps(context, problem, *emitted, b, std::move(buffers));
  return true;
}

}  // namespace lathe
