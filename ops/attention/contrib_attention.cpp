#include "ops/attention/contrib_attention.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "ops/numbers.h"
#include "ops/shape_arguments.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

ValueId unsqueezed(ExpandContext& context, ValueId x, std::initializer_list<int64_t> axes) {
  return context.add("Unsqueeze", {x, context.longs(axes)});
}

// 0 where `keeps` (bool) is true, the filter's value elsewhere.
ValueId bias_of(ExpandContext& context, ValueId keeps, DType dtype, double filter_value) {
  const ValueId kept = add_scalar(context, dtype, 0), out = add_scalar(context, dtype, filter_value);
  return context.add("Where", {keeps, kept, out});
}

// [batch] lengths, or [2 * batch] ends and then starts, or [3 * batch + 2], of which only the lengths matter.
std::optional<ValueId> keys_within(ExpandContext& context, ValueId limits, const MaskShape& shape) {
  const Dim count = context.type(limits).dims[0];
  if (!count.known() || !shape.batch.known() || !shape.keys.known()) return std::nullopt;
  const int64_t batch = shape.batch.extent;
  const bool has_starts = count.extent == 2 * batch && batch > 0;
  if (count.extent != batch && !has_starts && count.extent != 3 * batch + 2) {
    context.fail("a mask has " + std::to_string(count.extent) + " elements for a batch of " + std::to_string(batch));
  }
  const DType dtype = context.type(limits).dtype;
  Tensor positions(dtype, {1, shape.keys.extent});
  for (int64_t i = 0; i < shape.keys.extent; ++i) store_real(positions, i, static_cast<double>(i));
  const ValueId at = context.constant(std::move(positions));
  std::vector<ValueId> pieces{limits};
  if (count.extent != batch) pieces = add_split(context, limits, 0, {batch, count.extent - batch});
  ValueId keeps = context.add("Less", {at, unsqueezed(context, pieces[0], {1})});
  if (has_starts) {
    const ValueId from = context.add("GreaterOrEqual", {at, unsqueezed(context, pieces[1], {1})});
    keeps = context.add("And", {keeps, from});
  }
  return unsqueezed(context, keeps, {1, 2});
}

// Q, K, V and biases such that the products broadcast K and V over the heads that share them.
struct Grouped {
  ValueId query, key, value;
  std::vector<ValueId> biases;
};

// The same for all rows and heads: [keys], [1, keys], [., 1, 1, keys].
bool is_alike_for_rows(const TensorType& bias) {
  for (int axis = std::max(0, bias.rank() - 3); axis + 1 < bias.rank(); ++axis) {
    if (bias.dims[static_cast<size_t>(axis)].extent != 1) return false;
  }
  return true;
}

// A bias of [batch, heads, queries, keys] for scores of [batch, key heads, group, queries, keys].
ValueId in_groups(ExpandContext& context, ValueId bias, int64_t key_heads, int64_t group) {
  const TensorType type = context.type(bias);
  if (type.rank() < 3) return bias;
  const std::vector<Dim>& dims = type.dims;
  const size_t rank = dims.size();
  if (dims[rank - 3].extent == 1) return unsqueezed(context, bias, {static_cast<int64_t>(rank) - 3});
  std::vector<int64_t> extents;
  for (size_t axis = 0; axis + 3 < rank; ++axis) extents.push_back(dims[axis].extent);
  extents.insert(extents.end(), {key_heads, group, dims[rank - 2].extent, dims[rank - 1].extent});
  return context.add("Reshape",
                     {bias, context.constant(Tensor::from<int64_t>({static_cast<int64_t>(extents.size())}, extents))});
}

// Heads that share a key lie one behind the other. Where no bias tells rows apart they are rows of one product, else an
// axis of their own, over which K and V broadcast.
Grouped grouped(ExpandContext& context, const AttentionParts& parts) {
  if (!parts.shares_keys) return {parts.query, parts.key, parts.value, parts.biases};
  const TensorType query = context.type(parts.query);
  const int64_t key_heads = context.type(parts.key).dims[1].extent, group = query.dims[1].extent / key_heads;
  const int64_t size = query.dims[3].extent;
  const bool are_rows = std::all_of(parts.biases.begin(), parts.biases.end(),
                                    [&](ValueId bias) { return is_alike_for_rows(context.type(bias)); });
  Grouped result;
  if (are_rows) {
    result = {context.add("Reshape", {parts.query, context.longs({0, key_heads, -1, size})}), parts.key, parts.value,
              parts.biases};
    return result;
  }
  result.query = context.add("Reshape", {parts.query, context.longs({0, key_heads, group, -1, size})});
  result.key = unsqueezed(context, parts.key, {2});
  result.value = unsqueezed(context, parts.value, {2});
  for (const ValueId bias : parts.biases) result.biases.push_back(in_groups(context, bias, key_heads, group));
  return result;
}

}  // namespace

ValueId add_split_heads(ExpandContext& context, ValueId x, int64_t heads) {
  const ValueId apart = context.add("Reshape", {x, context.longs({0, 0, heads, -1})});
  return add_transposed(context, apart, {0, 2, 1, 3});
}

AttentionResult add_attention_of_heads(ExpandContext& context, const AttentionParts& parts) {
  const DType dtype = context.type(parts.query).dtype;
  const auto scaled = [&](ValueId x, double by) { return context.add("Mul", {x, add_scalar(context, dtype, by)}); };
  const Grouped operands = grouped(context, parts);
  std::vector<int64_t> turned(static_cast<size_t>(context.type(operands.key).rank()));
  std::iota(turned.begin(), turned.end(), 0);
  std::swap(turned[turned.size() - 2], turned.back());
  ValueId scores = context.add("MatMul", {operands.query, add_transposed(context, operands.key, turned)});
  if (parts.scale != 1) scores = scaled(scores, parts.scale);
  if (parts.softcap > 0) {
    scores = scaled(context.add("Tanh", {scaled(scores, 1 / parts.softcap)}), parts.softcap);
  }
  for (const ValueId bias : operands.biases) scores = context.add("Add", {scores, bias});
  ValueId weights = context.add("Softmax", {scores}, {{"axis", int64_t{-1}}});
  if (parts.zeroes_empty) {
    weights = context.add("Where", {context.add("IsNaN", {weights}), add_scalar(context, dtype, 0), weights});
  }
  const ValueId heads = context.add("MatMul", {weights, operands.value});
  if (!parts.shares_keys) return {heads, scores};
  const int64_t count = context.type(parts.query).dims[1].extent, columns = context.type(parts.value).dims[3].extent;
  return {context.add("Reshape", {heads, context.longs({0, count, -1, columns})}), scores};
}

ValueId add_joined_heads(ExpandContext& context, ValueId heads) {
  return context.add("Reshape", {add_transposed(context, heads, {0, 2, 1, 3}), context.longs({0, 0, -1})});
}

AttentionResult add_attention(ExpandContext& context, const AttentionParts& parts) {
  const AttentionResult result = add_attention_of_heads(context, parts);
  return {add_joined_heads(context, result.output), result.scores};
}

std::optional<ValueId> add_mask(ExpandContext& context, ValueId mask, const MaskShape& shape, DType dtype,
                                double filter_value) {
  const TensorType type = context.type(mask);
  if (!type.has_rank) return std::nullopt;
  ValueId keeps = ValueId::none;
  if (type.rank() == 1) {
    const std::optional<ValueId> within = keys_within(context, mask, shape);
    if (!within) return std::nullopt;
    keeps = *within;
  } else {
    keeps = context.add("Cast", {mask}, {{"to", static_cast<int64_t>(DType::boolean)}});
    if (type.rank() == 2) {
      keeps = unsqueezed(context, keeps, {1, 2});
    } else if (type.rank() == 3) {
      keeps = unsqueezed(context, keeps, {1});
    } else if (type.rank() == 4) {
      if (!shape.past.known() || !shape.queries.known() || !shape.keys.known()) return std::nullopt;
      const int64_t from = shape.past.extent;
      keeps = context.add(
          "Slice", {keeps, context.longs({from, 0}), context.longs({from + shape.queries.extent, shape.keys.extent}),
                    context.longs({2, 3})});
    } else {
      context.fail("a mask has rank " + std::to_string(type.rank()));
    }
  }
  return bias_of(context, keeps, dtype, filter_value);
}

std::optional<ValueId> add_causal_mask(ExpandContext& context, const MaskShape& shape, DType dtype, int64_t window) {
  if (!shape.queries.known() || !shape.keys.known() || !shape.past.known()) return std::nullopt;
  const int64_t queries = shape.queries.extent, keys = shape.keys.extent;
  checked_bytes(dtype, {queries, keys});
  Tensor mask(dtype, {queries, keys});
  for (int64_t q = 0; q < queries; ++q) {
    const int64_t position = shape.past.extent + q;
    for (int64_t k = 0; k < keys; ++k) {
      const bool is_out = k > position || (window >= 0 && position - k >= window);
      store_real(mask, q * keys + k, is_out ? -std::numeric_limits<double>::infinity() : 0);
    }
  }
  return context.constant(std::move(mask));
}

namespace {

// [..., half] to [..., 2 * half]: each number for both elements of its pair.
ValueId for_both(ExpandContext& context, ValueId table, const Rotation& rotation) {
  const NamedAttributes along_last = {{"axis", int64_t{-1}}};
  if (!rotation.is_interleaved) return context.add("Concat", {table, table}, along_last);
  const ValueId column = context.add("Unsqueeze", {table, context.longs({-1})});
  const ValueId pairs = context.add("Concat", {column, column}, along_last);
  return context.add("Reshape", {pairs, context.longs({0, 0, 0, 2 * rotation.half})});
}

// The other one of each pair, that of the second one negative.
ValueId exchanged(ExpandContext& context, ValueId x, const Rotation& rotation) {
  const NamedAttributes along_last = {{"axis", int64_t{-1}}};
  const ValueId last = context.longs({-1});
  if (!rotation.is_interleaved) {
    const std::vector<ValueId> halves = add_split(context, x, -1, {rotation.half, rotation.half});
    return context.add("Concat", {context.add("Neg", {halves[1]}), halves[0]}, along_last);
  }
  const ValueId end = context.longs({2 * rotation.half}), two = context.longs({2});
  const ValueId even = context.add("Slice", {x, context.longs({0}), end, last, two}),
                odd = context.add("Neg", {context.add("Slice", {x, context.longs({1}), end, last, two})});
  const ValueId pairs = context.add(
      "Concat", {context.add("Unsqueeze", {odd, last}), context.add("Unsqueeze", {even, last})}, along_last);
  return context.add("Reshape", {pairs, context.longs({0, 0, 0, 2 * rotation.half})});
}

}  // namespace

// As exporters spell it, for the pass that puts it together (fuse_rotary.cpp).
ValueId add_rotated(ExpandContext& context, ValueId x, const Rotation& rotation) {
  const int64_t turned = 2 * rotation.half;
  std::vector<ValueId> pieces{x};
  if (turned < rotation.size) pieces = add_split(context, x, -1, {turned, rotation.size - turned});
  const ValueId by_cos = context.add("Mul", {pieces[0], for_both(context, rotation.cos, rotation)});
  const ValueId by_sin =
      context.add("Mul", {exchanged(context, pieces[0], rotation), for_both(context, rotation.sin, rotation)});
  const ValueId result = context.add("Add", {by_cos, by_sin});
  return pieces.size() == 1 ? result : context.add("Concat", {result, pieces[1]}, {{"axis", int64_t{-1}}});
}

Dim sum_of(const Dim& a, const Dim& b) { return a.known() && b.known() ? known_dim(a.extent + b.extent) : Dim(); }

ValueId add_past(ExpandContext& context, ValueId past, ValueId now) {
  return past == ValueId::none ? now : context.add("Concat", {past, now}, {{"axis", int64_t{2}}});
}

}  // namespace lathe
