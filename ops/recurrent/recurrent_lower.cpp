#include "ops/recurrent/recurrent_lower.h"

#include <fmt/format.h>

#include "ops/gemm/product_steps.h"
#include "ops/recurrent/recurrent_walk.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

// One direction's W, transposed.
ConstantMatrix direction_w(const LowerContext& context, const GemmProblem& problem, int64_t direction) {
  ConstantMatrix w;
  w.constant = context.input(kW);
  w.text = fmt::format("recurrent W direction {}", direction);
  w.view = {context.constant(kW).data<float>() + direction * problem.n * problem.k, problem.k, problem.n, 1, problem.k};
  return w;
}

BufferId packed_w(const LowerContext& context, const PanelFormat& format, const GemmProblem& problem,
                  int64_t direction) {
  PackedForm form;
  form.text = fmt::format("recurrent W direction {} panels {} lanes {}", direction, format.panel_columns, format.lanes);
  form.bytes = format.elements(problem.k, problem.n) * int64_t{sizeof(float)};
  form.pack = [format, direction, n = problem.n, k = problem.k](const char* w, const char*, void* out) {
    const float* first = reinterpret_cast<const float*>(w) + direction * n * k;
    pack_panels({first, k, n, 1, k}, format, 0, format.panels(n), 1, static_cast<float*>(out));
  };
  return packed_weights(context, kW, std::nullopt, form);
}

GemmProblem projection_problem(const LowerContext& context, const RecurrentTask& task) {
  GemmProblem problem;
  const RecurrentExtents& e = task.extents;
  problem.m = static_cast<int64_t>(checked_multiply(static_cast<size_t>(e.steps), static_cast<size_t>(e.batch)));
  problem.n = task.spec.gates * e.hidden;
  problem.k = e.input;
  problem.isa = context.target.isa;
  problem.threads = worthwhile_threads(problem.flop(), context.target.threads);
  problem.allows_strassen = context.constant(kW).defined() && context.target.accuracy != Accuracy::strict;
  problem.longest_sum = longest_product_sum(context.target.accuracy);
  if (!task.has_bias) return problem;
  // Both halves of B; with linear_before_reset the second one belongs to the recurrent product.
  GemmEpilogue bias;
  bias.expression.inputs = {DType::f32, DType::f32};
  int sum = bias.expression.add({.op = ExprOp::input, .a = 0});
  const int halves = task.spec.is_linear_before_reset ? 1 : 2;
  for (int i = 1; i <= halves; ++i) {
    if (i == 2) bias.expression.inputs.push_back(DType::f32);
    const int half = bias.expression.add({.op = ExprOp::input, .a = i});
    sum = bias.expression.add({.op = ExprOp::add, .a = sum, .b = half});
    bias.inputs.push_back(GemmInputAccess::columns);
  }
  problem.epilogue = std::move(bias);
  return problem;
}

BufferId add_projection(const LowerContext& context, const GemmProblem& problem, const EmittedProduct& projection,
                        int64_t direction) {
  ProductBuffers buffers;
  buffers.a = context.buffer(context.input(kX));
  buffers.c = context.scratch(checked_bytes(DType::f32, {problem.m, problem.n}));
  buffers.operands.a_stride = problem.k;
  buffers.operands.c_stride = problem.n;
  const size_t biases = problem.epilogue ? problem.epilogue->inputs.size() : 0;
  for (size_t i = 0; i < biases; ++i) {
    const int64_t half = direction * 2 + static_cast<int64_t>(i);
    buffers.inputs.push_back({context.buffer(context.input(kB)), 0, half * problem.n});
  }
  const BufferId projected = buffers.c;
  if (projection.blocks) {
    const ConstantMatrix w = direction_w(context, problem, direction);
    add_block_product(context, problem, projection.blocks, w, std::move(buffers));
  } else {
    buffers.b = packed_w(context, projection.plain->format(), problem, direction);
    add_product(context, problem, projection.plain, std::move(buffers), Tensor());
  }
  return projected;
}

}  // namespace

bool lower_recurrent(LowerContext& context) {
  for (const RecurrentInput input : {kX, kW, kR}) {
    if (context.input_type(input).dtype != DType::f32) return false;
  }
  RecurrentTask task;
  task.spec = recurrent_spec(context.node);
  task.extents = recurrent_extents(context.node, task.spec, context.input_type(kX).extents(),
                                   context.input_type(kW).extents(), context.input_type(kR).extents());
  if (!describe_walk(context, task)) return false;
  const GemmProblem problem = projection_problem(context, task);
  std::vector<EmittedProduct> projections;
  std::vector<RecurrentPart> parts;
  try {
    const GemmPlan plan = choose_gemm_plan(problem, context.plans);
    for (int64_t d = 0; d < task.spec.directions; ++d) {
      const bool is_constant = context.constant(kW).defined();
      const ConstantMatrix w = is_constant ? direction_w(context, problem, d) : ConstantMatrix();
      projections.push_back(emit_product(context, problem, plan, is_constant ? &w : nullptr));
    }
    parts = recurrent_parts(task, context.plans);
  } catch (const JitError&) {
    return false;
  }
  std::vector<BufferId> projected;
  for (int64_t d = 0; d < task.spec.directions; ++d) {
    projected.push_back(add_projection(context, problem, projections[static_cast<size_t>(d)], d));
  }
  add_walk(context, task, parts, projected);
  return true;
}

}  // namespace lathe
