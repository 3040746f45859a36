#include "ops/recurrent/recurrent_weights.h"

#include <algorithm>

#include "src/base/checked_size.h"

namespace lathe {

BufferId packed_weights(const LowerContext& context, RecurrentInput weights, std::optional<RecurrentInput> zeros,
                        const PackedForm& form) {
  const auto bytes_of = [](const Tensor& tensor) { return static_cast<const char*>(tensor.raw()); };
  const Tensor constant = context.constant(weights), zero = zeros ? context.constant(*zeros) : Tensor();
  if (constant.defined() && (!zeros || zero.defined())) {
    return context.constant_buffer(context.packed(context.input(weights), form.text, [&] {
      Tensor packed = allocate_weights(DType::u8, {form.bytes});
      form.pack(bytes_of(constant), zeros ? bytes_of(zero) : nullptr, packed.mutable_raw());
      return packed;
    }));
  }
  const BufferId from = context.buffer(context.input(weights));
  const BufferId zeros_at = zeros ? context.buffer(context.input(*zeros)) : BufferId::none;
  const BufferId to = context.scratch(static_cast<size_t>(form.bytes));
  Step step;
  step.op = std::string(context.node.op->name) + " (weights)";
  step.kernel = "pack";
  step.reads = {from};
  if (zeros) step.reads.push_back(zeros_at);
  step.writes = {to};
  step.bytes = 2.0 * static_cast<double>(form.bytes);
  step.run = [from, to, zeros_at, pack = form.pack](const StepArgs& args) {
    const bool has_zeros = zeros_at != BufferId::none;
    pack(args.at<const char>(from), has_zeros ? args.at<const char>(zeros_at) : nullptr, args.at<void>(to));
  };
  context.add(std::move(step));
  return to;
}

int64_t elements_by_direction(const LowerContext& context, RecurrentInput input, int64_t directions) {
  return checked_elements(context.input_type(input).extents()) / directions;
}

ByteZeros zeros_of_direction(const LowerContext& context, RecurrentInput input, const char* all, int64_t direction,
                             int64_t directions) {
  const int64_t count = elements_by_direction(context, input, directions);
  return {all + direction * count, context.input_type(input).dtype, count};
}

std::optional<ByteWeights> byte_weights(const LowerContext& context, const ByteOperands& operands, int64_t direction,
                                        int64_t directions, int64_t columns) {
  const auto fits = [&](RecurrentInput input, DType dtype) {
    const TensorType& type = context.input_type(input);
    return type.dtype == dtype && (type.extents() == Dims{directions} || type.extents() == Dims{directions, columns});
  };
  const DType dtype = context.input_type(operands.weights).dtype;
  if (dtype != DType::u8 && dtype != DType::i8) return std::nullopt;
  if (!fits(operands.scale, DType::f32) || !fits(operands.zero, dtype)) return std::nullopt;
  ByteWeights weights;
  weights.is_signed = dtype == DType::i8;
  weights.has_column_scales = elements_by_direction(context, operands.scale, directions) > 1;
  if (const Tensor constant = context.constant(operands.zero); constant.defined()) {
    const auto* all = static_cast<const char*>(constant.raw());
    const ByteZeros zeros = zeros_of_direction(context, operands.zero, all, direction, directions);
    for (int64_t i = 0; i < zeros.count; ++i) weights.zeros.push_back(zeros.at(i));
    if (std::equal(weights.zeros.begin() + 1, weights.zeros.end(), weights.zeros.begin())) weights.zeros.resize(1);
  }
  if (const Tensor constant = context.constant(operands.weights); constant.defined() && weights.is_signed) {
    const auto all = constant.elements<int8_t>();
    const size_t each = all.size() / static_cast<size_t>(directions);
    for (const int most : {kMostOfSevenBits, kMostBesideSigns}) {
      if (!are_at_most(all.subspan(static_cast<size_t>(direction) * each, each), most)) continue;
      weights.most = most;
      break;
    }
  }
  return weights;
}

}  // namespace lathe
