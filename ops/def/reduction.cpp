// Reduce*. Axes are an attribute up to version 17 (ReduceSum: 12), then input 1; negative ones are
// accepted in all versions.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_step.h"
#include "ops/expansion.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/rows/reduction_lower.h"
#include "ops/shape_arguments.h"
#include "src/base/checked_size.h"

namespace lathe::ops {
namespace {

struct NamedReduction {
  std::string_view name;
  Reduction kind;
};
constexpr NamedReduction kReductions[] = {
    {"ReduceSum", Reduction::sum},        {"ReduceMean", Reduction::mean},
    {"ReduceMax", Reduction::max},        {"ReduceMin", Reduction::min},
    {"ReduceProd", Reduction::prod},      {"ReduceSumSquare", Reduction::sum_square},
    {"ReduceL1", Reduction::l1},          {"ReduceL2", Reduction::l2},
    {"ReduceLogSum", Reduction::log_sum}, {"ReduceLogSumExp", Reduction::log_sum_exp},
};

Reduction reduction_of(const Node& node) {
  for (const NamedReduction& entry : kReductions) {
    if (entry.name == node.op->name) return entry.kind;
  }
  return Reduction::sum;
}

// What one element alone gives is that element.
bool is_identity_of_one(Reduction kind) {
  return kind == Reduction::sum || kind == Reduction::mean || kind == Reduction::max || kind == Reduction::min ||
         kind == Reduction::prod;
}

bool axes_are_input(const Node& node) {
  return node.op->since >= 18 || (node.op->name == "ReduceSum" && node.op->since >= 13);
}

// True for each axis to reduce.
template <class Context>
std::vector<bool> reduced_axes(const Context& context, int64_t rank, const Tensor& input) {
  std::vector<int64_t> axes;
  if (axes_are_input(context.node)) {
    if (input.defined()) axes = integers_of(context, input, "input 1 (axes)");
  } else {
    axes = context.node.attributes.get_ints("axes");
  }
  if (axes.empty()) {
    // Over no axis at all a sum is its element, but a sum of squares is still that element's square.
    const bool none = axes_are_input(context.node) && context.node.attributes.get_int("noop_with_empty_axes", 0) != 0;
    return std::vector<bool>(static_cast<size_t>(rank), !none);
  }
  std::vector<bool> reduced(static_cast<size_t>(rank), false);
  for (const int64_t axis : axes) reduced[static_cast<size_t>(axis_within(context, axis, rank))] = true;
  return reduced;
}

bool keeps_dims(const Node& node) { return node.attributes.get_int("keepdims", 1) != 0; }

void infer(InferContext& context) {
  const TensorType& data = context.input(0);
  const bool is_known = !context.has_input(1) || context.constant(1).defined();
  if (!data.has_rank) return context.set_output(0, TensorType::unranked(data.dtype));
  if (!is_known) {
    return context.set_output(
        0, keeps_dims(context.node) ? ranked(data.dtype, data.dims.size()) : TensorType::unranked(data.dtype));
  }
  const std::vector<bool> reduced = reduced_axes(context, data.rank(), context.constant(1));
  TensorType result = ranked(data.dtype, 0);
  for (size_t i = 0; i < data.dims.size(); ++i) {
    if (!reduced[i]) {
      result.dims.push_back(data.dims[i]);
    } else if (keeps_dims(context.node)) {
      result.dims.push_back(known_dim(1));
    }
  }
  context.set_output(0, std::move(result));
}

// ---- Reference

struct Accumulator {
  double value = 0, top = -INFINITY;
  int64_t count = 0;
};

double start_of(Reduction kind, DType dtype) {
  const bool has_infinity = is_float(dtype);
  if (kind == Reduction::prod) return 1;
  if (kind == Reduction::max) return has_infinity ? -INFINITY : -std::numeric_limits<double>::max();
  if (kind == Reduction::min) return has_infinity ? INFINITY : std::numeric_limits<double>::max();
  return 0;
}

void accumulate(Reduction kind, Accumulator& to, double x) {
  switch (kind) {
    case Reduction::sum:
    case Reduction::mean:
    case Reduction::log_sum:
      to.value += x;
      break;
    case Reduction::max:
      to.value = std::isnan(x) || std::isnan(to.value) ? NAN : std::max(to.value, x);
      break;
    case Reduction::min:
      to.value = std::isnan(x) || std::isnan(to.value) ? NAN : std::min(to.value, x);
      break;
    case Reduction::prod:
      to.value *= x;
      break;
    case Reduction::sum_square:
    case Reduction::l2:
      to.value += x * x;
      break;
    case Reduction::l1:
      to.value += std::abs(x);
      break;
    case Reduction::log_sum_exp:
      to.value += std::exp(x - to.top);
      break;
  }
  ++to.count;
}

double finish(Reduction kind, const Accumulator& from) {
  switch (kind) {
    case Reduction::mean:
      return from.value / static_cast<double>(from.count);
    case Reduction::l2:
      return std::sqrt(from.value);
    case Reduction::log_sum:
      return std::log(from.value);
    case Reduction::log_sum_exp:
      return std::log(from.value) + (from.count == 0 ? 0 : from.top);
    default:
      return from.value;
  }
}

// The output element of every input element, in order.
std::vector<size_t> places_of(const Dims& dims, const std::vector<bool>& reduced) {
  std::vector<int64_t> strides(dims.size(), 0);
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    if (reduced[i]) continue;
    strides[i] = stride;
    stride *= dims[i];
  }
  std::vector<size_t> places;
  for (IndexWalk at(dims); !at.done(); at.next()) {
    places.push_back(
        static_cast<size_t>(std::inner_product(strides.begin(), strides.end(), at.index().begin(), int64_t{0})));
  }
  return places;
}

// Integers of 64 bits, exactly (with wrapping): sums, products, order, and means of sums, rounded to zero.
bool reduce_exactly(Reduction kind, const Tensor& data, const std::vector<size_t>& places, Tensor& result) {
  const bool is_wide = data.dtype() == DType::i64 || data.dtype() == DType::u64;
  if (!is_wide || kind >= Reduction::l2) return false;
  const bool is_signed_type = data.dtype() == DType::i64;
  std::vector<uint64_t> values(static_cast<size_t>(result.size()), kind == Reduction::prod ? 1 : 0);
  std::vector<bool> seen(values.size(), false);
  const auto* in = static_cast<const uint64_t*>(data.raw());
  for (size_t i = 0; i < places.size(); ++i) {
    uint64_t& to = values[places[i]];
    const uint64_t x = in[i];
    const bool is_less = is_signed_type ? static_cast<int64_t>(x) < static_cast<int64_t>(to) : x < to;
    switch (kind) {
      case Reduction::max:
        if (!seen[places[i]] || !is_less) to = x;
        break;
      case Reduction::min:
        if (!seen[places[i]] || is_less) to = x;
        break;
      case Reduction::prod:
        to *= x;
        break;
      case Reduction::sum_square:
        to += x * x;
        break;
      case Reduction::l1:
        to += is_signed_type && static_cast<int64_t>(x) < 0 ? 0 - x : x;
        break;
      default:
        to += x;
        break;
    }
    seen[places[i]] = true;
  }
  const uint64_t count = places.size() / std::max<size_t>(values.size(), 1);  // of each
  for (uint64_t& value : values) {
    if (kind != Reduction::mean || count == 0) continue;
    value = is_signed_type ? static_cast<uint64_t>(static_cast<int64_t>(value) / static_cast<int64_t>(count))
                           : value / count;
  }
  std::copy(values.begin(), values.end(), static_cast<uint64_t*>(result.mutable_raw()));
  return true;
}

// What an empty maximum or minimum gives: the type's own extreme.
double empty_extreme(Reduction kind, DType dtype) {
  if (is_float(dtype)) return kind == Reduction::max ? -INFINITY : INFINITY;
  if (dtype == DType::boolean) return kind == Reduction::max ? 0 : 1;
  const int bits = bits_of(dtype);
  if (!is_signed(dtype)) return kind == Reduction::max ? 0 : std::ldexp(1.0, bits) - 1;
  return kind == Reduction::max ? -std::ldexp(1.0, bits - 1) : std::ldexp(1.0, bits - 1) - 1;
}

void reference(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  const Reduction kind = reduction_of(context.node);
  const std::vector<bool> reduced =
      reduced_axes(context, data.rank(), context.has_input(1) ? context.inputs[1] : Tensor());
  Dims dims;
  for (size_t i = 0; i < data.dims().size(); ++i) {
    if (!reduced[i] || keeps_dims(context.node)) dims.push_back(reduced[i] ? 1 : data.dims()[i]);
  }
  Tensor result = make_output(context, data.dtype(), dims);
  const std::vector<size_t> places = places_of(data.dims(), reduced);
  context.outputs[0] = result;
  if (data.size() > 0 && reduce_exactly(kind, data, places, result)) return;
  const std::vector<double> values = reals_of(data);
  std::vector<Accumulator> sums(static_cast<size_t>(result.size()), {start_of(kind, data.dtype()), -INFINITY, 0});
  if (kind == Reduction::log_sum_exp) {
    for (size_t i = 0; i < places.size(); ++i) sums[places[i]].top = std::max(sums[places[i]].top, values[i]);
    for (Accumulator& sum : sums) {
      if (!std::isfinite(sum.top)) sum.top = 0;  // infinities come out of exp and log by themselves
    }
  }
  for (size_t i = 0; i < places.size(); ++i) accumulate(kind, sums[places[i]], values[i]);
  std::vector<double> finished;
  for (const Accumulator& sum : sums) {
    const bool is_order = kind == Reduction::max || kind == Reduction::min;
    finished.push_back(is_order && sum.count == 0 ? empty_extreme(kind, data.dtype()) : finish(kind, sum));
  }
  context.outputs[0] = tensor_of_reals(context, data.dtype(), dims, finished);
}

// ---- Lowering

bool lower(LowerContext& context) {
  if (context.has_input(1) && !context.constant(1).defined()) return false;
  const InferContext messages(context.node, {}, {});
  const std::vector<bool> reduced =
      reduced_axes(messages, context.input_type(0).rank(), context.has_input(1) ? context.constant(1) : Tensor());
  const Reduction kind = reduction_of(context.node);
  if (is_identity_of_one(kind) && std::none_of(reduced.begin(), reduced.end(), std::identity()))
    return lower_as_same_bytes(context);
  return lower_reduction(context, kind, reduced);
}

// log(sum(exp(x - top))) + top, which does not overflow; infinities come out of exp and log by themselves.
bool expand_log_sum_exp(ExpandContext& context) {
  const TensorType type = context.input_type(0);
  const std::vector<int64_t> given = context.node.attributes.get_ints("axes");
  if (!type.has_rank || type.dtype != DType::f32) return false;
  if (context.node.attributes.get_int("noop_with_empty_axes", 0) != 0) return false;
  ValueId axes = ValueId::none;
  if (axes_are_input(context.node) && context.has_input(1)) axes = context.input(1);
  if (!given.empty())
    axes =
        context.constant(Tensor::from<int64_t>({static_cast<int64_t>(given.size())}, std::span<const int64_t>(given)));
  const auto over = [&](ValueId x) {
    return axes == ValueId::none ? std::vector<ValueId>{x} : std::vector<ValueId>{x, axes};
  };
  const ValueId top = context.add("ReduceMax", over(context.input(0)), {{"keepdims", int64_t{1}}});
  const ValueId shift = context.add("Where", {context.add("IsInf", {top}), add_scalar(context, type.dtype, 0), top});
  const ValueId powers = context.add("Exp", {context.add("Sub", {context.input(0), shift})});
  const ValueId sum = context.add("ReduceSum", over(powers), {{"keepdims", int64_t{1}}});
  const ValueId result = context.add("Add", {context.add("Log", {sum}), shift});
  context.set_output(0, keeps_dims(context.node) ? result : context.add("Squeeze", over(result)));
  return true;
}

// Integers have loops for their sums only. Means are those of 64-bit sums, rounded to zero.
bool expand_integers(ExpandContext& context) {
  const TensorType type = context.input_type(0);
  const Reduction kind = reduction_of(context.node);
  const bool has_loops = type.dtype == DType::i64 || type.dtype == DType::i32;
  if (!has_loops || !type.is_static() || context.node.attributes.get_int("noop_with_empty_axes", 0) != 0) return false;
  if (context.has_input(1) && !context.constant_of(context.input(1)).defined()) return false;
  const InferContext messages(context.node, {}, {});
  const std::vector<bool> reduced =
      reduced_axes(messages, type.rank(), context.has_input(1) ? context.constant_of(context.input(1)) : Tensor());
  std::vector<int64_t> axes;
  int64_t count = 1;
  for (size_t i = 0; i < reduced.size(); ++i) {
    if (!reduced[i]) continue;
    axes.push_back(static_cast<int64_t>(i));
    count *= std::max<int64_t>(type.dims[i].extent, 1);
  }
  if (axes.empty() || checked_elements(type.extents()) == 0) return false;
  ValueId x = context.input(0);
  if (kind == Reduction::sum_square) x = context.add("Mul", {x, x});
  if (kind == Reduction::l1) x = context.add("Abs", {x});
  if (kind == Reduction::mean) x = context.add("Cast", {x}, {{"to", static_cast<int64_t>(DType::i64)}});
  const Tensor listed = Tensor::from<int64_t>({static_cast<int64_t>(axes.size())}, std::span<const int64_t>(axes));
  ValueId result = context.add("ReduceSum", {x, context.constant(listed)},
                               {{"keepdims", int64_t{keeps_dims(context.node) ? 1 : 0}}});
  if (kind == Reduction::mean) {
    const ValueId quotient = context.add("Div", {result, add_scalar(context, DType::i64, static_cast<double>(count))});
    result = context.add("Cast", {quotient}, {{"to", static_cast<int64_t>(type.dtype)}});
  }
  context.set_output(0, result);
  return true;
}

}  // namespace

std::vector<OpDef> reduction_ops() {
  using Kind = AttributeSpec::Kind;
  std::vector<OpDef> defs;
  for (const NamedReduction& entry : kReductions) {
    const int axes_move = entry.kind == Reduction::sum ? 13 : 18;
    OpSchema old{.name = entry.name,
                 .until = axes_move - 1,
                 .attributes = {{"axes", Kind::integers}, {"keepdims", Kind::integer}},
                 .infer = infer,
                 .reference = reference};
    if (entry.kind == Reduction::log_sum_exp) old.expand = expand_log_sum_exp;
    if (entry.kind == Reduction::sum_square || entry.kind == Reduction::l1 || entry.kind == Reduction::mean)
      old.expand = expand_integers;
    OpSchema now = old;
    now.since = axes_move;
    now.until = 1 << 20;
    now.max_inputs = 2;
    now.attributes = {{"keepdims", Kind::integer}, {"noop_with_empty_axes", Kind::integer}};
    defs.push_back({.schema = std::move(old), .lower = lower});
    defs.push_back({.schema = std::move(now), .lower = lower});
  }
  return defs;
}

}  // namespace lathe::ops
