#include "ops/gemm/gemm_node.h"

#include <algorithm>
#include <utility>

#include "ops/copy/copy_elements.h"
#include "ops/pointwise/broadcast.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

// `inner` (input 0: the product, then its own) under `outer`: input 0 of outer becomes inner's result; outer's other
// inputs come behind inner's.
Expression put_behind(const Expression& inner, const Expression& outer) {
  Expression result = inner;
  const int shift = static_cast<int>(inner.inputs.size()) - 1;
  const int inner_result = static_cast<int>(inner.nodes.size()) - 1;
  std::vector<int> moved;
  for (ExprNode node : outer.nodes) {
    if (node.op == ExprOp::input && node.a == 0) {
      moved.push_back(inner_result);
      continue;
    }
    if (node.op == ExprOp::input) {
      node.a += shift;
    } else {
      for (int* operand : {&node.a, &node.b, &node.c}) {
        if (*operand >= 0) *operand = moved[static_cast<size_t>(*operand)];
      }
    }
    moved.push_back(result.add(node));
  }
  // The last node is the result.
  if (moved.back() != static_cast<int>(result.nodes.size()) - 1) {
    const int zero = result.add({.op = ExprOp::constant, .value = 0});
    result.add({.op = ExprOp::add, .a = moved.back(), .b = zero});
  }
  result.inputs.insert(result.inputs.end(), outer.inputs.begin() + 1, outer.inputs.end());
  result.output = outer.output;
  return result;
}

// alpha (unless folded into packed weights) and beta * C.
Expression scale_and_bias(float alpha, float beta, bool has_bias) {
  Expression e;
  e.inputs = {DType::f32};
  int x = e.add({.op = ExprOp::input, .a = 0});
  if (alpha != 1) {
    const int factor = e.add({.op = ExprOp::constant, .value = alpha});
    x = e.add({.op = ExprOp::mul, .a = x, .b = factor});
  }
  if (has_bias) {
    e.inputs.push_back(DType::f32);
    int bias = e.add({.op = ExprOp::input, .a = 1});
    if (beta != 1) {
      const int factor = e.add({.op = ExprOp::constant, .value = beta});
      bias = e.add({.op = ExprOp::mul, .a = bias, .b = factor});
    }
    e.add({.op = ExprOp::add, .a = x, .b = bias});
  }
  return e;
}

bool is_plain_float(const TensorType& type) { return type.dtype == DType::f32 && type.layout.channel_block == 0; }

ExtraInput extra_input(const LowerContext& context, const ProductNode& product, ValueId value) {
  ExtraInput extra;
  extra.value = value;
  Dims dims = context.type(value).extents();
  // The axes of promoted vectors are not in the output, to which the input broadcasts.
  const MatMulShape& shape = product.shape;
  if (shape.b_is_vector) dims.push_back(1);
  if (shape.a_is_vector && dims.size() > 1) dims.insert(dims.end() - 1, 1);
  const Dims full = shape.full_dims();
  extra.covers_output = checked_elements(dims) == checked_elements(full);
  const std::vector<int64_t>& perm = product.form.y_perm;
  if (perm.empty()) {
    extra.strides = broadcast_strides(dims, full);
    return extra;
  }
  Dims stored;
  for (const int64_t axis : perm) stored.push_back(full[static_cast<size_t>(axis)]);
  const std::vector<int64_t> strides = broadcast_strides(dims, stored);
  extra.strides.resize(full.size());
  for (size_t i = 0; i < full.size(); ++i) extra.strides[static_cast<size_t>(perm[i])] = strides[i];
  return extra;
}

bool collect_extra(const LowerContext& context, ProductNode& product, bool folds_alpha) {
  const ProductForm& form = product.form;
  const bool has_bias = context.has_input(2) && form.beta != 0;
  product.expression = scale_and_bias(folds_alpha ? 1 : form.alpha, form.beta, has_bias);
  if (has_bias) {
    if (!is_plain_float(context.input_type(2))) return false;
    product.extra.push_back(extra_input(context, product, context.input(2)));
  }
  if (!context.node.epilogue) return true;
  product.expression = put_behind(product.expression, context.node.epilogue->expression);
  for (const ValueId value : context.epilogue_inputs()) {
    if (!is_plain_float(context.type(value))) return false;
    product.extra.push_back(extra_input(context, product, value));
  }
  const Expression& e = product.expression;
  return e.output == DType::f32 &&
         std::all_of(e.inputs.begin(), e.inputs.end(), [](DType t) { return t == DType::f32; }) &&
         product.extra.size() <= static_cast<size_t>(kMaxGemmInputs);
}

// One product of many rows instead of a batch, where B is the same for all and the rows lie evenly.
void join_batches(ProductNode& product) {
  MatMulShape& shape = product.shape;
  if (shape.batches() == 1 || product.form.transpose_a) return;
  for (size_t i = 0; i < shape.batch.size(); ++i) {
    if (shape.batch[i] != 1 && shape.b_steps[i] != 0) return;
  }
  const auto a = joint_stride(shape.batch, shape.m, product.a_strides);
  const auto c = joint_stride(shape.batch, shape.m, product.c_strides);
  if (!a || !c) return;
  std::vector<int64_t> joint;
  for (const ExtraInput& extra : product.extra) {
    const auto stride = joint_stride(shape.batch, shape.m, extra.strides);
    if (!stride) return;
    joint.push_back(*stride);
  }
  shape.m *= shape.batches();
  shape.batch.clear();
  shape.a_steps.clear();
  shape.b_steps.clear();
  product.a_strides = {*a};
  product.c_strides = {*c};
  product.b_strides.erase(product.b_strides.begin(), product.b_strides.end() - 2);
  for (size_t i = 0; i < joint.size(); ++i) product.extra[i].strides = {joint[i], product.extra[i].strides.back()};
}

// Extents and strides of a dense operand, its axes taken in the order `perm` (empty: as they are).
struct View {
  Dims dims;
  std::vector<int64_t> strides;
};

View view_of(const Dims& stored, const std::vector<int64_t>& perm) {
  const std::vector<int64_t> strides = strides_of(stored);
  if (perm.empty()) return {stored, strides};
  View view;
  for (const int64_t axis : perm) {
    view.dims.push_back(stored[static_cast<size_t>(axis)]);
    view.strides.push_back(strides[static_cast<size_t>(axis)]);
  }
  return view;
}

// Along the axes of `batch`: 0 where the operand is repeated.
std::vector<int64_t> batch_strides(const View& view, const Dims& batch) {
  std::vector<int64_t> strides(batch.size(), 0);
  for (size_t i = 0; i + 2 < view.dims.size(); ++i) {
    const size_t axis = batch.size() + i + 2 - view.dims.size();
    if (view.dims[i] != 1) strides[axis] = view.strides[i];
  }
  return strides;
}

// Fills the strides of A, B and C. False: the innermost axis of A or C is not its columns.
bool place_operands(const LowerContext& context, ProductNode& product) {
  const MatMulShape& shape = product.shape;
  const ProductForm& form = product.form;
  View a = view_of(context.input_type(0).extents(), form.a_perm),
       b = view_of(context.input_type(1).extents(), form.b_perm);
  if (form.transpose_a) a = view_of({shape.m, shape.k}, {});  // turned by a step of its own
  if (shape.a_is_vector) a = view_of({1, shape.k}, {});
  if (shape.b_is_vector) b = view_of({shape.k, 1}, {});
  if (form.transpose_b) b = view_of(context.input_type(1).extents(), {1, 0});
  const size_t a_rank = a.dims.size(), b_rank = b.dims.size();
  if (a.strides[a_rank - 1] != 1 && shape.k > 1) return false;
  product.a_strides = batch_strides(a, shape.batch);
  product.a_strides.push_back(a.strides[a_rank - 2]);
  product.b_strides = batch_strides(b, shape.batch);
  product.b_strides.push_back(b.strides[b_rank - 2]);
  product.b_strides.push_back(b.strides[b_rank - 1]);
  if (product.b_strides.back() != 1 && b.strides[b_rank - 2] != 1 && shape.n > 1) return false;

  // Output axis i is axis y_perm[i] of the product.
  const Dims full = shape.full_dims();
  std::vector<int64_t> strides = strides_of(full);
  if (!form.y_perm.empty()) {
    Dims stored;
    for (const int64_t axis : form.y_perm) stored.push_back(full[static_cast<size_t>(axis)]);
    const std::vector<int64_t> of_stored = strides_of(stored);
    for (size_t i = 0; i < full.size(); ++i) strides[static_cast<size_t>(form.y_perm[i])] = of_stored[i];
  }
  if (strides.back() != 1 && shape.n > 1) return false;
  strides.pop_back();
  product.c_strides = std::move(strides);
  return true;
}

}  // namespace

GemmOperandB ProductNode::b_form(bool is_packed) const {
  if (is_packed) return GemmOperandB::packed;
  return b_strides.back() == 1 || shape.n == 1 ? GemmOperandB::row_major : GemmOperandB::transposed;
}

int64_t ProductNode::b_row_stride() const {
  return b_form(false) == GemmOperandB::row_major ? b_strides[b_strides.size() - 2] : b_strides.back();
}

std::optional<int64_t> joint_stride(const Dims& batch, int64_t m, const std::vector<int64_t>& strides) {
  std::optional<int64_t> stride;
  int64_t extent = 1;
  for (size_t axis = batch.size() + 1; axis-- > 0;) {
    const int64_t here = axis == batch.size() ? m : batch[axis];
    if (here == 1) continue;
    if (!stride) {
      stride = strides[axis];
    } else if (strides[axis] != *stride * extent) {
      return std::nullopt;
    }
    extent *= here;
  }
  return stride.value_or(0);
}

std::optional<ProductNode> describe_product(const LowerContext& context, const MatMulShape& shape,
                                            const ProductForm& form, bool folds_alpha) {
  for (int i = 0; i < 2; ++i) {
    if (!is_plain_float(context.input_type(i))) return std::nullopt;
  }
  ProductNode product;
  product.shape = shape;
  product.form = form;
  if (!collect_extra(context, product, folds_alpha) || !place_operands(context, product)) return std::nullopt;
  if (shape.batches() > 0) join_batches(product);
  return product;
}

std::vector<GemmOffsets> batch_offsets(const ProductNode& product, int64_t packed_matrix) {
  const MatMulShape& shape = product.shape;
  std::vector<GemmOffsets> offsets(static_cast<size_t>(shape.batches()));
  GemmOffsets at;
  Dims index(shape.batch.size(), 0);
  for (GemmOffsets& here : offsets) {
    here = at;
    for (size_t axis = index.size(); axis-- > 0;) {
      const bool wraps = ++index[axis] == shape.batch[axis];
      const int64_t steps = wraps ? 1 - shape.batch[axis] : 1;
      at.a += steps * product.a_strides[axis];
      at.b += steps * (packed_matrix > 0 ? shape.b_steps[axis] * packed_matrix : product.b_strides[axis]);
      at.c += steps * product.c_strides[axis];
      for (size_t i = 0; i < product.extra.size(); ++i) at.inputs[i] += steps * product.extra[i].strides[axis];
      if (!wraps) break;
      index[axis] = 0;
    }
  }
  return offsets;
}

}  // namespace lathe
