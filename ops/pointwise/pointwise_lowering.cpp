#include "ops/pointwise/pointwise_lowering.h"

#include <algorithm>
#include <optional>

#include "ops/int8/int8_lower.h"
#include "ops/pointwise/byte_table_step.h"
#include "ops/pointwise/number_cast.h"
#include "ops/pointwise/pointwise_loops.h"
#include "ops/work_split.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr double kFlopOfOperation = 10;  // that takes as long: loads and stores bound it
constexpr double kFlopForAllThreads = 128 * 1024;

struct Fused {
  Expression expression;
  std::vector<ValueId> operands;  // by input of the expression
};

// Operators that round in between, in the type of their inputs.
bool rounds_in_between(const Node& node) { return node.op->name == "QuantizeLinear"; }

// The node's expression. float16 is widened when read and rounded when stored, and is float32 in between.
std::optional<Expression> express_widened(const LowerContext& context, std::vector<TensorType>& types) {
  const Node& node = context.node;
  const auto constant = [&](int i) { return context.constant(i); };
  const auto is_half = [](const TensorType& type) { return type.dtype == DType::f16; };
  if (std::none_of(types.begin(), types.end(), is_half) || rounds_in_between(node)) {
    return node.op->express(node, types, constant);
  }
  if (auto expression = node.op->express(node, types, constant)) return expression;  // a Cast, which says how
  const std::vector<TensorType> stored = types;
  for (TensorType& type : types) type.dtype = is_half(type) ? DType::f32 : type.dtype;
  auto expression = node.op->express(node, types, [&](int i) {
    const Tensor given = constant(i);
    return given.defined() && given.dtype() == DType::f16 ? cast_elements(given, DType::f32, {}) : given;
  });
  if (!expression || expression->inputs.size() != stored.size()) return std::nullopt;
  for (size_t i = 0; i < stored.size(); ++i) expression->inputs[i] = stored[i].dtype;
  if (expression->output == DType::f32) expression->output = context.output_type(0).dtype;
  return expression;
}

std::optional<Fused> expression_of(const LowerContext& context) {
  const Node& node = context.node;
  const std::vector<ValueId> extras = context.epilogue_inputs();
  const bool is_pointwise = node.op->domain == "lathe" && node.op->name == "Pointwise";
  if (is_pointwise) {
    if (!node.epilogue) return std::nullopt;
    return Fused{node.epilogue->expression, node.inputs};
  }
  if (node.op->express == nullptr || node.captures > 0) return std::nullopt;
  std::vector<TensorType> types;
  std::vector<ValueId> own;
  for (int i = 0; i < context.input_count(); ++i) {
    own.push_back(context.input(i));
    types.push_back(context.has_input(i) ? context.input_type(i) : TensorType());
  }
  auto expression = express_widened(context, types);
  if (!expression) return std::nullopt;
  if (!node.epilogue) return Fused{std::move(*expression), std::move(own)};
  Fused fused{substitute(node.epilogue->expression, 0, *expression), extras};
  fused.operands.insert(fused.operands.end(), own.begin(), own.end());
  return fused;
}

// Drops inputs that nothing reads and turns scalar constants into constants of the expression.
Fused compact(const LowerContext& context, const Fused& fused) {
  Fused result;
  result.expression.output = fused.expression.output;
  std::vector<int> number(fused.operands.size(), -1);
  for (ExprNode node : fused.expression.nodes) {
    if (node.op == ExprOp::input) {
      const auto from = static_cast<size_t>(node.a);
      const Tensor& constant = context.graph.value(fused.operands[from]).constant;
      const DType dtype = fused.expression.inputs[from];
      if (constant.defined() && constant.size() == 1 && dtype != DType::i64 && dtype != DType::i32) {
        node = {.op = ExprOp::constant, .value = static_cast<float>(number_at(constant, dtype, 0))};
      } else {
        if (number[from] < 0) {
          number[from] = static_cast<int>(result.operands.size());
          result.operands.push_back(fused.operands[from]);
          result.expression.inputs.push_back(dtype);
        }
        node.a = number[from];
      }
    }
    result.expression.nodes.push_back(node);
  }
  return result;
}

bool types_agree(const LowerContext& context, const Fused& fused) {
  for (size_t k = 0; k < fused.operands.size(); ++k) {
    const TensorType& type = context.type(fused.operands[k]);
    if (type.dtype != fused.expression.inputs[k] || !type.is_static()) return false;
  }
  const TensorType& result = context.output_type(0);
  return result.is_static() && result.dtype == fused.expression.output;
}

bool inputs_exist(const Fused& fused) {
  return std::all_of(fused.expression.nodes.begin(), fused.expression.nodes.end(), [&](const ExprNode& node) {
    return node.op != ExprOp::input || (node.a >= 0 && static_cast<size_t>(node.a) < fused.operands.size() &&
                                        fused.operands[static_cast<size_t>(node.a)] != ValueId::none);
  });
}

// Constants of few bytes, which come from memory: fetched all at once they take one way there, not one for each row.
struct SmallConstants {
  std::vector<std::pair<BufferId, int64_t>> buffers;  // with their bytes

  static SmallConstants of(const LowerContext& context, const Fused& fused) {
    constexpr int64_t kMostBytes = 32 << 10;
    SmallConstants found;
    int64_t all = 0;
    for (const ValueId id : fused.operands) {
      const Tensor& constant = context.graph.value(id).constant;
      if (!constant.defined()) continue;
      found.buffers.emplace_back(context.buffer(id), static_cast<int64_t>(constant.bytes()));
      all += found.buffers.back().second;
    }
    if (all > kMostBytes) found.buffers.clear();
    return found;
  }

  void prefetch(const StepArgs& args) const {
    constexpr int64_t kLine = 64;
    for (const auto& [id, bytes] : buffers) {
      const auto* at = args.at<const char>(id);
      for (int64_t line = 0; line < bytes; line += kLine) __builtin_prefetch(at + line);
    }
  }
};

Step make_step(const LowerContext& context, const Fused& fused, std::vector<PointwiseLoops> nests) {
  const TensorType& result = context.output_type(0);
  Step step;
  double elements = 1;
  for (const int64_t extent : result.storage_dims()) elements *= static_cast<double>(extent);
  step.flop = elements * flop_per_element(fused.expression);
  std::vector<BufferId> from;
  for (const ValueId id : fused.operands) {
    from.push_back(context.buffer(id));
    if (std::find(step.reads.begin(), step.reads.end(), from.back()) == step.reads.end()) {
      step.reads.push_back(from.back());
      step.bytes += static_cast<double>(context.type(id).storage_bytes());
    }
  }
  const BufferId to = context.buffer(context.output(0));
  step.writes = {to};
  // Element by element: lines that were just read need not be fetched again to be written.
  for (size_t k = 0; k < fused.operands.size(); ++k) {
    const TensorType& type = context.type(fused.operands[k]);
    const bool is_alike = type.extents() == result.extents() && type.layout == result.layout;
    if (is_alike && bits_of(type.dtype) == bits_of(result.dtype)) step.in_place.emplace_back(to, from[k]);
  }
  step.bytes += static_cast<double>(result.storage_bytes());
  const double moved = elements * static_cast<double>(1 + from.size()), operations = std::max(step.flop, moved);
  step.threads = step.flop >= kFlopForAllThreads ? context.target.threads
                                                 : worthwhile_movers(sizeof(float) * moved, context.target.threads);
  step.shares = worthwhile_shares(operations * kFlopOfOperation, step.threads);
  step.kernel = "pointwise " + to_string(fused.expression);
  step.run = [from = std::move(from), to, nests = std::move(nests),
              constants = SmallConstants::of(context, fused)](const StepArgs& args) {
    constants.prefetch(args);
    const void* inputs[PointwiseLoops::kMaxInputs];
    for (size_t k = 0; k < from.size(); ++k) inputs[k] = args.at<const void>(from[k]);
    for (const PointwiseLoops& nest : nests) nest.run(inputs, args.at<void>(to), args.share, args.shares);
  };
  return step;
}

// A function of one byte that gives a byte and costs more than to look it up: the loop runs for all bytes, once.
bool add_byte_table(LowerContext& context, const Fused& fused) {
  constexpr double kFlopWorthLookingUp = 10;
  if (fused.operands.size() != 1 || !is_byte(fused.expression.inputs[0]) || !is_byte(fused.expression.output) ||
      flop_per_element(fused.expression) < kFlopWorthLookingUp)
    return false;
  const TensorType &type = context.type(fused.operands[0]), &result = context.output_type(0);
  ByteTable operands, table;
  if (type.dims != result.dims || type.layout != result.layout || result.storage_bytes() < table.size()) return false;
  const Dims dims{static_cast<int64_t>(table.size())};
  const auto nests = plan_pointwise(context.target.isa, fused.expression, {TensorType::of(type.dtype, dims)},
                                    TensorType::of(result.dtype, dims));
  if (!nests) return false;
  for (size_t i = 0; i < operands.size(); ++i) operands[i] = static_cast<uint8_t>(i);
  const void* input = operands.data();
  for (const PointwiseLoops& nest : *nests) nest.run(&input, table.data(), 0, 1);
  add_look_up(context, table, result, context.buffer(fused.operands[0]), context.buffer(context.output(0)),
              "table of " + to_string(fused.expression));
  return true;
}

// Each axis behind the channels as two: the pixels of the small picture, and the repeats of each.
TensorType apart(const TensorType& type, const TensorType& result, const std::vector<int64_t>& repeats) {
  const Dims dims = type.extents();
  Dims spread;
  for (size_t i = 0; i < dims.size(); ++i) {
    const size_t axis = i + result.dims.size() - dims.size();
    const int64_t repeat = axis < 2 || dims[i] == 1 ? 1 : repeats[axis - 2];
    spread.push_back(dims[i] / repeat);
    if (axis >= 2) spread.push_back(repeat);
  }
  TensorType made = TensorType::of(type.dtype, spread);
  made.layout = type.layout;
  return made;
}

// Operands become the values that they repeat, and all types have the axes apart.
void take_small(const LowerContext& context, const RepeatedOperands& repeated, Fused& used,
                std::vector<TensorType>& types, TensorType& result) {
  const std::vector<int64_t> ones(repeated.repeats.size(), 1);
  for (size_t k = 0; k < used.operands.size(); ++k) {
    const auto found = std::find_if(repeated.small.begin(), repeated.small.end(),
                                    [&](const auto& pair) { return pair.first == used.operands[k]; });
    if (found != repeated.small.end()) used.operands[k] = found->second;
    const bool is_small = found != repeated.small.end();
    types[k] = apart(is_small ? context.type(found->second) : types[k], result, is_small ? ones : repeated.repeats);
  }
  result = apart(result, result, repeated.repeats);
}

}  // namespace

bool lower_pointwise(LowerContext& context) { return lower_pointwise_with(context, {}); }

bool lower_pointwise_with(LowerContext& context, const RepeatedOperands& repeated) {
  const auto fused = expression_of(context);
  if (!fused || !inputs_exist(*fused)) return false;
  Fused used = compact(context, *fused);
  join_requantization(used.expression);
  if (!types_agree(context, used)) return false;
  std::vector<TensorType> types;
  for (const ValueId id : used.operands) types.push_back(context.type(id));
  TensorType result = context.output_type(0);
  if (!repeated.small.empty()) take_small(context, repeated, used, types, result);
  try {
    if (repeated.small.empty() && add_byte_table(context, used)) return true;
    auto nests = plan_pointwise(context.target.isa, used.expression, types, result);
    if (!nests) return false;
    context.add(make_step(context, used, std::move(*nests)));
    return true;
  } catch (const JitError&) {
    return false;  // an element type that kernels do not store
  }
}

bool lower_as_expression(LowerContext& context, const Expression& expression, const std::vector<TensorType>& inputs,
                         const TensorType& result) {
  if (context.node.epilogue || context.node.captures > 0 || context.output_type(0).layout != Layout{}) return false;
  Fused fused{expression, {}};
  for (size_t i = 0; i < inputs.size(); ++i) {
    fused.operands.push_back(context.input(static_cast<int>(i)));
    if (context.type(fused.operands.back()).layout != Layout{}) return false;
  }
  if (!inputs_exist(fused) || !types_agree(context, fused)) return false;
  try {
    auto nests = plan_pointwise(context.target.isa, expression, inputs, result);
    if (!nests) return false;
    context.add(make_step(context, fused, std::move(*nests)));
    return true;
  } catch (const JitError&) {
    return false;
  }
}

}  // namespace lathe
