#include "ops/int8/int8_lower.h"

#include <fmt/format.h>

#include "ops/int8/int8_by_zero.h"
#include "ops/int8/int8_operands.h"
#include "ops/int8/int8_table.h"
#include "ops/pointwise/byte_table_step.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

// The step's call: buffers in place of addresses.
struct BoundProduct {
  std::shared_ptr<const Int8Product> product;
  Int8Operands operands;  // strides; addresses come with each run
  BufferId a = BufferId::none, b = BufferId::none, c = BufferId::none;
  BufferId columns = BufferId::none, rows = BufferId::none, large = BufferId::none;
  std::vector<BufferId> inputs;
  std::shared_ptr<const void*> next_weights;

  void operator()(const StepArgs& args) const {
    Int8Operands bound = operands;
    bound.a = args.at<const void>(a);
    bound.b = args.at<const void>(b);
    bound.c = args.at<void>(c);
    bound.columns = args.at<const int32_t>(columns);
    if (rows != BufferId::none) bound.rows = args.at<const int32_t>(rows);
    if (large != BufferId::none) bound.large = args.at<const LargeBytes>(large);
    for (size_t i = 0; i < inputs.size(); ++i) bound.inputs[i] = args.at<const void>(inputs[i]);
    if (args.ends_first_run()) bound.next_weights = *next_weights;
    product->run(bound, args.share, args.shares);
  }
};

void add_product_step(const Int8Lowering& l, const LowerContext& context, BoundProduct bound, const Tensor& weights) {
  Step step;
  step.kernel = int8_plan_text(l.plan, l.problem.dot);
  step.reads = {bound.a, bound.b, bound.columns};
  for (const BufferId beside : {bound.rows, bound.large}) {
    if (beside != BufferId::none) step.reads.push_back(beside);
  }
  step.reads.insert(step.reads.end(), bound.inputs.begin(), bound.inputs.end());
  step.writes = {bound.c};
  step.threads = l.problem.threads;
  step.flop = l.problem.flop();
  step.shares = worthwhile_shares(step.flop / 4, step.threads);
  const double matrices = static_cast<double>(l.problem.batches);
  step.bytes = matrices * static_cast<double>(l.problem.m * l.problem.k + bound.operands.c_stride * l.problem.m) +
               (weights.defined() ? 1 : matrices) * static_cast<double>(l.problem.k * l.problem.n);
  if (weights.defined()) step.weights = weights.raw();
  step.next_weights = bound.next_weights;
  step.run = std::move(bound);
  context.add(std::move(step));
}

std::optional<ByteTable> take_tail(Int8Lowering& l) {
  if (!l.problem.epilogue) return std::nullopt;
  std::optional<ByteTable> table = take_tail_for_look_up(l.node.expression, l.problem.isa);
  if (table) l.problem.epilogue->expression = l.node.expression;
  return table;
}

// A product with its code.
struct Emitted {
  std::shared_ptr<const Int8Lowering> lowering;
  std::shared_ptr<const Int8Product> product;
  std::optional<ByteTable> table;  // of what follows the bytes that it stores
};

// What products of equal layers have in common.
struct PlannedProduct {
  GemmPlan plan;
  std::shared_ptr<const Int8Product> product;  // null: there is no code for it
};

// All that the product of one matrix depends on.
std::string key_of(const Int8Lowering& l, const LowerContext& context) {
  const Int8Offsets at = offsets_of(l, context)[0];
  std::string key = fmt::format("int8 product {} threads {} at {}", l.problem.key(), l.problem.threads, at.a);
  for (const int64_t input : at.inputs) key += fmt::format(",{}", input);
  for (const bool may_change : l.problem.may_change) key += may_change ? '+' : '-';
  return key;
}

PlannedProduct planned(const LowerContext& context, Int8Lowering& l) {
  const auto make = [&]() -> PlannedProduct {
    set_plan(l, choose_int8_plan(l.problem, context.plans));
    try {
      return {l.plan, std::make_shared<const Int8Product>(l.problem, l.plan, offsets_of(l, context))};
    } catch (const JitError&) {
      return {l.plan, nullptr};
    }
  };
  if (l.problem.batches > 1) return make();
  return *context.shared<PlannedProduct>(key_of(l, context), make);
}

// nullopt: there is no code for it.
std::optional<Emitted> emit(const LowerContext& context, Int8Lowering l) {
  Emitted emitted;
  emitted.table = take_tail(l);
  PlannedProduct product = planned(context, l);
  if (product.product == nullptr) return std::nullopt;
  set_plan(l, product.plan);
  emitted.product = std::move(product.product);
  emitted.lowering = std::make_shared<const Int8Lowering>(std::move(l));
  return emitted;
}

// All steps up to the product's own.
void add_steps(const LowerContext& context, const Int8Form& form, const Emitted& emitted) {
  const std::shared_ptr<const Int8Lowering>& l = emitted.lowering;
  BoundProduct bound;
  bound.product = emitted.product;
  const ValueId a_value = context.input(form.a);
  const PackedB b = packed_b(l, context, context.input(form.b));
  bound.b = b.buffer;
  bound.columns = column_terms(l, context, b);
  if (l->problem.dot == Int8Dot::crossed) {
    bound.rows = context.scratch(checked_bytes(DType::i32, {l->a_count(), l->problem.m}));
  } else if (l->problem.has_rows) {
    bound.rows = row_terms(l, context, a_value);
  }
  bound.a = l->copies_a() ? copied_a(l, context, a_value, bound.rows) : context.buffer(a_value);
  bound.c = context.buffer(context.output(0));
  bound.operands.a_stride = l->copies_a() ? l->problem.groups() * 4 : l->node.a.row_stride;
  bound.operands.c_stride = l->problem.n * l->result_bytes();
  if (is_halved(l->problem.dot)) bound.large = add_large_rows(l, context, bound.a, bound.operands.a_stride);
  Int8Inputs inputs = bind_inputs(*l, context, bound.product->changes());
  bound.inputs = std::move(inputs.buffers);
  bound.operands.input_strides = inputs.strides;
  bound.next_weights = std::make_shared<const void*>(nullptr);
  add_product_step(*l, context, std::move(bound), b.weights);
}

// All ways, of which each run goes one. Empty: there is no code for one of them.
std::vector<Emitted> emit_by_zero(const LowerContext& context, const Int8Form& form, const Int8Lowering& l) {
  std::vector<Emitted> ways;
  for (const ZeroRange& range : zero_ranges()) {
    std::optional<Emitted> way = emit(context, described_by(context, form, l, range.dot, range.inverts_a));
    if (!way) return {};
    ways.push_back(*std::move(way));
  }
  return ways;
}

void add_steps_by_zero(const LowerContext& context, const Int8Form& form, const std::vector<Emitted>& ways) {
  const BufferId zero = context.buffer(ways[0].lowering->node.a_zero.value);
  for (size_t i = 0; i < ways.size(); ++i) {
    const ZeroRange range = zero_ranges()[i];
    const auto is_near = [range](const void* at) {
      const uint8_t value = *static_cast<const uint8_t*>(at);
      return value >= range.first && value <= range.last;
    };
    add_steps(context.only_if(zero, "from " + std::to_string(range.first), is_near), form, ways[i]);
  }
}

}  // namespace

bool lower_int8_product(LowerContext& context, const MatMulShape& shape, const Int8Form& form) {
  std::optional<Int8Lowering> made = describe_int8_product(context, shape, form);
  if (!made) return false;
  if (shape.m == 0 || shape.n == 0 || shape.batches() == 0) return true;
  std::vector<Emitted> ways;
  if (pays_by_zero(context, *made, context.input(form.b))) ways = emit_by_zero(context, form, *made);
  std::optional<ByteTable> table;
  if (!ways.empty()) {
    table = ways[0].table;
    add_steps_by_zero(context, form, ways);
  } else {
    const std::optional<Emitted> emitted = emit(context, *std::move(made));
    if (!emitted) return false;
    table = emitted->table;
    add_steps(context, form, *emitted);
  }
  const BufferId result = context.buffer(context.output(0));
  if (table) add_look_up(context, *table, context.output_type(0), result, result, "table");
  return true;
}

}  // namespace lathe
