// What random graphs are made of: single nodes, and the small patterns that exporters write and passes look for, in
// spellings that fit and in some that nearly do.
#include <algorithm>
#include <numeric>

#include "tests/fuzz/graph_maker.h"

namespace lathe::testing {

namespace {

void unary(GraphMaker& maker, const Recipe& recipe) {
  static constexpr const char* kOps[] = {"Relu", "Sigmoid", "Tanh", "Neg",       "Abs",  "Erf",      "HardSwish",
                                         "Sin",  "Cos",     "Elu",  "LeakyRelu", "Selu", "Softplus", "Identity"};
  maker.keep(maker.node(one_of(kOps, recipe.picks[1]), {maker.pick(recipe.picks[0]).id}));
}

void clip(GraphMaker& maker, const Recipe& recipe) {
  maker.keep(maker.node("Clip", {maker.pick(recipe.picks[0]).id, maker.scalar(-0.5f), maker.scalar(0.75f)}));
}

void binary(GraphMaker& maker, const Recipe& recipe) {
  static constexpr const char* kOps[] = {"Add", "Sub", "Mul", "Max", "Min"};
  const GraphMaker::Made& a = maker.pick(recipe.picks[0]);
  const GraphMaker::Made* b = maker.pick_spreading(recipe.picks[1], a.dims);
  if (b == nullptr) return;
  const bool is_swapped = recipe.picks[3] % 2 == 1;
  maker.keep(maker.node(one_of(kOps, recipe.picks[2]), {is_swapped ? b->id : a.id, is_swapped ? a.id : b->id}));
}

// With a constant that is a scalar, a row, one element per channel, or as large as the value.
void with_constant(GraphMaker& maker, const Recipe& recipe) {
  static constexpr const char* kOps[] = {"Add", "Mul", "Sub", "Div", "Max", "Add", "Mul"};
  const GraphMaker::Made& x = maker.pick(recipe.picks[0]);
  Dims dims;
  const uint32_t form = recipe.picks[1] % 5;
  if (form == 1) dims = {x.dims.back()};
  if (form == 2 && x.dims.size() > 1) {
    dims.assign(x.dims.size() - 1, 1);
    dims[0] = x.dims[1];
  }
  if (form == 3) dims = x.dims;
  if (form == 4) dims.assign(x.dims.size(), 1);
  const char* op = one_of(kOps, recipe.picks[2]);
  const ValueId constant = maker.weights(dims, 0.5f, 1.5f);
  const bool is_swapped = recipe.picks[3] % 4 == 0 && std::string_view(op) != "Div";
  maker.keep(maker.node(op, {is_swapped ? constant : x.id, is_swapped ? x.id : constant}));
}

// Neutral operands, reshapes to the same, and other nodes that mean nothing.
void nothing(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made& x = maker.pick(recipe.picks[0]);
  switch (recipe.picks[1] % 7) {
    case 0:
      return maker.keep(maker.node("Add", {x.id, maker.scalar(0)}));
    case 1:
      return maker.keep(maker.node("Mul", {maker.scalar(1), x.id}));
    case 2:
      return maker.keep(maker.node("Dropout", {x.id}));
    case 3:
      return maker.keep(maker.node("Reshape", {x.id, maker.integers(x.dims)}));
    case 4:
      return maker.keep(maker.node("Concat", {x.id}, {{"axis", int64_t{0}}}));
    case 5:
      return maker.keep(maker.node("Cast", {x.id}, {{"to", int64_t{1}}}));
    default:
      return maker.keep(
          maker.node("Slice", {x.id, maker.integers({0}), maker.integers({1 << 20}), maker.integers({0})}));
  }
}

void linear(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made& x = maker.pick(recipe.picks[0]);
  static constexpr int64_t kColumns[] = {4, 12, 16, 24};
  const int64_t columns = one_of(kColumns, recipe.picks[1]);
  ValueId y = maker.node("MatMul", {x.id, maker.weights({x.dims.back(), columns}, -0.4f, 0.4f)});
  if (recipe.picks[2] % 3 != 0) {
    const ValueId bias = maker.weights(recipe.picks[2] % 5 == 1 ? Dims{1, 1, columns} : Dims{columns});
    y = recipe.picks[3] % 2 == 0 ? maker.node("Add", {y, bias}) : maker.node("Add", {bias, y});
  }
  maker.keep(y);
}

// Several products of one value, as of queries, keys and values.
void parallel_linears(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made x = maker.pick(recipe.picks[0]);
  for (uint32_t i = 0; i < 2 + recipe.picks[1] % 2; ++i) {
    ValueId y = maker.node("MatMul", {x.id, maker.weights({x.dims.back(), 12}, -0.4f, 0.4f)});
    if (recipe.picks[2] % 3 != i) y = maker.node("Add", {y, maker.weights({12})});
    maker.keep(y);
  }
}

void gemm(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* x = maker.pick_of_rank(recipe.picks[0], 2);
  const bool is_transposed = recipe.picks[1] % 2 == 0;
  const Dims weights = is_transposed ? Dims{9, x->dims[1]} : Dims{x->dims[1], 9};
  maker.keep(
      maker.node("Gemm", {x->id, maker.weights(weights, -0.4f, 0.4f), maker.weights({9})},
                 {{"transB", int64_t{is_transposed}}, {"alpha", 0.5f + static_cast<float>(recipe.picks[2] % 2)}}));
}

void product_with_itself(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made& x = maker.pick(recipe.picks[0]);
  if (x.dims.size() < 2) return;
  std::vector<int64_t> perm(x.dims.size());
  std::iota(perm.begin(), perm.end(), int64_t{0});
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  const ValueId turned = maker.node("Transpose", {x.id}, {{"perm", perm}});
  maker.keep(maker.node("Tanh", {maker.node("MatMul", {x.id, turned})}));
}

void transpose(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made& x = maker.pick(recipe.picks[0]);
  std::vector<int64_t> perm(x.dims.size());
  std::iota(perm.begin(), perm.end(), int64_t{0});
  std::mt19937 random(recipe.picks[1]);
  std::shuffle(perm.begin(), perm.end(), random);
  maker.keep(maker.node("Transpose", {x.id}, {{"perm", perm}}));
}

void reshape(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made& x = maker.pick(recipe.picks[0]);
  Dims dims = x.dims;
  const size_t axis = recipe.picks[1] % dims.size();
  switch (recipe.picks[2] % 4) {
    case 0:  // join two axes
      if (axis + 1 == dims.size()) return;
      dims[axis] *= dims[axis + 1];
      dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis) + 1);
      break;
    case 1:  // split one
      for (const int64_t part : {4, 3, 2}) {
        if (dims.size() > 4 || dims[axis] % part != 0) continue;
        dims[axis] /= part;
        dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(axis) + 1, part);
        break;
      }
      break;
    case 2:
      return maker.keep(maker.node("Unsqueeze", {x.id, maker.integers({static_cast<int64_t>(axis)})}));
    default:
      return maker.keep(maker.node("Flatten", {x.id}, {{"axis", static_cast<int64_t>(axis)}}));
  }
  // The first extent by the marks that mean "as it was" or "the rest", so that it may be open.
  if (dims[0] == x.dims[0]) dims[0] = 0;
  if (dims[0] != 0) dims[0] = -1;
  maker.keep(maker.node("Reshape", {x.id, maker.integers(dims)}));
}

void squeeze(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made& x = maker.pick(recipe.picks[0]);
  for (size_t axis = 1; axis < x.dims.size(); ++axis) {
    if (x.dims[axis] == 1) return maker.keep(maker.node("Squeeze", {x.id, maker.integers({int64_t(axis)})}));
  }
}

void concat(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made a = maker.pick(recipe.picks[0]);
  const size_t axis = recipe.picks[1] % a.dims.size();
  for (const GraphMaker::Made& b : maker.values()) {
    if (b.dims.size() != a.dims.size()) continue;
    bool fits = true;
    for (size_t i = 0; i < a.dims.size(); ++i) fits = fits && (i == axis || a.dims[i] == b.dims[i]);
    if (!fits || (b.id == a.id && recipe.picks[2] % 2 == 0)) continue;
    return maker.keep(maker.node("Concat", {a.id, b.id}, {{"axis", static_cast<int64_t>(axis)}}));
  }
}

void split(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made x = maker.pick(recipe.picks[0]);
  const size_t axis = recipe.picks[1] % x.dims.size();
  if (x.dims[axis] < 2) return;
  const int64_t first = 1 + static_cast<int64_t>(recipe.picks[2]) % (x.dims[axis] - 1);
  const std::vector<ValueId> parts = maker.nodes("Split", {x.id, maker.integers({first, x.dims[axis] - first})}, 2,
                                                 {{"axis", static_cast<int64_t>(axis)}});
  for (const ValueId part : parts) maker.keep(part);
  if (recipe.picks[3] % 3 == 0)
    maker.keep(maker.node("Concat", {parts[0], parts[1]}, {{"axis", static_cast<int64_t>(axis)}}));
}

void slice(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made& x = maker.pick(recipe.picks[0]);
  const size_t axis = recipe.picks[1] % x.dims.size();
  const int64_t extent = x.dims[axis], step = 1 + static_cast<int64_t>(recipe.picks[3] % 2);
  const int64_t first = static_cast<int64_t>(recipe.picks[2]) % extent;
  maker.keep(maker.node("Slice", {x.id, maker.integers({first}), maker.integers({extent}),
                                  maker.integers({static_cast<int64_t>(axis)}), maker.integers({step})}));
}

void reduce(GraphMaker& maker, const Recipe& recipe) {
  static constexpr const char* kOps[] = {"ReduceMean", "ReduceMax", "ReduceL2", "ReduceMean"};
  const GraphMaker::Made& x = maker.pick(recipe.picks[0]);
  std::vector<int64_t> axes{static_cast<int64_t>(recipe.picks[1] % x.dims.size())};
  if (recipe.picks[2] % 2 == 0 && axes[0] + 1 < static_cast<int64_t>(x.dims.size())) axes.push_back(axes[0] + 1);
  maker.keep(maker.node(one_of(kOps, recipe.picks[2] / 2), {x.id},
                        {{"axes", axes}, {"keepdims", int64_t{recipe.picks[3] % 3 != 0}}}));
}

void softmax(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made& x = maker.pick(recipe.picks[0]);
  const int64_t axis = recipe.picks[1] % 3 == 0 ? static_cast<int64_t>(recipe.picks[2] % x.dims.size()) : -1;
  if (recipe.picks[3] % 4 != 0) return maker.keep(maker.node("Softmax", {x.id}, {{"axis", axis}}));
  const ValueId top = maker.node("ReduceMax", {x.id}, {{"axes", std::vector<int64_t>{axis}}});
  const ValueId powers = maker.node("Exp", {maker.node("Sub", {x.id, top})});
  maker.keep(maker.node("Div", {powers, maker.node("ReduceSum", {powers, maker.integers({axis})})}));
}

// d = x - mean; d / sqrt(mean(d * d) + e) * gain + bias, along the last axis or, nearly, along another.
void layer_norm(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made& x = maker.pick(recipe.picks[0]);
  const std::vector<int64_t> axes{recipe.picks[1] % 5 == 0 ? 0 : -1};
  const auto mean = [&](ValueId of) { return maker.node("ReduceMean", {of}, {{"axes", axes}}); };
  const ValueId d = recipe.picks[3] % 4 == 0 ? x.id : maker.node("Sub", {x.id, mean(x.id)});
  const ValueId squares =
      recipe.picks[2] % 2 == 0 ? maker.node("Mul", {d, d}) : maker.node("Pow", {d, maker.scalar(2)});
  const ValueId root = maker.node("Sqrt", {maker.node("Add", {mean(squares), maker.scalar(0.05f)})});
  ValueId y = maker.node("Div", {d, root});
  if (recipe.picks[2] % 3 != 0) y = maker.node("Mul", {y, maker.weights({x.dims.back()})});
  if (recipe.picks[2] % 5 != 0) y = maker.node("Add", {y, maker.weights({x.dims.back()})});
  maker.keep(y);
}

void gelu(GraphMaker& maker, const Recipe& recipe) {
  const ValueId x = maker.pick(recipe.picks[0]).id;
  const ValueId e = maker.node("Erf", {maker.node("Div", {x, maker.scalar(1.41421356f)})});
  maker.keep(maker.node("Mul", {maker.node("Mul", {x, maker.node("Add", {e, maker.scalar(1)})}), maker.scalar(0.5f)}));
}

void silu(GraphMaker& maker, const Recipe& recipe) {
  const ValueId x = maker.pick(recipe.picks[0]).id;
  maker.keep(maker.node("Mul", {x, maker.node("Sigmoid", {x})}));
}

// Heads of one value, their products, and what joins them again.
void attention(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* x = maker.pick_of_rank(recipe.picks[0], 3);
  if (x == nullptr) return;
  const int64_t length = x->dims[1], heads = recipe.picks[1] % 2 == 0 ? 2 : 3, size = 4;
  const auto projected = [&](std::vector<int64_t> perm) {
    ValueId y = maker.node("MatMul", {x->id, maker.weights({x->dims[2], heads * size}, -0.5f, 0.5f)});
    if (recipe.picks[1] % 3 != 0) y = maker.node("Add", {y, maker.weights({heads * size})});
    y = maker.node("Reshape", {y, maker.integers({0, length, heads, size})});
    return maker.node("Transpose", {y}, {{"perm", std::move(perm)}});
  };
  ValueId q = projected({0, 2, 1, 3}), k = projected({0, 2, 3, 1});
  const ValueId v = projected({0, 2, 1, 3});
  if (recipe.picks[2] % 4 == 0) q = maker.node("Mul", {q, maker.scalar(0.5f)});
  ValueId scores = maker.node("MatMul", {q, k});
  if (recipe.picks[2] % 4 == 1) scores = maker.node("Div", {scores, maker.scalar(2)});
  if (recipe.picks[3] % 3 == 0) scores = maker.node("Add", {scores, maker.weights({1, 1, 1, length})});
  if (recipe.picks[3] % 3 == 1) scores = maker.node("Add", {scores, maker.weights({length, length})});
  const int64_t axis = recipe.picks[3] % 11 == 0 ? 2 : -1;  // a near miss
  const ValueId shares = maker.node("Softmax", {scores}, {{"axis", axis}});
  if (recipe.picks[2] % 7 == 0) maker.keep(shares);
  const ValueId mixed =
      maker.node("Transpose", {maker.node("MatMul", {shares, v})}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
  maker.keep(maker.node("Reshape", {mixed, maker.integers({0, length, heads * size})}));
}

// Comparisons are of inputs only: rounding must not change what they say.
void where(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made& a = maker.inputs()[recipe.picks[0] % maker.inputs().size()];
  const ValueId mask = maker.node("Greater", {a.id, maker.scalar(0.1f)});
  if (recipe.picks[1] % 3 == 0) return maker.keep(maker.node("Cast", {mask}, {{"to", int64_t{1}}}));
  const GraphMaker::Made* b = maker.pick_spreading(recipe.picks[1], a.dims);
  maker.keep(maker.node("Where", {mask, b == nullptr ? a.id : b->id, maker.scalar(-0.25f)}));
}

void gather(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made& x = maker.pick(recipe.picks[0]);
  const auto axis = static_cast<int64_t>(recipe.picks[1] % x.dims.size());
  const int64_t extent = x.dims[static_cast<size_t>(axis)];
  maker.keep(maker.node("Gather", {x.id, maker.integers({static_cast<int64_t>(recipe.picks[2]) % extent, 0})},
                        {{"axis", axis}}));
}

// Shape arithmetic that must fold: the extents of one value shape another.
void reshape_by_shape(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made& x = maker.pick(recipe.picks[0]);
  const ValueId shape = maker.node("Shape", {x.id});
  const ValueId first = maker.node("Gather", {shape, maker.integers({0})}, {{"axis", int64_t{0}}});
  const ValueId rest = maker.integers({-1});
  maker.keep(maker.node("Reshape", {x.id, maker.node("Concat", {first, rest}, {{"axis", int64_t{0}}})}));
}

void expand(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made& x = maker.pick(recipe.picks[0]);
  Dims dims(x.dims.size(), 1);
  if (recipe.picks[1] % 2 == 0 && x.dims.size() < 5) dims.insert(dims.begin(), 2);
  maker.keep(maker.node("Expand", {x.id, maker.integers(dims)}));
}

}  // namespace

const std::vector<PatternFn*>& all_patterns() {
  // The common ones more than once.
  static const std::vector<PatternFn*> kOwn = {unary,
                                               unary,
                                               clip,
                                               binary,
                                               binary,
                                               with_constant,
                                               with_constant,
                                               nothing,
                                               linear,
                                               linear,
                                               gemm,
                                               transpose,
                                               reshape,
                                               squeeze,
                                               concat,
                                               split,
                                               slice,
                                               reduce,
                                               softmax,
                                               layer_norm,
                                               gelu,
                                               silu,
                                               attention,
                                               attention,
                                               where,
                                               gather,
                                               expand,
                                               parallel_linears,
                                               reshape_by_shape,
                                               product_with_itself};
  static const std::vector<PatternFn*> kPatterns = [] {
    std::vector<PatternFn*> all = kOwn;
    for (const auto* others : {&picture_patterns(), &algebra_patterns(), &exporter_patterns(), &byte_patterns()}) {
      all.insert(all.end(), others->begin(), others->end());
    }
    return all;
  }();
  return kPatterns;
}

}  // namespace lathe::testing
