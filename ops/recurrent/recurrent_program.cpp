#include "ops/recurrent/recurrent_program.h"

#include <algorithm>
#include <array>

#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Builds an expression over float32 inputs.
struct Terms {
  Expression e;
  int input() {
    e.inputs.push_back(DType::f32);
    return e.add({.op = ExprOp::input, .a = static_cast<int>(e.inputs.size()) - 1});
  }
  int constant(float value) { return e.add({.op = ExprOp::constant, .value = value}); }
  int two(ExprOp op, int a, int b) { return e.add({.op = op, .a = a, .b = b}); }
  int add(int a, int b) { return two(ExprOp::add, a, b); }
  int mul(int a, int b) { return two(ExprOp::mul, a, b); }
};

}  // namespace

// One time step: where its operands lie.
struct RecurrentProgram::Moment {
  const RecurrentOperands& operands;
  const float* projected;
  float* gates;         // batch rows of gates * hidden
  float* reset_hidden;  // this share's own: batch rows
  ConstHiddenRows before;
  HiddenRows after;
  bool goes_back;
};

RecurrentProgram::RecurrentProgram(const RecurrentSpec& spec, const RecurrentExtents& extents, int64_t direction,
                                   bool has_bias, bool has_peepholes, Isa isa, int shares, PlanSource& plans)
    : spec_(spec), extents_(extents), isa_(isa), shares_(shares) {
  const RecurrentActivation* f = spec.activations_of(direction);
  if (spec.cell == RecurrentCell::gru && spec.is_linear_before_reset) {
    add_product(0, 3, false, has_bias, plans);
  } else if (spec.cell == RecurrentCell::gru) {
    add_product(0, 2, true, false, plans);
    add_product(2, 1, true, false, plans);
  } else {
    add_product(0, spec.gates, true, false, plans);
  }
  if (spec.cell == RecurrentCell::rnn) plan_rnn(f);
  if (spec.cell == RecurrentCell::gru) plan_gru(f);
  if (spec.cell == RecurrentCell::lstm) plan_lstm(f, has_peepholes);
}

void RecurrentProgram::add_product(int first_gate, int gates, bool adds_projected, bool has_bias, PlanSource& plans) {
  GemmProblem problem;
  problem.m = extents_.batch;
  problem.n = gates * extents_.hidden;
  problem.k = extents_.hidden;
  problem.isa = isa_;
  problem.threads = shares_;
  if (adds_projected || has_bias) {
    Terms sum;
    const int product = sum.input();
    sum.add(product, sum.input());
    problem.epilogue = GemmEpilogue{sum.e, {GemmInputAccess::columns}};
  }
  products_.push_back({first_gate, gates, adds_projected, has_bias,
                       std::make_shared<const GemmProduct>(problem, choose_gemm_plan(problem, plans))});
}

void RecurrentProgram::add_loop(const Expression& expression) {
  PointwisePlan plan;
  plan.isa = isa_;
  plan.expression = expression;
  plan.access.assign(expression.inputs.size(), PointwiseAccess::contiguous);
  loops_.push_back(pointwise_kernel(plan));
}

int RecurrentProgram::clipped(Expression& e, int x) const {
  if (spec_.clip <= 0) return x;
  const int high = e.add({.op = ExprOp::constant, .value = spec_.clip});
  const int below = e.add({.op = ExprOp::min, .a = x, .b = high});
  const int low = e.add({.op = ExprOp::constant, .value = -spec_.clip});
  return e.add({.op = ExprOp::max, .a = below, .b = low});
}

void RecurrentProgram::plan_rnn(const RecurrentActivation* f) {
  Terms h;
  const int x = h.input();
  append(h.e, f[0], clipped(h.e, x));
  add_loop(h.e);
}

void RecurrentProgram::plan_gru(const RecurrentActivation* f) {
  // h = (1 - z) * g(inner) + z * h
  const auto blend = [&](Terms& t, int z_sum, int inner, int before) {
    const int z = append(t.e, f[0], clipped(t.e, z_sum));
    const int fresh = append(t.e, f[1], clipped(t.e, inner));
    const int share = t.two(ExprOp::sub, t.constant(1), z);
    const int kept = t.mul(z, before);
    t.add(t.mul(share, fresh), kept);
    add_loop(t.e);
  };
  Terms next;
  if (spec_.is_linear_before_reset) {
    std::array<int, 6> sums;  // z r h from x, then from h
    for (int& sum : sums) sum = next.input();
    const int before = next.input();
    const int r_sum = next.add(sums[1], sums[4]);
    const int r = append(next.e, f[0], clipped(next.e, r_sum));
    const int z_sum = next.add(sums[0], sums[3]);
    const int inner = next.add(sums[2], next.mul(r, sums[5]));
    return blend(next, z_sum, inner, before);
  }
  Terms reset;
  const int r_sum = reset.input(), before = reset.input();
  const int r = append(reset.e, f[0], clipped(reset.e, r_sum));
  reset.mul(r, before);
  add_loop(reset.e);
  const int z_sum = next.input(), inner = next.input(), h = next.input();
  blend(next, z_sum, inner, h);
}

void RecurrentProgram::plan_lstm(const RecurrentActivation* f, bool has_peepholes) {
  Terms cell;
  const int in_sum = cell.input(), forget_sum = cell.input(), fresh_sum = cell.input(), before = cell.input();
  const auto gate = [&](Terms& t, int sum, int state) {
    if (has_peepholes) {
      const int weight = t.input();
      sum = t.add(sum, t.mul(weight, state));
    }
    return append(t.e, f[0], clipped(t.e, sum));
  };
  const int in = gate(cell, in_sum, before);
  const int forget =
      spec_.couples_forget ? cell.two(ExprOp::sub, cell.constant(1), in) : gate(cell, forget_sum, before);
  const int fresh = append(cell.e, f[1], clipped(cell.e, fresh_sum));
  const int kept = cell.mul(forget, before);
  cell.add(kept, cell.mul(in, fresh));
  add_loop(cell.e);

  Terms hidden;
  const int out_sum = hidden.input(), state = hidden.input();
  const int out = gate(hidden, out_sum, state);
  hidden.mul(out, append(hidden.e, f[2], state));
  add_loop(hidden.e);
}

std::vector<RecurrentProgram::WeightPart> RecurrentProgram::weight_parts() const {
  std::vector<WeightPart> parts;
  for (const Product& product : products_) {
    parts.push_back({product.first_gate, product.gates, product.product->format()});
  }
  return parts;
}

// Of two steps where there are several shares: one may still read those of the step before.
int64_t RecurrentProgram::gate_elements() const {
  return (shares_ > 1 ? 2 : 1) * extents_.batch * spec_.gates * extents_.hidden;
}

int64_t RecurrentProgram::own_elements() const { return extents_.batch * extents_.hidden; }

std::string RecurrentProgram::text() const { return "recurrent, " + products_[0].product->plan().key(); }

void RecurrentProgram::multiply(size_t part, const Moment& moment, const RecurrentShare& who) const noexcept {
  const Product& product = products_[part];
  const ConstHiddenRows rows = part == 0 ? moment.before : ConstHiddenRows{moment.reset_hidden, extents_.hidden};
  const int64_t column = product.first_gate * extents_.hidden;
  GemmOperands operands;
  operands.a = rows.data;
  operands.a_stride = rows.stride;
  operands.b = moment.operands.weights[part];
  operands.c = moment.gates + column;
  operands.c_stride = spec_.gates * extents_.hidden;
  if (product.adds_projected) {
    operands.inputs[0] = moment.projected + column;
    operands.input_strides[0] = moment.operands.projected_entry;
  } else if (product.adds_bias) {
    operands.inputs[0] = moment.operands.recurrent_bias;
  }
  // The weights back and forth: what came last in one step is still near in the next, where all of them would push one
  // another out of the cache (256 hidden units of an LSTM are all of 1 MB).
  const int64_t panels = product.product->format().panels(product.gates * extents_.hidden);
  if (!moment.goes_back || product.product->plan().split == GemmSplit::rows)
    return product.product->run(operands, who.share, who.shares);
  const Range mine = split_evenly(panels, who.share, who.shares);
  for (auto panel = static_cast<int>(mine.end); panel-- > mine.begin;) {
    product.product->run(operands, panel, static_cast<int>(panels));
  }
}

void RecurrentProgram::loop(size_t number, std::initializer_list<ConstHiddenRows> inputs,
                            HiddenRows out) const noexcept {
  std::array<const void*, 8> addresses{};
  std::array<int64_t, 8> strides_bytes{};
  size_t count = 0;
  for (const ConstHiddenRows& input : inputs) {
    if (input.data == nullptr) continue;  // an operand that the expression lacks
    addresses[count] = input.data;
    strides_bytes[count++] = input.stride * 4;
  }
  const PointwiseArgs args{addresses.data(), strides_bytes.data(), out.data, out.stride * 4,
                           extents_.hidden,  extents_.batch,       nullptr};
  loops_[number].entry()(&args);
}

ConstHiddenRows RecurrentProgram::gate(const Moment& moment, int number) const noexcept {
  return {moment.gates + number * extents_.hidden, spec_.gates * extents_.hidden};
}

ConstHiddenRows RecurrentProgram::projected_gate(const Moment& moment, int number) const noexcept {
  return {moment.projected + number * extents_.hidden, moment.operands.projected_entry};
}

void RecurrentProgram::finish(size_t part, const Moment& moment) const noexcept {
  const RecurrentOperands& operands = moment.operands;
  const int64_t hidden = extents_.hidden;
  if (spec_.cell == RecurrentCell::rnn) return loop(0, {gate(moment, 0)}, moment.after);
  if (spec_.cell == RecurrentCell::lstm) {
    const auto peephole = [&](int which) {
      return ConstHiddenRows{operands.peepholes ? operands.peepholes + which * hidden : nullptr, 0};
    };
    const ConstHiddenRows cell{operands.cell.data, operands.cell.stride};
    const ConstHiddenRows forget = spec_.couples_forget ? ConstHiddenRows() : peephole(2);
    loop(0, {gate(moment, 0), gate(moment, 2), gate(moment, 3), cell, peephole(0), forget}, operands.cell);
    return loop(1, {gate(moment, 1), cell, peephole(1)}, moment.after);
  }
  if (spec_.is_linear_before_reset) {
    return loop(0,
                {projected_gate(moment, 0), projected_gate(moment, 1), projected_gate(moment, 2), gate(moment, 0),
                 gate(moment, 1), gate(moment, 2), moment.before},
                moment.after);
  }
  if (part == 0) return loop(0, {gate(moment, 1), moment.before}, {moment.reset_hidden, hidden});
  loop(1, {gate(moment, 0), gate(moment, 2), moment.before}, moment.after);
}

// Step i of the walk. Rows that are written over and over are those of the step before, too.
RecurrentProgram::Moment RecurrentProgram::moment_of(const RecurrentOperands& operands, int64_t i) const noexcept {
  const auto time = [&](int64_t step) { return operands.is_reversed ? extents_.steps - 1 - step : step; };
  const auto rows = [&](int64_t step) {
    return HiddenRows{operands.hidden.data + time(step) * operands.hidden_step, operands.hidden.stride};
  };
  ConstHiddenRows before = operands.first_hidden;
  if (i > 0) before = {rows(i - 1).data, rows(i - 1).stride};
  float* gates = operands.gates + (shares_ > 1 ? i % 2 : 0) * extents_.batch * spec_.gates * extents_.hidden;
  return {operands,  operands.projected + time(i) * operands.projected_step, gates, operands.own, before, rows(i),
          i % 2 != 0};
}

ConstHiddenRows RecurrentProgram::run(const RecurrentOperands& operands) const noexcept {
  for (int64_t i = 0; i < extents_.steps; ++i) {
    const Moment moment = moment_of(operands, i);
    for (size_t part = 0; part < products_.size(); ++part) {
      multiply(part, moment, {});
      finish(part, moment);
    }
  }
  const HiddenRows last = moment_of(operands, extents_.steps - 1).after;
  return {last.data, last.stride};
}

int RecurrentProgram::rounds() const {
  return static_cast<int>(extents_.steps) * static_cast<int>(products_.size()) + 1;
}

ConstHiddenRows RecurrentProgram::run_round(const RecurrentOperands& operands,
                                            const RecurrentShare& who) const noexcept {
  const auto parts = static_cast<int>(products_.size());
  if (who.round > 0) {
    const int done = who.round - 1;
    finish(static_cast<size_t>(done % parts), moment_of(operands, done / parts));
  }
  if (who.round + 1 < rounds()) {
    multiply(static_cast<size_t>(who.round % parts), moment_of(operands, who.round / parts), who);
  }
  const HiddenRows last = moment_of(operands, extents_.steps - 1).after;
  return {last.data, last.stride};
}

}  // namespace lathe
