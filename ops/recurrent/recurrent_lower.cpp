#include "ops/recurrent/recurrent_lower.h"

#include <fmt/format.h>

#include "ops/recurrent/recurrent_walk.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

// One direction's W, transposed.
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
  if (!task.has_bias) return problem;
  // Both halves of B; with linear_before_reset the second one belongs to the
  // recurrent product.
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

BufferId add_projection(const LowerContext& context, const RecurrentTask& task, const GemmProblem& problem,
                        const std::shared_ptr<const GemmProduct>& product, int64_t direction) {
  const BufferId x = context.buffer(context.input(kX));
  const BufferId weights = packed_w(context, product->format(), problem, direction);
  const BufferId out = context.scratch(checked_bytes(DType::f32, {problem.m, problem.n}));
  const BufferId bias = task.has_bias ? context.buffer(context.input(kB)) : BufferId::none;
  Step step;
  step.op = std::string(context.node.op->name) + " (input)";
  step.kernel = product->plan().key();
  step.reads = {x, weights};
  if (task.has_bias) step.reads.push_back(bias);
  step.writes = {out};
  step.threads = problem.threads;
  step.flop = problem.flop();
  step.bytes = 4.0 * static_cast<double>(problem.m * problem.k + problem.k * problem.n + problem.m * problem.n);
  auto next = std::make_shared<const void*>(nullptr);
  step.next_weights = next;
  step.run = [=](const StepArgs& args) {
    GemmOperands operands;
    operands.a = args.at<const float>(x);
    operands.a_stride = problem.k;
    operands.b = args.at<const float>(weights);
    operands.c = args.at<float>(out);
    operands.c_stride = problem.n;
    operands.next_weights = *next;
    if (bias != BufferId::none) {
      operands.inputs[0] = args.at<const float>(bias) + direction * 2 * problem.n;
      operands.inputs[1] = operands.inputs[0] + problem.n;
    }
    product->run(operands, args.share, args.shares);
  };
  context.add(std::move(step));
  return out;
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
  std::shared_ptr<const GemmProduct> projection;
  std::vector<RecurrentPart> parts;
  try {
    projection = std::make_shared<const GemmProduct>(problem, choose_gemm_plan(problem, context.plans));
    parts = recurrent_parts(task, context.plans);
  } catch (const JitError&) {
    return false;
  }
  std::vector<BufferId> projected;
  for (int64_t d = 0; d < task.spec.directions; ++d) {
    projected.push_back(add_projection(context, task, problem, projection, d));
  }
  add_walk(context, task, parts, projected);
  return true;
}

}  // namespace lathe
