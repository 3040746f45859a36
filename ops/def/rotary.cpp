// RotaryEmbedding: pairs of elements turned by an angle that depends on the token's position.
#include "ops/attention/contrib_attention.h"
#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

void infer_rotary(InferContext& context) { context.set_output(0, context.input(0)); }

// The input as [batch, length, heads, size] in strides.
struct Tokens {
  int64_t batch, length, heads, size;
  int64_t batch_stride, token_stride, head_stride;
};

Tokens tokens_of(const ReferenceContext& context) {
  const Dims& dims = context.inputs[0].dims();
  if (dims.size() == 4) {
    return {dims[0], dims[2], dims[1], dims[3], dims[1] * dims[2] * dims[3], dims[3], dims[2] * dims[3]};
  }
  if (dims.size() != 3) context.fail("input 0 has rank " + std::to_string(dims.size()) + ", expected 3 or 4");
  const int64_t heads = context.node.attributes.get_int("num_heads", 0);
  if (heads < 1 || dims[2] % heads != 0) context.fail("attribute 'num_heads' is " + std::to_string(heads));
  return {dims[0], dims[1], heads, dims[2] / heads, dims[1] * dims[2], dims[2], dims[2] / heads};
}

// Row of the caches for each (batch, token).
std::vector<int64_t> cache_rows(const ReferenceContext& context, const Tokens& tokens, int64_t half) {
  const Tensor &cos = context.inputs[1], &sin = context.inputs[2];
  const bool has_positions = context.has_input(3);
  const int expected_rank = has_positions ? 2 : 3;
  if (cos.dims() != sin.dims() || cos.rank() != expected_rank || cos.dims().back() != half) {
    context.fail("caches are " + to_string(cos.dims()) + " and " + to_string(sin.dims()) + ", for " +
                 std::to_string(half) + " pairs");
  }
  const int64_t count = tokens.batch * tokens.length;
  std::vector<int64_t> rows;
  if (!has_positions) {
    if (cos.dims()[0] != tokens.batch || cos.dims()[1] != tokens.length) context.fail("caches fit not the input");
    for (int64_t i = 0; i < count; ++i) rows.push_back(i);
    return rows;
  }
  rows = integers_of_any(context.inputs[3]);
  if (static_cast<int64_t>(rows.size()) != count) context.fail("position_ids fit not the input");
  for (int64_t& row : rows) {
    if (row < -cos.dims()[0] || row >= cos.dims()[0]) context.fail("position " + std::to_string(row) + " is too large");
    if (row < 0) row += cos.dims()[0];
  }
  return rows;
}

void run_rotary(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  const Tokens tokens = tokens_of(context);
  int64_t turned = context.node.attributes.get_int("rotary_embedding_dim", 0);
  if (turned == 0) turned = tokens.size;
  if (turned < 0 || turned > tokens.size || turned % 2 != 0) {
    context.fail("turns " + std::to_string(turned) + " of " + std::to_string(tokens.size) + " elements");
  }
  const int64_t half = turned / 2;
  const bool is_interleaved = context.node.attributes.get_int("interleaved", 0) != 0;
  const std::vector<int64_t> rows = cache_rows(context, tokens, half);
  const std::vector<double> in = reals_of(data), cos = reals_of(context.inputs[1]), sin = reals_of(context.inputs[2]);
  std::vector<double> out = in;
  const auto round = [&](double value) { return rounded_to(data.dtype(), value); };
  for (IndexWalk at({tokens.batch, tokens.length, tokens.heads, half}); !at.done(); at.next()) {
    const auto& i = at.index();
    const int64_t base = i[0] * tokens.batch_stride + i[1] * tokens.token_stride + i[2] * tokens.head_stride;
    const auto first = static_cast<size_t>(base + (is_interleaved ? 2 * i[3] : i[3]));
    const size_t second = first + static_cast<size_t>(is_interleaved ? 1 : half);
    const auto angle = static_cast<size_t>(rows[static_cast<size_t>(i[0] * tokens.length + i[1])] * half + i[3]);
    out[first] = round(round(cos[angle] * in[first]) - round(sin[angle] * in[second]));
    out[second] = round(round(sin[angle] * in[first]) + round(cos[angle] * in[second]));
  }
  context.outputs[0] = tensor_of_reals(context, data.dtype(), data.dims(), out);
}

// Inputs: x, cos_cache, sin_cache, position_ids.
bool expand_rotary(ExpandContext& context) {
  const Attributes& attributes = context.node.attributes;
  const TensorType x = context.input_type(0), cache = context.input_type(1);
  const bool has_positions = context.has_input(3), is_apart = x.rank() == 4;  // [batch, heads, length, size]
  if (!x.has_rank || !cache.has_rank || (x.rank() != 3 && !is_apart) || cache.rank() != (has_positions ? 2 : 3))
    return false;
  if (has_positions && context.input_type(3).rank() != 2) return false;
  if (!cache.dims.back().known() || !x.dims.back().known()) return false;
  Rotation rotation{};
  rotation.half = cache.dims.back().extent;
  rotation.is_interleaved = attributes.get_int("interleaved", 0) != 0;
  const int64_t heads = is_apart ? 1 : attributes.get_int("num_heads", 0), hidden = x.dims.back().extent;
  // What does not fit is the reference's to complain about.
  if (heads < 1 || hidden % heads != 0 || rotation.half < 1) return false;
  rotation.size = hidden / heads;
  const int64_t asked = attributes.get_int("rotary_embedding_dim", 0);
  if ((asked == 0 ? rotation.size : asked) != 2 * rotation.half || 2 * rotation.half > rotation.size) return false;
  const auto angles = [&](int table) {
    const ValueId rows = has_positions
                             ? context.add("Gather", {context.input(table), context.input(3)}, {{"axis", int64_t{0}}})
                             : context.input(table);
    return context.add("Unsqueeze", {rows, context.longs({is_apart ? 1 : 2})});  // an axis for the heads
  };
  rotation.cos = angles(1);
  rotation.sin = angles(2);
  const ValueId split = is_apart
                            ? context.input(0)
                            : context.add("Reshape", {context.input(0), context.longs({0, 0, heads, rotation.size})});
  const ValueId turned = add_rotated(context, split, rotation);
  context.set_output(0, is_apart ? turned : context.add("Reshape", {turned, context.longs({0, 0, hidden})}));
  return true;
}

}  // namespace

std::vector<OpDef> rotary_ops() {
  using Kind = AttributeSpec::Kind;
  return {{.schema = {.name = "RotaryEmbedding",
                      .since = 23,
                      .min_inputs = 3,
                      .max_inputs = 4,
                      .attributes = {{"interleaved", Kind::integer},
                                     {"num_heads", Kind::integer},
                                     {"rotary_embedding_dim", Kind::integer}},
                      .infer = infer_rotary,
                      .reference = run_rotary,
                      .expand = expand_rotary}}};
}

}  // namespace lathe::ops
