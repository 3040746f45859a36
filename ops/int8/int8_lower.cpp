#include "ops/int8/int8_lower.h"

#include "ops/int8/int8_crossed.h"
#include "ops/int8/int8_operands.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

constexpr int64_t kMostChanged = 1 << 16;  // elements of an epilogue's constant that are worth another one

// Rows need a term unless B's shifted zero point is certainly none.
bool needs_rows(const Int8Node& node, int shift) {
  return !node.b_zero.is_known() || node.b_zero.values[0] + shift != 0;
}

Int8Problem problem_of(const LowerContext& context, const Int8Lowering& l) {
  const Int8Node& node = l.node;
  Int8Problem problem;
  problem.batches = node.shape.batches();
  problem.m = node.shape.m;
  problem.n = node.shape.n;
  problem.k = node.shape.k;
  problem.isa = context.target.isa;
  // Only products of bytes whose zero points are the same for all rows and columns take terms beside them.
  const bool takes_bytes = has_vnni(problem.isa) && node.a_zero.is_scalar() && node.b_zero.is_scalar();
  const bool is_crossed = !takes_bytes && pays_crossed(problem.isa, problem.m, problem.n, problem.k);
  problem.dot = is_crossed      ? Int8Dot::crossed
                : !takes_bytes  ? Int8Dot::pairs
                : l.a_is_signed ? Int8Dot::s8u8
                                : Int8Dot::u8s8;
  const Int8PanelFormat format{problem.dot, problem.isa};
  problem.has_rows = is_crossed || (takes_bytes && needs_rows(node, format.shift(l.b_is_signed)));
  problem.threads = worthwhile_threads(problem.flop() / 4, context.target.threads);
  const bool is_copied = is_wide(problem.dot) || problem.k % 4 != 0;
  if (!is_copied && node.a.row_stride != problem.k) problem.a_stride = node.a.row_stride;
  if (node.expression.nodes.empty()) return problem;
  GemmEpilogue epilogue;
  epilogue.expression = node.expression;
  if (node.scale.size() > 1) epilogue.inputs.push_back(GemmInputAccess::columns);
  for (const Int8Extra& extra : node.extra) {
    epilogue.inputs.push_back(extra.strides.back() == 0 ? GemmInputAccess::uniform : GemmInputAccess::columns);
  }
  problem.epilogue = std::move(epilogue);
  problem.may_change.assign(problem.epilogue->expression.inputs.size(), false);
  for (size_t i = 0; i < node.extra.size(); ++i) {
    const Tensor constant = context.graph.value(node.extra[i].value).constant;
    const size_t slot = problem.may_change.size() - node.extra.size() + i;
    problem.may_change[slot] = constant.defined() && constant.dtype() == DType::f32 && constant.size() <= kMostChanged;
  }
  return problem;
}

std::vector<Int8Offsets> offsets_of(const Int8Lowering& l, const LowerContext& context, bool a_is_copied) {
  const int64_t out_bytes = l.node.expression.nodes.empty() ? 4 : bits_of(l.node.expression.output) / 8;
  const size_t first_extra = l.node.scale.size() > 1 ? 1 : 0;
  const Dims& batch = l.node.shape.batch;
  std::vector<Int8Offsets> offsets(static_cast<size_t>(l.problem.batches));
  for (size_t i = 0; i < offsets.size(); ++i) {
    Int8Offsets& at = offsets[i];
    const int64_t a = l.node.a_matrix[i], b = l.node.b_matrix[i];
    at.a = a_is_copied ? a * l.problem.m * l.problem.groups() * 4 : l.node.a.offsets[static_cast<size_t>(a)];
    at.b = b * l.matrix_bytes();
    at.c = static_cast<int64_t>(i) * l.problem.m * l.problem.n * out_bytes;
    at.columns = b * l.padded();
    at.rows = a * l.problem.m;
    for (size_t e = 0; e < l.node.extra.size(); ++e) {
      const Int8Extra& extra = l.node.extra[e];
      int64_t rest = static_cast<int64_t>(i), elements = 0;
      for (size_t axis = batch.size(); axis-- > 0;) {
        elements += rest % batch[axis] * extra.strides[axis];
        rest /= batch[axis];
      }
      at.inputs[first_extra + e] = elements * (bits_of(context.type(extra.value).dtype) / 8);
    }
  }
  return offsets;
}

// The step's call: buffers in place of addresses.
struct BoundProduct {
  std::shared_ptr<const Int8Product> product;
  Int8Operands operands;  // strides; addresses come with each run
  BufferId a = BufferId::none, b = BufferId::none, c = BufferId::none;
  BufferId columns = BufferId::none, rows = BufferId::none;
  std::vector<BufferId> inputs;
  std::shared_ptr<const void*> next_weights;

  void operator()(const StepArgs& args) const {
    Int8Operands bound = operands;
    bound.a = args.at<const void>(a);
    bound.b = args.at<const void>(b);
    bound.c = args.at<void>(c);
    bound.columns = args.at<const int32_t>(columns);
    if (rows != BufferId::none) bound.rows = args.at<const int32_t>(rows);
    for (size_t i = 0; i < inputs.size(); ++i) bound.inputs[i] = args.at<const void>(inputs[i]);
    if (args.ends_first_run()) bound.next_weights = *next_weights;
    product->run(bound, args.share, args.shares);
  }
};

Tensor changed(const LowerContext& context, ValueId id, const InputChange& change) {
  const Tensor constant = context.graph.value(id).constant;
  Tensor result(DType::f32, constant.dims());
  for (int64_t i = 0; i < constant.size(); ++i) {
    result.mutable_data<float>()[i] = static_cast<float>(change.factor * constant.data<float>()[i] + change.offset);
  }
  return result;
}

void bind_inputs(const Int8Lowering& l, const LowerContext& context, BoundProduct& bound) {
  if (l.node.scale.size() > 1) {
    Tensor scale = Tensor::from<float>({static_cast<int64_t>(l.node.scale.size())}, l.node.scale);
    bound.inputs.push_back(context.constant_buffer(std::move(scale)));
  }
  for (const Int8Extra& extra : l.node.extra) {
    const int64_t element = bits_of(context.type(extra.value).dtype) / 8;
    const size_t slot = bound.inputs.size() + 1;
    bound.operands.input_strides[bound.inputs.size()] = extra.strides[l.node.shape.batch.size()] * element;
    const std::vector<InputChange>& changes = bound.product->changes();
    const bool is_changed = slot < changes.size() && !changes[slot].is_none();
    bound.inputs.push_back(is_changed ? context.constant_buffer(changed(context, extra.value, changes[slot]))
                                      : context.buffer(extra.value));
  }
}

void add_product_step(const Int8Lowering& l, const LowerContext& context, BoundProduct bound, const Tensor& weights) {
  Step step;
  step.kernel = int8_plan_text(l.plan, l.problem.dot);
  step.reads = {bound.a, bound.b, bound.columns};
  if (bound.rows != BufferId::none) step.reads.push_back(bound.rows);
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

}  // namespace

bool lower_int8_product(LowerContext& context, const MatMulShape& shape, const Int8Form& form) {
  std::optional<Int8Node> described = describe_int8(context, shape, form);
  if (!described) return false;
  if (shape.m == 0 || shape.n == 0 || shape.batches() == 0) return true;
  Int8Lowering made{context.input_type(form.a).dtype == DType::i8, context.input_type(form.b).dtype == DType::i8,
                    std::move(*described)};
  made.problem = problem_of(context, made);
  made.plan = choose_int8_plan(made.problem, context.plans);
  made.format = {made.problem.dot, made.problem.isa, int64_t{made.plan.vecs} * vector_lanes(made.problem.isa)};
  const bool a_is_copied = is_wide(made.problem.dot) || made.problem.k % 4 != 0;
  BoundProduct bound;
  try {
    bound.product =
        std::make_shared<const Int8Product>(made.problem, made.plan, offsets_of(made, context, a_is_copied));
  } catch (const JitError&) {
    return false;
  }
  const ValueId a_value = context.input(form.a), b_value = context.input(form.b);
  const auto l = std::make_shared<const Int8Lowering>(std::move(made));
  const bool is_packed_ahead =
      context.constant(form.b).defined() && (!is_wide(l->problem.dot) || l->node.b_zero.is_known());
  const PackedB b = is_packed_ahead ? pack_ahead(*l, context, b_value) : pack_at_run(l, context, b_value);
  bound.b = b.buffer;
  bound.columns = column_terms(l, context, b);
  if (l->problem.dot == Int8Dot::crossed) {
    bound.rows = context.scratch(checked_bytes(DType::i32, {l->a_count(), l->problem.m}));
  } else if (l->problem.has_rows) {
    bound.rows = row_terms(l, context, a_value);
  }
  bound.a = a_is_copied ? copied_a(l, context, a_value, bound.rows) : context.buffer(a_value);
  bound.c = context.buffer(context.output(0));
  bound.operands.a_stride = a_is_copied ? l->problem.groups() * 4 : l->node.a.row_stride;
  bound.operands.c_stride =
      l->problem.n * (l->node.expression.nodes.empty() ? 4 : bits_of(l->node.expression.output) / 8);
  bind_inputs(*l, context, bound);
  bound.next_weights = std::make_shared<const void*>(nullptr);
  add_product_step(*l, context, std::move(bound), b.weights);
  return true;
}

}  // namespace lathe
