#include "ops/rows/reduction_lower.h"

#include <algorithm>

#include "jit/kernels/rows/reduce.h"
#include "ops/rows/reduction_stages.h"
#include "ops/work_split.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

struct KernelChoice {
  ReduceOp first, next;  // of the first stage and of later ones
  ReduceFinish finish;
};

std::optional<KernelChoice> choice_of(Reduction kind) {
  switch (kind) {
    case Reduction::sum:
      return KernelChoice{ReduceOp::sum, ReduceOp::sum, ReduceFinish::none};
    case Reduction::mean:
      return KernelChoice{ReduceOp::sum, ReduceOp::sum, ReduceFinish::scale};
    case Reduction::max:
      return KernelChoice{ReduceOp::maximum, ReduceOp::maximum, ReduceFinish::none};
    case Reduction::min:
      return KernelChoice{ReduceOp::minimum, ReduceOp::minimum, ReduceFinish::none};
    case Reduction::prod:
      return KernelChoice{ReduceOp::product, ReduceOp::product, ReduceFinish::none};
    case Reduction::sum_square:
      return KernelChoice{ReduceOp::sum_squares, ReduceOp::sum, ReduceFinish::none};
    case Reduction::l1:
      return KernelChoice{ReduceOp::sum_absolutes, ReduceOp::sum, ReduceFinish::none};
    case Reduction::l2:
      return KernelChoice{ReduceOp::sum_squares, ReduceOp::sum, ReduceFinish::square_root};
    case Reduction::log_sum:
      return KernelChoice{ReduceOp::sum, ReduceOp::sum, ReduceFinish::logarithm};
    case Reduction::log_sum_exp:
      return std::nullopt;
  }
  return std::nullopt;
}

void run_stage(const Kernel<ReduceFn>& kernel, const ReductionStage& stage, float scale, const StepArgs& args,
               const float* from, float* to) {
  if (stage.inner == 1) {
    const Range rows = split_evenly(stage.outer, args.share, args.shares);
    if (rows.begin == rows.end) return;
    const ReduceArgs call{
        from + rows.begin * stage.extent, to + rows.begin, rows.end - rows.begin, stage.extent, 0, scale};
    kernel(&call);
    return;
  }
  const Range lines = split_evenly((stage.inner + 15) / 16, args.share, args.shares);
  const int64_t begin = lines.begin * 16, end = std::min<int64_t>(lines.end * 16, stage.inner);
  if (begin >= end) return;
  for (int64_t outer = 0; outer < stage.outer; ++outer) {
    const ReduceArgs call{from + outer * stage.extent * stage.inner + begin,
                          to + outer * stage.inner + begin,
                          stage.extent,
                          end - begin,
                          stage.inner * 4,
                          scale};
    kernel(&call);
  }
}

void add_stage(LowerContext& context, const ReducePlan& plan, const ReductionStage& stage, float scale, BufferId from,
               BufferId to) {
  const Kernel<ReduceFn> kernel = reduce_kernel(plan);
  Step step{.kernel = to_string(plan), .reads = {from}, .writes = {to}};
  const auto elements = static_cast<double>(stage.outer * stage.extent * stage.inner);
  step.flop = elements;
  step.bytes = 4 * elements;
  const bool can_split = stage.inner == 1 ? stage.outer > 1 : stage.inner > 16;
  step.threads = step.bytes > 128e3 && can_split ? context.target.threads : 1;
  step.run = [kernel, stage, scale, from, to](const StepArgs& args) {
    run_stage(kernel, stage, scale, args, args.at<const float>(from), args.at<float>(to));
  };
  context.add(std::move(step));
}

std::optional<PlainReduce> plain_choice_of(Reduction kind, DType dtype) {
  std::optional<PlainReduce> choice;
  if (kind == Reduction::sum || (kind == Reduction::mean && dtype == DType::f64)) choice = PlainReduce::sum;
  if (kind == Reduction::prod) choice = PlainReduce::product;
  if (kind == Reduction::max) choice = PlainReduce::maximum;
  if (kind == Reduction::min) choice = PlainReduce::minimum;
  if (choice && !has_plain_reduction(dtype, *choice)) return std::nullopt;
  return choice;
}

// `divisor`: of a mean of float64, once its sums are complete; else 1.
void add_plain_stage(LowerContext& context, PlainReduce op, const ReductionStage& stage, double divisor, BufferId from,
                     BufferId to) {
  const DType dtype = context.input_type(0).dtype;
  Step step{.kernel = "reduce " + std::string(name_of(dtype)), .reads = {from}, .writes = {to}};
  const int64_t bytes = bits_of(dtype) / 8;
  step.bytes = static_cast<double>(stage.outer * stage.extent * stage.inner * bytes);
  step.threads = static_cast<int>(
      std::min<int64_t>(worthwhile_threads(step.bytes, context.target.threads), std::max<int64_t>(stage.outer, 1)));
  step.run = [=](const StepArgs& args) {
    const Range own = split_evenly(stage.outer, args.share, args.shares);
    if (own.begin >= own.end) return;
    char* out = args.at<char>(to) + own.begin * stage.inner * bytes;
    reduce_plainly(dtype, op, args.at<const char>(from) + own.begin * stage.extent * stage.inner * bytes, out,
                   own.end - own.begin, stage.extent, stage.inner);
    if (divisor == 1) return;
    auto* sums = reinterpret_cast<double*>(out);
    for (int64_t i = 0; i < (own.end - own.begin) * stage.inner; ++i) sums[i] /= divisor;
  };
  context.add(std::move(step));
}

}  // namespace

bool lower_reduction(LowerContext& context, Reduction kind, const std::vector<bool>& reduced) {
  const TensorType& type = context.input_type(0);
  const std::optional<KernelChoice> choice = choice_of(kind);
  const std::optional<PlainReduce> plain_choice = plain_choice_of(kind, type.dtype);
  if (!plain_choice && (type.dtype != DType::f32 || !choice)) return false;
  const Dims dims = type.extents();
  int64_t count = 1, total = 1;
  for (size_t i = 0; i < dims.size(); ++i) {
    total *= dims[i];
    if (reduced[i]) count *= dims[i];
  }
  if (total == 0) return false;
  std::vector<ReductionStage> stages = reduction_stages(dims, reduced);
  if (stages.empty()) stages.push_back({total, 1, 1});
  BufferId from = context.buffer(context.input(0));
  for (size_t i = 0; i < stages.size(); ++i) {
    const bool is_last = i + 1 == stages.size();
    const auto bytes = static_cast<size_t>(stages[i].outer * stages[i].inner * (bits_of(type.dtype) / 8));
    const BufferId to = is_last ? context.buffer(context.output(0)) : context.scratch(bytes);
    if (plain_choice) {
      const double divisor = is_last && kind == Reduction::mean ? static_cast<double>(count) : 1;
      add_plain_stage(context, *plain_choice, stages[i], divisor, from, to);
      from = to;
      continue;
    }
    const ReducePlan plan{context.target.isa, i == 0 ? choice->first : choice->next,
                          is_last ? choice->finish : ReduceFinish::none, stages[i].inner > 1};
    add_stage(context, plan, stages[i], 1.0f / static_cast<float>(count), from, to);
    from = to;
  }
  return true;
}

}  // namespace lathe
