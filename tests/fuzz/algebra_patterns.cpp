// What passes compute in another order or ahead: factors, sums and masks around convolutions, products and reductions.
#include <algorithm>
#include <numeric>
#include <utility>

#include "tests/fuzz/graph_maker.h"

namespace lathe::testing {
namespace {

// Factors and summands before and behind a convolution or product, per channel or nearly so.
void affine_and_weights(GraphMaker& maker, const Recipe& recipe) {
  const bool is_conv = recipe.picks[1] % 2 == 0;
  const GraphMaker::Made* found = is_conv ? maker.pick_of_rank(recipe.picks[0], 4) : &maker.pick(recipe.picks[0]);
  if (found == nullptr || found->dims.size() < 2) return;
  const GraphMaker::Made x = *found;
  const auto constant = [&](uint32_t pick, int64_t channels, bool is_column) {
    if (pick % 4 == 0) return maker.weights({}, 0.5f, 1.5f);
    return maker.weights(is_column && pick % 7 != 1 ? Dims{channels, 1, 1} : Dims{channels}, 0.5f, 1.5f);
  };
  const auto fits = [&](uint32_t pick, const Dims& dims) { return !is_conv || pick % 7 != 1 || dims[1] == dims[3]; };
  if (!fits(recipe.picks[2], x.dims)) return;
  static constexpr const char* kOps[] = {"Mul", "Add", "Div", "Sub"};
  const int64_t inputs = is_conv ? x.dims[1] : x.dims.back();
  const ValueId before =
      maker.node(one_of(kOps, recipe.picks[2] / 8), {x.id, constant(recipe.picks[2], inputs, is_conv)});
  if (recipe.picks[2] % 13 == 0) maker.keep(before);
  ValueId y = ValueId::none;
  if (is_conv) {
    const GraphMaker::Made shifted{before, x.dims};
    y = convolved(maker, shifted, recipe);
  } else {
    y = maker.node("MatMul", {before, maker.weights({inputs, 12}, -0.4f, 0.4f)});
  }
  const int64_t outputs = is_conv ? maker.dims_of(y)[1] : 12;
  if (recipe.picks[3] % 3 != 0 && fits(recipe.picks[3], maker.dims_of(y)))
    y = maker.node(one_of(kOps, recipe.picks[3] / 8), {y, constant(recipe.picks[3], outputs, is_conv)});
  maker.keep(y);
}

// A convolution right behind another: some pairs are less to compute as one.
void conv_and_conv(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* found = maker.pick_of_rank(recipe.picks[0], 4);
  if (found == nullptr) return;
  const ValueId first = convolved(maker, *found, recipe);
  if (recipe.picks[1] % 5 == 0) maker.keep(first);
  static constexpr int64_t kOutputs[] = {2, 4, 16};
  const int64_t stride = recipe.picks[2] % 3 == 0 ? 2 : 1, pad = recipe.picks[2] % 7 == 0 ? 1 : 0;
  maker.keep(maker.node(
      "Conv", {first, maker.weights({one_of(kOutputs, recipe.picks[3]), maker.dims_of(first)[1], 1, 1}, -0.3f, 0.3f)},
      {{"strides", std::vector<int64_t>{stride, stride}}, {"pads", std::vector<int64_t>{pad, pad, pad, pad}}}));
}

// A residual block all of whose readers skip pixels, or nearly all.
void strided_readers(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* found = maker.pick_of_rank(recipe.picks[0], 4);
  if (found == nullptr) return;
  const GraphMaker::Made x = *found;
  const int64_t channels = x.dims[1];
  const ValueId y = maker.node("Conv", {x.id, maker.weights({channels, channels, 1, 1}, -0.3f, 0.3f)});
  const ValueId sum = maker.node("Relu", {maker.node("Add", {recipe.picks[1] % 2 == 0 ? y : x.id, y})});
  if (recipe.picks[2] % 7 == 0) maker.keep(sum);
  for (int i = 0; i < 2; ++i) {
    const int64_t stride = recipe.picks[3] % 5 == 0 && i == 0 ? 1 : 2;
    maker.keep(maker.node("Conv", {sum, maker.weights({8, channels, 1, 1}, -0.3f, 0.3f)},
                          {{"strides", std::vector<int64_t>{stride, 2}}}));
  }
}

// x W1 W2, or x x' x.
void chain_of_products(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made x = maker.pick(recipe.picks[0]);
  if (x.dims.size() < 2) return;
  if (recipe.picks[1] % 3 == 0) {
    std::vector<int64_t> perm(x.dims.size());
    std::iota(perm.begin(), perm.end(), int64_t{0});
    std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
    const ValueId turned = maker.node("Transpose", {x.id}, {{"perm", perm}});
    const ValueId y = recipe.picks[2] % 2 == 0 ? maker.node("MatMul", {maker.node("MatMul", {x.id, turned}), x.id})
                                               : maker.node("MatMul", {x.id, maker.node("MatMul", {turned, x.id})});
    return maker.keep(maker.node("Tanh", {y}));
  }
  static constexpr int64_t kInner[] = {2, 8, 30};
  const int64_t inner = one_of(kInner, recipe.picks[2]);
  const ValueId first = maker.node("MatMul", {x.id, maker.weights({x.dims.back(), inner}, -0.4f, 0.4f)});
  if (recipe.picks[1] % 11 == 1) maker.keep(first);
  maker.keep(maker.node("MatMul", {first, maker.weights({inner, 6}, -0.4f, 0.4f)}));
}

// A factor before a mean or sum, even along what is reduced or not.
void scaled_reduction(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made x = maker.pick(recipe.picks[0]);
  const size_t axis = recipe.picks[1] % x.dims.size();
  Dims dims = recipe.picks[2] % 3 == 0 ? Dims{} : x.dims;
  if (!dims.empty() && recipe.picks[2] % 5 != 0) dims[axis] = 1;
  if (!dims.empty()) dims[0] = 1;
  const ValueId scaled = maker.node(recipe.picks[3] % 3 == 0 ? "Div" : "Mul", {x.id, maker.weights(dims, 0.5f, 1.5f)});
  maker.keep(maker.node(
      "ReduceMean", {scaled},
      {{"axes", std::vector<int64_t>{static_cast<int64_t>(axis)}}, {"keepdims", int64_t{recipe.picks[3] % 2 != 0}}}));
}

// A mean that is expanded before it is taken away, to the value's shape or, nearly, beyond it.
void expanded_mean(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made x = maker.pick(recipe.picks[0]);
  const auto axis = static_cast<int64_t>(recipe.picks[1] % x.dims.size());
  const ValueId mean = maker.node("ReduceMean", {x.id}, {{"axes", std::vector<int64_t>{axis}}});
  Dims dims = x.dims;
  dims[0] = 1;  // may be open
  if (recipe.picks[2] % 4 == 0 && dims.size() < 5) dims.insert(dims.begin(), 2);
  const ValueId wide = maker.node("Expand", {mean, maker.integers(dims)});
  if (recipe.picks[2] % 5 == 0) maker.keep(wide);
  maker.keep(maker.node(recipe.picks[3] % 2 == 0 ? "Sub" : "Max", {recipe.picks[3] % 7 == 0 ? wide : x.id, wide}));
}

// Scores of which a boolean mask leaves some, as causal decoders write it.
void masked_attention(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* found = maker.pick_of_rank(recipe.picks[0], 3);
  if (found == nullptr) return;
  const GraphMaker::Made x = *found;
  const int64_t length = x.dims[1];
  const auto projected = [&] { return maker.node("MatMul", {x.id, maker.weights({x.dims[2], 8}, -0.5f, 0.5f)}); };
  const ValueId q = projected(), v = projected();
  const ValueId k = maker.node("Transpose", {projected()}, {{"perm", std::vector<int64_t>{0, 2, 1}}});
  Tensor mask(DType::boolean, recipe.picks[1] % 2 == 0 ? Dims{length, length} : Dims{1, 1, length});
  for (int64_t i = 0; i < mask.size(); ++i)
    static_cast<bool*>(mask.mutable_raw())[i] = (recipe.picks[2] >> (i % 29)) % 2 == 0 || i % length == 0;
  const ValueId scores = maker.node("MatMul", {q, k});
  const ValueId masked = maker.node("Where", {maker.constant(mask), scores, maker.scalar(-1e4f)});
  if (recipe.picks[3] % 5 == 0) maker.keep(scores);
  maker.keep(maker.node("MatMul", {maker.node("Softmax", {masked}, {{"axis", int64_t{-1}}}), v}));
}

// A reduction of a reduction, of one kind or nearly, over other axes or the same.
void reduction_of_reduction(GraphMaker& maker, const Recipe& recipe) {
  static constexpr const char* kOps[] = {"ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"};
  const GraphMaker::Made x = maker.pick(recipe.picks[0]);
  const auto reduced = [&](ValueId of, uint32_t pick, bool keeps) {
    const auto axis = static_cast<int64_t>(pick % maker.dims_of(of).size());
    return maker.node(one_of(kOps, recipe.picks[2] + (pick % 11 == 0 ? 1 : 0)), {of},
                      {{"axes", std::vector<int64_t>{axis}}, {"keepdims", int64_t{keeps}}});
  };
  const bool keeps = x.dims.size() < 3 || recipe.picks[3] % 2 == 0;
  const ValueId first = reduced(x.id, recipe.picks[1], keeps);
  if (recipe.picks[3] % 5 == 0) maker.keep(first);
  maker.keep(reduced(first, recipe.picks[1] / 16, recipe.picks[3] % 7 == 0 ? true : keeps));
}

// Wide values all made before the first is read: another order needs less memory.
void wide_branches(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made x = maker.pick(recipe.picks[0]);
  std::vector<ValueId> wide;
  for (uint32_t i = 0; i < 2 + recipe.picks[1] % 3; ++i)
    wide.push_back(maker.node("MatMul", {x.id, maker.weights({x.dims.back(), 60}, -0.4f, 0.4f)}));
  if (recipe.picks[2] % 2 == 0) std::reverse(wide.begin(), wide.end());
  ValueId sum = ValueId::none;
  for (const ValueId each : wide) {
    const ValueId narrow = maker.node("MatMul", {each, maker.weights({60, 5}, -0.3f, 0.3f)});
    sum = sum == ValueId::none ? narrow : maker.node("Add", {sum, maker.node("Tanh", {narrow})});
  }
  maker.keep(sum);
}

}  // namespace

const std::vector<PatternFn*>& algebra_patterns() {
  static const std::vector<PatternFn*> kPatterns = {affine_and_weights, conv_and_conv,          strided_readers,
                                                    chain_of_products,  scaled_reduction,       masked_attention,
                                                    expanded_mean,      reduction_of_reduction, wide_branches};
  return kPatterns;
}

}  // namespace lathe::testing
