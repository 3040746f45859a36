#include "ops/int8/int8_lowering.h"

#include <algorithm>
#include <cstdlib>

#include "ops/int8/int8_crossed.h"
#include "ops/int8/large_bytes.h"
#include "ops/work_split.h"

namespace lathe {
namespace {

constexpr int64_t kMostChanged = 1 << 16;  // elements of an epilogue's constant that are worth another one

// Rows need a term unless B's shifted zero point is certainly none.
bool needs_rows(const Int8Node& node, int shift) {
  return !node.b_zero.is_known() || node.b_zero.values[0] + shift != 0;
}

// Bytes are mostly small where their zero point is near 0, of unsigned ones as behind a rectifier or much like it, or
// when 128 is taken off these.
std::optional<Int8Dot> halved_dot(const Int8Lowering& l) {
  if (!l.node.a_zero.is_known()) return std::nullopt;
  const int32_t zero = l.node.a_zero.values[0];
  if (!l.a_is_signed && zero <= kNearZero) return Int8Dot::u8s8_halved;
  if (std::abs(l.a_is_signed ? zero : zero - 128) <= kNearZero) return Int8Dot::s8u8_halved;
  return std::nullopt;
}

// Without VNNI. Few rows wait for weights, of which there are half as many bytes; more of them take less time crossed,
// unless their bytes are small.
Int8Dot dot_in_16_bits(const LowerContext& context, const Int8Lowering& l, ValueId b) {
  const Tensor weights = context.graph.value(b).constant;
  if (weights.defined() && l.b_is_signed && l.node.a_zero.is_scalar() && l.node.b_zero.is_zero()) {
    const auto elements = weights.elements<int8_t>();
    const bool can_halve = l.node.shape.m > kFewRowsOfBytes && l.node.shape.batches() == 1;
    const std::optional<Int8Dot> halved = can_halve ? halved_dot(l) : std::nullopt;
    // Adds fours, beside weights of seven bits, too, where bytes are hardly ever large.
    if (halved == Int8Dot::u8s8_halved) return *halved;
    const auto dot = dot_of_small_weights(l.node.shape.m, [&](int most) { return are_at_most(elements, most); });
    if (dot) return *dot;
    if (halved) return *halved;
  }
  return pays_crossed(context.target.isa, l.node.shape.m, l.node.shape.n, l.node.shape.k) ? Int8Dot::crossed
                                                                                          : Int8Dot::pairs;
}

// Zero points are the same for all rows and columns where products of bytes take terms beside them.
Int8Dot dot_of(const LowerContext& context, const Int8Lowering& l, ValueId b) {
  if (has_dot(context.target.isa, Int8Dot::u8s7)) return dot_in_16_bits(context, l, b);
  if (!has_vnni(context.target.isa) || !l.node.a_zero.is_scalar() || !l.node.b_zero.is_scalar()) return Int8Dot::pairs;
  return l.a_is_signed ? Int8Dot::s8u8 : Int8Dot::u8s8;
}

Int8Problem problem_of(const LowerContext& context, const Int8Lowering& l, Int8Dot dot) {
  const Int8Node& node = l.node;
  Int8Problem problem;
  problem.batches = node.shape.batches();
  problem.m = node.shape.m;
  problem.n = node.shape.n;
  problem.k = node.shape.k;
  problem.isa = context.target.isa;
  problem.dot = dot;
  const Int8PanelFormat format{problem.dot, problem.isa};
  problem.has_rows = problem.dot == Int8Dot::crossed ||
                     (problem.dot != Int8Dot::pairs && needs_rows(node, format.shift(l.b_is_signed)));
  problem.threads = worthwhile_threads(problem.flop() / 4, context.target.threads);
  if (!is_wide(problem.dot) && problem.k % 4 == 0 && node.a.row_stride != problem.k)
    problem.a_stride = node.a.row_stride;
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

Expression negation() {
  Expression e;
  e.inputs = {DType::f32};
  const int x = e.add({.op = ExprOp::input, .a = 0}), minus = e.add({.op = ExprOp::constant, .value = -1});
  e.add({.op = ExprOp::mul, .a = x, .b = minus});
  return e;
}

Tensor changed(const LowerContext& context, ValueId id, const InputChange& change) {
  const Tensor constant = context.graph.value(id).constant;
  Tensor result(DType::f32, constant.dims());
  for (int64_t i = 0; i < constant.size(); ++i) {
    result.mutable_data<float>()[i] = static_cast<float>(change.factor * constant.data<float>()[i] + change.offset);
  }
  return result;
}

}  // namespace

std::optional<Int8Lowering> describe_int8_product(const LowerContext& context, const MatMulShape& shape,
                                                  const Int8Form& form) {
  std::optional<Int8Node> node = describe_int8(context, shape, form);
  if (!node) return std::nullopt;
  Int8Lowering l{context.input_type(form.a).dtype == DType::i8, context.input_type(form.b).dtype == DType::i8,
                 std::move(*node)};
  const Int8Dot dot = dot_of(context, l, context.input(form.b));
  return described_by(context, form, std::move(l), dot, false);
}

Int8Lowering described_by(const LowerContext& context, const Int8Form& form, Int8Lowering l, Int8Dot dot,
                          bool inverts_a) {
  l.inverts_a = inverts_a;
  if (inverts_a) l.node.expression = extend_input(l.node.expression, 0, negation());
  l.problem = problem_of(context, l, dot);
  if (has_fours(dot)) l.most_together = most_together(context.constant(form.b).elements<int8_t>());
  return l;
}

void set_plan(Int8Lowering& l, const GemmPlan& plan) {
  l.plan = plan;
  l.format = {l.problem.dot, l.problem.isa, int64_t{plan.vecs} * vector_lanes(l.problem.isa)};
}

std::vector<Int8Offsets> offsets_of(const Int8Lowering& l, const LowerContext& context) {
  const size_t first_extra = l.node.scale.size() > 1 ? 1 : 0;
  const Dims& batch = l.node.shape.batch;
  std::vector<Int8Offsets> offsets(static_cast<size_t>(l.problem.batches));
  for (size_t i = 0; i < offsets.size(); ++i) {
    Int8Offsets& at = offsets[i];
    const int64_t a = l.node.a_matrix[i], b = l.node.b_matrix[i];
    at.a = l.copies_a() ? a * l.problem.m * l.problem.groups() * 4 : l.node.a.offsets[static_cast<size_t>(a)];
    at.b = b * l.matrix_bytes();
    at.c = static_cast<int64_t>(i) * l.problem.m * l.problem.n * l.result_bytes();
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

Int8Inputs bind_inputs(const Int8Lowering& l, const LowerContext& context, const std::vector<InputChange>& changes) {
  Int8Inputs inputs;
  if (l.node.scale.size() > 1) {
    Tensor scale = Tensor::from<float>({static_cast<int64_t>(l.node.scale.size())}, l.node.scale);
    inputs.buffers.push_back(context.constant_buffer(std::move(scale)));
  }
  for (const Int8Extra& extra : l.node.extra) {
    const int64_t element = bits_of(context.type(extra.value).dtype) / 8;
    const size_t slot = inputs.buffers.size() + 1;
    inputs.strides[inputs.buffers.size()] = extra.strides[l.node.shape.batch.size()] * element;
    const bool is_changed = slot < changes.size() && !changes[slot].is_none();
    inputs.buffers.push_back(is_changed ? context.constant_buffer(changed(context, extra.value, changes[slot]))
                                        : context.buffer(extra.value));
  }
  return inputs;
}

}  // namespace lathe
