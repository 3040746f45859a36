#include "ops/gemm/product_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ops/work_split.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

using NextWeights = std::shared_ptr<const void*>;

struct BoundProduct : ProductBuffers {
  std::shared_ptr<const GemmProduct> product;
  NextWeights next_weights;

  const GemmPlan& plan() const { return product->plan(); }
  bool visits_once(int64_t k) const { return k <= plan().k_block; }
  static int steps() { return 1; }
  static const void* streams(const Tensor& weights) { return weights.raw(); }
  void operator()(const StepArgs& args) const {
    GemmOperands bound = bind(args);
    if (args.ends_first_run()) bound.next_weights = *next_weights;
    product->run(bound, args.share, args.shares);
  }
};

struct BoundStrassen : ProductBuffers {
  std::shared_ptr<const StrassenProduct> product;
  NextWeights next_weights;
  int part = 0;  // of k
  BufferId sums = BufferId::none;
  bool is_own = false;   // each thread has its own sums
  bool by_rows = false;  // each thread has those of its rows

  const GemmPlan& plan() const { return product->plan(); }
  bool visits_once(int64_t) const { return product->parts() == 1; }
  int steps() const { return product->parts(); }
  const void* streams(const Tensor& weights) const { return product->packed_part(weights.data<float>(), part); }
  void operator()(const StepArgs& args) const {
    GemmOperands bound = bind(args);
    // By rows, all threads begin there, if the next step is split as this one.
    if (by_rows ? args.ends_run() : args.ends_first_run()) bound.next_weights = *next_weights;
    product->run(part, bound, sums_of(args, args.thread), args.share, args.shares);
  }
  StrassenProduct::Sums sums_of(const StepArgs& args, int thread) const {
    const auto stride = static_cast<int64_t>(args.thread_bytes / sizeof(float));
    if (by_rows) return {args.own<float>(sums, 0), stride};
    return {is_own ? args.own<float>(sums, thread) : args.at<float>(sums), 0};
  }
};

template <class Bound>
void add_step(const LowerContext& context, const GemmProblem& problem, Bound bound, const Tensor& weights,
              const std::vector<BufferId>& reads = {}) {
  Step step;
  step.kernel = bound.plan().key();
  step.reads = {bound.a, bound.b};
  for (const ProductInput& input : bound.inputs) step.reads.push_back(input.buffer);
  step.reads.insert(step.reads.end(), reads.begin(), reads.end());
  step.writes = {bound.c};
  if (bound.scratch != BufferId::none) {
    step.reads.push_back(bound.scratch);
    step.writes.push_back(bound.scratch);
  }
  // Only a product that visits each element of C once leaves a residual alone until it is read.
  for (const ProductInput& input : bound.inputs) {
    const bool is_operand = input.buffer == bound.a || input.buffer == bound.b;
    if (input.covers_output && !is_operand && bound.visits_once(problem.k)) {
      step.in_place.emplace_back(bound.c, input.buffer);
    }
  }
  step.threads = problem.threads;
  step.flop = problem.flop() / bound.steps();
  step.shares = worthwhile_shares(step.flop, step.threads);
  const double matrices = static_cast<double>(problem.batches), k = static_cast<double>(problem.k) / bound.steps();
  const auto m = static_cast<double>(problem.m), n = static_cast<double>(problem.n);
  const double b_bytes =
      weights.defined() ? static_cast<double>(weights.bytes()) / bound.steps() : 4 * matrices * k * n;
  step.bytes = 4 * matrices * (m * k + m * n) + b_bytes;
  if (weights.defined()) step.weights = bound.streams(weights);
  bound.next_weights = std::make_shared<const void*>(nullptr);
  step.next_weights = bound.next_weights;
  step.run = std::move(bound);
  context.add(std::move(step));
}

void add_sums_step(const LowerContext& context, const GemmProblem& problem, const BoundStrassen& bound) {
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

void add_thread_scratch(const LowerContext& context, int64_t elements, ProductBuffers& buffers) {
  if (elements > 0) buffers.scratch = context.thread_scratch(checked_bytes(DType::f32, {elements}));
}

}  // namespace

bool is_true_of(const LowerContext& context, const ConstantMatrix& b, const std::string& question,
                const std::function<bool()>& find) {
  const std::string text = fmt::format("{} of {}x{} {}", question, b.view.rows, b.view.columns, b.text);
  const Tensor answer = context.packed(b.constant, text, [&] {
    Tensor found(DType::boolean, {1});
    *found.mutable_data<bool>() = find();
    return found;
  });
  return *answer.data<bool>();
}

GemmOperands ProductBuffers::bind(const StepArgs& args) const {
  GemmOperands bound = operands;
  bound.a = args.at<const float>(a);
  bound.b = args.at<const float>(b);
  bound.c = args.at<float>(c);
  for (size_t i = 0; i < inputs.size(); ++i) {
    bound.inputs[i] = args.at<const float>(inputs[i].buffer) + inputs[i].offset;
    bound.input_strides[i] = inputs[i].row_stride;
  }
  if (scratch != BufferId::none) bound.scratch = args.own<float>(scratch);
  return bound;
}

void add_product(const LowerContext& context, const GemmProblem& problem, std::shared_ptr<const GemmProduct> product,
                 ProductBuffers buffers, const Tensor& weights) {
  BoundProduct bound{std::move(buffers), std::move(product), nullptr};
  add_thread_scratch(context, bound.product->scratch_elements(), bound);
  add_step(context, problem, std::move(bound), weights);
}

EmittedProduct emit_product(const LowerContext& context, const GemmProblem& problem, const GemmPlan& plan,
                            const ConstantMatrix* b, const std::vector<GemmOffsets>& offsets) {
  const bool in_blocks = b != nullptr && plan.fast != FastProduct::none &&
                         is_true_of(context, *b, "even columns", [&] { return has_even_columns(b->view); });
  const auto make = [&]() -> EmittedProduct {
    if (in_blocks) {
      try {
        return {std::make_shared<const StrassenProduct>(problem, plan), nullptr};
      } catch (const JitError&) {
        // A plain one may do with the plan.
      }
    }
    return {nullptr, std::make_shared<const GemmProduct>(problem, plan, offsets)};
  };
  if (offsets.size() > 1) return make();
  return *context.shared<EmittedProduct>(fmt::format("product {} threads {} {} {}", problem.key(), problem.threads,
                                                     plan.key(), in_blocks ? "in blocks" : "plain"),
                                         make);
}

void add_block_product(const LowerContext& context, const GemmProblem& problem,
                       const std::shared_ptr<const StrassenProduct>& product, const ConstantMatrix& b,
                       ProductBuffers buffers) {
  GemmPlan packing = product->plan();  // however the rows are split
  const bool by_rows = packing.split == GemmSplit::rows;
  packing.split = GemmSplit::columns;
  const std::string text = fmt::format("{} {}x{} {}", packing.key(), problem.k, problem.n, b.text);
  const Tensor weights = context.packed(b.constant, text, [&] {
    Tensor packed = allocate_weights(DType::f32, {product->packed_elements()});
    product->pack(b.view, b.scale, packed.mutable_data<float>());
    return packed;
  });
  BoundStrassen bound{std::move(buffers), product, nullptr};
  bound.b = context.constant_buffer(weights);
  bound.by_rows = by_rows;
  bound.is_own = !by_rows && makes_own_sums(problem);
  const size_t sums_bytes = checked_bytes(DType::f32, {product->sums_of_piece()});
  bound.sums = bound.is_own || by_rows ? context.thread_scratch(sums_bytes) : context.scratch(sums_bytes);
  add_thread_scratch(context, product->scratch_elements(), bound);
  for (; bound.part < product->parts(); ++bound.part) {
    add_sums_step(context, problem, bound);
    std::vector<BufferId> reads = {bound.sums};
    if (bound.part > 0) reads.push_back(bound.c);
    add_step(context, problem, bound, weights, reads);
  }
}

}  // namespace lathe
