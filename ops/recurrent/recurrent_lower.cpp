#include "ops/recurrent/recurrent_lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ops/recurrent/recurrent_program.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

enum Input { kX, kW, kR, kB, kLengths, kInitialH, kInitialC, kPeepholes };

// What lowering has found out before it makes any step.
struct Instance {
  RecurrentSpec spec;
  RecurrentExtents extents;
  int64_t gate_columns = 0;  // gates * hidden
  bool has_bias = false, has_peepholes = false, is_linear_reset = false;
};

bool describe(const LowerContext& context, Instance& instance) {
  for (int i = 0; i < context.input_count(); ++i) {
    if (!context.has_input(i)) continue;
    if (i == kLengths || context.input_type(i).dtype != DType::f32) return false;
  }
  instance.spec = recurrent_spec(context.node);
  instance.extents = recurrent_extents(context.node, instance.spec, context.input_type(kX).extents(),
                                       context.input_type(kW).extents(), context.input_type(kR).extents());
  const RecurrentSpec& spec = instance.spec;
  const RecurrentExtents& e = instance.extents;
  // What the operands must be for the addresses below; a node that breaks it is told so by the reference.
  const std::pair<int, const char*> shapes[] = {{kB, "B"}, {kInitialH, "Y_h"}, {kInitialC, "Y_h"}, {kPeepholes, "P"}};
  for (const auto& [input, name] : shapes) {
    if (context.has_input(input) && context.input_type(input).extents() != recurrent_dims(spec, e, name)) return false;
  }
  instance.gate_columns = spec.gates * e.hidden;
  instance.has_bias = context.has_input(kB);
  instance.has_peepholes = spec.cell == RecurrentCell::lstm && context.has_input(kPeepholes);
  instance.is_linear_reset = spec.cell == RecurrentCell::gru && spec.is_linear_before_reset;
  return e.steps > 0 && e.batch > 0 && e.input > 0 && e.hidden > 0;
}

// Rows [first, first + rows) of `matrix` ([directions][gates * hidden][columns]), transposed and packed: at load when
// it is constant, by a step of every run otherwise.
BufferId packed_rows(LowerContext& context, Input input, const PanelFormat& format, int64_t first, int64_t rows,
                     int64_t columns) {
  const auto pack = [=](const float* from, float* to) {
    pack_panels({from + first * columns, columns, rows, 1, columns}, format, 0, format.panels(rows), 1, to);
  };
  const int64_t size = format.elements(columns, rows);
  if (const Tensor constant = context.constant(input); constant.defined()) {
    const std::string text = fmt::format("recurrent {}+{} x {} panels {} lanes {}", first, rows, columns,
                                         format.panel_columns, format.lanes);
    return context.constant_buffer(context.packed(context.input(input), text, [&] {
      Tensor packed = allocate_weights(DType::f32, {size});
      pack(constant.data<float>(), packed.mutable_data<float>());
      return packed;
    }));
  }
  const BufferId from = context.buffer(context.input(input));
  const BufferId to = context.scratch(checked_bytes(DType::f32, {size}));
  Step step;
  step.op = std::string(context.node.op->name) + " (weights)";
  step.kernel = "pack";
  step.reads = {from};
  step.writes = {to};
  step.bytes = 8.0 * static_cast<double>(rows * columns);
  step.run = [=](const StepArgs& args) { pack(args.at<const float>(from), args.at<float>(to)); };
  context.add(std::move(step));
  return to;
}

// ---- The products with W, over all time steps

GemmProblem projection_problem(const LowerContext& context, const Instance& instance) {
  GemmProblem problem;
  problem.m = static_cast<int64_t>(
      checked_multiply(static_cast<size_t>(instance.extents.steps), static_cast<size_t>(instance.extents.batch)));
  problem.n = instance.gate_columns;
  problem.k = instance.extents.input;
  problem.isa = context.target.isa;
  problem.threads = worthwhile_threads(problem.flop(), context.target.threads);
  if (!instance.has_bias) return problem;
  // Both halves of B; with linear_before_reset the second one belongs to the recurrent product.
  GemmEpilogue bias;
  bias.expression.inputs = {DType::f32, DType::f32};
  int sum = bias.expression.add({.op = ExprOp::input, .a = 0});
  const int halves = instance.is_linear_reset ? 1 : 2;
  for (int i = 1; i <= halves; ++i) {
    if (i == 2) bias.expression.inputs.push_back(DType::f32);
    const int half = bias.expression.add({.op = ExprOp::input, .a = i});
    sum = bias.expression.add({.op = ExprOp::add, .a = sum, .b = half});
    bias.inputs.push_back(GemmInputAccess::columns);
  }
  problem.epilogue = std::move(bias);
  return problem;
}

BufferId add_projection(LowerContext& context, const Instance& instance, const GemmProblem& problem,
                        const std::shared_ptr<const GemmProduct>& product, int64_t direction) {
  const BufferId x = context.buffer(context.input(kX));
  const BufferId weights = packed_rows(context, kW, product->format(), direction * problem.n, problem.n, problem.k);
  const BufferId out = context.scratch(checked_bytes(DType::f32, {problem.m, problem.n}));
  const BufferId bias = instance.has_bias ? context.buffer(context.input(kB)) : BufferId::none;
  Step step;
  step.op = std::string(context.node.op->name) + " (input)";
  step.kernel = product->plan().key();
  step.reads = {x, weights};
  if (instance.has_bias) step.reads.push_back(bias);
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

// ---- The walk through time

// One direction's part of the step.
struct Direction {
  std::shared_ptr<const RecurrentProgram> program;
  BufferId projected = BufferId::none;
  std::vector<BufferId> weights;
};

struct Bound {
  Instance instance;
  std::vector<Direction> directions;
  BufferId bias = BufferId::none, initial_h = BufferId::none, initial_c = BufferId::none, peepholes = BufferId::none;
  BufferId y = BufferId::none, last_h = BufferId::none, last_c = BufferId::none, scratch = BufferId::none;
  int shares = 1;  // of each direction

  int rounds() const { return shares > 1 ? directions[0].program->rounds() : 1; }
  // Of each direction: the gates, and for each share the program's own, first hidden rows, cell rows, hidden rows.
  int64_t scratch_elements() const { return whole_lines(program().gate_elements()) + shares * share_elements(); }
  void operator()(const StepArgs& args) const {
    if (shares > 1) return run(args, args.share / shares, args.share % shares);
    const auto count = static_cast<long>(directions.size());
    const Range mine = split_evenly(count, args.share, args.shares);
    for (long d = mine.begin; d < mine.end; ++d) run(args, d, 0);
  }

 private:
  static int64_t whole_lines(int64_t elements) { return (elements + 15) / 16 * 16; }
  const RecurrentProgram& program() const { return *directions[0].program; }
  int64_t share_elements() const {
    return whole_lines(program().own_elements() + 3 * instance.extents.batch * instance.extents.hidden);
  }
  int64_t state_stride() const {
    return instance.spec.is_batch_first ? instance.spec.directions * instance.extents.hidden : instance.extents.hidden;
  }
  // Of one direction within a tensor of states.
  int64_t state_offset(int64_t d) const {
    const RecurrentExtents& e = instance.extents;
    return instance.spec.is_batch_first ? d * e.hidden : d * e.batch * e.hidden;
  }
  size_t row_bytes() const { return static_cast<size_t>(instance.extents.hidden) * sizeof(float); }
  void copy_rows(ConstHiddenRows from, HiddenRows to) const {
    const size_t bytes = row_bytes();
    for (int64_t b = 0; b < instance.extents.batch; ++b) {
      float* row = to.data + b * to.stride;
      if (from.data == nullptr) {
        std::memset(row, 0, bytes);
      } else if (from.data + b * from.stride != row) {
        std::memcpy(row, from.data + b * from.stride, bytes);
      }
    }
  }
  ConstHiddenRows initial(const StepArgs& args, BufferId buffer, int64_t d) const {
    if (buffer == BufferId::none) return {};
    return {args.at<const float>(buffer) + state_offset(d), state_stride()};
  }
  HiddenRows state(const StepArgs& args, BufferId buffer, int64_t d, float* otherwise) const {
    if (buffer == BufferId::none) return {otherwise, instance.extents.hidden};
    return {args.at<float>(buffer) + state_offset(d), state_stride()};
  }

  void run(const StepArgs& args, int64_t d, int share) const {
    const RecurrentExtents& e = instance.extents;
    const Direction& direction = directions[static_cast<size_t>(d)];
    const RecurrentOperands operands = operands_of(args, d, share);
    if (args.round == 0) {
      if (initial_h == BufferId::none) std::memset(first_rows(operands), 0, row_bytes() * static_cast<size_t>(e.batch));
      if (instance.spec.cell == RecurrentCell::lstm) copy_rows(initial(args, initial_c, d), operands.cell);
    }
    const ConstHiddenRows last = shares == 1 ? direction.program->run(operands)
                                             : direction.program->run_round(operands, {share, shares, args.round});
    const bool is_end = args.round + 1 == rounds() && share == 0;
    if (is_end && last_h != BufferId::none) copy_rows(last, state(args, last_h, d, nullptr));
  }

  // Behind a share's own elements.
  float* first_rows(const RecurrentOperands& operands) const { return operands.own + program().own_elements(); }

  // The results are the first share's; the others keep their states to themselves.
  RecurrentOperands operands_of(const StepArgs& args, int64_t d, int share) const {
    const RecurrentSpec& spec = instance.spec;
    const RecurrentExtents& e = instance.extents;
    const Direction& direction = directions[static_cast<size_t>(d)];
    RecurrentOperands operands;
    operands.gates = args.at<float>(scratch) + d * scratch_elements();
    operands.own = operands.gates + whole_lines(program().gate_elements()) + share * share_elements();
    float* rows = first_rows(operands);
    operands.projected = args.at<const float>(direction.projected);
    operands.projected_step = (spec.is_batch_first ? 1 : e.batch) * instance.gate_columns;
    operands.projected_entry = (spec.is_batch_first ? e.steps : 1) * instance.gate_columns;
    for (size_t i = 0; i < direction.weights.size(); ++i) {
      operands.weights[i] = args.at<const float>(direction.weights[i]);
    }
    if (bias != BufferId::none) {
      operands.recurrent_bias = args.at<const float>(bias) + (2 * d + 1) * instance.gate_columns;
    }
    if (instance.has_peepholes) operands.peepholes = args.at<const float>(peepholes) + d * 3 * e.hidden;
    operands.first_hidden = initial(args, initial_h, d);
    if (operands.first_hidden.data == nullptr) operands.first_hidden = {rows, e.hidden};
    operands.cell = state(args, share == 0 ? last_c : BufferId::none, d, rows + e.batch * e.hidden);
    operands.hidden = {rows + 2 * e.batch * e.hidden, e.hidden};
    if (y != BufferId::none && share == 0) {
      const int64_t row = spec.directions * e.hidden;  // of all directions
      operands.hidden = spec.is_batch_first ? HiddenRows{args.at<float>(y) + d * e.hidden, e.steps * row}
                                            : HiddenRows{args.at<float>(y) + d * e.batch * e.hidden, e.hidden};
      operands.hidden_step = spec.is_batch_first ? row : e.batch * row;
    }
    operands.is_reversed = spec.is_reversed(d);
    return operands;
  }
};

// Into how many shares the products of a direction are cut. All of them meet after every product.
int shares_of_direction(const LowerContext& context, const Instance& instance) {
  constexpr double kFlopPerShare = 150e3;  // about 1.5 us, three times as long as it takes to meet
  const RecurrentExtents& e = instance.extents;
  const double flop = 2.0 * static_cast<double>(e.batch) * static_cast<double>(instance.gate_columns * e.hidden);
  const auto most = context.target.threads / static_cast<int>(instance.spec.directions);
  return std::clamp(static_cast<int>(flop / kFlopPerShare), 1, std::max(1, most));
}

void add_walk(LowerContext& context, Bound bound) {
  const RecurrentExtents& e = bound.instance.extents;
  const auto buffer = [&](Input input) {
    return context.has_input(input) ? context.buffer(context.input(input)) : BufferId::none;
  };
  const auto result = [&](int i) { return context.has_output(i) ? context.buffer(context.output(i)) : BufferId::none; };
  bound.initial_h = buffer(kInitialH);
  if (bound.instance.is_linear_reset) bound.bias = buffer(kB);
  if (bound.instance.spec.cell == RecurrentCell::lstm) {
    bound.initial_c = buffer(kInitialC);
    bound.peepholes = buffer(kPeepholes);
    bound.last_c = result(2);
  }
  bound.y = result(0);
  bound.last_h = result(1);
  bound.scratch = context.scratch(
      checked_multiply(bound.directions.size() * sizeof(float), static_cast<size_t>(bound.scratch_elements())));
  Step step;
  step.op = context.node.op->name;
  step.kernel = bound.directions[0].program->text();
  for (const BufferId id : {bound.initial_h, bound.bias, bound.initial_c, bound.peepholes, bound.scratch}) {
    if (id != BufferId::none) step.reads.push_back(id);
  }
  for (const Direction& direction : bound.directions) {
    step.reads.push_back(direction.projected);
    step.reads.insert(step.reads.end(), direction.weights.begin(), direction.weights.end());
  }
  for (const BufferId id : {bound.y, bound.last_h, bound.last_c, bound.scratch}) {
    if (id != BufferId::none) step.writes.push_back(id);
  }
  const double weights =
      static_cast<double>(bound.instance.gate_columns * e.hidden) * static_cast<double>(bound.directions.size());
  step.flop = 2 * weights * static_cast<double>(e.batch) * static_cast<double>(e.steps);
  step.bytes = 4 * weights;
  const auto directions = static_cast<int>(bound.directions.size());
  step.threads = bound.shares > 1 ? directions * bound.shares
                                  : worthwhile_threads(step.flop, std::min(context.target.threads, directions));
  step.rounds = bound.rounds();
  step.run = std::move(bound);
  context.add(std::move(step));
}

}  // namespace

bool lower_recurrent(LowerContext& context) {
  Bound bound;
  Instance& instance = bound.instance;
  if (!describe(context, instance)) return false;
  bound.shares = shares_of_direction(context, instance);
  const GemmProblem problem = projection_problem(context, instance);
  std::shared_ptr<const GemmProduct> projection;
  try {
    projection = std::make_shared<const GemmProduct>(problem, choose_gemm_plan(problem, context.plans));
    for (int64_t d = 0; d < instance.spec.directions; ++d) {
      const auto program = std::make_shared<const RecurrentProgram>(instance.spec, instance.extents, d,
                                                                    instance.has_bias, instance.has_peepholes,
                                                                    context.target.isa, bound.shares, context.plans);
      bound.directions.push_back({program, BufferId::none, {}});
    }
  } catch (const JitError&) {
    return false;
  }
  for (int64_t d = 0; d < instance.spec.directions; ++d) {
    Direction& direction = bound.directions[static_cast<size_t>(d)];
    direction.projected = add_projection(context, instance, problem, projection, d);
    for (const auto& part : direction.program->weight_parts()) {
      const int64_t hidden = instance.extents.hidden;
      direction.weights.push_back(packed_rows(
          context, kR, part.format, d * instance.gate_columns + part.first_gate * hidden, part.gates * hidden, hidden));
    }
  }
  add_walk(context, std::move(bound));
  return true;
}

}  // namespace lathe
