#include "ops/gemm/dot_lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ops/gemm/dot_product.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

// Cycles of the product by panels, as dot_product_cycles() counts them. A vector of C in registers is added to once in
// four cycles at most; B is copied where its columns are contiguous.
double panel_cycles(const GemmProblem& problem) {
  const int64_t most_rows = has_avx512(problem.isa) ? 14 : 6;
  const int64_t vecs = divide_up(problem.n, int64_t{vector_lanes(problem.isa)});
  const int64_t rows = std::min(problem.m, most_rows), tiles = divide_up(problem.m, most_rows);
  const auto per_step = static_cast<double>(std::max<int64_t>(rows * vecs, 4) * tiles);
  const auto k = static_cast<double>(problem.k), n = static_cast<double>(problem.n);
  return k * per_step + (problem.b == GemmOperandB::transposed ? k * n / 4 : 0);
}

// `copy_cycles`: for each element of the short side.
double dots_cycles(const GemmProblem& problem, bool is_turned, double copy_cycles) {
  const int64_t rows = is_turned ? problem.n : problem.m, columns = is_turned ? problem.m : problem.n;
  return dot_product_cycles(problem.isa, rows, columns, problem.k) +
         copy_cycles * static_cast<double>(columns * problem.k);
}

struct ThinForm {
  bool is_turned = false;           // the rows are B's columns
  bool is_packed_short = false;     // B is the short side and constant
  bool is_turned_constant = false;  // B is the long side and constant: its columns lie one behind the other
};

DotProblem dot_problem(const ProductNode& product, const GemmProblem& problem, const ThinForm& form) {
  DotProblem dots;
  dots.isa = problem.isa;
  dots.rows = form.is_turned ? problem.n : problem.m;
  dots.columns = form.is_turned ? problem.m : problem.n;
  dots.k = problem.k;
  const size_t b_rank = product.b_strides.size();
  if (form.is_turned) {
    dots.long_stride = form.is_turned_constant ? problem.k : product.b_strides.back();
    dots.short_k_stride = 1;
    dots.short_column_stride = product.a_strides.back();
  } else {
    dots.long_stride = product.a_strides.back();
    dots.short_k_stride = product.b_strides[b_rank - 2];
    dots.short_column_stride = product.b_strides.back();
  }
  dots.c_row = form.is_turned ? 1 : product.c_strides.back();
  dots.c_column = form.is_turned ? product.c_strides.back() : 1;
  if (product.expression.nodes.size() > 1 || !product.extra.empty()) dots.epilogue = product.expression;
  for (const ExtraInput& extra : product.extra) {
    std::array<int64_t, 2> strides = {extra.strides[product.shape.batch.size()], extra.strides.back()};
    if (form.is_turned) std::swap(strides[0], strides[1]);
    dots.input_strides.push_back(strides);
  }
  return dots;
}

std::vector<DotOffsets> dot_offsets(const ProductNode& product, int64_t packed_matrix, bool is_turned) {
  std::vector<DotOffsets> offsets;
  for (const GemmOffsets& at : batch_offsets(product, packed_matrix)) {
    offsets.push_back({is_turned ? at.b : at.a, is_turned ? at.a : at.b, at.c, at.inputs});
  }
  return offsets;
}

struct BoundDots {
  std::shared_ptr<const DotProduct> product;
  BufferId of_long = BufferId::none, of_short = BufferId::none, c = BufferId::none, scratch = BufferId::none;
  std::vector<BufferId> inputs;

  void operator()(const StepArgs& args) const {
    DotOperands operands;
    operands.of_long = args.at<const float>(of_long);
    operands.of_short = args.at<const float>(of_short);
    operands.c = args.at<float>(c);
    for (size_t i = 0; i < inputs.size(); ++i) operands.inputs[i] = args.at<const float>(inputs[i]);
    if (scratch != BufferId::none) operands.scratch = args.own<float>(scratch);
    product->run(operands, args.share, args.shares);
  }
};

// The constant's matrices, one behind the other: the short side in the kernel's order, or the long side's columns
// made contiguous.
BufferId packed_constant(const LowerContext& context, const ProductNode& product, const ThinOperands& operands,
                         const GemmProblem& problem, const ThinForm& form, const DotProduct& dots) {
  const int64_t k_stride = product.b_strides[product.b_strides.size() - 2], n_stride = product.b_strides.back();
  const float alpha = product.form.alpha;
  if (form.is_turned && k_stride == 1 && n_stride == problem.k && alpha == 1) return operands.b;  // as they lie
  const std::string text =
      fmt::format("dots {} {}x{} strides {}:{} lanes {} alpha {}", form.is_turned ? "turned" : "short", problem.k,
                  problem.n, k_stride, n_stride, vector_lanes(problem.isa), alpha);
  return context.constant_buffer(context.packed(operands.constant_b, text, [&] {
    const Tensor& constant = context.graph.value(operands.constant_b).constant;
    const int64_t matrices = constant.size() / std::max<int64_t>(1, problem.k * problem.n);
    const int64_t size = form.is_turned ? problem.k * problem.n : dots.packed_elements();
    Tensor packed = allocate_weights(DType::f32, {matrices, size});
    for (int64_t i = 0; i < matrices; ++i) {
      const float* from = constant.data<float>() + i * problem.k * problem.n;
      float* to = packed.mutable_data<float>() + i * size;
      if (!form.is_turned) {
        dots.pack(from, alpha, to);
        continue;
      }
      for (int64_t n = 0; n < problem.n; ++n) {
        for (int64_t k = 0; k < problem.k; ++k) *to++ = from[k * k_stride + n * n_stride] * alpha;
      }
    }
    return packed;
  }));
}

std::optional<ThinForm> choose_form(const ProductNode& product, const GemmProblem& problem, bool is_constant) {
  constexpr double kLeastGain = 1.15;
  const double limit = panel_cycles(problem) / kLeastGain;
  const int64_t steps = divide_up(problem.k, int64_t{vector_lanes(problem.isa)});
  if (problem.longest_sum > 0 && steps > problem.longest_sum) return std::nullopt;
  constexpr double kRunsCopied = 0.25, kElementsCopied = 2;
  const bool has_runs = product.b_strides[product.b_strides.size() - 2] == 1;  // of columns of B
  const double straight = dots_cycles(problem, false, is_constant ? 0 : has_runs ? kRunsCopied : kElementsCopied);
  double turned = is_constant || has_runs ? dots_cycles(problem, true, kRunsCopied) : straight;
  if (problem.m > 1) turned += kElementsCopied * static_cast<double>(problem.m * problem.n);  // C, one by one
  if (std::min(straight, turned) > limit) return std::nullopt;
  const bool is_turned = turned < straight;
  return ThinForm{is_turned, !is_turned && is_constant, is_turned && is_constant};
}

// A thread has at least this much to read, about 4 us of what L3 gives it.
int threads_of(const GemmProblem& problem, int threads) {
  const double bytes = 4.0 * static_cast<double>(problem.batches * (problem.m + problem.n) * problem.k);
  return std::max(worthwhile_threads(problem.flop(), threads), worthwhile_readers(bytes, threads));
}

}  // namespace

bool lower_thin_product(LowerContext& context, const ProductNode& product, const GemmProblem& problem,
                        const ThinOperands& operands) {
  const bool is_constant = operands.constant_b != ValueId::none;
  const std::optional<ThinForm> form = choose_form(product, problem, is_constant);
  if (!form) return false;
  DotProblem dots = dot_problem(product, problem, *form);
  BoundDots bound;
  try {
    // What one packed matrix takes is known by the product only: batches of constants are offset by it.
    const DotProduct single(dots, form->is_packed_short, {});
    const int64_t matrix = form->is_packed_short ? single.packed_elements() : is_constant ? problem.k * problem.n : 0;
    bound.product = std::make_shared<const DotProduct>(std::move(dots), form->is_packed_short,
                                                       dot_offsets(product, matrix, form->is_turned));
  } catch (const JitError&) {
    return false;
  }
  const BufferId b =
      is_constant ? packed_constant(context, product, operands, problem, *form, *bound.product) : operands.b;
  bound.of_long = form->is_turned ? b : operands.a;
  bound.of_short = form->is_turned ? operands.a : b;
  bound.c = operands.c;
  for (const ExtraInput& extra : product.extra) bound.inputs.push_back(context.buffer(extra.value));
  Step step;
  step.kernel = bound.product->text();
  step.reads = {operands.a, b};
  step.reads.insert(step.reads.end(), bound.inputs.begin(), bound.inputs.end());
  step.writes = {bound.c};
  if (const int64_t elements = bound.product->scratch_elements(); elements > 0) {
    bound.scratch = context.thread_scratch(checked_bytes(DType::f32, {elements}));
    step.reads.push_back(bound.scratch);
    step.writes.push_back(bound.scratch);
  }
  for (size_t i = 0; i < product.extra.size(); ++i) {
    const bool is_operand = bound.inputs[i] == bound.of_long || bound.inputs[i] == bound.of_short;
    if (product.extra[i].covers_output && !is_operand) step.in_place.emplace_back(bound.c, bound.inputs[i]);
  }
  step.flop = problem.flop();
  step.bytes = 4.0 * static_cast<double>(problem.batches * (problem.m * problem.k + problem.m * problem.n) +
                                         (is_constant ? 1 : problem.batches) * problem.k * problem.n);
  step.threads = threads_of(problem, context.target.threads);
  step.shares = worthwhile_shares(step.flop, step.threads);
  step.run = std::move(bound);
  context.add(std::move(step));
  return true;
}

}  // namespace lathe
