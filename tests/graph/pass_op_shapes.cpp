// Shapes, moves of elements, bodies.
#include <algorithm>
#include <cmath>

#include "graph/infer.h"
#include "graph/passes/rewrite.h"
#include "tests/graph/pass_op_meanings.h"

namespace lathe::testing {

// ---- shapes and moves

void infer_shape(InferContext& context) {
  TensorType y{DType::i64, true, {Dim()}, {}};
  if (context.input(0).has_rank) y.dims[0].extent = context.input(0).rank();
  context.set_output(0, y);
}

void infer_gather(InferContext& context) {
  context.set_output(0, {context.input(0).dtype, true, context.input(1).dims, {}});
}

void reference_gather(ReferenceContext& context) {
  Tensor y(context.inputs[0].dtype(), context.inputs[1].dims());
  for (int64_t i = 0; i < y.size(); ++i) {
    const int64_t at = context.inputs[1].data<int64_t>()[i];
    if (at < 0 || at >= context.inputs[0].size()) context.fail("index out of range");
    set_element(y, i, element(context.inputs[0], at));
  }
  context.outputs[0] = y;
}

namespace {
size_t axis_of(const Node& node, size_t rank) {
  const int64_t axis = node.attributes.get_int("axis", 0);
  return static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis);
}
}  // namespace

void infer_concat(InferContext& context) {
  TensorType y = context.input(0);
  Dim& dim = y.dims[axis_of(context.node, y.dims.size())];
  for (int i = 1; i < context.input_count(); ++i) {
    const Dim part = context.input(i).dims[axis_of(context.node, y.dims.size())];
    dim = dim.known() && part.known() ? Dim{dim.extent + part.extent, ""} : Dim();
  }
  context.set_output(0, y);
}

void reference_concat(ReferenceContext& context) {
  Dims dims = context.inputs[0].dims();
  const size_t axis = axis_of(context.node, dims.size());
  int64_t inner = 1, outer = 1;
  for (size_t d = 0; d < dims.size(); ++d) (d < axis ? outer : inner) *= d == axis ? 1 : dims[d];
  dims[axis] = 0;
  for (const Tensor& part : context.inputs) dims[axis] += part.dims()[axis];
  Tensor y(context.inputs[0].dtype(), dims);
  int64_t at = 0;
  for (int64_t i = 0; i < outer; ++i)
    for (const Tensor& part : context.inputs) {
      const int64_t count = part.dims()[axis] * inner;
      for (int64_t k = 0; k < count; ++k) set_element(y, at++, element(part, i * count + k));
    }
  context.outputs[0] = y;
}

namespace {
Dims reshaped(const Dims& from, int64_t elements, std::span<const int64_t> shape) {
  Dims dims(shape.begin(), shape.end());
  int64_t known = 1;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == 0) dims[d] = from[d];
    if (dims[d] > 0) known *= dims[d];
  }
  for (int64_t& extent : dims) extent = extent < 0 ? elements / known : extent;
  return dims;
}
}  // namespace

void infer_reshape(InferContext& context) {
  const Tensor shape = context.constant(1);
  const TensorType& x = context.input(0);
  if (!shape.defined()) {
    TensorType y = TensorType::unranked(x.dtype);
    if (context.input(1).is_static()) {
      y.has_rank = true;
      y.dims.resize(static_cast<size_t>(context.input(1).dims[0].extent));
    }
    return context.set_output(0, y);
  }
  TensorType y{x.dtype, true, {}, {}};
  if (x.is_static()) {
    const Dims from = x.extents();
    int64_t elements = 1;
    for (const int64_t extent : from) elements *= extent;
    return context.set_output(0, TensorType::of(x.dtype, reshaped(from, elements, shape.elements<int64_t>())));
  }
  for (const int64_t extent : shape.elements<int64_t>()) {
    y.dims.push_back(extent > 0 ? Dim{extent, ""} : extent == 0 && x.has_rank ? x.dims[y.dims.size()] : Dim());
  }
  context.set_output(0, y);
}

void reference_reshape(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  context.outputs[0] = x.reshaped(reshaped(x.dims(), x.size(), context.inputs[1].elements<int64_t>()));
}

void infer_unsqueeze(InferContext& context) {
  TensorType y = context.input(0);
  for (const int64_t axis : context.constant(1).elements<int64_t>()) y.dims.insert(y.dims.begin() + axis, Dim{1, ""});
  context.set_output(0, y);
}
void infer_squeeze(InferContext& context) {
  TensorType y = context.input(0);
  y.dims.erase(y.dims.begin() + context.constant(1).data<int64_t>()[0]);
  context.set_output(0, y);
}
void reference_unsqueeze(ReferenceContext& context) {
  Dims dims = context.inputs[0].dims();
  for (const int64_t axis : context.inputs[1].elements<int64_t>()) dims.insert(dims.begin() + axis, 1);
  context.outputs[0] = context.inputs[0].reshaped(dims);
}
void reference_squeeze(ReferenceContext& context) {
  Dims dims = context.inputs[0].dims();
  dims.erase(dims.begin() + context.inputs[1].data<int64_t>()[0]);
  context.outputs[0] = context.inputs[0].reshaped(dims);
}

void infer_transpose(InferContext& context) {
  TensorType y = context.input(0);
  const auto perm = context.node.attributes.get_ints("perm");
  for (size_t d = 0; d < perm.size(); ++d) y.dims[d] = context.input(0).dims[static_cast<size_t>(perm[d])];
  context.set_output(0, y);
}

void reference_transpose(ReferenceContext& context) {
  const Tensor& x = context.inputs[0];
  const auto perm = context.node.attributes.get_ints("perm");
  Dims dims, strides(x.dims().size(), 1);
  for (const int64_t axis : perm) dims.push_back(x.dims()[static_cast<size_t>(axis)]);
  for (size_t d = strides.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * x.dims()[d + 1];
  Tensor y(x.dtype(), dims);
  for (int64_t i = 0; i < y.size(); ++i) {
    int64_t rest = i, from = 0;
    for (size_t d = dims.size(); d-- > 0;) {
      from += rest % dims[d] * strides[static_cast<size_t>(perm[d])];
      rest /= dims[d];
    }
    set_element(y, i, element(x, from));
  }
  context.outputs[0] = y;
}

void reference_same(ReferenceContext& context) { context.outputs[0] = context.inputs[0]; }

// ---- control flow and chance

void infer_if(InferContext& context) {
  const auto types = context.infer_body(*context.node.attributes.get_graph("then_branch"), {});
  const auto others = context.infer_body(*context.node.attributes.get_graph("else_branch"), {});
  for (size_t i = 0; i < types.size(); ++i) {
    context.set_output(static_cast<int>(i), types[i] == others[i] ? types[i] : TensorType::unranked(types[i].dtype));
  }
}
void reference_if(ReferenceContext& context) {
  const char* branch = *context.inputs[0].data<bool>() ? "then_branch" : "else_branch";
  context.outputs = context.run_body(*context.node.attributes.get_graph(branch), context.captures);
}
void reference_random(ReferenceContext& context) { context.outputs[0] = context.inputs[0]; }

}  // namespace lathe::testing
