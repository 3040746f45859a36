#include "ops/gemm/gemm_lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ops/gemm/dot_lower.h"
#include "ops/gemm/gemm_node.h"
#include "ops/gemm/gemm_pack.h"
#include "ops/gemm/gemm_product.h"
#include "ops/gemm/gemm_strassen.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kMostBatches = 1 << 20;  // their offsets are kept
constexpr int64_t kFewRows = 8;            // products of so many wait for B

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
  if (problem.m <= kFewRows) {
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

// Panel after panel, so many at a time that little of a large matrix is in memory beside what is packed.
void pack_in_parts(const LowerContext& context, const MatrixView& view, const PanelFormat& format, float alpha,
                   float* packed) {
  constexpr int64_t kPartBytes = 8 << 20;
  const int64_t panel_bytes = std::max<int64_t>(1, view.rows * format.panel_columns * 4);
  const int64_t panels = format.panels(view.columns), at_a_time = std::max<int64_t>(1, kPartBytes / panel_bytes);
  for (int64_t first = 0; first < panels; first += at_a_time) {
    const int64_t end = std::min(panels, first + at_a_time);
    pack_panels(view, format, first, end, alpha, packed + first * view.rows * format.panel_columns);
    if (end < panels) context.has_packed(static_cast<size_t>((end - first) * panel_bytes));
  }
}

// All of the constant's matrices, packed one behind the other.
Tensor pack_constant(const LowerContext& context, const ProductNode& product, const PanelFormat& format) {
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
      pack_in_parts(context, view, format, product.form.alpha, packed.mutable_data<float>() + i * size);
    }
    return packed;
  });
}

Tensor pack_strided(const LowerContext& context, const StridedProduct& product, const PanelFormat& format) {
  const int64_t k_stride = product.b_strides[product.b_strides.size() - 2], n_stride = product.b_strides.back();
  const std::string text = fmt::format("gemm {} {}x{} lanes {} strides {}:{}", format.panel_columns, product.k,
                                       product.n, format.lanes, k_stride, n_stride);
  return context.packed(product.constant_b, text, [&] {
    const Tensor& constant = context.graph.value(product.constant_b).constant;
    Tensor packed = allocate_weights(DType::f32, {format.elements(product.k, product.n)});
    const MatrixView view{constant.data<float>(), product.k, product.n, k_stride, n_stride};
    pack_panels(view, format, 0, format.panels(product.n), 1, packed.mutable_data<float>());
    return packed;
  });
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

// A step's call: buffers in place of addresses.
struct ProductBuffers {
  GemmOperands operands;  // strides; addresses come with each run
  BufferId a = BufferId::none, b = BufferId::none, c = BufferId::none, scratch = BufferId::none;
  std::vector<BufferId> inputs;
  std::shared_ptr<const void*> next_weights;
  bool all_begin_there = false;  // all threads, if the next step is split as this one

  GemmOperands bind(const StepArgs& args) const {
    GemmOperands bound = operands;
    bound.a = args.at<const float>(a);
    bound.b = args.at<const float>(b);
    bound.c = args.at<float>(c);
    for (size_t i = 0; i < inputs.size(); ++i) bound.inputs[i] = args.at<const float>(inputs[i]);
    if (all_begin_there ? args.ends_run() : args.ends_first_run()) bound.next_weights = *next_weights;
    if (scratch != BufferId::none) bound.scratch = args.own<float>(scratch);
    return bound;
  }
};

struct BoundProduct : ProductBuffers {
  std::shared_ptr<const GemmProduct> product;

  const GemmPlan& plan() const { return product->plan(); }
  bool visits_once(int64_t k) const { return k <= plan().k_block; }
  static int steps() { return 1; }
  static const void* streams(const Tensor& weights) { return weights.raw(); }
  void operator()(const StepArgs& args) const { product->run(bind(args), args.share, args.shares); }
};

struct BoundStrassen : ProductBuffers {
  std::shared_ptr<const StrassenProduct> product;
  int part = 0;  // of k
  BufferId sums = BufferId::none;
  bool is_own = false;   // each thread has its own sums
  bool by_rows = false;  // each thread has those of its rows

  const GemmPlan& plan() const { return product->plan(); }
  bool visits_once(int64_t) const { return product->parts() == 1; }
  int steps() const { return product->parts(); }
  const void* streams(const Tensor& weights) const { return product->packed_part(weights.data<float>(), part); }
  void operator()(const StepArgs& args) const {
    product->run(part, bind(args), sums_of(args, args.thread), args.share, args.shares);
  }
  StrassenProduct::Sums sums_of(const StepArgs& args, int thread) const {
    const auto stride = static_cast<int64_t>(args.thread_bytes / sizeof(float));
    if (by_rows) return {args.own<float>(sums, 0), stride};
    return {is_own ? args.own<float>(sums, thread) : args.at<float>(sums), 0};
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

template <class Bound>
void add_product_step(LowerContext& context, const ProductNode& product, const GemmProblem& problem, Bound bound,
                      const Tensor& weights, const std::vector<BufferId>& reads = {}) {
  Step step;
  step.kernel = bound.plan().key();
  step.reads = {bound.a, bound.b};
  step.reads.insert(step.reads.end(), bound.inputs.begin(), bound.inputs.end());
  step.reads.insert(step.reads.end(), reads.begin(), reads.end());
  step.writes = {bound.c};
  if (bound.scratch != BufferId::none) {
    step.reads.push_back(bound.scratch);
    step.writes.push_back(bound.scratch);
  }
  // Only a product that visits each element of C once leaves a residual alone until it is read.
  for (size_t i = 0; i < product.extra.size() && bound.visits_once(problem.k); ++i) {
    const bool is_operand = bound.inputs[i] == bound.a || bound.inputs[i] == bound.b;
    if (product.extra[i].covers_output && !is_operand) step.in_place.emplace_back(bound.c, bound.inputs[i]);
  }
  step.threads = problem.threads;
  step.flop = problem.flop() / bound.steps();
  step.shares = worthwhile_shares(step.flop, step.threads);
  const double matrices = static_cast<double>(problem.batches), k = static_cast<double>(problem.k) / bound.steps();
  const auto m = static_cast<double>(problem.m), n = static_cast<double>(problem.n);
  step.bytes = 4 * matrices * (m * k + m * n) + 4 * (weights.defined() ? 1 : matrices) * k * n;
  if (weights.defined()) step.weights = bound.streams(weights);
  step.next_weights = bound.next_weights;
  step.run = std::move(bound);
  context.add(std::move(step));
}

// Buffers and strides that every product has.
ProductBuffers bind_buffers(const LowerContext& context, const ProductNode& product) {
  ProductBuffers buffers;
  buffers.c = context.buffer(context.output(0));
  for (const ExtraInput& extra : product.extra) buffers.inputs.push_back(context.buffer(extra.value));
  buffers.operands.a_stride = product.a_strides.back();
  buffers.operands.b_stride = product.b_row_stride();
  buffers.operands.c_stride = product.c_strides.back();
  for (size_t i = 0; i < product.extra.size(); ++i) {
    buffers.operands.input_strides[i] = product.extra[i].strides[product.shape.batch.size()];
  }
  buffers.next_weights = std::make_shared<const void*>(nullptr);
  return buffers;
}

void add_sums_step(LowerContext& context, const GemmProblem& problem, const BoundStrassen& bound) {
  Step step;
  step.kernel = "sums of blocks";
  step.reads = {bound.a};
  step.writes = {bound.sums};
  step.bytes = 4.0 * static_cast<double>(problem.m * problem.k / bound.product->parts() +
                                         bound.product->pieces() * bound.product->sums_of_piece());
  step.threads = problem.threads;
  step.run = [bound](const StepArgs& args) {
    GemmOperands operands;
    operands.a = args.at<const float>(bound.a);
    operands.a_stride = bound.operands.a_stride;
    const StrassenProduct::Sums sums = bound.sums_of(args, args.share);
    bound.product->sum(bound.part, operands, sums, bound.is_own ? 0 : args.share, bound.is_own ? 1 : args.shares);
  };
  context.add(std::move(step));
}

// Of the constant: read once, also when it is packed for further shapes.
bool has_even_columns(const LowerContext& context, const MatrixView& view, bool transposed) {
  const std::string text =
      fmt::format("even columns of {}x{} {}", view.rows, view.columns, transposed ? "transposed" : "plain");
  const Tensor answer = context.packed(context.input(1), text, [&] {
    Tensor even(DType::boolean, {1});
    *even.mutable_data<bool>() = lathe::has_even_columns(view);
    return even;
  });
  return *answer.data<bool>();
}

// Two steps for each part of k: all threads need all sums of A's blocks. False: the plan cannot be emitted, or the
// weights are not for it.
bool lower_strassen(LowerContext& context, const ProductNode& product, const GemmProblem& problem,
                    const GemmPlan& plan) {
  const Tensor constant = context.constant(1);
  const bool transposed = product.form.transpose_b;
  MatrixView view{constant.data<float>(), problem.k, problem.n, problem.n, 1};
  if (transposed) view = {constant.data<float>(), problem.k, problem.n, 1, problem.k};
  if (!has_even_columns(context, view, transposed)) return false;
  BoundStrassen bound{bind_buffers(context, product), nullptr};
  try {
    bound.product = std::make_shared<const StrassenProduct>(problem, plan);
  } catch (const JitError&) {
    return false;
  }
  GemmPlan packing = plan;  // however the rows are split
  packing.split = GemmSplit::columns;
  const std::string text = fmt::format("{} {}x{} {} alpha {}", packing.key(), problem.k, problem.n,
                                       transposed ? "transposed" : "plain", product.form.alpha);
  const Tensor weights = context.packed(context.input(1), text, [&] {
    Tensor packed = allocate_weights(DType::f32, {bound.product->packed_elements()});
    bound.product->pack(view, product.form.alpha, packed.mutable_data<float>());
    return packed;
  });
  bound.a = product.form.transpose_a ? turned_a(context, product) : context.buffer(context.input(0));
  bound.b = context.constant_buffer(weights);
  bound.all_begin_there = plan.split == GemmSplit::rows;
  bound.by_rows = plan.split == GemmSplit::rows;
  bound.is_own = !bound.by_rows && pays_own_copies(problem.threads);
  const size_t sums_bytes = checked_bytes(DType::f32, {bound.product->sums_of_piece()});
  bound.sums = bound.is_own || bound.by_rows ? context.thread_scratch(sums_bytes) : context.scratch(sums_bytes);
  if (const int64_t elements = bound.product->scratch_elements(); elements > 0) {
    bound.scratch = context.thread_scratch(checked_bytes(DType::f32, {elements}));
  }
  for (; bound.part < bound.product->parts(); ++bound.part) {
    add_sums_step(context, problem, bound);
    std::vector<BufferId> reads = {bound.sums};
    if (bound.part > 0) reads.push_back(bound.c);
    bound.next_weights = std::make_shared<const void*>(nullptr);
    add_product_step(context, product, problem, bound, weights, reads);
  }
  return true;
}

}  // namespace

bool lower_product(LowerContext& context, const MatMulShape& shape, const ProductForm& form) {
  const bool is_packed = context.constant(1).defined() && form.b_perm.empty();
  const std::optional<ProductNode> described = describe_product(context, shape, form, is_packed);
  if (!described) return false;
  if (shape.m == 0 || shape.n == 0 || shape.batches() == 0) return true;
  const ProductNode& product = *described;
  if (product.shape.batches() > kMostBatches) return false;

  const GemmProblem problem = problem_of(context, product, is_packed);
  if (!form.transpose_a &&
      lower_thin_product(context, product, problem,
                         {context.buffer(context.input(0)), context.buffer(context.input(1)),
                          context.buffer(context.output(0)), is_packed ? context.input(1) : ValueId::none})) {
    return true;
  }
  const GemmPlan plan = choose_gemm_plan(problem, context.plans);
  const PanelFormat format{int64_t{plan.vecs} * vector_lanes(problem.isa), vector_lanes(problem.isa)};
  if (plan.fast != FastProduct::none && lower_strassen(context, product, problem, plan)) return true;
  BoundProduct bound{bind_buffers(context, product), nullptr};
  bound.product = emit(problem, plan, batch_offsets(product, is_packed ? format.elements(problem.k, problem.n) : 0));
  if (!bound.product) return false;
  const Tensor weights = is_packed ? pack_constant(context, product, format) : Tensor();
  bound.a = form.transpose_a ? turned_a(context, product) : context.buffer(context.input(0));
  bound.b = is_packed ? context.constant_buffer(weights) : context.buffer(context.input(1));
  if (const int64_t elements = bound.product->scratch_elements(); elements > 0) {
    bound.scratch = context.thread_scratch(checked_bytes(DType::f32, {elements}));
  }
  add_product_step(context, product, problem, std::move(bound), weights);
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

  const GemmProblem problem = problem_of(context, product, is_packed);
  if (lower_thin_product(context, product, problem,
                         {strided.a, strided.b, strided.c, is_packed ? strided.constant_b : ValueId::none})) {
    return true;
  }
  const GemmPlan plan = choose_gemm_plan(problem, context.plans);
  const PanelFormat format{int64_t{plan.vecs} * vector_lanes(problem.isa), vector_lanes(problem.isa)};
  BoundProduct bound;
  bound.product = emit(problem, plan, batch_offsets(product, is_packed ? format.elements(problem.k, problem.n) : 0));
  if (!bound.product) return false;
  const Tensor weights = is_packed ? pack_strided(context, strided, format) : Tensor();
  bound.a = strided.a;
  bound.b = is_packed ? context.constant_buffer(weights) : strided.b;
  bound.c = strided.c;
  bound.operands.a_stride = product.a_strides.back();
  bound.operands.b_stride = product.b_row_stride();
  bound.operands.c_stride = product.c_strides.back();
  if (const int64_t elements = bound.product->scratch_elements(); elements > 0) {
    bound.scratch = context.thread_scratch(checked_bytes(DType::f32, {elements}));
  }
  bound.next_weights = std::make_shared<const void*>(nullptr);
  add_product_step(context, product, problem, std::move(bound), weights);
  return true;
}

}  // namespace lathe
