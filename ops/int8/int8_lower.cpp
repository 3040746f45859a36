#include "ops/int8/int8_lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "ops/int8/int8_crossed.h"
#include "ops/int8/int8_node.h"
#include "ops/int8/int8_pack.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int64_t kMostChanged = 1 << 16;  // elements of an epilogue's constant that are worth another one

// What the steps of one product need to know; they keep it.
struct Int8Lowering {
  bool a_is_signed = false, b_is_signed = false;
  Int8Node node;
  Int8Problem problem = {};
  GemmPlan plan = {};
  Int8PanelFormat format = {};

  int64_t padded() const { return format.padded(problem.n); }
  int64_t matrix_bytes() const { return format.bytes(problem.k, problem.n); }
  int64_t b_count() const { return static_cast<int64_t>(node.b.offsets.size()); }
  int64_t a_count() const { return static_cast<int64_t>(node.a.offsets.size()); }
  ByteMatrix b_matrix(const void* data, int64_t i) const {
    return {static_cast<const char*>(data) + node.b.offsets[static_cast<size_t>(i)],
            b_is_signed,
            problem.k,
            problem.n,
            node.b.row_stride,
            node.b.column_stride};
  }
  ByteMatrix a_matrix(const void* data, int64_t i) const {
    return {static_cast<const char*>(data) + node.a.offsets[static_cast<size_t>(i)],
            a_is_signed,
            node.shape.m,
            problem.k,
            node.a.row_stride,
            1};
  }
  // What packing adds to B's zero point.
  int b_shift() const { return format.shift(b_is_signed); }
};

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

// Packs matrices [first, last) of B, and the sums of their columns, or what these add when crossed, behind all of them.
void pack_matrices(const Int8Lowering& l, const Int8ColumnSums& sums, const void* data, const ByteZeros& zeros,
                   Range range, char* out, int32_t* sums_out) {
  for (int64_t i = range.begin; i < range.end; ++i) {
    char* to = out + i * l.matrix_bytes();
    pack_int8(l.b_matrix(data, i), l.format, zeros, to);
    if (l.problem.dot == Int8Dot::crossed) {
      crossed_column_sums(to, l.format, l.problem.k, l.problem.n, sums_out + i * l.padded());
    } else if (l.problem.dot != Int8Dot::pairs) {
      sums(to, l.problem.k, l.problem.n, sums_out + i * l.padded());
    }
  }
}

struct PackedB {
  BufferId buffer = BufferId::none;
  Tensor weights;  // when packed ahead
};

PackedB pack_ahead(const Int8Lowering& l, const LowerContext& context, ValueId source) {
  std::string text = fmt::format("int8 {} {}x{}x{} panel {} lanes {} strides {} {} zeros", to_string(l.problem.dot),
                                 l.b_count(), l.problem.k, l.problem.n, l.format.panel_columns,
                                 vector_lanes(l.format.isa), l.node.b.row_stride, l.node.b.column_stride);
  if (is_wide(l.problem.dot)) {
    for (const int32_t zero : l.node.b_zero.values) text += " " + std::to_string(zero);
  }
  const int64_t packed_bytes = l.b_count() * l.matrix_bytes();
  const Tensor weights = context.packed(source, text, [&] {
    Tensor packed = allocate_weights(DType::u8, {packed_bytes + l.b_count() * l.padded() * 4});
    auto* out = static_cast<char*>(packed.mutable_raw());
    pack_matrices(l, Int8ColumnSums(l.format), context.graph.value(source).constant.raw(), l.node.b_zero.view(nullptr),
                  {0, l.b_count()}, out, reinterpret_cast<int32_t*>(out + packed_bytes));
    return packed;
  });
  return {context.constant_buffer(weights), weights};
}

// The step that packs a B that is not constant.
PackedB pack_at_run(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, ValueId source) {
  const int64_t packed_bytes = l->b_count() * l->matrix_bytes();
  const BufferId to = context.scratch(checked_bytes(DType::u8, {packed_bytes + l->b_count() * l->padded() * 4}));
  const BufferId from = context.buffer(source);
  const BufferId zero = l->node.b_zero.is_known() ? BufferId::none : context.buffer(l->node.b_zero.value);
  Step step;
  step.kernel = "pack int8 " + to_string(l->problem.dot);
  step.reads = {from};
  if (zero != BufferId::none) step.reads.push_back(zero);
  step.writes = {to};
  step.bytes = 2.0 * static_cast<double>(packed_bytes);
  step.threads =
      static_cast<int>(std::min<int64_t>(l->b_count(), worthwhile_threads(step.bytes * 10, context.target.threads)));
  step.run = [=, sums = Int8ColumnSums(l->format)](const StepArgs& args) {
    const ByteZeros zeros = l->node.b_zero.view(zero == BufferId::none ? nullptr : args.at<const void>(zero));
    auto* out = args.at<char>(to);
    pack_matrices(*l, sums, args.at<const void>(from), zeros, split_evenly(l->b_count(), args.share, args.shares), out,
                  reinterpret_cast<int32_t*>(out + packed_bytes));
  };
  context.add(std::move(step));
  return {to, {}};
}

// The zero point for all; `at`: its buffer, when it is not known.
int32_t only(const ZeroPoints& zeros, BufferId at, const StepArgs& args) {
  return zeros.view(at == BufferId::none ? nullptr : args.at<const void>(at)).at(0);
}

// -a_zero * sum(B) + k * a_zero * b_zero for one column; of what crossing adds, with 1 and 0 for these.
int32_t column_term(int32_t sum, int32_t a_zero, int32_t b_zero, int64_t k) {
  // Wraps around as the sums do.
  return static_cast<int32_t>(static_cast<uint32_t>(a_zero) *
                              (static_cast<uint32_t>(b_zero) * static_cast<uint32_t>(k) - static_cast<uint32_t>(sum)));
}

BufferId column_terms(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, const PackedB& b) {
  const int64_t count = l->b_count() * l->padded(), k = l->problem.k;
  const int shift = l->b_shift();
  const auto fill = [=](const char* packed, int32_t a_zero, int32_t b_zero, int32_t* out) {
    const auto* sums = reinterpret_cast<const int32_t*>(packed + l->b_count() * l->matrix_bytes());
    for (int64_t i = 0; i < count; ++i) out[i] = column_term(sums[i], a_zero, b_zero + shift, k);
  };
  const bool is_crossed = l->problem.dot == Int8Dot::crossed;
  const ZeroPoints a_zero = is_crossed ? ZeroPoints{.values = {1}} : l->node.a_zero;
  const ZeroPoints b_zero = is_crossed ? ZeroPoints{.values = {0}} : l->node.b_zero;
  if (l->problem.dot == Int8Dot::pairs || a_zero.is_zero()) {
    return context.constant_buffer(Tensor(DType::i32, {count}));
  }
  if (b.weights.defined() && a_zero.is_known() && b_zero.is_known()) {
    Tensor terms(DType::i32, {count});
    fill(static_cast<const char*>(b.weights.raw()), a_zero.values[0], b_zero.values[0], terms.mutable_data<int32_t>());
    return context.constant_buffer(terms);
  }
  const BufferId to = context.scratch(checked_bytes(DType::i32, {count}));
  const BufferId a_at = a_zero.is_known() ? BufferId::none : context.buffer(a_zero.value);
  const BufferId b_at = b_zero.is_known() ? BufferId::none : context.buffer(b_zero.value);
  Step step;
  step.kernel = "column terms";
  step.reads = {b.buffer};
  for (const BufferId each : {a_at, b_at}) {
    if (each != BufferId::none) step.reads.push_back(each);
  }
  step.writes = {to};
  step.bytes = 8.0 * static_cast<double>(count);
  step.run = [=, packed = b.buffer](const StepArgs& args) {
    fill(args.at<const char>(packed), only(a_zero, a_at, args), only(b_zero, b_at, args), args.at<int32_t>(to));
  };
  context.add(std::move(step));
  return to;
}

// The step that sums up the rows of A and multiplies by what B's zero point leaves.
BufferId row_terms(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, ValueId source) {
  const BufferId to = context.scratch(checked_bytes(DType::i32, {l->a_count(), l->problem.m}));
  const BufferId from = context.buffer(source);
  const BufferId zero = l->node.b_zero.is_known() ? BufferId::none : context.buffer(l->node.b_zero.value);
  Step step;
  step.kernel = "row terms";
  step.reads = {from};
  if (zero != BufferId::none) step.reads.push_back(zero);
  step.writes = {to};
  step.bytes = static_cast<double>(l->a_count() * l->problem.m * l->problem.k);
  step.threads = worthwhile_threads(step.bytes * 5, context.target.threads);
  step.run = [=, shift = l->b_shift(),
              sum_rows = NegatedRowSums(l->problem.isa, l->a_is_signed)](const StepArgs& args) {
    const int32_t b_zero = only(l->node.b_zero, zero, args) + shift;
    const Range range = split_evenly(l->a_count() * l->problem.m, args.share, args.shares);
    for (int64_t row = range.begin; row < range.end;) {
      const int64_t matrix = row / l->problem.m, first = row % l->problem.m;
      ByteMatrix part = l->a_matrix(args.at<const void>(from), matrix);
      part.data = static_cast<const char*>(part.data) + first * part.row_stride;
      part.rows = std::min<int64_t>(range.end - row, l->problem.m - first);
      sum_rows(part, b_zero, args.at<int32_t>(to) + row);
      row += part.rows;
    }
  };
  context.add(std::move(step));
  return to;
}

// The step that brings A's rows into whole groups. `terms`: of the rows, where products are crossed.
BufferId copied_a(const std::shared_ptr<const Int8Lowering>& l, const LowerContext& context, ValueId source,
                  BufferId terms) {
  const int64_t row_bytes = l->problem.groups() * 4, rows = l->a_count() * l->problem.m;
  const BufferId to = context.scratch(checked_bytes(DType::u8, {rows, row_bytes}));
  const BufferId from = context.buffer(source);
  const BufferId zero = l->node.a_zero.is_known() ? BufferId::none : context.buffer(l->node.a_zero.value);
  Step step;
  const bool is_crossed = l->problem.dot == Int8Dot::crossed;
  step.kernel = is_crossed ? "widen and cross rows" : is_wide(l->problem.dot) ? "widen rows" : "pad rows";
  step.reads = {from};
  if (zero != BufferId::none) step.reads.push_back(zero);
  step.writes = {to};
  if (is_crossed) step.writes.push_back(terms);
  step.bytes = 2.0 * static_cast<double>(rows * row_bytes);
  step.threads = worthwhile_threads(step.bytes * 5, context.target.threads);
  step.run = [=](const StepArgs& args) {
    const ByteZeros zeros = l->node.a_zero.view(zero == BufferId::none ? nullptr : args.at<const void>(zero));
    const Range range = split_evenly(rows, args.share, args.shares);
    for (int64_t row = range.begin; row < range.end; ++row) {
      const int64_t i = row % l->problem.m;
      ByteMatrix part = l->a_matrix(args.at<const void>(from), row / l->problem.m);
      part.data = static_cast<const char*>(part.data) + i * part.row_stride;
      part.rows = 1;
      char* copied = args.at<char>(to) + row * row_bytes;
      copy_int8_rows(part, l->problem.dot, zeros, i, copied);
      if (is_crossed) crossed_row_terms(copied, 1, l->problem.groups(), row_bytes, args.at<int32_t>(terms) + row);
    }
  };
  context.add(std::move(step));
  return to;
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
