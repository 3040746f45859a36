#include "ops/recurrent/recurrent_program.h"

#include <algorithm>
#include <array>

#include "src/base/divide.h"

namespace lathe {
namespace {

constexpr int64_t kLine = 16;  // floats of a cache line

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
  int64_t time, step;
};

RecurrentProgram::RecurrentProgram(const RecurrentTask& task, int64_t direction, PlanSource& plans)
    : task_(task), direction_(direction) {
  const RecurrentSpec& spec = task.spec;
  const RecurrentActivation* f = spec.activations_of(direction);
  if (spec.cell == RecurrentCell::gru && spec.is_linear_before_reset) {
    add_product(0, 3, false, task.has_bias, plans);
  } else if (spec.cell == RecurrentCell::gru) {
    add_product(0, 2, true, false, plans);
    add_product(2, 1, true, false, plans);
  } else {
    add_product(0, spec.gates, true, false, plans);
  }
  if (spec.cell == RecurrentCell::rnn) plan_rnn(f);
  if (spec.cell == RecurrentCell::gru) plan_gru(f);
  if (spec.cell == RecurrentCell::lstm) plan_lstm(f);
}

void RecurrentProgram::add_product(int first_gate, int gates, bool adds_projected, bool adds_bias, PlanSource& plans) {
  const RecurrentExtents& e = task_.extents;
  const RecurrentProductTask task{.batch = e.batch,
                                  .hidden = e.hidden,
                                  .first_column = first_gate * e.hidden,
                                  .columns = gates * e.hidden,
                                  .adds = adds_projected || adds_bias,
                                  .isa = task_.isa,
                                  .shares = task_.shares};
  std::unique_ptr<const RecurrentProduct> product;
  if (!task_.r_bytes.empty()) {
    const ByteWeights& weights = task_.r_bytes[static_cast<size_t>(direction_)];
    product = std::make_unique<const DynamicRecurrentProduct>(task, weights, plans);
  } else {
    product = std::make_unique<const FloatRecurrentProduct>(task, plans);
  }
  products_.push_back({first_gate * e.hidden, adds_projected, adds_bias, std::move(product)});
}

void RecurrentProgram::add_loop(const Expression& expression) {
  PointwisePlan plan;
  plan.isa = task_.isa;
  plan.expression = expression;
  plan.access.assign(expression.inputs.size(), PointwiseAccess::contiguous);
  loops_.push_back(pointwise_kernel(plan));
}

int RecurrentProgram::clipped(Expression& e, int x) const {
  if (task_.spec.clip <= 0) return x;
  const int high = e.add({.op = ExprOp::constant, .value = task_.spec.clip});
  const int below = e.add({.op = ExprOp::min, .a = x, .b = high});
  const int low = e.add({.op = ExprOp::constant, .value = -task_.spec.clip});
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
  if (task_.spec.is_linear_before_reset) {
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

void RecurrentProgram::plan_lstm(const RecurrentActivation* f) {
  Terms cell;
  const int in_sum = cell.input(), forget_sum = cell.input(), fresh_sum = cell.input(), before = cell.input();
  const auto gate = [&](Terms& t, int sum, int state) {
    if (task_.has_peepholes) {
      const int weight = t.input();
      sum = t.add(sum, t.mul(weight, state));
    }
    return append(t.e, f[0], clipped(t.e, sum));
  };
  const int in = gate(cell, in_sum, before);
  const int forget =
      task_.spec.couples_forget ? cell.two(ExprOp::sub, cell.constant(1), in) : gate(cell, forget_sum, before);
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

int64_t RecurrentProgram::product_offset() const { return round_up(task_.extents.batch * task_.extents.hidden, kLine); }

int64_t RecurrentProgram::own_elements() const {
  int64_t bytes = 0;
  for (const Product& product : products_) bytes = std::max(bytes, product.product->own_bytes());
  return product_offset() + divide_up(bytes, int64_t{sizeof(float)});
}

std::string RecurrentProgram::text() const { return "recurrent, " + products_[0].product->text(); }

void RecurrentProgram::multiply(size_t part, const Moment& moment, const RecurrentShare& who,
                                const ValueRange* range) const noexcept {
  const Product& product = products_[part];
  RecurrentProductArgs args;
  args.hidden = part == 0 ? moment.before : ConstHiddenRows{moment.reset_hidden, task_.extents.hidden};
  args.weights = moment.operands.weights[part];
  args.r_scale = moment.operands.r_scale;
  args.gates = moment.gates + product.first_column;
  args.gates_stride = task_.spec.gates * task_.extents.hidden;
  if (product.adds_projected) {
    args.added = moment.projected + product.first_column;
    args.added_stride = moment.operands.projected_entry;
  } else if (product.adds_bias) {
    args.added = moment.operands.recurrent_bias;
  }
  args.own = moment.operands.own + product_offset();
  ValueRange alive;
  if (range == nullptr && moment.operands.lengths != nullptr && !task_.r_bytes.empty()) {
    alive = range_in_use(moment.operands, moment.before, moment.time);
    range = &alive;
  }
  args.range = range;
  args.goes_back = moment.step % 2 != 0;
  product.product->run(args, who.share, who.shares);
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
  const PointwiseArgs args{addresses.data(),     strides_bytes.data(), out.data, out.stride * 4,
                           task_.extents.hidden, task_.extents.batch,  nullptr};
  loops_[number].entry()(&args);
}

ConstHiddenRows RecurrentProgram::gate(const Moment& moment, int number) const noexcept {
  return {moment.gates + number * task_.extents.hidden, task_.spec.gates * task_.extents.hidden};
}

ConstHiddenRows RecurrentProgram::projected_gate(const Moment& moment, int number) const noexcept {
  return {moment.projected + number * task_.extents.hidden, moment.operands.projected_entry};
}

void RecurrentProgram::finish(size_t part, const Moment& moment) const noexcept {
  const RecurrentOperands& operands = moment.operands;
  const int64_t hidden = task_.extents.hidden;
  if (task_.spec.cell == RecurrentCell::rnn) return loop(0, {gate(moment, 0)}, moment.after);
  if (task_.spec.cell == RecurrentCell::lstm) {
    const auto peephole = [&](int which) {
      return ConstHiddenRows{operands.peepholes ? operands.peepholes + which * hidden : nullptr, 0};
    };
    const ConstHiddenRows cell{operands.cell.data, operands.cell.stride};
    const ConstHiddenRows forget = task_.spec.couples_forget ? ConstHiddenRows() : peephole(2);
    loop(0, {gate(moment, 0), gate(moment, 2), gate(moment, 3), cell, peephole(0), forget}, operands.cell);
    return loop(1, {gate(moment, 1), cell, peephole(1)}, moment.after);
  }
  if (task_.spec.is_linear_before_reset) {
    return loop(0,
                {projected_gate(moment, 0), projected_gate(moment, 1), projected_gate(moment, 2), gate(moment, 0),
                 gate(moment, 1), gate(moment, 2), moment.before},
                moment.after);
  }
  if (part == 0) return loop(0, {gate(moment, 1), moment.before}, {moment.reset_hidden, hidden});
  loop(1, {gate(moment, 0), gate(moment, 2), moment.before}, moment.after);
}

// All rows go through the loops; those of sequences that have ended, or not yet begun from behind, get their states
// back.
void RecurrentProgram::finish_within_lengths(size_t part, const Moment& moment) const noexcept {
  const RecurrentOperands& operands = moment.operands;
  if (operands.lengths == nullptr || part + 1 < products_.size()) return finish(part, moment);
  const bool has_cell = task_.spec.cell == RecurrentCell::lstm;
  const int64_t batch = task_.extents.batch, hidden = task_.extents.hidden;
  const auto copy = [&](const float* from, float* to) { std::copy_n(from, hidden, to); };
  const auto for_each_outside = [&](const auto& visit) {
    for (int64_t b = 0; b < batch; ++b) {
      if (moment.time >= operands.lengths[b]) {
        visit(b, operands.held + b * hidden, operands.held + (batch + b) * hidden,
              operands.cell.data + b * operands.cell.stride);
      }
    }
  };
  for_each_outside([&](int64_t b, float* held_hidden, float* held_cell, const float* cell) {
    copy(moment.before.data + b * moment.before.stride, held_hidden);
    if (has_cell) copy(cell, held_cell);
  });
  finish(part, moment);
  for_each_outside([&](int64_t b, const float* held_hidden, const float* held_cell, float* cell) {
    copy(held_hidden, moment.after.data + b * moment.after.stride);
    if (has_cell) copy(held_cell, cell);
  });
  if (operands.copied.data == nullptr) return;
  for (int64_t b = 0; b < batch; ++b) {
    const bool is_inside = moment.time < operands.lengths[b];
    const int64_t time = is_inside && operands.goes_back_by_entry ? operands.lengths[b] - 1 - moment.time : moment.time;
    float* out = operands.copied.data + time * operands.copied_step + b * operands.copied.stride;
    if (is_inside) {
      copy(moment.after.data + b * moment.after.stride, out);
    } else {
      std::fill_n(out, hidden, 0.0F);
    }
  }
}

// Step i of the walk. Rows that are written over and over are those of the step before, too.
RecurrentProgram::Moment RecurrentProgram::moment_of(const RecurrentOperands& operands, int64_t i) const noexcept {
  const auto time = [&](int64_t step) { return operands.is_reversed ? task_.extents.steps - 1 - step : step; };
  const auto rows = [&](int64_t step) {
    return HiddenRows{operands.hidden.data + time(step) * operands.hidden_step, operands.hidden.stride};
  };
  ConstHiddenRows before = operands.first_hidden;
  if (i > 0) before = {rows(i - 1).data, rows(i - 1).stride};
  // One share may still read those of the step before.
  float* gates =
      operands.gates + (task_.shares > 1 ? i % 2 : 0) * task_.extents.batch * task_.spec.gates * task_.extents.hidden;
  return {
      operands, operands.projected + time(i) * operands.projected_step, gates, operands.own, before, rows(i), time(i),
      i};
}

ConstHiddenRows RecurrentProgram::run(const RecurrentOperands& operands) const noexcept {
  for (int64_t i = 0; i < task_.extents.steps; ++i) {
    const Moment moment = moment_of(operands, i);
    for (size_t part = 0; part < products_.size(); ++part) {
      multiply(part, moment, {});
      finish_within_lengths(part, moment);
    }
  }
  const HiddenRows last = moment_of(operands, task_.extents.steps - 1).after;
  return {last.data, last.stride};
}

int RecurrentProgram::rounds() const {
  return static_cast<int>(task_.extents.steps) * static_cast<int>(products_.size()) + 1;
}

ConstHiddenRows RecurrentProgram::run_round(const RecurrentOperands& operands,
                                            const RecurrentShare& who) const noexcept {
  const auto parts = static_cast<int>(products_.size());
  if (who.round > 0) {
    const int done = who.round - 1;
    finish_within_lengths(static_cast<size_t>(done % parts), moment_of(operands, done / parts));
  }
  if (who.round + 1 < rounds()) {
    multiply(static_cast<size_t>(who.round % parts), moment_of(operands, who.round / parts), who);
  }
  const HiddenRows last = moment_of(operands, task_.extents.steps - 1).after;
  return {last.data, last.stride};
}

ValueRange RecurrentProgram::range_in_use(const RecurrentOperands& operands, const ConstHiddenRows& rows,
                                          int64_t time) const noexcept {
  const int64_t batch = entries(), hidden = task_.extents.hidden;
  if (operands.lengths == nullptr) return range_of_rows(rows, batch, hidden);
  ValueRange range;
  for (int64_t b = 0; b < batch; ++b) {
    if (!counts_in_range(time, operands.lengths[b], operands.wants_y)) continue;
    range.include(range_of(rows.data + b * rows.stride, hidden));
  }
  return range;
}

// What all have found in the round before is one range; then this part's own rows have the next.
ConstHiddenRows RecurrentProgram::run_round_of_ranges(const RecurrentOperands& operands, const RecurrentRanges& ranges,
                                                      int round) const noexcept {
  const auto at = [&](int of_round, int part) {
    return ranges.all + (int64_t{of_round % 2} * ranges.parts + part) * RecurrentRanges::kStride;
  };
  ConstHiddenRows rows = operands.first_hidden;
  if (round > 0) {
    const Moment moment = moment_of(operands, round - 1);
    ValueRange range;
    for (int part = 0; part < ranges.parts; ++part) range.include({at(round - 1, part)[0], at(round - 1, part)[1]});
    multiply(0, moment, {}, &range);
    finish_within_lengths(0, moment);
    rows = {moment.after.data, moment.after.stride};
  }
  const int64_t next = std::min<int64_t>(round, task_.extents.steps - 1);  // behind the last step nobody asks
  const ValueRange own = range_in_use(operands, rows, moment_of(operands, next).time);
  at(round, ranges.own)[0] = own.low;
  at(round, ranges.own)[1] = own.high;
  return rows;
}

}  // namespace lathe
