#include "ops/int8/int8_node.h"

#include <algorithm>

#include "ops/copy/copy_elements.h"
#include "ops/gemm/gemm_node.h"
#include "ops/pointwise/broadcast.h"
#include "src/base/axis_order.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

constexpr int64_t kMostMatrices = 1 << 20;  // their offsets are kept

// One for all or one for each of `vectors` rows or columns.
std::optional<ZeroPoints> zeros_of(const LowerContext& context, int slot, int64_t vectors) {
  ZeroPoints zeros;
  if (slot < 0 || !context.has_input(slot)) {
    zeros.values = {0};
    return zeros;
  }
  const TensorType& type = context.input_type(slot);
  zeros.value = context.input(slot);
  zeros.dtype = type.dtype;
  zeros.count = checked_elements(type.extents());
  if (zeros.count != 1 && (zeros.count != vectors || type.rank() != 1)) return std::nullopt;
  if (type.dtype != DType::u8 && type.dtype != DType::i8 && type.dtype != DType::i32) return std::nullopt;
  if (const Tensor constant = context.constant(slot); constant.defined()) {
    const ByteZeros view{constant.raw(), type.dtype, zeros.count};
    for (int64_t i = 0; i < zeros.count; ++i) zeros.values.push_back(view.at(i));
    const int32_t first = zeros.values.empty() ? 0 : zeros.values[0];
    const bool all_equal = std::all_of(zeros.values.begin(), zeros.values.end(), [&](int32_t z) { return z == first; });
    if (all_equal) zeros.values = {first};
  }
  return zeros;
}

ByteOperand operand_of(Dims dims, const std::vector<int64_t>& perm, bool append_one, bool prepend_one) {
  if (append_one) dims.push_back(1);
  if (prepend_one) dims.insert(dims.begin(), 1);
  const std::vector<int64_t> stored = strides_of(dims);
  Dims turned = dims;
  std::vector<int64_t> strides = stored;
  for (size_t i = 0; i < perm.size(); ++i) {
    turned[i] = dims[static_cast<size_t>(perm[i])];
    strides[i] = stored[static_cast<size_t>(perm[i])];
  }
  ByteOperand operand;
  operand.column_stride = strides[strides.size() - 1];
  operand.row_stride = strides[strides.size() - 2];
  operand.offsets = {0};
  for (size_t axis = 0; axis + 2 < turned.size(); ++axis) {
    std::vector<int64_t> next;
    for (const int64_t offset : operand.offsets) {
      for (int64_t i = 0; i < turned[axis]; ++i) next.push_back(offset + i * strides[axis]);
    }
    operand.offsets = std::move(next);
  }
  return operand;
}

bool can_read(DType dtype) {
  return dtype == DType::f32 || dtype == DType::i32 || dtype == DType::u8 || dtype == DType::i8;
}

bool collect_extra(const LowerContext& context, Int8Node& product) {
  const MatMulShape& shape = product.shape;
  for (const ValueId value : context.epilogue_inputs()) {
    const TensorType& type = context.type(value);
    if (!can_read(type.dtype) || type.layout.channel_block != 0) return false;
    Dims dims = type.extents();
    // The axes of promoted vectors are not in the output, to which the input broadcasts.
    if (shape.b_is_vector) dims.push_back(1);
    if (shape.a_is_vector && dims.size() > 1) dims.insert(dims.end() - 1, 1);
    product.extra.push_back({value, broadcast_strides(dims, shape.full_dims())});
  }
  return product.extra.size() + (product.scale.size() > 1 ? 1 : 0) <= static_cast<size_t>(kMaxInt8Inputs);
}

bool build_expression(const LowerContext& context, const Int8Form& form, Int8Node& product) {
  const auto& epilogue = context.node.epilogue;
  if (!form.scale.defined()) return !epilogue && !form.tail;
  if (form.tail && epilogue) return false;
  if (form.scale.dtype() != DType::f32 || (form.scale.size() != 1 && form.scale.size() != product.shape.n))
    return false;
  const auto scales = form.scale.elements<float>();
  if (scales.empty()) return false;
  const bool all_equal = std::all_of(scales.begin(), scales.end(), [&](float each) { return each == scales[0]; });
  const size_t count = all_equal ? 1 : scales.size();
  product.scale = std::vector<float>(scales.begin(), scales.begin() + static_cast<std::ptrdiff_t>(count));
  std::optional<Expression> outer = form.tail;
  if (epilogue) outer = epilogue->expression;
  product.expression = scaled_expression(outer, product.scale);
  const DType output = product.expression.output;
  return can_read(output) && std::all_of(product.expression.inputs.begin(), product.expression.inputs.end(), can_read);
}

// One product of many rows instead of a batch, where B is the same for all and the rows lie evenly.
void join_batches(Int8Node& product) {
  MatMulShape& shape = product.shape;
  const int64_t batches = shape.batches();
  if (batches == 1 || product.b.offsets.size() != 1 || !product.a_zero.is_scalar()) return;
  if (static_cast<int64_t>(product.a.offsets.size()) != batches) return;
  const int64_t step = shape.m == 1 ? product.a.offsets[1] : shape.m * product.a.row_stride;
  for (size_t i = 0; i < product.a.offsets.size(); ++i) {
    if (product.a.offsets[i] != static_cast<int64_t>(i) * step) return;
  }
  std::vector<int64_t> joint;
  for (const Int8Extra& extra : product.extra) {
    const auto stride = joint_stride(shape.batch, shape.m, extra.strides);
    if (!stride) return;
    joint.push_back(*stride);
  }
  if (shape.m == 1) product.a.row_stride = step;
  shape.m *= batches;
  shape.batch.clear();
  shape.a_steps.clear();
  shape.b_steps.clear();
  product.a.offsets = {0};
  for (size_t i = 0; i < joint.size(); ++i) product.extra[i].strides = {joint[i], product.extra[i].strides.back()};
}

}  // namespace

ByteZeros ZeroPoints::view(const void* memory) const {
  if (is_known()) return {values.data(), DType::i32, static_cast<int64_t>(values.size())};
  return {memory, dtype, count};
}

std::optional<QuantizedProduct> quantized_product(const LowerContext& context) {
  Int8Form form;
  form.a_zero = 3;
  form.b_zero = 4;
  form.a_perm = context.node.attributes.get_ints("perm_a");
  form.b_perm = context.node.attributes.get_ints("perm_b");
  form.scale = context.constant(2);
  if (!form.scale.defined()) return std::nullopt;
  const MatMulShape shape = matmul_shape(context.node, permuted(context.input_type(0).extents(), form.a_perm),
                                         permuted(context.input_type(1).extents(), form.b_perm));
  return QuantizedProduct{shape, std::move(form)};
}

std::optional<Int8Node> describe_int8(const LowerContext& context, const MatMulShape& shape, const Int8Form& form) {
  for (const int slot : {form.a, form.b}) {
    const TensorType& type = context.input_type(slot);
    if ((type.dtype != DType::u8 && type.dtype != DType::i8) || type.layout.channel_block != 0) return std::nullopt;
    if (!form.a_perm.empty() && shape.a_is_vector) return std::nullopt;
    if (!form.b_perm.empty() && shape.b_is_vector) return std::nullopt;
  }
  if (shape.batches() > kMostMatrices) return std::nullopt;
  Int8Node product;
  product.shape = shape;
  const auto a_zero = zeros_of(context, form.a_zero, shape.m), b_zero = zeros_of(context, form.b_zero, shape.n);
  if (!a_zero || !b_zero) return std::nullopt;
  product.a_zero = *a_zero;
  product.b_zero = *b_zero;
  product.a = operand_of(context.input_type(form.a).extents(), form.a_perm, false, shape.a_is_vector);
  product.b = operand_of(context.input_type(form.b).extents(), form.b_perm, shape.b_is_vector, false);
  if (product.a.column_stride != 1 && shape.k > 1) return std::nullopt;
  if (product.b.column_stride != 1 && product.b.row_stride != 1 && shape.n > 1 && shape.k > 1) return std::nullopt;
  if (!build_expression(context, form, product) || !collect_extra(context, product)) return std::nullopt;
  if (shape.batches() > 0) join_batches(product);
  for_each_matrix(product.shape, [&](int64_t a, int64_t b, int64_t) {
    product.a_matrix.push_back(a);
    product.b_matrix.push_back(b);
  });
  return product;
}

}  // namespace lathe
