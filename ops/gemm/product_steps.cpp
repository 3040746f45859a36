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

  static constexpr BufferId sums = BufferId::none;

  const GemmPlan& plan() const { return product->plan(); }
  bool visits_once(int64_t k) const { return k <= plan().k_block; }
  static int rounds() { return 1; }
  void operator()(const StepArgs& args) const {
    GemmOperands bound = bind(args);
    if (args.ends_first_run()) bound.next_weights = *next_weights;
    product->run(bound, args.share, args.shares);
  }
};

struct BoundStrassen : ProductBuffers {
  std::shared_ptr<const StrassenProduct> product;
  NextWeights next_weights;
  BufferId sums = BufferId::none;

  const GemmPlan& plan() const { return product->plan(); }
  bool visits_once(int64_t) const { return product->visits_once(); }
  int rounds() const { return product->rounds(); }
  void operator()(const StepArgs& args) const {
    GemmOperands bound = bind(args);
    // By rows, all threads begin there, if the next step is split as this one.
    const bool by_rows = plan().split == GemmSplit::rows;
    if (by_rows ? args.ends_run() : args.ends_first_run()) bound.next_weights = *next_weights;
    product->run(args.round, bound, sums_of(args), args.share, args.shares, args.thread, args.are_far);
  }
  StrassenProduct::Sums sums_of(const StepArgs& args) const {
    if (!product->has_own_sums()) return {args.at<float>(sums), 0};
    return {args.own<float>(sums, 0), static_cast<int64_t>(args.thread_bytes / sizeof(float))};
  }
};

template <class Bound>
void add_step(const LowerContext& context, const GemmProblem& problem, Bound bound, const Tensor& weights) {
  Step step;
  step.kernel = bound.plan().key();
  step.reads = {bound.a, bound.b};
  for (const ProductInput& input : bound.inputs) step.reads.push_back(input.buffer);
  step.writes = {bound.c};
  for (const BufferId scratch : {bound.scratch, bound.sums}) {
    if (scratch == BufferId::none) continue;
    step.reads.push_back(scratch);
    step.writes.push_back(scratch);
  }
  // Only a product that visits each element of C once leaves a residual alone until it is read.
  for (const ProductInput& input : bound.inputs) {
    const bool is_operand = input.buffer == bound.a || input.buffer == bound.b;
    if (input.covers_output && !is_operand && bound.visits_once(problem.k)) {
      step.in_place.emplace_back(bound.c, input.buffer);
    }
  }
  step.threads = problem.threads;
  step.rounds = bound.rounds();
  step.flop = problem.flop();
  step.shares = worthwhile_shares(step.flop, step.threads);
  const auto matrices = static_cast<double>(problem.batches), k = static_cast<double>(problem.k);
  const auto m = static_cast<double>(problem.m), n = static_cast<double>(problem.n);
  const double b_bytes = weights.defined() ? static_cast<double>(weights.bytes()) : 4 * matrices * k * n;
  step.bytes = 4 * matrices * (m * k + m * n) + b_bytes;
  if (weights.defined()) step.weights = weights.raw();
  bound.next_weights = std::make_shared<const void*>(nullptr);
  step.next_weights = bound.next_weights;
  step.run = std::move(bound);
  context.add(std::move(step));
}

void add_thread_scratch(const LowerContext& context, int64_t elements, ProductBuffers& buffers) {
  if (elements > 0) buffers.scratch = context.thread_scratch(checked_bytes(DType::f32, {elements}));
}

}  // namespace

bool is_true_of(const LowerContext& context, const ConstantMatrix& b, const std::string& question,
                const std::function<bool()>& find) {
  return context.is_true_of(b.constant, fmt::format("{} of {}x{} {}", question, b.view.rows, b.view.columns, b.text),
                            find);
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
  const std::string text = fmt::format("{} {}x{} {}", product->packing(), problem.k, problem.n, b.text);
  const Tensor weights = context.packed(b.constant, text, [&] {
    Tensor packed = allocate_weights(DType::f32, {product->packed_elements()});
    product->pack(b.view, b.scale, packed.mutable_data<float>());
    return packed;
  });
  BoundStrassen bound{std::move(buffers), product, nullptr};
  bound.b = context.constant_buffer(weights);
  const size_t sums_bytes = checked_bytes(DType::f32, {product->sums_elements()});
  bound.sums = product->has_own_sums() ? context.thread_scratch(sums_bytes) : context.scratch(sums_bytes);
  add_thread_scratch(context, product->scratch_elements(), bound);
  add_step(context, problem, std::move(bound), weights);
}

}  // namespace lathe
