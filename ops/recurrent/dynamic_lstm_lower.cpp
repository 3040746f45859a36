#include "ops/recurrent/dynamic_lstm_lower.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/int8/dynamic_quantize.h"
#include "ops/recurrent/recurrent_walk.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

// The product with W over all time steps, of one direction.
struct Projection {
  std::shared_ptr<const DynamicProduct> product;
  BufferId weights = BufferId::none, scale = BufferId::none, rows = BufferId::none;
  int64_t scale_offset = 0;  // elements

  DynamicOperands operands(const StepArgs& args) const {
    DynamicOperands operands;
    operands.rows = args.at<const void>(rows);
    operands.weights = args.at<const void>(weights);
    operands.b_scale = args.at<const float>(scale) + scale_offset;
    return operands;
  }
};

DynamicProblem projection_problem(const LowerContext& context, const RecurrentTask& task, const ByteWeights& weights) {
  const RecurrentExtents& e = task.extents;
  DynamicProblem problem;
  problem.m = static_cast<int64_t>(checked_multiply(static_cast<size_t>(e.steps), static_cast<size_t>(e.batch)));
  problem.n = task.spec.gates * e.hidden;
  problem.k = e.input;
  problem.b = weights;
  problem.added = task.has_bias ? 2 : 0;  // both halves of B
  problem.isa = task.isa;
  const double flop = 2.0 * static_cast<double>(problem.m) * static_cast<double>(problem.n * problem.k);
  problem.threads = worthwhile_threads(flop / 4, context.target.threads);
  return problem;
}

BufferId packed_w(const LowerContext& context, const RecurrentTask& task,
                  const std::shared_ptr<const DynamicProduct>& product, int64_t direction) {
  const int64_t elements = task.spec.gates * task.extents.hidden * task.extents.input;
  const ByteZeros zeros = zeros_of_direction(context, kWZero, nullptr, 0, task.spec.directions);
  PackedForm form;
  form.text = fmt::format("direction {} {}", direction, product->packed_text());
  form.bytes = product->packed_bytes();
  form.pack = [=](const char* w, const char* zero_points, void* out) {
    product->pack(w + direction * elements, {zero_points + direction * zeros.count, zeros.dtype, zeros.count}, out);
  };
  return packed_weights(context, kW, kWZero, form);
}

// Time steps behind the longest sequence are nobody's: what stands there has no part in the range of X.
LeadingElements steps_in_use(const LowerContext& context, const RecurrentTask& task) {
  if (!task.has_lengths) return {};
  const BufferId lengths = context.buffer(context.input(kLengths));
  return {lengths, [=, e = task.extents](const StepArgs& args) {
            const auto* each = args.at<const int32_t>(lengths);
            const int64_t longest = e.batch > 0 ? *std::max_element(each, each + e.batch) : 0;
            return std::clamp<int64_t>(longest, 0, e.steps) * e.batch * e.input;  // checked behind
          }};
}

// Where the row of X is that a reversed sequence, beginning at its own end, has in this one's place.
int64_t reversed_row(int64_t row, const int32_t* lengths, const RecurrentExtents& e) {
  const int64_t step = row / e.batch, entry = row % e.batch;
  const int64_t length = std::min<int64_t>(lengths[entry], e.steps);  // checked behind
  return step < length ? (length - 1 - step) * e.batch + entry : row;
}

// The directions read X in forms of their own: zero points of their weights differ.
void add_quantization(const LowerContext& context, const RecurrentTask& task, const Projection& projection,
                      const FoundRange& range, int64_t direction) {
  const BufferId lengths = task.reverses_by_entry(direction) ? context.buffer(context.input(kLengths)) : BufferId::none;
  const BufferId x = context.buffer(context.input(kX));
  const int64_t rows = task.extents.steps * task.extents.batch, columns = task.extents.input;
  Step step;
  step.op = std::string(context.node.op->name) + " (input)";
  step.kernel = "quantize";
  step.reads = {x, range.parts, projection.weights, projection.scale};
  if (lengths != BufferId::none) step.reads.push_back(lengths);
  step.writes = {projection.rows};
  step.threads = range.threads;
  step.bytes = 5.0 * static_cast<double>(rows * columns);
  step.run = [=](const StepArgs& args) {
    const Quantization q = quantization_of(range.merged(args));
    auto* out = args.at<void>(projection.rows);
    const Range mine = split_evenly(rows, args.share, range.threads);
    if (lengths == BufferId::none) {
      projection.product->quantize_rows(args.at<const float>(x), columns, mine, q, out);
    } else {
      for (int64_t row = mine.begin; row < mine.end; ++row) {
        const int64_t from = reversed_row(row, args.at<const int32_t>(lengths), task.extents);
        const float* shifted = args.at<const float>(x) + (from - row) * columns;
        projection.product->quantize_rows(shifted, columns, {row, row + 1}, q, out);
      }
    }
    if (args.share == 0) projection.product->begin(q, projection.operands(args), out);
  };
  context.add(std::move(step));
}

BufferId add_product(const LowerContext& context, const DynamicProblem& problem, const Projection& projection,
                     int64_t direction) {
  const BufferId out = context.scratch(checked_bytes(DType::f32, {problem.m, problem.n}));
  const BufferId bias = problem.added > 0 ? context.buffer(context.input(kB)) : BufferId::none;
  Step step;
  step.op = std::string(context.node.op->name) + " (input)";
  step.kernel = projection.product->text();
  step.reads = {projection.rows, projection.weights, projection.scale};
  if (bias != BufferId::none) step.reads.push_back(bias);
  step.writes = {out};
  step.threads = problem.threads;
  step.flop = 2.0 * static_cast<double>(problem.m) * static_cast<double>(problem.n * problem.k);
  step.bytes = static_cast<double>(problem.m * problem.k + problem.k * problem.n + 4 * problem.m * problem.n);
  auto next = std::make_shared<const void*>(nullptr);
  step.next_weights = next;
  step.run = [=, n = problem.n](const StepArgs& args) {
    DynamicOperands operands = projection.operands(args);
    operands.c = args.at<float>(out);
    operands.c_stride = n;
    operands.next_weights = *next;
    if (bias != BufferId::none) {
      operands.added[0] = args.at<const float>(bias) + direction * 2 * n;
      operands.added[1] = operands.added[0] + n;
    }
    projection.product->run(operands, args.share, args.shares);
  };
  context.add(std::move(step));
  return out;
}

std::optional<RecurrentTask> describe(const LowerContext& context, std::vector<ByteWeights>& w_bytes) {
  for (const RecurrentInput input : {kW, kR, kWScale, kWZero, kRScale, kRZero}) {
    if (!context.has_input(input)) return std::nullopt;
  }
  if (context.input_type(kX).dtype != DType::f32) return std::nullopt;
  RecurrentTask task;
  task.spec = recurrent_spec(context.node);
  task.extents = recurrent_extents(context.node, task.spec, context.input_type(kX).extents(),
                                   context.input_type(kW).extents(), context.input_type(kR).extents());
  const int64_t directions = task.spec.directions, columns = task.spec.gates * task.extents.hidden;
  for (int64_t d = 0; d < directions; ++d) {
    const auto w = byte_weights(context, kWBytes, d, directions, columns);
    const auto r = byte_weights(context, kRBytes, d, directions, columns);
    if (!w || !r) return std::nullopt;
    w_bytes.push_back(*w);
    task.r_bytes.push_back(*r);
  }
  if (!describe_walk(context, task)) return std::nullopt;
  return task;
}

}  // namespace

bool lower_dynamic_lstm(LowerContext& context) {
  std::vector<ByteWeights> w_bytes;
  const auto task = describe(context, w_bytes);
  if (!task) return false;
  std::vector<DynamicProblem> problems;
  std::vector<Projection> projections;
  std::vector<RecurrentPart> parts;
  try {
    for (const ByteWeights& weights : w_bytes) {
      problems.push_back(projection_problem(context, *task, weights));
      projections.push_back({std::make_shared<const DynamicProduct>(problems.back(), context.plans)});
    }
    parts = recurrent_parts(*task, context.plans);
  } catch (const JitError&) {
    return false;
  }
  const FoundRange range = add_range(context, kX, steps_in_use(context, *task));
  std::vector<BufferId> projected;
  for (size_t d = 0; d < projections.size(); ++d) {
    Projection& projection = projections[d];
    const auto direction = static_cast<int64_t>(d);
    projection.weights = packed_w(context, *task, projection.product, direction);
    projection.scale = context.buffer(context.input(kWScale));
    projection.scale_offset = direction * elements_by_direction(context, kWScale, task->spec.directions);
    projection.rows = context.scratch(static_cast<size_t>(projection.product->rows_bytes()));
    add_quantization(context, *task, projection, range, direction);
    projected.push_back(add_product(context, problems[d], projection, direction));
  }
  add_walk(context, *task, parts, projected);
  return true;
}

}  // namespace lathe
