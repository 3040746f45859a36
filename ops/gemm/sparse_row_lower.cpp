#include "ops/gemm/sparse_row_lower.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>

#include "ops/gemm/rectified.h"
#include "ops/gemm/sparse_row_product.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

// A step's call.
struct BoundRow {
  std::shared_ptr<const SparseRowProduct> product;
  BufferId a = BufferId::none, b = BufferId::none, c = BufferId::none, sums = BufferId::none, taken = BufferId::none;
  std::vector<BufferId> inputs;

  void operator()(const StepArgs& args) const {
    const auto* packed = args.at<const float>(b);
    auto* all_sums = args.at<float>(sums);
    if (args.round == 0) {
      float* own = all_sums + args.share * product->sum_elements();
      return product->multiply(args.at<const float>(a), packed, own, args.own<float>(taken), args.share);
    }
    std::array<const float*, kMaxGemmInputs> operands = {};
    for (size_t i = 0; i < inputs.size(); ++i) operands[i] = args.at<const float>(inputs[i]);
    product->finish(packed, all_sums, args.at<float>(c), operands, args.share);
  }
};

bool is_wanted(const LowerContext& context, const ProductNode& product, const GemmProblem& problem) {
  constexpr int64_t kFewestColumns = 256;  // shorter rows come with their neighbours
  if (problem.m != 1 || problem.narrow != WeightFormat::bfp20 || product.form.transpose_a) return false;
  return problem.n >= kFewestColumns && is_rectified(context.graph, context.input(0));
}

}  // namespace

bool lower_sparse_row(const LowerContext& context, const ProductNode& product, const GemmProblem& problem,
                      const ConstantMatrix& b) {
  if (!is_wanted(context, product, problem)) return false;
  BoundRow bound;
  try {
    bound.product = std::make_shared<const SparseRowProduct>(
        SparseRowProblem{problem.n, problem.k, problem.isa, problem.threads, problem.epilogue});
  } catch (const JitError&) {
    return false;
  }
  const SparseRowProduct& made = *bound.product;
  const std::string text =
      fmt::format("sparse row {}x{} lanes {} {}", problem.k, problem.n, vector_lanes(problem.isa), b.text);
  const Tensor weights = context.packed(b.constant, text, [&] {
    Tensor packed = allocate_weights(DType::f32, {made.packed_words()});
    made.pack(b.view, b.scale, packed.mutable_data<float>(), [&](size_t bytes) { context.has_packed(bytes); });
    return packed;
  });
  bound.a = context.buffer(context.input(0));
  bound.b = context.constant_buffer(weights);
  bound.c = context.buffer(context.output(0));
  bound.sums = context.scratch(checked_bytes(DType::f32, {problem.threads, made.sum_elements()}));
  bound.taken = context.thread_scratch(checked_bytes(DType::f32, {made.taken_elements()}));
  for (const ExtraInput& extra : product.extra) bound.inputs.push_back(context.buffer(extra.value));
  Step step;
  step.kernel = fmt::format("gemm of a sparse row bfp20 {} columns", problem.n);
  step.reads = {bound.a, bound.b, bound.sums, bound.taken};
  step.reads.insert(step.reads.end(), bound.inputs.begin(), bound.inputs.end());
  step.writes = {bound.c, bound.sums, bound.taken};
  step.threads = problem.threads;
  step.rounds = 2;
  step.flop = problem.flop();
  step.bytes = 4.0 * static_cast<double>(problem.k + problem.n) + static_cast<double>(weights.bytes());
  step.weights = weights.raw();
  step.run = std::move(bound);
  context.add(std::move(step));
  return true;
}

}  // namespace lathe
