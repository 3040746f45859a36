#include "ops/einsum/einsum_lower.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/copy/copy_step.h"
#include "ops/gemm/gemm_lower.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

// An axis of the product, and the elements from one index to the next in A, B and the result.
struct ProductAxis {
  int number = 0;
  int64_t extent = 1, a = 0, b = 0, c = 0;
};

struct ProductAxes {
  std::vector<ProductAxis> batch, rows, columns, inner;
};

// The operands in the roles of A and B.
struct Roles {
  EinsumView a, b, c;
  int a_input = 0, b_input = 1;
};

std::optional<ProductAxes> classify(const Roles& roles, const std::vector<int64_t>& extents) {
  ProductAxes axes;
  const auto add = [&](std::vector<ProductAxis>& list, int axis) {
    list.push_back({axis, extents[static_cast<size_t>(axis)], roles.a.stride_of(axis), roles.b.stride_of(axis),
                    roles.c.stride_of(axis)});
  };
  for (const int axis : roles.c.axes) {
    if (extents[static_cast<size_t>(axis)] == 1) continue;
    const bool in_a = roles.a.stride_of(axis) != 0, in_b = roles.b.stride_of(axis) != 0;
    add(in_a && in_b ? axes.batch : in_a ? axes.rows : axes.columns, axis);
  }
  for (const int axis : roles.a.axes) {
    if (extents[static_cast<size_t>(axis)] == 1 || roles.c.has(axis)) continue;
    if (roles.a.stride_of(axis) == 0 || roles.b.stride_of(axis) == 0) return std::nullopt;
    add(axes.inner, axis);
  }
  const bool sums_alone = std::any_of(roles.b.axes.begin(), roles.b.axes.end(), [&](int axis) {
    return extents[static_cast<size_t>(axis)] != 1 && !roles.c.has(axis) && !roles.a.has(axis);
  });
  if (sums_alone) return std::nullopt;
  std::stable_sort(axes.inner.begin(), axes.inner.end(), [](const auto& x, const auto& y) { return x.a > y.a; });
  return axes;
}

// Neighbours that lie evenly in all tensors become one axis.
void join_neighbours(std::vector<ProductAxis>& axes) {
  std::vector<ProductAxis> joined;
  for (const ProductAxis& axis : axes) {
    if (!joined.empty()) {
      ProductAxis& outer = joined.back();
      if (outer.a == axis.extent * axis.a && outer.b == axis.extent * axis.b && outer.c == axis.extent * axis.c) {
        outer = {axis.number, outer.extent * axis.extent, axis.a, axis.b, axis.c};
        continue;
      }
    }
    joined.push_back(axis);
  }
  axes = std::move(joined);
}

ProductAxes joined(ProductAxes axes) {
  for (auto* list : {&axes.batch, &axes.rows, &axes.columns, &axes.inner}) join_neighbours(*list);
  return axes;
}

bool suits_a(const ProductAxes& axes) { return axes.inner.empty() || axes.inner.back().a == 1; }
bool suits_b(const ProductAxes& axes) {
  return axes.columns.empty() || axes.columns.back().b == 1 || (!axes.inner.empty() && axes.inner.back().b == 1);
}
bool suits(const ProductAxes& axes) { return axes.inner.size() <= 1 && suits_a(axes) && suits_b(axes); }

// How operands are laid out anew: batch, rows, inner for A; batch, inner, columns for B.
std::vector<MoveAxis> pack_axes(ProductAxes& axes, bool is_a) {
  int64_t ProductAxis::*const stride_of = is_a ? &ProductAxis::a : &ProductAxis::b;
  std::vector<ProductAxis*> order;
  for (auto* list : {&axes.batch, is_a ? &axes.rows : &axes.inner, is_a ? &axes.inner : &axes.columns}) {
    for (ProductAxis& axis : *list) order.push_back(&axis);
  }
  std::vector<MoveAxis> moves;
  int64_t stride = 1;
  for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
    moves.insert(moves.begin(), {(*axis)->extent, **axis.*stride_of, stride});
    **axis.*stride_of = stride;
    stride *= (*axis)->extent;
  }
  return moves;
}

struct Moves {
  bool a = false, b = false;
};

// Which operands must be laid out anew: as few as the kernels can do with.
Moves needed_moves(const ProductAxes& axes) {
  for (const Moves moves : {Moves{false, false}, Moves{false, true}, Moves{true, false}}) {
    ProductAxes trial = axes;
    if (moves.a) pack_axes(trial, true);
    if (moves.b) pack_axes(trial, false);
    if (suits(joined(trial))) return moves;
  }
  return {true, true};
}

// Kernels turn a B that lies transposed for each product anew, and several have the same one: better once, ahead of
// all.
bool turns_b_again(const ProductAxes& axes, bool is_constant) {
  const ProductAxes trial = joined(axes);
  const bool is_transposed = !trial.columns.empty() && trial.columns.back().b != 1;
  return is_transposed && trial.rows.size() > 1 && !is_constant;
}

// The operand with its axes in the order of the product: ahead of time when it is constant.
BufferId packed_operand(LowerContext& context, int input, const std::vector<MoveAxis>& moves) {
  Dims dims;
  std::string text = "einsum";
  for (const MoveAxis& move : moves) {
    dims.push_back(move.count);
    text += fmt::format(" {}:{}", move.count, move.from_stride);
  }
  if (const Tensor constant = context.constant(input); constant.defined()) {
    return context.constant_buffer(context.packed(context.input(input), text, [&] {
      Tensor packed(DType::f32, dims);
      move_elements(constant, 0, packed, 0, moves);
      return packed;
    }));
  }
  const BufferId to = context.scratch(checked_bytes(DType::f32, dims));
  CopyJob job;
  job.from = context.buffer(context.input(input));
  job.to = to;
  job.axes = moves;
  add_copy_step(context, DType::f32, {job});
  return to;
}

StridedProduct product_of(const ProductAxes& axes) {
  StridedProduct product;
  std::vector<ProductAxis> outer = axes.batch;
  const auto split = [&](const std::vector<ProductAxis>& list) {
    if (list.empty()) return ProductAxis{};
    outer.insert(outer.end(), list.begin(), list.end() - 1);
    return list.back();
  };
  const ProductAxis rows = split(axes.rows), columns = split(axes.columns);
  const ProductAxis inner = axes.inner.empty() ? ProductAxis{} : axes.inner.back();
  for (const ProductAxis& axis : outer) {
    product.batch.push_back(axis.extent);
    product.a_strides.push_back(axis.a);
    product.b_strides.push_back(axis.b);
    product.c_strides.push_back(axis.c);
  }
  product.m = rows.extent;
  product.n = columns.extent;
  product.k = inner.extent;
  // An axis of one element may have any stride: that of a dense matrix serves the kernels best.
  product.a_strides.push_back(rows.extent == 1 ? inner.extent : rows.a);
  product.b_strides.push_back(inner.extent == 1 ? columns.extent : inner.b);
  product.b_strides.push_back(columns.extent == 1 ? 1 : columns.b);
  product.c_strides.push_back(rows.extent == 1 ? columns.extent : rows.c);
  return product;
}

bool lower_pair(LowerContext& context, const Roles& roles, const std::vector<int64_t>& extents) {
  std::optional<ProductAxes> axes = classify(roles, extents);
  if (!axes || (!axes->columns.empty() && axes->columns.back().c != 1)) return false;
  Moves moves = needed_moves(*axes);
  moves.b = moves.b || turns_b_again(*axes, context.constant(roles.b_input).defined());
  BufferId a = context.buffer(context.input(roles.a_input)), b = context.buffer(context.input(roles.b_input));
  if (moves.a) a = packed_operand(context, roles.a_input, pack_axes(*axes, true));
  if (moves.b) b = packed_operand(context, roles.b_input, pack_axes(*axes, false));
  StridedProduct product = product_of(joined(*axes));
  product.a = a;
  product.b = b;
  product.c = context.buffer(context.output(0));
  if (!moves.b && context.constant(roles.b_input).defined()) product.constant_b = context.input(roles.b_input);
  return lower_strided_product(context, product);
}

// The innermost axis of the result must be one of B's columns: the operand that has it alone takes that role.
bool has_columns(const Roles& roles, const std::vector<int64_t>& extents) {
  for (auto axis = roles.c.axes.rbegin(); axis != roles.c.axes.rend(); ++axis) {
    if (extents[static_cast<size_t>(*axis)] == 1) continue;
    return roles.a.stride_of(*axis) == 0;
  }
  return true;
}

bool lower_permutation(LowerContext& context, const EinsumView& from, const EinsumView& to) {
  CopyJob job;
  job.from = context.buffer(context.input(0));
  job.to = context.buffer(context.output(0));
  for (const int axis : from.axes) {
    if (!to.has(axis)) return false;
  }
  for (size_t i = 0; i < to.axes.size(); ++i) {
    job.axes.push_back({to.extents[i], from.stride_of(to.axes[i]), to.strides[i]});
  }
  return add_copy_step(context, context.input_type(0).dtype, {job});
}

}  // namespace

bool lower_einsum(LowerContext& context, const EinsumEquation& equation) {
  std::vector<EinsumView> views;
  for (int i = 0; i < context.input_count(); ++i) {
    const TensorType& type = context.input_type(i);
    views.push_back(einsum_view(equation.operands[static_cast<size_t>(i)], type.extents()));
    if (checked_elements(type.extents()) == 0) return false;
    if (views.size() > 1 && type.dtype != DType::f32) return false;
  }
  const EinsumView result = einsum_view(equation.result, context.output_type(0).extents());
  if (views.size() == 1) return lower_permutation(context, views[0], result);
  if (views.size() != 2 || context.input_type(0).dtype != DType::f32) return false;
  const std::vector<int64_t> extents = einsum_extents(views);
  const Roles as_given{views[0], views[1], result, 0, 1}, exchanged{views[1], views[0], result, 1, 0};
  return lower_pair(context, has_columns(as_given, extents) ? as_given : exchanged, extents);
}

}  // namespace lathe
