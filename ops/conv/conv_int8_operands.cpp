#include "ops/conv/conv_int8_operands.h"

#include <algorithm>

#include "ops/int8/int8_lower.h"
#include "ops/int8/int8_table.h"
#include "ops/int8/large_bytes.h"
#include "src/base/checked_size.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

bool are_signed_bytes(const LowerContext& context, const ConvInt8Zeros& zeros) {
  return context.input_type(1).dtype == DType::i8 &&
         std::all_of(zeros.weights.begin(), zeros.weights.end(), [](int32_t z) { return z == 0; });
}

// As behind a rectifier, or much like it. A block is a pixel of eight bytes: convolutions by halves look for large ones
// so.
bool are_mostly_small(const TensorType& input, const ConvInt8Zeros& zeros) {
  return input.dtype == DType::u8 && input.layout.channel_block == 8 && zeros.input && *zeros.input <= kNearZero;
}

bool can_read(DType dtype) { return dtype == DType::f32 || dtype == DType::i32 || is_byte(dtype); }

}  // namespace

std::optional<ConvInt8Operands> bind_conv_int8_operands(const LowerContext& context, const Dims& out, int lanes) {
  if (!context.has_input(2)) {
    if (context.node.epilogue) return std::nullopt;
    return ConvInt8Operands{.bound = {}, .store = {.dtype = DType::i32}};
  }
  const Tensor scale = context.constant(2);
  if (!scale.defined() || scale.dtype() != DType::f32 || (scale.size() != 1 && scale.size() != out[1])) {
    return std::nullopt;
  }
  const auto scales = scale.elements<float>();
  std::vector<float> factors(scales.begin(), scales.end());
  std::optional<Expression> outer;
  if (context.node.epilogue) outer = context.node.epilogue->expression;
  Expression expression = scaled_expression(outer, factors);
  ConvInt8Operands operands;
  operands.table = take_tail_for_look_up(expression, context.target.isa);
  operands.store = has_byte_tables(context.target.isa) ? split_requantization_by_table(expression, factors)
                                                       : split_requantization(expression, factors);
  if (!can_read(operands.store.dtype) || !std::all_of(expression.inputs.begin(), expression.inputs.end(), can_read)) {
    return std::nullopt;
  }
  std::optional<BoundEpilogue> bound = bind_conv_operands(context, out, lanes);
  if (!bound) return std::nullopt;
  operands.bound = std::move(*bound);
  operands.bound.epilogue.expression = std::move(expression);
  if (factors.size() > 1) {
    const Tensor values = Tensor::from<float>({static_cast<int64_t>(factors.size())}, factors);
    auto& [epilogue, buffers, batch_bytes] = operands.bound;
    epilogue.operands.insert(epilogue.operands.begin(), ConvOperand::per_channel);
    buffers.insert(buffers.begin(), context.constant_buffer(pad_channels(values, out[1], lanes)));
    batch_bytes.insert(batch_bytes.begin(), 0);
  }
  if (operands.bound.buffers.size() > static_cast<size_t>(ConvEpilogue::kMaxOperands)) return std::nullopt;
  return operands;
}

std::optional<ConvInt8Zeros> conv_int8_zeros(const LowerContext& context, int64_t channels) {
  ConvInt8Zeros zeros{0, {0}};
  if (context.has_input(3)) {
    const TensorType& type = context.input_type(3);
    if (type.dtype != context.input_type(0).dtype || checked_elements(type.extents()) != 1) {
      return std::nullopt;
    }
    const Tensor known = context.constant(3);
    zeros.input.reset();
    if (known.defined()) zeros.input = ByteZeros{known.raw(), known.dtype(), 1}.at(0);
  }
  if (!context.has_input(4)) return zeros;
  const Tensor known = context.constant(4);
  if (!known.defined() || !is_byte(known.dtype()) || (known.size() != 1 && known.size() != channels)) {
    return std::nullopt;
  }
  zeros.weights.clear();
  const ByteZeros view{known.raw(), known.dtype(), known.size()};
  for (int64_t i = 0; i < known.size(); ++i) zeros.weights.push_back(view.at(i));
  return zeros;
}

Int8Dot conv_int8_dot(const LowerContext& context, const ConvInt8Zeros& zeros) {
  return has_vnni(context.target.isa) && are_signed_bytes(context, zeros) ? Int8Dot::u8s8 : Int8Dot::pairs;
}

Int8Dot conv_int8_sums_dot(const LowerContext& context, const TensorType& input, const ConvInt8Zeros& zeros) {
  if (has_dot(context.target.isa, Int8Dot::u8s7) && are_signed_bytes(context, zeros)) {
    if (are_mostly_small(input, zeros)) return Int8Dot::u8s8_halved;
    if (are_at_most(context.constant(1).elements<int8_t>(), kMostOfSevenBits)) return Int8Dot::u8s7;
  }
  return conv_int8_dot(context, zeros);
}

std::optional<int32_t> conv_int8_least(const LowerContext& context, const TensorType& input, const ConvInt8Zeros& zeros,
                                       Int8Dot dot) {
  if (!is_wide(dot) || !has_dot(context.target.isa, Int8Dot::u8s8_halved) || !are_signed_bytes(context, zeros) ||
      input.layout.channel_block != 8 || !zeros.input)
    return std::nullopt;
  const int32_t least = *zeros.input + (input.dtype == DType::i8 ? 128 : 0) - kNearZero;
  return least > 0 ? std::optional(least) : std::nullopt;
}

bool has_conv_int8_bias(const LowerContext& context, int64_t channels) {
  if (!context.has_input(5)) return true;
  const Tensor bias = context.constant(5);
  return bias.defined() && bias.dtype() == DType::i32 && bias.size() == channels;
}

bool has_conv_elements(const LowerContext& context) {
  return context.input_type(0).storage_bytes() > 0 && context.input_type(1).storage_bytes() > 0 &&
         context.output_type(0).storage_bytes() > 0;
}

void ConvInt8Weights::fill_init(const void* packed_at, int32_t in_zero, const Tensor& bias, int32_t* init,
                                int64_t count) const {
  const auto* sums = reinterpret_cast<const int32_t*>(static_cast<const char*>(packed_at) + sums_at);
  for (int64_t i = 0; i < count; ++i) {
    // Wraps around as the sums do.
    const uint32_t added = i < bias.size() ? static_cast<uint32_t>(bias.data<int32_t>()[i]) : 0;
    init[i] = static_cast<int32_t>(added - static_cast<uint32_t>(in_zero) * static_cast<uint32_t>(sums[i]));
  }
}

ByteMatrix conv_weight_rows(const Tensor& weights, int64_t channels) {
  const int64_t row = weights.size() / channels;
  return {weights.raw(), weights.dtype() == DType::i8, channels, row, row, 1};
}
ByteZeros view_of_zeros(const std::vector<int32_t>& zeros) {
  return {zeros.data(), DType::i32, static_cast<int64_t>(zeros.size())};
}

// Sums lie behind the weights.
ConvInt8Weights pack_conv_int8(const LowerContext& context, const std::string& format,
                               const std::vector<int32_t>& zeros, int64_t bytes, int64_t channels,
                               const std::function<void(void* weights, int32_t* sums)>& pack) {
  ConvInt8Weights weights;
  weights.sums_at = round_up(bytes, 64);
  std::string text = format + " zeros";
  for (const int32_t zero : zeros) text += " " + std::to_string(zero);
  weights.packed = context.packed(context.input(1), text, [&] {
    Tensor packed = allocate_weights(DType::u8, {weights.sums_at + channels * 4});
    auto* out = static_cast<char*>(packed.mutable_raw());
    pack(out, reinterpret_cast<int32_t*>(out + weights.sums_at));
    return packed;
  });
  return weights;
}

BufferId conv_int8_init(const LowerContext& context, const ConvInt8Weights& weights, BufferId packed,
                        const ConvInt8ZeroInSums& zero, int64_t count) {
  const Tensor given = context.constant(5), bias = given.defined() ? given : Tensor(DType::i32, {0});
  if (zero.known) {
    Tensor init(DType::i32, {count});
    weights.fill_init(weights.packed.raw(), *zero.known, bias, init.mutable_data<int32_t>(), count);
    return context.constant_buffer(init);
  }
  const BufferId to = context.scratch(checked_bytes(DType::i32, {count}));
  Step step;
  step.kernel = "channel terms";
  step.reads = {packed, zero.at};
  step.writes = {to};
  step.bytes = 8.0 * static_cast<double>(count);
  step.run = [zero, weights, bias, packed, to, count](const StepArgs& args) {
    weights.fill_init(args.at<const void>(packed), zero.of(args.at<const void>(zero.at)), bias, args.at<int32_t>(to),
                      count);
  };
  context.add(std::move(step));
  return to;
}

}  // namespace lathe
