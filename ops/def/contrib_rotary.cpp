// com.microsoft's RotaryEmbedding: the angles are rows of two tables, by the token's position.
#include "ops/attention/contrib_attention.h"
#include "ops/numbers.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

// Positions as given, [batch, length], or counted from the one given, [length]. nullopt: the length is not known yet.
std::optional<ValueId> positions(ExpandContext& context, const Dim& length) {
  const TensorType type = context.input_type(1);
  if (type.rank() == 2) return context.input(1);
  if (!length.known()) return std::nullopt;
  Tensor counted(type.dtype, {length.extent});
  for (int64_t i = 0; i < length.extent; ++i) store_real(counted, i, static_cast<double>(i));
  return context.add("Add", {context.input(1), context.constant(std::move(counted))});
}

// Inputs: x, position_ids, cos_cache, sin_cache.
bool expand_rotary(ExpandContext& context) {
  const Attributes& attributes = context.node.attributes;
  const TensorType x = context.input_type(0), cache = context.input_type(2);
  if (!x.has_rank || !context.input_type(1).has_rank || !cache.has_rank) return false;
  if (x.rank() != 3 && x.rank() != 4) context.fail("input 0 has rank " + std::to_string(x.rank()));
  if (cache.rank() != 2) context.fail("input 2 has rank " + std::to_string(cache.rank()) + ", expected 2");
  if (!cache.dims[1].known() || !x.dims.back().known()) return false;
  if (attributes.get_float("scale", 1) != 1) context.unsupported("attribute 'scale'");
  Rotation rotation{.half = cache.dims[1].extent, .is_interleaved = attributes.get_int("interleaved", 0) != 0};
  const int64_t heads = attributes.get_int("num_heads", 0);
  const int64_t hidden = x.dims.back().extent;
  rotation.size = x.rank() == 4 ? hidden : heads > 0 ? hidden / heads : 2 * rotation.half;
  if (rotation.size < 2 * rotation.half || rotation.size < 1 || hidden % rotation.size != 0) {
    context.fail("turns " + std::to_string(2 * rotation.half) + " of " + std::to_string(rotation.size) + " elements");
  }
  const bool is_apart = x.rank() == 4;  // [batch, heads, length, size]
  const std::optional<ValueId> at = positions(context, x.dims[is_apart ? 2 : 1]);
  if (!at) return false;
  const bool is_one_start = context.input_type(1).rank() == 1;
  const auto angles = [&](int table) {
    const ValueId rows = context.add("Gather", {context.input(table), *at}, {{"axis", int64_t{0}}});
    // [length, half] or [batch, length, half]: an axis for the heads, and one for the batch where there is none.
    const int64_t heads_axis = is_apart ? 1 : 2;
    return context.add("Unsqueeze",
                       {rows, is_one_start ? context.longs({0, heads_axis}) : context.longs({heads_axis})});
  };
  rotation.cos = angles(2);
  rotation.sin = angles(3);
  if (is_apart) {
    context.set_output(0, add_rotated(context, context.input(0), rotation));
    return true;
  }
  const ValueId split = context.add("Reshape", {context.input(0), context.longs({0, 0, -1, rotation.size})});
  const ValueId turned = add_rotated(context, split, rotation);
  context.set_output(0, context.add("Reshape", {turned, context.longs({0, 0, hidden})}));
  return true;
}

}  // namespace

std::vector<OpDef> contrib_rotary_ops() {
  using Kind = AttributeSpec::Kind;
  return {composite("RotaryEmbedding", 4, 4, expand_rotary,
                    {{"interleaved", Kind::integer},
                     {"num_heads", Kind::integer},
                     {"rotary_embedding_dim", Kind::integer},
                     {"is_packed_batching", Kind::integer},
                     {"scale", Kind::real}})};
}

}  // namespace lathe::ops
