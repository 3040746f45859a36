// softmax(f(Q K)) V, where f is whatever an epilogue can be (scale, masks, in any spelling), becomes one
// lathe::Attention: no matrix of scores in memory. The Reshapes that take heads apart and join them go into its views.
#include <algorithm>

#include "graph/expression_attribute.h"
#include "graph/passes/passes.h"
#include "graph/passes/rearranger.h"
#include "graph/passes/rewrite.h"
#include "graph/softmax_axes.h"
#include "src/base/axis_order.h"
#include "src/base/half.h"

namespace lathe::passes {
namespace {

using Perm = std::vector<int64_t>;
constexpr size_t kResult = 3;  // behind Q, K and V in lists for all four

// A product of two matrices (or stacks of them), as it is read and stored.
struct Product {
  NodeId id = NodeId::none;
  Perm a, b, y;  // empty: as they are
};

// bfloat16 loses the roundings between the steps, nothing else.
bool is_taken(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16; }

bool is_float_matrix(const Graph& graph, ValueId id) {
  const TensorType& type = graph.value(id).type;
  return is_taken(type.dtype) && type.has_rank && type.rank() >= 2 && type.layout.channel_block == 0;
}

std::optional<Product> as_product(const Graph& graph, NodeId id) {
  if (id == NodeId::none) return std::nullopt;
  const Node& node = graph.node(id);
  const bool has_views = is_lathe_op(node, "MatMulViews");
  if (!has_views && !is_op(node, "MatMul")) return std::nullopt;
  if (!is_float_matrix(graph, node.inputs[0]) || !is_float_matrix(graph, node.inputs[1])) return std::nullopt;
  if (graph.value(node.inputs[0]).type.rank() != graph.value(node.inputs[1]).type.rank()) return std::nullopt;
  Product product{id, {}, {}, {}};
  if (!has_views) return product;
  product.a = node.attributes.get_ints("perm_a");
  product.b = node.attributes.get_ints("perm_b");
  product.y = node.attributes.get_ints("perm_y");
  return product;
}

bool is_softmax_of_rows(const Graph& graph, const Node& node) {
  if (!is_op(node, "Softmax") || node.epilogue || node.outputs[0] == ValueId::none) return false;
  const TensorType& type = graph.value(node.inputs[0]).type;
  return type.has_rank && is_taken(type.dtype) && softmax_axes(node, type.rank()).is_last_alone();
}

// Arithmetic between the product and the Softmax that no epilogue holds: that of bfloat16.
struct Chain {
  NodeId product = NodeId::none;
  Expression expression = {};
  std::vector<ValueId> inputs = {};  // of slot 1, 2, ...
  std::vector<NodeId> nodes = {};
};

std::optional<float> bfloat_scalar_of(const Graph& graph, ValueId id) {
  const Tensor tensor = constant_of(graph, id);
  if (!tensor.defined() || tensor.size() != 1 || tensor.dtype() != DType::bf16) return std::nullopt;
  return bfloat_to_float(*static_cast<const uint16_t*>(tensor.raw()));
}

// From the product to `value`, which `user` alone reads.
std::optional<Chain> chain_to(const Rewriter& rewriter, const Graph& graph, ValueId value, NodeId user, int depth = 0) {
  constexpr int kLongest = 6;
  const NodeId maker = graph.value(value).producer;
  if (maker == NodeId::none || !rewriter.is_live(maker) || rewriter.only_user(value) != user) return std::nullopt;
  const Node& node = graph.node(maker);
  if (node.epilogue || depth > kLongest) return std::nullopt;
  if (as_product(graph, maker)) {
    Chain chain{maker};
    chain.expression.inputs = {DType::f32};
    chain.expression.add({.op = ExprOp::input, .a = 0});
    return chain;
  }
  const bool is_add = is_op(node, "Add"), is_mul = is_op(node, "Mul");
  if (!is_add && !is_mul && !is_op(node, "Div")) return std::nullopt;
  const TensorType& type = graph.value(value).type;
  for (const size_t slot : {size_t{0}, size_t{1}}) {
    const ValueId other = node.inputs[1 - slot];
    if (slot == 1 && !is_add && !is_mul) continue;
    if (!same_shape(graph.value(node.inputs[slot]).type, type)) continue;
    const std::optional<float> scalar = bfloat_scalar_of(graph, other);
    const TensorType& other_type = graph.value(other).type;
    if (!scalar && (!is_add || other_type.dtype != DType::bf16 || !broadcasts_into(other_type, type))) continue;
    std::optional<Chain> chain = chain_to(rewriter, graph, node.inputs[slot], maker, depth + 1);
    if (!chain) continue;
    Expression& e = chain->expression;
    const int x = static_cast<int>(e.nodes.size()) - 1;
    int y = 0;
    if (scalar) {
      y = e.add({.op = ExprOp::constant, .value = *scalar});
    } else {
      chain->inputs.push_back(other);
      y = e.add({.op = ExprOp::input, .a = static_cast<int>(e.inputs.size())});
      e.inputs.push_back(DType::f32);
    }
    e.add({.op = is_add ? ExprOp::add : is_mul ? ExprOp::mul : ExprOp::div, .a = x, .b = y});
    chain->nodes.push_back(maker);
    return chain;
  }
  return std::nullopt;
}

struct Match {
  Product scores, mixed;
  std::vector<NodeId> guard = {};  // what makes zeros of the shares of a row that is all masked
  Chain chain = {};                // between the product of Q and K and the Softmax
};

// Where(IsNaN(shares), 0, shares), as PyTorch writes it behind a Softmax: the value that takes the place of `shares`.
ValueId guarded(const Rewriter& rewriter, const Graph& graph, ValueId shares, std::vector<NodeId>& guard) {
  const std::vector<Graph::Use> uses = rewriter.uses(shares);
  if (uses.size() != 2 || rewriter.is_output(shares)) return shares;
  for (size_t i = 0; i < 2; ++i) {
    const Node &test = graph.node(uses[i].node), &choice = graph.node(uses[1 - i].node);
    if (!is_op(test, "IsNaN") || !is_op(choice, "Where") || test.epilogue || choice.epilogue) continue;
    if (rewriter.only_user(test.outputs[0]) != uses[1 - i].node || choice.inputs[0] != test.outputs[0]) continue;
    if (choice.inputs[2] != shares || scalar_of(graph, choice.inputs[1]) != 0.f) continue;
    if (!is_scalar(graph.value(choice.inputs[1]).type) || choice.outputs[0] == ValueId::none) continue;
    guard = {uses[i].node, uses[1 - i].node};
    return choice.outputs[0];
  }
  return shares;
}

std::optional<Match> match(const Rewriter& rewriter, const Graph& graph, NodeId softmax) {
  const Node& node = graph.node(softmax);
  if (!is_softmax_of_rows(graph, node)) return std::nullopt;
  std::vector<NodeId> guard;
  const ValueId scores = node.inputs[0], shares = guarded(rewriter, graph, node.outputs[0], guard);
  const NodeId user = rewriter.only_user(shares);
  NodeId maker = graph.value(scores).producer;
  if (maker == NodeId::none || !rewriter.is_live(maker) || rewriter.only_user(scores) != softmax) return std::nullopt;
  Chain chain;
  if (graph.value(scores).type.dtype == DType::bf16) {
    std::optional<Chain> between = chain_to(rewriter, graph, scores, softmax);
    if (!between) return std::nullopt;
    chain = std::move(*between);
    maker = chain.product;
  }
  const std::optional<Product> first = as_product(graph, maker), second = as_product(graph, user);
  if (!first || !second || !is_same_order(first->y) || !is_same_order(second->a)) return std::nullopt;
  const Node &a = graph.node(first->id), &b = graph.node(second->id);
  if (b.epilogue || b.inputs[0] != shares || b.inputs[1] == shares || b.outputs[0] == ValueId::none)
    return std::nullopt;
  if (a.epilogue && a.epilogue->expression.output != DType::f32) return std::nullopt;
  for (size_t slot = a.own_input_count(); slot < a.inputs.size(); ++slot) {
    if (graph.value(a.inputs[slot]).type.dtype != DType::f32) return std::nullopt;
  }
  const int rank = graph.value(b.inputs[1]).type.rank();
  if (graph.value(a.inputs[0]).type.rank() != rank || graph.value(scores).type.rank() != rank) return std::nullopt;
  const DType dtype = graph.value(scores).type.dtype;
  for (const ValueId operand : {a.inputs[0], a.inputs[1], b.inputs[1]}) {
    if (graph.value(operand).type.dtype != dtype) return std::nullopt;
  }
  return Match{*first, *second, guard, chain};
}

// A view of one operand, while the Reshape before it (or behind the result) may still go into it.
struct View {
  ValueId value;
  Perm perm;
  int64_t heads = 0;
};

// The count of heads, when a reshape between these types takes the last axis apart (or joins the last two).
std::optional<int64_t> heads_between(const TensorType& joined, const TensorType& apart) {
  if (!joined.has_rank || !apart.has_rank || joined.rank() < 2 || apart.rank() != joined.rank() + 1)
    return std::nullopt;
  const size_t last = joined.dims.size() - 1;
  for (size_t i = 0; i < last; ++i) {
    if (!same_dim(joined.dims[i], apart.dims[i])) return std::nullopt;
  }
  const Dim &heads = apart.dims[last], &columns = apart.dims[last + 1];
  if (!joined.dims[last].known() || !heads.known() || !columns.known() || heads.extent < 1) return std::nullopt;
  if (columns.extent < 1 || joined.dims[last].extent != heads.extent * columns.extent) return std::nullopt;
  return heads.extent;
}

// What absorb-transposes does to products of float32, to those of bfloat16. `may_turn`: the axis that is dense in
// memory may also become the last but one.
void absorb_transpose_before(const Rewriter& rewriter, const Graph& graph, View& view, bool may_turn) {
  const NodeId transpose = rewriter.producer_if(view.value, "Transpose");
  const TensorType& type = graph.value(view.value).type;
  if (transpose == NodeId::none || !view.perm.empty() || type.dtype != DType::bf16) return;
  Perm perm = order_of(graph, graph.node(transpose));
  if (perm.size() < 2) return;
  const int64_t last = static_cast<int64_t>(perm.size()) - 1;
  if (perm.back() != last && (!may_turn || perm[perm.size() - 2] != last)) return;
  view.perm = std::move(perm);
  view.value = graph.node(transpose).inputs[0];
}

void absorb_reshape_before(const Rewriter& rewriter, const Graph& graph, View& view) {
  const NodeId reshape = rewriter.producer_if(view.value, "Reshape");
  if (reshape == NodeId::none) return;
  const ValueId source = graph.node(reshape).inputs[0];
  const auto heads = heads_between(graph.value(source).type, graph.value(view.value).type);
  if (!heads) return;
  // Without an order of its own the operand's axes keep theirs.
  if (view.perm.empty()) {
    for (int axis = 0; axis < graph.value(view.value).type.rank(); ++axis) view.perm.push_back(axis);
  }
  view.value = source;
  view.heads = *heads;
}

NodeId reshape_behind(const Rewriter& rewriter, const Graph& graph, ValueId result, int64_t& heads) {
  const NodeId user = rewriter.only_user(result);
  if (user == NodeId::none || !is_op(graph.node(user), "Reshape") || graph.node(user).epilogue) return NodeId::none;
  if (graph.node(user).inputs[0] != result) return NodeId::none;
  const auto found = heads_between(graph.value(graph.node(user).outputs[0]).type, graph.value(result).type);
  if (!found) return NodeId::none;
  heads = *found;
  return user;
}

// An input of the scores that is a sum over the rows and columns of a picture, joined as keys:
//   reshape(first [..., rows, 1] + second [..., 1, columns])
struct Sum {
  ValueId first = ValueId::none, second = ValueId::none;
  NodeId add = NodeId::none, reshape = NodeId::none;
  int64_t rows = 0, columns = 0;
};

bool ends_in(const Graph& graph, ValueId id, const TensorType& like, int64_t rows, int64_t columns) {
  const TensorType& type = graph.value(id).type;
  if (type.dtype != DType::f32 || !type.has_rank || type.rank() != like.rank()) return false;
  const size_t last = type.dims.size() - 1;
  for (size_t axis = 0; axis + 1 < last; ++axis) {
    if (!same_dim(type.dims[axis], like.dims[axis])) return false;
  }
  return type.dims[last - 1].extent == rows && type.dims[last].extent == columns;
}

std::optional<Sum> sum_behind(const Rewriter& rewriter, const Graph& graph, ValueId input, NodeId user) {
  Sum sum;
  sum.reshape = rewriter.producer_if(input, "Reshape");
  if (sum.reshape == NodeId::none || rewriter.only_user(input) != user) return std::nullopt;
  const ValueId apart = graph.node(sum.reshape).inputs[0];
  sum.add = rewriter.producer_if(apart, "Add");
  if (sum.add == NodeId::none || graph.node(sum.add).epilogue || rewriter.only_user(apart) != sum.reshape) {
    return std::nullopt;
  }
  const TensorType &type = graph.value(apart).type, &joined = graph.value(input).type;
  if (type.dtype != DType::f32 || !type.has_rank || type.rank() < 3 || !joined.has_rank || joined.rank() < 2) {
    return std::nullopt;
  }
  const Dim &rows = type.dims[type.dims.size() - 2], &columns = type.dims.back(), &keys = joined.dims.back();
  if (!rows.known() || !columns.known() || !keys.known() || rows.extent < 2 || columns.extent < 2 ||
      keys.extent % columns.extent != 0 || keys.extent / columns.extent != rows.extent) {
    return std::nullopt;
  }
  sum.rows = rows.extent;
  sum.columns = columns.extent;
  const std::vector<ValueId>& addends = graph.node(sum.add).inputs;
  for (size_t slot = 0; slot < 2; ++slot) {
    sum.first = addends[slot];
    sum.second = addends[1 - slot];
    if (ends_in(graph, sum.first, type, sum.rows, 1) && ends_in(graph, sum.second, type, 1, sum.columns)) return sum;
  }
  return std::nullopt;
}

// The extents of `joined` with another last one, as a Reshape takes them; nullopt: too many are open.
std::optional<std::vector<int64_t>> shape_with_last(const TensorType& joined, int64_t last) {
  std::vector<int64_t> shape;
  int open = 0;
  for (size_t axis = 0; axis + 1 < joined.dims.size(); ++axis) {
    const Dim& dim = joined.dims[axis];
    if (dim.extent == 0) return std::nullopt;  // to a Reshape another word
    shape.push_back(dim.known() ? dim.extent : -1);
    open += dim.known() ? 0 : 1;
  }
  shape.push_back(last);
  return open <= 1 ? std::optional(shape) : std::nullopt;
}

// Attention makes the sum for itself, block by block: the first one of these among the inputs.
void take_sum(Rewriter& rewriter, const OpLookup& ops, Node& attention, NodeId user) {
  Graph& graph = rewriter.graph();
  for (size_t slot = 3; slot < attention.inputs.size(); ++slot) {
    const ValueId input = attention.inputs[slot];
    const std::optional<Sum> sum = sum_behind(rewriter, graph, input, user);
    if (!sum) continue;
    const TensorType& joined = graph.value(input).type;
    const auto first = shape_with_last(joined, sum->rows), second = shape_with_last(joined, sum->columns);
    if (!first || !second) continue;
    Rearranger rearranger(rewriter, ops, sum->reshape);
    attention.inputs[slot] = rearranger.reshaped(sum->first, *first);
    attention.inputs.push_back(rearranger.reshaped(sum->second, *second));
    attention.attributes.set("sum_input", static_cast<int64_t>(slot - 3));
    attention.attributes.set("sum_run", sum->columns);
    rewriter.erase(sum->reshape);
    rewriter.erase(sum->add);
    return;
  }
}

void rewrite(Rewriter& rewriter, const OpLookup& ops, const OpSchema& attention, NodeId softmax, const Match& found) {
  Graph& graph = rewriter.graph();
  const Node &scores = graph.node(found.scores.id), &mixed = graph.node(found.mixed.id);
  View views[] = {
      {scores.inputs[0], found.scores.a}, {scores.inputs[1], found.scores.b}, {mixed.inputs[1], found.mixed.b}};
  std::vector<int64_t> heads(4, 0);
  for (size_t i = 0; i < 3; ++i) {
    absorb_transpose_before(rewriter, graph, views[i], i > 0);
    absorb_reshape_before(rewriter, graph, views[i]);
    heads[i] = views[i].heads;
  }
  Node node{.op = &attention, .name = "", .inputs = {views[0].value, views[1].value, views[2].value}, .outputs = {}};
  static constexpr const char* kPerms[] = {"perm_q", "perm_k", "perm_v"};
  for (size_t i = 0; i < 3; ++i) {
    if (!views[i].perm.empty()) node.attributes.set(kPerms[i], views[i].perm);
  }
  if (!found.guard.empty()) node.attributes.set("zeroes_empty", int64_t{1});
  if (!found.mixed.y.empty()) node.attributes.set("perm_y", found.mixed.y);
  node.fused_from = (scores.fused_from.empty() ? "MatMul" : scores.fused_from) + "+Softmax+MatMul";
  if (scores.epilogue) {
    set_expression(node.attributes, "scores", scores.epilogue->expression);
    node.inputs.insert(node.inputs.end(), scores.inputs.end() - scores.epilogue->inputs, scores.inputs.end());
    take_sum(rewriter, ops, node, found.scores.id);
  }
  if (!found.chain.nodes.empty()) {
    set_expression(node.attributes, "scores", found.chain.expression);
    node.inputs.insert(node.inputs.end(), found.chain.inputs.begin(), found.chain.inputs.end());
  }
  ValueId result = mixed.outputs[0];
  NodeId last = found.mixed.id;
  if (const NodeId reshape = reshape_behind(rewriter, graph, result, heads[kResult]); reshape != NodeId::none) {
    result = graph.node(reshape).outputs[0];
    last = reshape;
  }
  if (std::any_of(heads.begin(), heads.end(), [](int64_t count) { return count > 0; })) {
    node.attributes.set("heads", std::move(heads));
  }
  node.outputs = {result};
  const NodeId place = found.mixed.id;
  if (last != place) rewriter.erase(last);
  for (const NodeId erased : {found.scores.id, softmax, place}) rewriter.erase(erased);
  for (const NodeId erased : found.guard) rewriter.erase(erased);
  for (const NodeId erased : found.chain.nodes) rewriter.erase(erased);
  rewriter.add(std::move(node), place);
}

}  // namespace

bool fuse_attention(Graph& graph, const PassContext& context) {
  const OpSchema* attention = context.ops.find("lathe", "Attention", 1);
  if (attention == nullptr) return false;
  return rewrite_each(graph, [&](Rewriter& rewriter, NodeId id) {
    if (const std::optional<Match> found = match(rewriter, graph, id)) {
      rewrite(rewriter, context.ops, *attention, id, *found);
    }
  });
}

}  // namespace lathe::passes
