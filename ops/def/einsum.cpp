// Einsum.
#include <algorithm>
#include <stdexcept>

#include "lathe/error.h"
#include "ops/copy/copy_elements.h"
#include "ops/einsum/einsum_equation.h"
#include "ops/einsum/einsum_lower.h"
#include "ops/numbers.h"
#include "ops/shape_arguments.h"
#include "src/base/checked_size.h"

namespace lathe::ops {
namespace {

template <class Context, class Body>
auto failing(const Context& context, Body body) {
  try {
    return body();
  } catch (const std::invalid_argument& error) {
    context.fail(error.what());
  }
}

template <class Context>
EinsumEquation equation_of(const Context& context, const std::vector<int>& ranks) {
  return failing(context, [&] { return parse_einsum(context.node.attributes.get_string("equation", ""), ranks); });
}

// ---- Inference

void infer_einsum(InferContext& context) {
  const DType dtype = context.input(0).dtype;
  std::vector<int> ranks;
  for (int i = 0; i < context.input_count(); ++i) {
    if (!context.has_input(i)) context.fail("input " + std::to_string(i) + " is missing");
    const TensorType& type = context.input(i);
    if (type.dtype != dtype) context.fail("its inputs differ in type");
    if (!type.has_rank) return context.set_output(0, TensorType::unranked(dtype));
    ranks.push_back(type.rank());
  }
  const EinsumEquation equation = equation_of(context, ranks);
  TensorType result = ranked(dtype, equation.result.size());
  for (int i = 0; i < context.input_count(); ++i) {
    const std::vector<int>& axes = equation.operands[static_cast<size_t>(i)];
    for (size_t j = 0; j < axes.size(); ++j) {
      const Dim& dim = context.input(i).dims[j];
      const auto at = std::find(equation.result.begin(), equation.result.end(), axes[j]);
      if (at == equation.result.end()) continue;
      Dim& into = result.dims[static_cast<size_t>(at - equation.result.begin())];
      // An extent of 1 may be repeated: only another operand's tells.
      if (into == Dim() || into.extent == 1 || (!into.known() && dim.known() && dim.extent != 1)) into = dim;
    }
  }
  bool is_static = true;
  for (int i = 0; i < context.input_count(); ++i) is_static = is_static && context.input(i).is_static();
  if (is_static) {
    failing(context, [&] {
      std::vector<EinsumView> views;
      for (int i = 0; i < context.input_count(); ++i) {
        views.push_back(einsum_view(equation.operands[static_cast<size_t>(i)], context.input(i).extents()));
      }
      return einsum_extents(views);
    });
  }
  context.set_output(0, std::move(result));
}

// ---- Reference: operands are contracted one after the other.

template <class T>
struct EinsumOperand {
  EinsumView view;
  std::vector<T> values;
};

struct SumStep {
  int64_t a, b;  // offsets in the operands
};

bool is_in(const std::vector<int>& axes, int axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); }

// Sums the product of `a` and `b` over all axes that are not in `kept`.
template <class T>
EinsumOperand<T> contract(const ReferenceContext& context, const EinsumOperand<T>& a, const EinsumOperand<T>& b,
                          const std::vector<int>& kept, const std::vector<int64_t>& extents) {
  Dims dims, summed_dims;
  std::vector<int> summed;
  for (const int axis : kept) dims.push_back(extents[static_cast<size_t>(axis)]);
  for (const EinsumView* view : {&a.view, &b.view}) {
    for (const int axis : view->axes) {
      if (is_in(kept, axis) || is_in(summed, axis)) continue;
      summed.push_back(axis);
      summed_dims.push_back(extents[static_cast<size_t>(axis)]);
    }
  }
  if (checked_multiply(static_cast<size_t>(checked_elements(dims)), sizeof(T)) > context.limits.tensor_bytes) {
    throw Error(ErrorCode::limit, "node '" + context.node.name + "' (Einsum): a product of its operands is too large");
  }
  const auto offset = [](const EinsumView& view, const std::vector<int>& axes, const std::vector<int64_t>& index) {
    int64_t at = 0;
    for (size_t i = 0; i < axes.size(); ++i) at += view.stride_of(axes[i]) * index[i];
    return at;
  };
  std::vector<SumStep> steps;
  for (IndexWalk at(summed_dims); !at.done(); at.next()) {
    steps.push_back({offset(a.view, summed, at.index()), offset(b.view, summed, at.index())});
  }
  EinsumOperand<T> result{einsum_view(kept, dims), {}};
  for (IndexWalk at(dims); !at.done(); at.next()) {
    const T* left = a.values.data() + offset(a.view, kept, at.index());
    const T* right = b.values.data() + offset(b.view, kept, at.index());
    T sum{};
    for (const SumStep& step : steps) sum += left[step.a] * right[step.b];
    result.values.push_back(sum);
  }
  return result;
}

template <class T>
std::vector<T> contract_all(const ReferenceContext& context, const EinsumEquation& equation,
                            std::vector<EinsumOperand<T>> operands, const std::vector<int64_t>& extents) {
  EinsumOperand<T> product{{}, {T{1}}};
  for (size_t i = 0; i < operands.size(); ++i) {
    std::vector<int> kept = equation.result;
    if (i + 1 < operands.size()) {
      // What is still to come, or in the result.
      kept.clear();
      for (const EinsumView* view : {&product.view, &operands[i].view}) {
        for (const int axis : view->axes) {
          bool is_needed = is_in(equation.result, axis);
          for (size_t later = i + 1; later < operands.size(); ++later) {
            is_needed = is_needed || operands[later].view.has(axis);
          }
          if (is_needed && !is_in(kept, axis)) kept.push_back(axis);
        }
      }
    }
    product = contract(context, product, operands[i], kept, extents);
  }
  return std::move(product.values);
}

void run_einsum(ReferenceContext& context) {
  const DType dtype = context.inputs[0].dtype();
  std::vector<int> ranks;
  for (const Tensor& input : context.inputs) {
    if (input.dtype() != dtype) context.fail("its inputs differ in type");
    ranks.push_back(input.rank());
  }
  const EinsumEquation equation = equation_of(context, ranks);
  std::vector<EinsumView> views;
  const std::vector<int64_t> extents = failing(context, [&] {
    for (size_t i = 0; i < context.inputs.size(); ++i) {
      views.push_back(einsum_view(equation.operands[i], context.inputs[i].dims()));
    }
    return einsum_extents(views);
  });
  Dims dims;
  for (const int axis : equation.result) dims.push_back(extents[static_cast<size_t>(axis)]);
  Tensor result = make_output(context, dtype, dims);
  if (is_integer(dtype)) {
    std::vector<EinsumOperand<uint64_t>> operands;
    for (size_t i = 0; i < views.size(); ++i) {
      const std::vector<int64_t> values = integers_of_any(context.inputs[i]);
      operands.push_back({views[i], {values.begin(), values.end()}});
    }
    const std::vector<uint64_t> values = contract_all(context, equation, std::move(operands), extents);
    visit_native(dtype, [&]<class T>() {
      for (size_t i = 0; i < values.size(); ++i) result.mutable_data<T>()[i] = static_cast<T>(values[i]);
    });
    context.outputs[0] = std::move(result);
    return;
  }
  std::vector<EinsumOperand<double>> operands;
  for (size_t i = 0; i < views.size(); ++i) operands.push_back({views[i], reals_of(context.inputs[i])});
  context.outputs[0] =
      tensor_of_reals(context, dtype, dims, contract_all(context, equation, std::move(operands), extents));
}

bool lower(LowerContext& context) {
  std::vector<int> ranks;
  for (int i = 0; i < context.input_count(); ++i) ranks.push_back(context.input_type(i).rank());
  return lower_einsum(context, parse_einsum(context.node.attributes.get_string("equation", ""), ranks));
}

}  // namespace

std::vector<OpDef> einsum_ops() {
  return {{.schema = {.name = "Einsum",
                      .since = 12,
                      .max_inputs = -1,
                      .attributes = {{"equation", AttributeSpec::Kind::string, true}},
                      .infer = infer_einsum,
                      .reference = run_einsum},
           .lower = lower}};
}

}  // namespace lathe::ops
