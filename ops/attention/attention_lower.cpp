#include "ops/attention/attention_lower.h"

#include <algorithm>
#include <memory>

#include "ops/attention/attention_product.h"
#include "ops/attention/attention_shape.h"
#include "ops/gemm/gemm_plan.h"
#include "ops/gemm/half_lower.h"
#include "ops/pointwise/broadcast.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

constexpr int64_t kMostMatrices = 1 << 20;  // their offsets are kept

template <class Element>
struct BoundAttention {
  std::shared_ptr<const AttentionProduct<Element>> product;
  AttentionOffsets begin = {};  // of the parts that are read
  BufferId q = {}, k = {}, v = {}, y = {}, scratch = {}, addend = BufferId::none;
  std::vector<BufferId> inputs = {};

  void operator()(const StepArgs& args) const {
    AttentionOperands<Element> bound;
    bound.q = args.at<const Element>(q) + begin.q;
    bound.k = args.at<const Element>(k) + begin.k;
    bound.v = args.at<const Element>(v) + begin.v;
    bound.y = args.at<Element>(y);
    for (size_t i = 0; i < inputs.size(); ++i) bound.inputs[i] = args.at<const float>(inputs[i]);
    if (addend != BufferId::none) bound.addend = args.at<const float>(addend);
    bound.scratch = args.own<float>(scratch);
    product->run(bound, args.share, args.shares);
  }
};

bool is_half(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

// All of one type of floats; with 16-bit ones, further inputs of the scores may be float32.
bool are_plain_floats(const LowerContext& context) {
  const DType dtype = context.output_type(0).dtype;
  if (dtype != DType::f32 && !is_half(dtype)) return false;
  for (int i = 0; i < context.input_count(); ++i) {
    if (!context.has_input(i)) return false;
    const TensorType& type = context.input_type(i);
    if (type.layout.channel_block != 0 || (type.dtype != dtype && (i < 3 || type.dtype != DType::f32))) return false;
  }
  return context.output_type(0).layout.channel_block == 0 && !context.node.epilogue;
}

// Steps between rows and columns of the matrices of a view.
struct MatrixSteps {
  int64_t rows, columns;
};
MatrixSteps steps_of(const AttentionView& view) {
  const size_t rank = view.dims.size();
  // What is never stepped along may count as dense.
  return {view.dims[rank - 2] == 1 ? 1 : view.strides[rank - 2], view.dims[rank - 1] == 1 ? 1 : view.strides[rank - 1]};
}

// By axis of the scores. `addend`: of the second of two inputs that are added up; empty without.
struct ScoreStrides {
  std::vector<std::vector<int64_t>> inputs;
  std::vector<int64_t> addend;
};

// The expression's extra inputs, as epilogues of products read them. False: one that they cannot.
bool add_score_inputs(const LowerContext& context, const AttentionShape& shape, AttentionProblem& problem,
                      ScoreStrides& strides) {
  if (!shape.scores) return context.input_count() == 3;
  const int extra = static_cast<int>(shape.scores->inputs.size()) - 1;
  if (extra > kMaxGemmInputs || context.input_count() != 3 + extra + (shape.sum ? 1 : 0)) return false;
  GemmEpilogue epilogue;
  epilogue.expression = *shape.scores;
  for (int i = 0; i < extra; ++i) {
    const bool is_sum = shape.sum && shape.sum->input == static_cast<size_t>(i);
    strides.inputs.push_back(
        broadcast_strides(context.input_type(3 + i).extents(), is_sum ? shape.sum->first_dims : shape.score_dims()));
    const int64_t step = strides.inputs.back().back();
    if (step != 1 && (step != 0 || (is_sum && shape.sum->first_dims.back() > 1))) return false;
    epilogue.inputs.push_back(step == 0 && !is_sum ? GemmInputAccess::uniform : GemmInputAccess::columns);
  }
  if (shape.sum) {
    strides.addend = broadcast_strides(context.input_type(3 + extra).extents(), shape.sum->second_dims);
    if (strides.addend.back() != 1 && shape.sum->second_dims.back() > 1) return false;
    problem.summed_input = shape.sum->input;
    problem.run = shape.sum->second_dims.back();
  }
  problem.scores = std::move(epilogue);
  return true;
}

std::vector<AttentionOffsets> offsets_of(const AttentionShape& shape, const ScoreStrides& strides) {
  std::vector<AttentionOffsets> offsets(static_cast<size_t>(shape.matrices()));
  Dims index(shape.batch.size(), 0);
  for (AttentionOffsets& here : offsets) {
    for (size_t axis = 0; axis < index.size(); ++axis) {
      const auto step = [&](const AttentionView& view) {
        return view.dims[axis] == 1 ? 0 : index[axis] * view.strides[axis];
      };
      here.q += step(shape.q);
      here.k += step(shape.k);
      here.v += step(shape.v);
      here.y += index[axis] * shape.y.strides[axis];
      for (size_t i = 0; i < strides.inputs.size(); ++i) here.inputs[i] += index[axis] * strides.inputs[i][axis];
      if (shape.sum) here.addend += index[axis] * strides.addend[axis];
    }
    for (size_t axis = index.size(); axis-- > 0;) {
      if (++index[axis] < shape.batch[axis]) break;
      index[axis] = 0;
    }
  }
  return offsets;
}

// What the kernels of all types need.
struct Described {
  AttentionProblem problem;
  AttentionStrides strides;
  AttentionOffsets begin;
  std::vector<AttentionOffsets> offsets;
};

// nullopt: an order that the kernels do not read.
std::optional<Described> describe(const LowerContext& context, const AttentionShape& shape) {
  const MatrixSteps q = steps_of(shape.q), k = steps_of(shape.k), v = steps_of(shape.v), y = steps_of(shape.y);
  // Without keys a row has no softmax: the reference says what comes of it.
  if (shape.keys == 0 || shape.size == 0 || shape.matrices() > kMostMatrices) return std::nullopt;
  if (q.columns != 1 || y.columns != 1 || (k.rows != 1 && k.columns != 1) || (v.rows != 1 && v.columns != 1)) {
    return std::nullopt;
  }
  Described found;
  AttentionProblem& problem = found.problem;
  problem = {shape.matrices(), shape.rows, shape.keys, shape.size, shape.value_size, {}};
  problem.k_by_rows = k.rows == 1;
  problem.v_by_rows = v.columns == 1;
  problem.zeroes_empty = context.node.attributes.get_int("zeroes_empty", 0) != 0;
  problem.isa = context.target.isa;
  problem.threads = worthwhile_threads(problem.flop(), context.target.threads);
  ScoreStrides strides;
  if (!add_score_inputs(context, shape, problem, strides)) return std::nullopt;
  found.strides.q = q.rows;
  found.strides.k = problem.k_by_rows ? k.columns : k.rows;
  found.strides.v = problem.v_by_rows ? v.rows : v.columns;
  found.strides.y = y.rows;
  for (size_t i = 0; i < strides.inputs.size(); ++i) found.strides.inputs[i] = strides.inputs[i][shape.batch.size()];
  if (shape.sum) found.strides.addend = strides.addend[shape.batch.size()];
  found.begin.q = shape.q.offset;
  found.begin.k = shape.k.offset;
  found.begin.v = shape.v.offset;
  found.offsets = offsets_of(shape, strides);
  return found;
}

// An input as float32, once for all uses of a value.
BufferId as_float(LowerContext& context, int input) {
  return is_half(context.input_type(input).dtype) ? widened_operand(context, input)
                                                  : context.buffer(context.input(input));
}

template <class Element>
void bind_score_inputs(LowerContext& context, const Described& found, BoundAttention<Element>& bound) {
  for (int i = 3; i < context.input_count(); ++i) bound.inputs.push_back(as_float(context, i));
  if (!found.problem.summed_input) return;
  bound.addend = bound.inputs.back();
  bound.inputs.pop_back();
}

// Null: this CPU, or these extents, have no such kernels.
template <class Element>
std::shared_ptr<const AttentionProduct<Element>> emit(const Described& found) {
  try {
    return std::make_shared<const AttentionProduct<Element>>(found.problem, found.strides, found.offsets);
  } catch (const JitError&) {
    return nullptr;
  }
}

template <class Element>
void add_step(LowerContext& context, const Described& found, BoundAttention<Element> bound) {
  const AttentionProblem& problem = found.problem;
  bound.begin = found.begin;
  bound.scratch = context.thread_scratch(checked_bytes(DType::f32, {bound.product->scratch_elements()}));
  Step step;
  step.kernel = bound.product->key();
  step.reads = {bound.q, bound.k, bound.v, bound.scratch};
  step.reads.insert(step.reads.end(), bound.inputs.begin(), bound.inputs.end());
  if (bound.addend != BufferId::none) step.reads.push_back(bound.addend);
  step.writes = {bound.y, bound.scratch};
  step.threads = problem.threads;
  step.flop = problem.flop();
  // A share begins with a copy of its matrix's keys: whole matrices.
  if (problem.matrices >= 2 * problem.threads) step.shares = worthwhile_shares(step.flop, step.threads);
  step.bytes = static_cast<double>(sizeof(Element)) * static_cast<double>(problem.matrices) *
               static_cast<double>((problem.rows + problem.keys) * (problem.size + problem.value_size));
  step.run = std::move(bound);
  context.add(std::move(step));
}

bool lower_bf16(LowerContext& context, const Described& found) {
  if (context.output_type(0).dtype != DType::bf16 || context.target.isa != Isa::avx512_bf16) return false;
  BoundAttention<uint16_t> bound{emit<uint16_t>(found)};
  if (!bound.product) return false;
  bound.q = context.buffer(context.input(0));
  bound.k = context.buffer(context.input(1));
  bound.v = context.buffer(context.input(2));
  bound.y = context.buffer(context.output(0));
  bind_score_inputs(context, found, bound);
  add_step(context, found, std::move(bound));
  return true;
}

bool lower_f32(LowerContext& context, const Described& found) {
  BoundAttention<float> bound{emit<float>(found)};
  if (!bound.product) return false;
  BufferId operands[3];
  for (int i = 0; i < 3; ++i) {
    int same = 0;  // the same value is widened once
    while (context.input(same) != context.input(i)) ++same;
    operands[i] = same < i ? operands[same] : as_float(context, i);
  }
  bound.q = operands[0];
  bound.k = operands[1];
  bound.v = operands[2];
  bind_score_inputs(context, found, bound);
  const bool rounds = is_half(context.output_type(0).dtype);
  const BufferId y = rounds ? context.scratch(checked_bytes(DType::f32, context.output_type(0).extents()))
                            : context.buffer(context.output(0));
  bound.y = y;
  add_step(context, found, std::move(bound));
  if (rounds) add_rounding(context, y);
  return true;
}

}  // namespace

bool lower_attention_views(LowerContext& context) {
  if (!are_plain_floats(context)) return false;
  const AttentionShape shape = attention_shape(context.node, context.input_type(0).extents(),
                                               context.input_type(1).extents(), context.input_type(2).extents());
  if (shape.matrices() == 0 || shape.rows == 0 || shape.value_size == 0) return true;
  const std::optional<Described> found = describe(context, shape);
  return found && (lower_bf16(context, *found) || lower_f32(context, *found));
}

}  // namespace lathe
