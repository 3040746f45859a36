// What exporters of frameworks write, in a few nodes each: picture orders, heads and caches, loops, shapes.
#include <numeric>

#include "ops/op_def.h"
#include "tests/fuzz/graph_maker.h"

namespace lathe::testing {
namespace {

using Ints = std::vector<int64_t>;
const Ints kToLast{0, 2, 3, 1}, kToFirst{0, 3, 1, 2};

// A few nodes in TensorFlow's order of pictures, between the Transposes of its exporter.
void channels_last(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* found = maker.pick_of_rank(recipe.picks[0], 4);
  if (found == nullptr) return;
  const int64_t channels = found->dims[1];
  const ValueId x = maker.node("Transpose", {found->id}, {{"perm", kToLast}});
  ValueId y = x;
  switch (recipe.picks[1] % 6) {
    case 0:
      y = maker.node("Mul", {x, maker.node("Sigmoid", {maker.node("Add", {x, maker.weights({channels})})})});
      break;
    case 1:
      y = maker.node("Resize", {x, ValueId::none, ValueId::none,
                                maker.integers({found->dims[0], found->dims[2] * 2, found->dims[3], channels})});
      break;
    case 2:
      y = maker.node("PRelu", {x, maker.weights({1, 1, channels})});
      break;
    case 3:
      y = maker.node("Slice",
                     {x, maker.integers({0}), maker.integers({1}), maker.integers({recipe.picks[2] % 2 ? -1 : 1})});
      break;
    case 4:
      y = maker.node("ReduceMean", {x}, {{"axes", Ints{1, 2}}, {"keepdims", int64_t{recipe.picks[2] % 2}}});
      break;
    default:
      y = maker.node("Pad", {x, maker.integers({0, 1, 0, 0, 0, 0, 1, 0})});
  }
  if (recipe.picks[3] % 4 == 0) maker.keep(x);
  if (maker.dims_of(y).size() == 4 && recipe.picks[3] % 3 != 0) y = maker.node("Transpose", {y}, {{"perm", kToFirst}});
  maker.keep(y);
}

// One row of what products make.
void pick_a_row(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* x = maker.pick_of_rank(recipe.picks[0], 3);
  if (x == nullptr) return;
  const GraphMaker::Made from = *x;
  ValueId y = maker.node("MatMul", {from.id, maker.weights({from.dims[2], 12}, -0.4f, 0.4f)});
  if (recipe.picks[1] % 2 == 0) y = maker.node("Tanh", {maker.node("Add", {y, maker.weights({12})})});
  if (recipe.picks[1] % 3 == 0) y = maker.node("LayerNormalization", {y, maker.weights({12}), maker.weights({12})});
  if (recipe.picks[1] % 5 == 0) maker.keep(y);
  if (recipe.picks[2] % 5 == 0) y = maker.node("Softmax", {y}, {{"axis", int64_t{recipe.picks[2] % 2 ? 1 : -1}}});
  if (recipe.picks[2] % 3 == 0) y = maker.node("Reshape", {y, maker.integers({0, from.dims[1], 3, 4})});
  const int64_t row = static_cast<int64_t>(recipe.picks[3]) % from.dims[1];
  if (recipe.picks[2] % 2 == 0) {
    maker.keep(maker.node("Gather", {y, maker.place(row)}, {{"axis", int64_t{1}}}));
  } else {
    maker.keep(maker.node("Slice", {y, maker.integers({row}), maker.integers({row + 2}), maker.integers({1})}));
  }
}

// Keys and values of steps before, and those of this one.
void attention_with_past(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* x = maker.pick_of_rank(recipe.picks[0], 3);
  if (x == nullptr) return;
  const GraphMaker::Made from = *x;
  const int64_t heads = 2, size = 4, length = from.dims[1], batch = from.dims[0];
  const auto heads_of = [&](ValueId y) {
    return maker.node("Transpose", {maker.node("Reshape", {y, maker.integers({0, length, heads, size})})},
                      {{"perm", Ints{0, 2, 1, 3}}});
  };
  const auto projected = [&] {
    return heads_of(maker.node("MatMul", {from.id, maker.weights({from.dims[2], heads * size}, -0.5f, 0.5f)}));
  };
  const auto with_past = [&](ValueId now) {
    const ValueId past = maker.weights({batch, heads, 3, size});
    return maker.node("Concat", {past, now}, {{"axis", int64_t{recipe.picks[1] % 4 == 0 ? -2 : 2}}});
  };
  const ValueId q = projected(), k = with_past(projected()), v = with_past(projected());
  if (recipe.picks[2] % 3 == 0) maker.keep(k);
  const ValueId turned = maker.node("Transpose", {k}, {{"perm", Ints{0, 1, 3, 2}}});
  ValueId scores = maker.node("Div", {maker.node("MatMul", {q, turned}), maker.scalar(2)});
  if (recipe.picks[2] % 2 == 0) scores = maker.node("Add", {scores, maker.weights({length, length + 3})});
  const ValueId shares = maker.node("Softmax", {scores}, {{"axis", int64_t{-1}}});
  const ValueId mixed = maker.node("Transpose", {maker.node("MatMul", {shares, v})}, {{"perm", Ints{0, 2, 1, 3}}});
  maker.keep(maker.node("Reshape", {mixed, maker.integers({0, length, heads * size})}));
}

// x * cos + turned(x) * sin: halves (or neighbours) of the last axis as pairs.
void rotary(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made x = maker.pick(recipe.picks[0]);
  const int64_t size = x.dims.back(), half = size / 2;
  if (size % 2 != 0 || size < 4) return;
  const ValueId last = maker.integers({-1});
  const auto part = [&](int64_t begin, int64_t end, int64_t step) {
    return maker.node("Slice", {x.id, maker.integers({begin}), maker.integers({end}), last, maker.integers({step})});
  };
  ValueId turned = ValueId::none;
  if (recipe.picks[1] % 2 == 0) {
    const ValueId first = part(0, half, 1), second = part(half, int64_t{1} << 40, 1);
    const bool is_near_miss = recipe.picks[1] % 10 == 0;
    turned = is_near_miss ? maker.node("Concat", {maker.node("Neg", {first}), second}, {{"axis", int64_t{-1}}})
                          : maker.node("Concat", {maker.node("Neg", {second}), first}, {{"axis", int64_t{-1}}});
  } else {
    const ValueId odd = maker.node("Unsqueeze", {maker.node("Neg", {part(1, int64_t{1} << 40, 2)}), last}),
                  even = maker.node("Unsqueeze", {part(0, int64_t{1} << 40, 2), last});
    const ValueId pairs = maker.node("Concat", {odd, even}, {{"axis", int64_t{-1}}});
    Dims dims = x.dims;
    dims[0] = dims.size() == 1 ? -1 : 0;
    turned = maker.node("Reshape", {pairs, maker.integers(dims)});
  }
  const Dims table =
      recipe.picks[2] % 2 == 0 ? Dims{size} : Dims{x.dims.size() > 1 ? x.dims[x.dims.size() - 2] : 1, size};
  const ValueId cosines = maker.weights(table), sines = maker.weights(table);
  if (maker.dims_of(cosines).size() > x.dims.size()) return;
  const ValueId y = maker.node("Add", {maker.node("Mul", {x.id, cosines}), maker.node("Mul", {turned, sines})});
  maker.keep(y);
  if (recipe.picks[3] % 5 == 0) maker.keep(turned);
}

// state' = state * 0.5 + the number of the iteration; the states before are rows of a scan output.
void loop(GraphMaker& maker, const Recipe& recipe) {
  Graph body;
  const auto add = [&](const char* type, std::vector<ValueId> inputs, Attributes attributes = {}) {
    Node node;
    node.op = &OpRegistry::builtin().require("", type, 17);
    node.version = 17;
    node.name = "b" + std::to_string(body.value_count());
    node.inputs = std::move(inputs);
    node.attributes = std::move(attributes);
    node.outputs = {body.add_value("w" + std::to_string(body.value_count()), {})};
    const ValueId result = node.outputs[0];
    body.add_node(std::move(node));
    return result;
  };
  const ValueId trip = body.add_value("trip", TensorType::of(DType::i64, {})),
                goes_on = body.add_value("goes_on", TensorType::of(DType::boolean, {})),
                state = body.add_value("state", TensorType::unranked(DType::f32));
  Attributes to_float;
  to_float.set("to", int64_t{1});
  const ValueId half = body.add_constant("half", Tensor::scalar<float>(0.5f));
  const ValueId next = add("Add", {add("Mul", {state, half}), add("Cast", {trip}, to_float)});
  body.inputs = {trip, goes_on, state};
  body.outputs = {add("Identity", {goes_on}), next, recipe.picks[2] % 2 == 0 ? state : next};
  const ValueId trips = maker.integers({static_cast<int64_t>(recipe.picks[1] % 5) + 1});
  const std::vector<ValueId> results =
      maker.nodes("Loop", {trips, ValueId::none, maker.pick(recipe.picks[0]).id}, 2,
                  {{"body", std::shared_ptr<const Graph>(std::make_shared<Graph>(std::move(body)))}});
  maker.keep(results[0]);
  if (recipe.picks[3] % 2 == 0) maker.keep(results[1]);
}

void casts_and_reshapes(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made x = maker.pick(recipe.picks[0]);
  const auto cast = [&](ValueId y, DType to) { return maker.node("Cast", {y}, {{"to", static_cast<int64_t>(to)}}); };
  switch (recipe.picks[1] % 4) {
    case 0:
      return maker.keep(cast(cast(x.id, DType::f64), DType::f32));
    case 1: {
      const ValueId flat = maker.node("Relu", {maker.node("Reshape", {x.id, maker.integers({0, -1})})});
      Dims dims = x.dims;
      dims[0] = 0;
      return maker.keep(maker.node("Reshape", {maker.node("Mul", {flat, maker.scalar(1.5f)}), maker.integers(dims)}));
    }
    case 2: {
      const ValueId wide = maker.node("Unsqueeze", {x.id, maker.integers({1})});
      Ints perm(x.dims.size() + 1);
      std::iota(perm.begin(), perm.end(), int64_t{0});
      std::rotate(perm.begin() + 1, perm.begin() + 2, perm.end());
      return maker.keep(
          maker.node("Squeeze", {maker.node("Transpose", {wide}, {{"perm", perm}}), maker.integers({-1})}));
    }
    default: {
      const ValueId row = maker.weights({x.dims.back()});
      return maker.keep(maker.node("Add", {x.id, maker.node("Expand", {row, maker.node("Shape", {x.id})})}));
    }
  }
}

// Norms over rows or pixels, in three spellings, with factors per column or channel.
void norm_from_parts(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made x = maker.pick(recipe.picks[0]);
  const bool is_instance = x.dims.size() == 4 && recipe.picks[1] % 2 == 0;
  const Ints axes = is_instance ? Ints{2, 3} : Ints{-1};
  const Dims own = is_instance ? Dims{x.dims[1], 1, 1} : Dims{x.dims.back()};
  const auto mean = [&](ValueId of) { return maker.node("ReduceMean", {of}, {{"axes", axes}}); };
  const ValueId d = maker.node("Sub", {x.id, mean(x.id)});
  const ValueId root = maker.node("Sqrt", {maker.node("Add", {mean(maker.node("Mul", {d, d})), maker.scalar(0.05f)})});
  const ValueId gain = maker.weights(own, 0.5f, 1.5f), bias = maker.weights(own);
  if (recipe.picks[2] % 3 == 0) {
    const ValueId m = maker.node("Mul", {maker.node("Reciprocal", {root}), gain});
    const ValueId shift = maker.node("Sub", {bias, maker.node("Mul", {mean(x.id), m})});
    return maker.keep(maker.node("Add", {maker.node("Mul", {x.id, m}), shift}));
  }
  const ValueId y = recipe.picks[2] % 3 == 1 ? maker.node("Div", {d, root})
                                             : maker.node("Mul", {d, maker.node("Reciprocal", {root})});
  if (recipe.picks[3] % 4 == 0) maker.keep(y);
  maker.keep(maker.node("Add", {maker.node("Mul", {y, gain}), bias}));
}

void repeat_pixels(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* x = maker.pick_of_rank(recipe.picks[0], 4);
  if (x == nullptr) return;
  const Dims dims = x->dims;
  const int64_t rows = 1 + static_cast<int64_t>(recipe.picks[1] % 2), columns = 2;
  const ValueId apart =
      maker.node("Unsqueeze", {x->id, maker.integers(recipe.picks[2] % 4 == 0 ? Ints{2, 4} : Ints{3, 5})});
  Dims wide = maker.dims_of(apart), joined{0, dims[1], dims[2] * rows, dims[3] * columns};
  (recipe.picks[2] % 4 == 0 ? wide[2] : wide[3]) = rows;
  (recipe.picks[2] % 4 == 0 ? wide[4] : wide[5]) = columns;
  wide[0] = 1;  // as the other one has it
  const ValueId repeated = maker.node("Expand", {apart, maker.integers(wide)});
  maker.keep(maker.node("Reshape", {repeated, maker.integers(joined)}));
}

// A classifier over pictures in TensorFlow's order.
void flatten_and_classify(GraphMaker& maker, const Recipe& recipe) {
  const GraphMaker::Made* x = maker.pick_of_rank(recipe.picks[0], 4);
  if (x == nullptr) return;
  const int64_t columns = x->dims[1] * x->dims[2] * x->dims[3];
  const ValueId turned = maker.node("Transpose", {x->id}, {{"perm", recipe.picks[1] % 2 == 0 ? kToLast : kToFirst}});
  if (recipe.picks[2] % 5 == 0) maker.keep(turned);
  const ValueId flat = maker.node("Reshape", {turned, maker.integers({0, columns})});
  if (recipe.picks[3] % 2 == 0)
    return maker.keep(maker.node("MatMul", {flat, maker.weights({columns, 5}, -0.1f, 0.1f)}));
  maker.keep(maker.node("Gemm", {flat, maker.weights({5, columns}, -0.1f, 0.1f)}, {{"transB", int64_t{1}}}));
}

}  // namespace

const std::vector<PatternFn*>& exporter_patterns() {
  static const std::vector<PatternFn*> kPatterns = {channels_last,
                                                    channels_last,
                                                    pick_a_row,
                                                    attention_with_past,
                                                    rotary,
                                                    rotary,
                                                    loop,
                                                    norm_from_parts,
                                                    repeat_pixels,
                                                    flatten_and_classify,
                                                    casts_and_reshapes,
                                                    casts_and_reshapes};
  return kPatterns;
}

}  // namespace lathe::testing
