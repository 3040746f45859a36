#include "ops/int8/int8_attention_lower.h"

#include <fmt/format.h>

#include <memory>

#include "graph/softmax_axes.h"
#include "ops/int8/int8_attention.h"
#include "ops/int8/int8_operands.h"
#include "ops/work_split.h"

namespace lathe {
namespace {

bool is_quantized_product(const Node& node) { return node.op->domain == "lathe" && node.op->name == "QuantizedMatMul"; }
bool is_softmax(const Node& node) { return node.op->domain.empty() && node.op->name == "Softmax"; }

// Every matrix of A once, in order.
bool reads_in_order(const Int8Lowering& mix) {
  const std::vector<int64_t>& matrices = mix.node.a_matrix;
  for (size_t i = 0; i < matrices.size(); ++i)
    if (matrices[i] != static_cast<int64_t>(i)) return false;
  return true;
}

bool are_bytes_by_bytes(const Int8Lowering& l) {
  return !is_wide(l.problem.dot) && l.node.a_zero.is_known() && l.node.b_zero.is_known();
}

struct Described {
  Int8Lowering scores, mix;
  ByteSoftmax softmax;
};

std::optional<Int8Lowering> describe(const LowerContext& context) {
  const std::optional<QuantizedProduct> product = quantized_product(context);
  return product ? describe_int8_product(context, product->shape, product->form) : std::nullopt;
}

// nullopt: what the kernels lack.
std::optional<Described> describe(std::span<const LowerContext> nodes) {
  const LowerContext &first = nodes[0], &middle = nodes[1], &last = nodes[2];
  if (!has_wide_vnni(first.target.isa) || !softmax_axes(middle.node, middle.input_type(0).rank()).is_last_alone())
    return std::nullopt;
  const auto softmax = byte_softmax(first.target.isa, middle.node.epilogue->expression);
  if (!softmax || !last.node.attributes.get_ints("perm_a").empty()) return std::nullopt;
  auto scores = describe(first), mix = describe(last);
  if (!scores || !mix || !are_bytes_by_bytes(*scores) || !are_bytes_by_bytes(*mix)) return std::nullopt;
  const Int8Problem &s = scores->problem, &m = mix->problem;
  const bool has_extents = s.batches > 0 && s.m > 0 && s.n > 0 && m.n > 0 && s.k > 0 && s.k % 4 == 0;
  if (!has_extents || s.batches != m.batches || s.m != m.m || s.n != m.k || !reads_in_order(*mix)) return std::nullopt;
  if (!s.epilogue || s.epilogue->expression.output != DType::f32) return std::nullopt;
  return Described{std::move(*scores), std::move(*mix), *softmax};
}

struct BoundAttention {
  std::shared_ptr<const Int8Attention> attention;
  Int8AttentionOperands operands;  // strides; addresses come with each run
  BufferId q = {}, k = {}, v = {}, y = {}, scratch = {};
  BufferId score_columns = {}, score_rows = BufferId::none, mix_columns = {};
  std::vector<BufferId> score_inputs, mix_inputs;
  std::shared_ptr<const void*> next_weights = std::make_shared<const void*>(nullptr);

  void operator()(const StepArgs& args) const {
    Int8AttentionOperands bound = operands;
    bound.scores.a = args.at<const void>(q);
    bound.scores.b = args.at<const void>(k);
    bound.scores.columns = args.at<const int32_t>(score_columns);
    if (score_rows != BufferId::none) bound.scores.rows = args.at<const int32_t>(score_rows);
    for (size_t i = 0; i < score_inputs.size(); ++i) bound.scores.inputs[i] = args.at<const void>(score_inputs[i]);
    bound.mix.b = args.at<const void>(v);
    bound.mix.c = args.at<void>(y);
    bound.mix.columns = args.at<const int32_t>(mix_columns);
    for (size_t i = 0; i < mix_inputs.size(); ++i) bound.mix.inputs[i] = args.at<const void>(mix_inputs[i]);
    if (args.ends_first_run()) bound.mix.next_weights = *next_weights;
    bound.scratch = args.own<void>(scratch);
    attention->run(bound, args.share, args.shares);
  }
  std::vector<BufferId> reads() const {
    std::vector<BufferId> all = {q, k, v, score_columns, mix_columns, scratch};
    if (score_rows != BufferId::none) all.push_back(score_rows);
    all.insert(all.end(), score_inputs.begin(), score_inputs.end());
    all.insert(all.end(), mix_inputs.begin(), mix_inputs.end());
    return all;
  }
};

// Chooses the plans. Throws JitError.
std::shared_ptr<const Int8Attention> emit(Described& found, std::span<const LowerContext> nodes) {
  const Target& target = nodes[0].target;
  Int8AttentionParts parts;
  parts.softmax = found.softmax;
  // Beside K and V.
  const int64_t part_of_near = static_cast<int64_t>(target.near_cache_bytes / 4);
  parts.block_rows = int8_attention_rows(found.scores.problem.m, found.scores.problem.n, part_of_near);
  const auto part = [&](Int8Lowering& l, const LowerContext& context) {
    set_plan(l, choose_int8_plan(Int8Attention::block_of(l.problem, parts.block_rows), context.plans));
    return Int8AttentionPart{l.problem, l.plan, offsets_of(l, context)};
  };
  parts.scores = part(found.scores, nodes[0]);
  parts.mix = part(found.mix, nodes[2]);
  parts.row_factor = found.mix.node.b_zero.values[0] + found.mix.b_shift();
  return std::make_shared<const Int8Attention>(std::move(parts));
}

void add_step(const LowerContext& context, const Int8Problem& scores, BoundAttention bound) {
  Step step;
  step.kernel = fmt::format("attention int8 {} {}x{}", to_string(scores.dot), scores.m, scores.n);
  step.reads = bound.reads();
  step.writes = {bound.y, bound.scratch};
  step.flop = bound.attention->flop();
  step.threads = scores.threads;
  step.shares = worthwhile_shares(step.flop / 4, step.threads);
  step.bytes = static_cast<double>(scores.batches * (scores.m + scores.n) * scores.k) +
               static_cast<double>(context.output_type(0).storage_bytes());
  step.next_weights = bound.next_weights;
  step.run = std::move(bound);
  context.add(std::move(step));
}

}  // namespace

std::vector<std::vector<NodeId>> int8_attentions(const Graph& graph, const SoleReaders& readers) {
  // What makes the node's first operand, for nobody else.
  const auto maker = [&](NodeId reader) {
    const Node& node = graph.node(reader);
    const bool is_alone = readers.of(node.inputs[0]) == reader && reads_first_only(node, node.inputs[0]);
    return is_alone ? graph.value(node.inputs[0]).producer : NodeId::none;
  };
  std::vector<std::vector<NodeId>> found;
  for (const NodeId last : graph.order()) {
    if (!is_quantized_product(graph.node(last))) continue;
    const NodeId middle = maker(last);
    if (middle == NodeId::none || !is_softmax(graph.node(middle)) || !graph.node(middle).epilogue) continue;
    const NodeId first = maker(middle);
    if (first == NodeId::none || !is_quantized_product(graph.node(first))) continue;
    found.push_back({first, middle, last});
  }
  return found;
}

bool lower_int8_attention(std::span<const LowerContext> nodes) {
  if (nodes.size() != 3) return false;
  std::optional<Described> found = describe(nodes);
  if (!found) return false;
  const LowerContext &first = nodes[0], &last = nodes[2];
  BoundAttention bound;
  try {
    bound.attention = emit(*found, nodes);
  } catch (const JitError&) {
    return false;
  }
  const auto scores = std::make_shared<const Int8Lowering>(std::move(found->scores));
  const auto mix = std::make_shared<const Int8Lowering>(std::move(found->mix));
  const PackedB k = packed_b(scores, first, first.input(1)), v = packed_b(mix, last, last.input(1));
  bound.k = k.buffer;
  bound.v = v.buffer;
  bound.score_columns = column_terms(scores, first, k);
  bound.mix_columns = column_terms(mix, last, v);
  if (scores->problem.has_rows) bound.score_rows = row_terms(scores, first, first.input(0));
  bound.q = first.buffer(first.input(0));
  bound.y = last.buffer(last.output(0));
  bound.operands.scores.a_stride = scores->node.a.row_stride;
  bound.operands.mix.c_stride = mix->problem.n * mix->result_bytes();
  Int8Inputs inputs = bind_inputs(*scores, first, bound.attention->score_changes());
  bound.score_inputs = std::move(inputs.buffers);
  bound.operands.scores.input_strides = inputs.strides;
  inputs = bind_inputs(*mix, last, bound.attention->mix_changes());
  bound.mix_inputs = std::move(inputs.buffers);
  bound.operands.mix.input_strides = inputs.strides;
  bound.scratch = last.thread_scratch(bound.attention->scratch_bytes());
  add_step(last, scores->problem, std::move(bound));
  return true;
}

}  // namespace lathe
