#include "graph/spell_out.h"

#include <algorithm>
#include <limits>

#include "graph/expression_attribute.h"
#include "graph/passes/rewrite.h"
#include "graph/spelled_expression.h"
#include "graph/spelling.h"

namespace lathe {
namespace {

using Ints = std::vector<int64_t>;
using NamedAttributes = Spelling::NamedAttributes;

class Speller : private Spelling {
 public:
  using Spelling::Spelling;

  Graph run() {
    const std::vector<NodeId> order = graph_.order();
    for (const NodeId id : order) {
      spell_bodies(id);
      if (graph_.node(id).op->domain == "lathe" || is_too_new(graph_.node(id))) {
        spell_node(id);
      } else if (graph_.node(id).epilogue) {
        spell_epilogue(id);
      }
    }
    rewriter_.finish();
    return std::move(graph_);
  }

 private:
  void spell_bodies(NodeId id) {
    std::vector<std::pair<std::string, Attribute>> spelled;
    for (const auto& [key, value] : graph_.node(id).attributes) {
      const auto* body = std::get_if<std::shared_ptr<const Graph>>(&value);
      if (body == nullptr || *body == nullptr) continue;
      spelled.emplace_back(key,
                           std::shared_ptr<const Graph>(std::make_shared<Graph>(spelled_out(**body, ops_, opset_))));
    }
    for (auto& [key, value] : spelled) graph_.node(id).attributes.set(key, std::move(value));
  }

  // Made by a pass, of parts that older opsets have.
  bool is_too_new(const Node& node) const {
    if (is_op(node, "GroupNormalization")) return ops_.find("", node.op->name, opset_) != node.op;
    const bool is_norm = is_op(node, "LayerNormalization") || is_op(node, "RMSNormalization");
    return is_norm && ops_.find("", node.op->name, opset_) == nullptr && node.attributes.get_int("axis", -1) == -1;
  }

  // --- expressions

  // The value as float32 numbers, or as truth.
  ValueId as(ValueId value, bool is_truth, bool wants_truth) {
    if (is_truth == wants_truth) return value;
    return cast(value, wants_truth ? DType::boolean : DType::f32);
  }

  // Nodes for the expression; `inputs` are its inputs as they lie in memory. The last one makes `result`.
  void spell_expression(const Expression& expression, const std::vector<ValueId>& inputs, ValueId result) {
    std::vector<ValueId> made;
    std::vector<bool> is_truth;
    for (const ExprNode& node : expression.nodes) {
      is_truth.push_back(gives_truth(node.op));
      if (node.op == ExprOp::input) {
        const auto slot = static_cast<size_t>(node.a);
        const bool is_float = expression.inputs[slot] == DType::f32;
        made.push_back(is_float ? inputs[slot] : cast(inputs[slot], DType::f32));
      } else if (node.op == ExprOp::constant) {
        made.push_back(scalar(node.value));
      } else {
        std::vector<ValueId> operands;
        for (const int operand : {node.a, node.b, node.c}) {
          if (operand < 0) break;
          const bool wants_truth = takes_truth(node.op) || (node.op == ExprOp::select && operands.empty());
          operands.push_back(
              as(made[static_cast<size_t>(operand)], is_truth[static_cast<size_t>(operand)], wants_truth));
        }
        made.push_back(op(onnx_name(node.op), operands));
      }
    }
    store(made.back(), is_truth.back(), expression.output, result);
  }

  void store(ValueId value, bool is_truth, DType dtype, ValueId result) {
    if (dtype == DType::boolean || dtype == DType::f32) {
      const bool wants_truth = dtype == DType::boolean;
      if (is_truth == wants_truth) {
        op("Identity", {value}, {}, result);
      } else {
        cast(value, dtype, result);
      }
      return;
    }
    const bool is_word = dtype == DType::u16 || dtype == DType::i16;
    if (dtype != DType::u8 && dtype != DType::i8 && !is_word) fail(graph_.node(place_), "its result has no spelling");
    const FloatRange range = stored_range(dtype);
    const ValueId number = as(value, is_truth, false);
    const ValueId clipped = op("Min", {op("Max", {number, scalar(range.low)}), scalar(range.high)});
    cast(clipped, dtype, result);
  }

  // The node without its epilogue, and the epilogue behind it.
  void spell_epilogue(NodeId id) {
    begin(id);
    const Node node = graph_.node(id);
    const ValueId result = node.outputs[0], inner = rewriter_.add_value(like_, TensorType::unranked(DType::f32));
    const size_t own = node.inputs.size() - static_cast<size_t>(node.epilogue->inputs);
    std::vector<ValueId> inputs{inner};
    inputs.insert(inputs.end(), node.inputs.begin() + static_cast<std::ptrdiff_t>(own), node.inputs.end());
    rewriter_.move_output(inner, id);
    graph_.node(id).inputs.resize(own);
    graph_.node(id).epilogue.reset();
    spell_expression(node.epilogue->expression, inputs, result);
  }

  // --- Lathe's own operators

  void spell_node(NodeId id) {
    begin(id);
    const Node node = graph_.node(id);
    const ValueId result = node.outputs[0];
    rewriter_.erase(id);
    if (node.op->name == "Pointwise" && node.epilogue)
      return spell_expression(node.epilogue->expression, node.inputs, result);
    ValueId made = result;
    if (node.epilogue) made = rewriter_.add_value(like_, TensorType::unranked(DType::f32));
    if (node.op->name == "MatMulViews") {
      spell_product(node, made);
    } else if (node.op->name == "QuantizedMatMul") {
      spell_integer_product(node, made);
    } else if (node.op->name == "QuantizedConv") {
      spell_integer_convolution(node, made);
    } else if (node.op->name == "Attention") {
      spell_attention(node, made);
    } else if (node.op->name == "Rotary") {
      spell_rotary(node, made);
    } else if (node.op->name == "ShuffleChannels") {
      spell_shuffle(node, made);
    } else if (node.op->name == "TakeAlongAxis") {
      spell_take(node, made);
    } else if (is_op(node, "LayerNormalization") || is_op(node, "RMSNormalization")) {
      spell_norm(node, made);
    } else if (is_op(node, "GroupNormalization")) {
      spell_group_norm(node, made);
    } else if (node.op->name == "Reorder") {
      op("Identity", {node.inputs[0]}, {}, made);
    } else if (node.op->name == "SequencePositions") {
      spell_positions(*this, node, made);
    } else if (node.op->name == "CacheAppend") {
      spell_append(*this, node, made);
    } else {
      fail(node, "ONNX has no word for it");
    }
    if (!node.epilogue) return;
    std::vector<ValueId> inputs{made};
    inputs.insert(inputs.end(), node.inputs.end() - node.epilogue->inputs, node.inputs.end());
    spell_expression(node.epilogue->expression, inputs, result);
  }

  void spell_product(const Node& node, ValueId result) {
    const Ints perm_y = node.attributes.get_ints("perm_y");
    const ValueId a = transposed(node.inputs[0], node.attributes.get_ints("perm_a")),
                  b = transposed(node.inputs[1], node.attributes.get_ints("perm_b"));
    if (perm_y.empty()) {
      op("MatMul", {a, b}, {}, result);
    } else {
      transposed(op("MatMul", {a, b}), perm_y, result);
    }
  }

  // The product of the bytes less their zero points, and what one of it means.
  void spell_integer_product(const Node& node, ValueId result) {
    const ValueId a = transposed(node.inputs[0], node.attributes.get_ints("perm_a")),
                  b = transposed(node.inputs[1], node.attributes.get_ints("perm_b"));
    const ValueId a_zero = input_or_none(node, 3), b_zero = input_or_none(node, 4);
    std::vector<ValueId> operands{a, b};
    if (a_zero != ValueId::none || b_zero != ValueId::none) operands.push_back(a_zero);
    if (b_zero != ValueId::none) operands.push_back(b_zero);
    const ValueId sums =
        op("MatMulInteger", operands, {}, rewriter_.add_value(like_, TensorType::unranked(DType::i32)));
    op("Mul", {cast(sums, DType::f32), node.inputs[2]}, {}, result);
  }

  // Inputs: x, weights, scale, x_zero, w_zero, bias; the last four may be one for all or one for each output channel.
  // Scales go into the weights, as in the groups of nodes that quantizing tools write.
  void spell_integer_convolution(const Node& node, ValueId result) {
    NamedAttributes attributes;
    static constexpr const char* kKept[] = {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"};
    for (const char* name : kKept) {
      if (const Attribute* value = node.attributes.find(name)) attributes.emplace_back(name, *value);
    }
    if (input_or_none(node, 2) == ValueId::none) {
      op("ConvInteger", {node.inputs[0], node.inputs[1], input_or_none(node, 3), input_or_none(node, 4)},
         std::move(attributes), result);
      return;
    }
    std::vector<ValueId> x{node.inputs[0], scalar(1)}, operands;
    if (const ValueId zero = input_or_none(node, 3); zero != ValueId::none) x.push_back(zero);
    operands = {op("DequantizeLinear", x), integer_weights(node)};
    if (const ValueId bias = input_or_none(node, 5); bias != ValueId::none) {
      operands.push_back(op("Mul", {cast(bias, DType::f32), node.inputs[2]}));
    }
    op("Conv", std::move(operands), std::move(attributes), result);
  }

  ValueId integer_weights(const Node& node) {
    constexpr int kScalesByAxis = 13;
    const ValueId weights = node.inputs[1], scale = node.inputs[2], zero = input_or_none(node, 4);
    if (opset_ >= kScalesByAxis &&
        (zero == ValueId::none || graph_.value(zero).type.dims == graph_.value(scale).type.dims)) {
      std::vector<ValueId> operands{weights, scale};
      if (zero != ValueId::none) operands.push_back(zero);
      return op("DequantizeLinear", operands, {{"axis", int64_t{0}}});
    }
    Ints by_channel(graph_.value(weights).type.dims.size(), 1);
    by_channel[0] = -1;
    ValueId numbers = cast(weights, DType::f32);
    if (zero != ValueId::none) numbers = op("Sub", {numbers, reshaped(cast(zero, DType::f32), by_channel)});
    return op("Mul", {numbers, reshaped(scale, by_channel)});
  }

  // One operand of an attention, as its form says: a part, heads apart, axes in order.
  ValueId viewed(const Node& node, size_t slot) {
    static constexpr const char* kPerms[] = {"perm_q", "perm_k", "perm_v"};
    const Ints heads = node.attributes.get_ints("heads"), parts = node.attributes.get_ints("parts");
    ValueId value = node.inputs[slot];
    if (!parts.empty() && parts[2 * slot + 1] > 0) {
      const int64_t begin = parts[2 * slot];
      value = op("Slice", {value, integers({begin}), integers({begin + parts[2 * slot + 1]}), integers({-1})});
    }
    if (!heads.empty() && heads[slot] > 0) {
      const TensorType& type = graph_.value(node.inputs[slot]).type;
      if (!type.has_rank) fail(node, "the rank of an operand is not known");
      Ints dims(static_cast<size_t>(type.rank()) - 1, 0);
      dims.insert(dims.end(), {heads[slot], -1});
      value = reshaped(value, dims);
    }
    return transposed(value, node.attributes.get_ints(kPerms[slot]));
  }

  // An input of the scores as the sum of two that it is: of the last one and of it.
  void spell_sum(const Node& node, std::vector<ValueId>& inputs) {
    if (!node.attributes.has("sum_input")) return;
    const auto slot = static_cast<size_t>(node.attributes.get_int("sum_input", 0)) + 1;
    const ValueId first = inputs[slot], second = inputs.back();
    const TensorType& type = graph_.value(first).type;
    if (!type.has_rank) fail(node, "the rank of its biases is not known");
    const Ints kept(static_cast<size_t>(type.rank()) - 1, 0);
    Ints apart = kept, repeated = kept, joined = kept;
    apart.insert(apart.end(), {-1, 1});
    repeated.insert(repeated.end(), {1, -1});
    joined.push_back(-1);
    inputs[slot] = reshaped(op("Add", {reshaped(first, apart), reshaped(second, repeated)}), joined);
    inputs.pop_back();
  }

  void spell_attention(const Node& node, ValueId result) {
    const ValueId q = viewed(node, 0), k = viewed(node, 1), v = viewed(node, 2);
    ValueId scores = op("MatMul", {q, k});
    if (const auto expression = get_expression(node.attributes, "scores")) {
      std::vector<ValueId> inputs{scores};
      inputs.insert(inputs.end(), node.inputs.begin() + 3, node.inputs.end());
      spell_sum(node, inputs);
      scores = rewriter_.add_value(like_, TensorType::unranked(DType::f32));
      spell_expression(*expression, inputs, scores);
    }
    const TensorType& type = graph_.value(node.outputs[0] == ValueId::none ? result : node.outputs[0]).type;
    const Ints heads = node.attributes.get_ints("heads"), perm_y = node.attributes.get_ints("perm_y");
    const bool joins = !heads.empty() && heads[3] > 0;
    if (!type.has_rank) fail(node, "the rank of its result is not known");
    const int64_t rank = type.rank() + (joins ? 1 : 0);
    // Before opset 13 all axes from this one on: the last one alone, either way.
    ValueId shares = op("Softmax", {scores}, {{"axis", rank - 1}});
    if (node.attributes.get_int("zeroes_empty", 0) != 0) {
      shares = op("Where", {op("IsNaN", {shares}), scalar(0), shares});
    }
    const ValueId mixed = transposed(op("MatMul", {shares, v}), perm_y);
    if (!joins) {
      op("Identity", {mixed}, {}, result);
      return;
    }
    Ints dims(static_cast<size_t>(rank) - 2, 0);
    dims.push_back(-1);
    reshaped(mixed, dims, result);
  }

  ValueId row_mean(ValueId x) {
    constexpr int kAxesAreInputs = 18;
    if (opset_ >= kAxesAreInputs) return op("ReduceMean", {x, integers({-1})});
    return op("ReduceMean", {x}, {{"axes", Ints{-1}}});
  }

  void spell_norm(const Node& node, ValueId result) {
    ValueId x = node.inputs[0];
    if (is_op(node, "LayerNormalization")) x = op("Sub", {x, row_mean(x)});
    const ValueId variance = row_mean(op("Mul", {x, x}));
    const ValueId root = op("Sqrt", {op("Add", {variance, scalar(node.attributes.get_float("epsilon", 1e-5f))})});
    const ValueId normal = op("Div", {x, root});
    const ValueId bias = input_or_none(node, 2);
    if (bias == ValueId::none) {
      op("Mul", {normal, node.inputs[1]}, {}, result);
    } else {
      op("Add", {op("Mul", {normal, node.inputs[1]}), bias}, {}, result);
    }
  }

  void spell_group_norm(const Node& node, ValueId result) {
    const ValueId x = node.inputs[0];
    const TensorType& type = graph_.value(x).type;
    const int64_t groups = node.attributes.get_int("num_groups", 1);
    if (node.version < 21 || !type.has_rank) fail(node, "it has no spelling");
    const Dims count{groups};
    Tensor ones(DType::f32, count);
    std::fill_n(ones.mutable_data<float>(), groups, 1.f);
    const ValueId apart = reshaped(x, {0, groups, -1});
    const ValueId normal =
        op("InstanceNormalization",
           {apart, rewriter_.add_constant(like_, ones), rewriter_.add_constant(like_, Tensor(DType::f32, count))},
           {{"epsilon", node.attributes.get_float("epsilon", 1e-5f)}});
    const ValueId joined = op("Reshape", {normal, op("Shape", {x})});
    Ints channels(static_cast<size_t>(type.rank()) - 1, 1);
    channels[0] = -1;
    const ValueId scaled = op("Mul", {joined, reshaped(node.inputs[1], channels)});
    op("Add", {scaled, reshaped(node.inputs[2], channels)}, {}, result);
  }

  void spell_rotary(const Node& node, ValueId result) {
    constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();
    const ValueId x = node.inputs[0], last = integers({-1});
    const TensorType& type = graph_.value(x).type;
    if (!type.has_rank || !type.dims.back().known()) fail(node, "the count of pairs is not known");
    const int64_t half = type.dims.back().extent / 2;
    const auto part = [&](int64_t begin, int64_t end, int64_t step) {
      return op("Slice", {x, integers({begin}), integers({end}), last, integers({step})});
    };
    ValueId turned;
    if (node.attributes.get_int("interleaved", 0) == 0) {
      turned = op("Concat", {op("Neg", {part(half, kEnd, 1)}), part(0, half, 1)}, {{"axis", int64_t{-1}}});
    } else {
      constexpr int kAxesAreInputs = 13;
      const auto column = [&](ValueId value) {
        if (opset_ >= kAxesAreInputs) return op("Unsqueeze", {value, last});
        return op("Unsqueeze", {value}, {{"axes", Ints{type.rank()}}});
      };
      const ValueId pairs =
          op("Concat", {column(op("Neg", {part(1, kEnd, 2)})), column(part(0, kEnd, 2))}, {{"axis", int64_t{-1}}});
      turned = op("Reshape", {pairs, op("Shape", {x})});
    }
    op("Add", {op("Mul", {x, node.inputs[1]}), op("Mul", {turned, node.inputs[2]})}, {}, result);
  }

  void spell_take(const Node& node, ValueId result) {
    const TensorType& type = graph_.value(node.outputs[0]).type;
    if (!type.is_static()) fail(node, "its extents are not known");
    const ValueId indices = op("Expand", {node.inputs[1], integers(type.extents())});
    op("GatherElements", {node.inputs[0], indices}, {{"axis", node.attributes.get_int("axis", 0)}}, result);
  }

  void spell_shuffle(const Node& node, ValueId result) {
    const ValueId x = node.inputs[0];
    const TensorType& type = graph_.value(x).type;
    if (!type.has_rank || !type.dims[1].known()) fail(node, "the count of channels is not known");
    const int64_t groups = node.attributes.get_int("groups", 1);
    const ValueId apart = reshaped(x, {0, groups, type.dims[1].extent / groups, -1});
    op("Reshape", {transposed(apart, {0, 2, 1, 3}), op("Shape", {x})}, {}, result);
  }
};

}  // namespace

Graph spelled_out(const Graph& graph, const OpLookup& ops, int opset) { return Speller(graph, ops, opset).run(); }

}  // namespace lathe
