#include "ops/conv/conv_chain_lower.h"

#include <algorithm>

#include "ops/conv/conv_chain.h"
#include "ops/conv/conv_lower.h"
#include "ops/conv/conv_operands.h"
#include "ops/conv/conv_tuning.h"
#include "ops/pool/pool_windows.h"
#include "src/base/check.h"

namespace lathe {
namespace {

bool is_max_pool(const Node& node) { return node.op->domain.empty() && node.op->name == "MaxPool"; }
bool is_conv(const Node& node) { return node.op->domain.empty() && node.op->name == "Conv"; }

bool is_float_picture(const TensorType& type) {
  return type.is_static() && type.dtype == DType::f32 && type.rank() == 4 && type.storage_bytes() > 0;
}

// Parts of the cache near a core. mobilenetv2's 112x112 layers, whose results take 1.5 to 4.6 of it, gain 10 %; its
// 56x56 layers (1.7) gain and lose nothing, smaller ones would lose by more and shorter rows. A chain that pays for one
// value takes in the next, if it would not have stayed near either.
constexpr double kLarge = 1.5, kWorthwhile = 0.5;
// Of the weights of a dense stage: larger ones leave the cache while a band passes, and come again for each. 728
// channels to 728 of 19x19 pixels take 7 % longer in bands on a Zen 3.
constexpr double kWeights = 0.5;
// Of the rows between the stages.
constexpr double kBand = 0.5;
// Of ChainSchedule::longest_share(). Two threads that halve six rows before a 5x5 window compute four of these twice,
// and take twice as long as one by one.
constexpr double kLongest = 1.25;

class ChainFinder {
 public:
  ChainFinder(const Graph& graph, const SoleReaders& readers, const Target& target)
      : graph_(graph),
        readers_(readers),
        lanes_(vector_lanes(target.isa)),
        near_cache_bytes_(target.near_cache_bytes) {}

  // The chain around a depthwise convolution or up to a pool; fewer than two nodes: none.
  std::vector<NodeId> around(NodeId id) const {
    const bool is_pool = is_known_pool(id);
    if (!is_pool && !is_depthwise(id)) return {};
    std::vector<NodeId> chain;
    const ValueId x = graph_.node(id).inputs[0], y = graph_.node(id).outputs[0];
    double largest = 0;
    const NodeId before = graph_.value(x).producer;
    if (before != NodeId::none && is_dense(before) && only_reader(before) == id && part_of_near(x) > kWorthwhile) {
      largest = part_of_near(x);
      chain.push_back(before);
    }
    chain.push_back(id);
    const NodeId behind = is_pool ? NodeId::none : only_reader(id);
    if (behind != NodeId::none && is_pointwise(behind) && part_of_near(y) > kWorthwhile) {
      largest = std::max(largest, part_of_near(y));
      chain.push_back(behind);
    }
    return largest > kLarge ? chain : std::vector<NodeId>();
  }

  // A convolution and the pool behind it; none: they are not such.
  std::vector<NodeId> pooled(NodeId pool) const {
    if (!is_known_pool(pool) || !is_of_halves(graph_.node(pool))) return {};
    const NodeId conv = graph_.value(graph_.node(pool).inputs[0]).producer;
    if (conv == NodeId::none || !is_known_conv(conv) || only_reader(conv) != pool || is_depthwise(conv)) return {};
    const TensorType& weights = type(graph_.node(conv).inputs[1]);
    if (weights.dims[2].extent == 1 || weights.dims[3].extent == 1) return {};
    return is_blocked(graph_.node(conv).inputs[0]) ? std::vector<NodeId>{conv, pool} : std::vector<NodeId>();
  }

 private:
  const TensorType& type(ValueId id) const { return graph_.value(id).type; }
  bool is_blocked(ValueId id) const { return type(id).layout.channel_block == lanes_; }
  double part_of_near(ValueId id) const {
    return static_cast<double>(type(id).storage_bytes()) / static_cast<double>(near_cache_bytes_);
  }

  // The only node that reads the first output, as its own first input.
  NodeId only_reader(NodeId id) const {
    const ValueId result = graph_.node(id).outputs[0];
    const NodeId reader = readers_.of(result);
    if (reader == NodeId::none || !reads_first_only(graph_.node(reader), result)) return NodeId::none;
    return has_simple_operands(id) ? reader : NodeId::none;
  }

  // Windows of 2x2 that lie side by side inside of the picture.
  bool is_of_halves(const Node& pool) const {
    const Dims in = type(pool.inputs[0]).extents(), out = type(pool.outputs[0]).extents();
    const Window window = read_pool(pool, in);
    for (size_t i = 0; i < window.axes(); ++i) {
      if (window.kernel[i] != 2 || window.strides[i] != 2 || window.dilations[i] != 1 || window.pads_begin[i] != 0 ||
          out[i + 2] * 2 > in[i + 2])
        return false;
    }
    return true;
  }
  // Nothing that has rows.
  bool has_simple_operands(NodeId id) const {
    const Node& node = graph_.node(id);
    const size_t first = node.inputs.size() - static_cast<size_t>(node.epilogue ? node.epilogue->inputs : 0);
    return std::all_of(node.inputs.begin() + static_cast<long>(first), node.inputs.end(), [&](ValueId operand) {
      const Value& value = graph_.value(operand);
      if (!value.is_constant()) return false;
      const Dims dims = value.constant.dims();
      const int64_t channels = type(node.outputs[0]).dims[1].extent;
      return value.constant.size() == 1 ||
             (dims.size() >= 3 && dims[dims.size() - 3] == channels && value.constant.size() == channels);
    });
  }

  // A convolution with constant weights from blocks, or a picture's few channels, to blocks.
  bool is_known_conv(NodeId id) const {
    const Node& node = graph_.node(id);
    if (!is_conv(node) || node.captures > 0) return false;
    if (!is_float_picture(type(node.inputs[0])) || !is_float_picture(type(node.outputs[0]))) return false;
    if (!graph_.value(node.inputs[1]).is_constant() || type(node.inputs[1]).rank() != 4) return false;
    const bool has_bias = node.inputs.size() - static_cast<size_t>(node.epilogue ? node.epilogue->inputs : 0) > 2 &&
                          node.inputs[2] != ValueId::none;
    if (has_bias && !graph_.value(node.inputs[2]).is_constant()) return false;
    return is_blocked(node.outputs[0]);
  }
  bool is_known_pool(NodeId id) const {
    const Node& node = graph_.node(id);
    return is_max_pool(node) && node.outputs.size() == 1 && is_float_picture(type(node.inputs[0])) &&
           is_float_picture(type(node.outputs[0])) && is_blocked(node.inputs[0]) && is_blocked(node.outputs[0]);
  }
  bool is_dense(NodeId id) const {
    if (!is_known_conv(id)) return false;
    const Node& node = graph_.node(id);
    const TensorType& x = type(node.inputs[0]);
    const bool reads_picture = x.layout.channel_block == 0 && x.dims[1].extent < lanes_;
    return node.attributes.get_int("group", 1) == 1 && (is_blocked(node.inputs[0]) || reads_picture) &&
           part_of_near(node.inputs[1]) <= kWeights;
  }
  bool is_depthwise(NodeId id) const {
    if (!is_known_conv(id)) return false;
    const Node& node = graph_.node(id);
    const int64_t channels = type(node.inputs[0]).dims[1].extent;
    return channels > 1 && node.attributes.get_int("group", 1) == channels &&
           type(node.outputs[0]).dims[1].extent == channels && is_blocked(node.inputs[0]);
  }
  bool is_pointwise(NodeId id) const {
    if (!is_dense(id)) return false;
    const Node& node = graph_.node(id);
    const TensorType &weights = type(node.inputs[1]), &x = type(node.inputs[0]), &y = type(node.outputs[0]);
    return weights.dims[2].extent == 1 && weights.dims[3].extent == 1 && x.dims[2] == y.dims[2] &&
           x.dims[3] == y.dims[3];
  }

  const Graph& graph_;
  const SoleReaders& readers_;
  int lanes_;
  size_t near_cache_bytes_;
};

std::vector<std::vector<NodeId>> find_chains(const Graph& graph, const SoleReaders& readers, const Target& target,
                                             std::vector<NodeId> (ChainFinder::*find)(NodeId) const) {
  const ChainFinder finder(graph, readers, target);
  std::vector<std::vector<NodeId>> chains;
  for (const NodeId id : graph.order()) {
    std::vector<NodeId> chain = (finder.*find)(id);
    if (chain.size() > 1) chains.push_back(std::move(chain));
  }
  return chains;
}

// Rows of the last stage for which everything in between takes about `bytes`, but at least one.
int64_t rows_within(const std::vector<ChainStage>& stages, int64_t bytes) {
  const int64_t most = stages.back().problem.phases[0].y.out;
  const auto needed = [&](int64_t rows) {
    int64_t sum = 0;
    for (size_t s = stages.size() - 1; s > 0; --s) {
      const ConvProblem& problem = stages[s].problem;
      const ConvAxis& y = problem.phases[0].y;
      const int64_t span = y.taps.back().offset - y.taps.front().offset + 1;
      rows = std::min(y.in, (rows - 1) * y.stride + span);
      sum += rows * problem.phases[0].x.in * problem.in_blocks() * problem.in_lanes() * 4;
    }
    return sum;
  };
  int64_t rows = 1;
  while (rows < most && needed(rows + 1) <= bytes) ++rows;
  return rows;
}

struct BoundChain {
  std::vector<ChainStage> stages;
  std::vector<std::vector<BufferId>> operands;
};

ChainStage pool_stage(const LowerContext& context) {
  const Dims in = context.input_type(0).extents();
  ChainStage stage;
  stage.kind = ChainKind::max_pool;
  stage.problem.batch = in[0];
  stage.problem.in_channels = stage.problem.out_channels = stage.problem.groups = in[1];
  stage.problem.lanes = vector_lanes(context.target.isa);
  stage.problem.phases = {pool_windows(context)};
  return stage;
}

// nullopt: not these types.
std::optional<BoundChain> bind_stages(std::span<const LowerContext> nodes) {
  BoundChain chain;
  for (const LowerContext& context : nodes) {
    const int lanes = vector_lanes(context.target.isa);
    if (is_max_pool(context.node)) {
      chain.stages.push_back(pool_stage(context));
      chain.operands.emplace_back();
      continue;
    }
    if (!has_float_types(context)) return std::nullopt;
    const std::optional<BoundEpilogue> bound = bind_conv_epilogue(context, context.output_type(0).extents(), lanes);
    if (!bound) return std::nullopt;
    ChainStage stage;
    stage.problem = conv_problem_of(context);
    stage.problem.lanes = lanes;
    stage.problem.has_bias = context.has_input(2);
    stage.problem.epilogue = bound->epilogue;
    set_accuracy(stage.problem, context.target.accuracy);
    stage.problem.phases[0].lanes = context.input_type(0).layout.channel_block == 0 ? 1 : lanes;
    stage.kind = is_depthwise(stage.problem) ? ChainKind::depthwise : ChainKind::dense;
    stage.operand_batch_bytes = bound->batch_bytes;
    chain.operands.push_back(bound->buffers);
    chain.stages.push_back(std::move(stage));
  }
  return chain;
}

// Plans as each convolution would have by itself, but for where outputs go. False: one has a faster way than a direct
// convolution.
bool choose_plans(std::vector<ChainStage>& stages, const LowerContext& context, int threads) {
  const Isa isa = context.target.isa;
  for (ChainStage& stage : stages) {
    if (stage.kind != ChainKind::dense) continue;
    ConvProblem merged = stage.problem;
    merge_axes(merged);
    stage.plan = plan_of(context.plans.choose(conv_tuning_task(merged, isa, threads)), isa);
    if (stage.plan.winograd > 0 || stage.plan.strassen) return false;
    stage.plan.ahead = stage.plan.ahead && &stage == &stages.back();  // a band stays in the cache
  }
  return true;
}

struct StageBuffers {
  BufferId weights = BufferId::none, bias = BufferId::none;
  std::vector<BufferId> operands;
};

StageBuffers bind_stage(const LowerContext& context, const std::shared_ptr<const ConvChain>& chain, size_t stage,
                        const std::vector<BufferId>& operands) {
  StageBuffers buffers;
  buffers.operands = operands;
  if (!chain->has_weights(stage)) return buffers;
  const Tensor constant = context.constant(1);
  buffers.weights = context.constant_buffer(context.packed(context.input(1), chain->packing(stage), [&] {
    Tensor packed = allocate_weights(DType::f32, {chain->packed_size(stage)});
    chain->pack(stage, constant.data<float>(), packed.mutable_data<float>());
    return packed;
  }));
  if (context.has_input(2))
    buffers.bias = bind_bias(context, chain->stages()[stage].problem.out_channels, vector_lanes(context.target.isa));
  return buffers;
}

void add_chain_step(std::span<const LowerContext> nodes, const std::shared_ptr<const ConvChain>& chain,
                    const std::vector<std::vector<BufferId>>& operands, int threads) {
  const LowerContext &first = nodes.front(), &last = nodes.back();
  std::vector<StageBuffers> bound;
  for (size_t s = 0; s < nodes.size(); ++s) bound.push_back(bind_stage(nodes[s], chain, s, operands[s]));
  const BufferId source = first.buffer(first.input(0)), target = last.buffer(last.output(0));
  const BufferId scratch = last.thread_scratch(static_cast<size_t>(chain->scratch_bytes()));
  Step step;
  step.kernel = "conv " + chain->plan_text();
  step.reads = {source, scratch};
  step.writes = {target, scratch};
  step.threads = threads;
  step.bytes = static_cast<double>(first.input_type(0).storage_bytes() + last.output_type(0).storage_bytes());
  for (size_t s = 0; s < nodes.size(); ++s) {
    const StageBuffers& buffers = bound[s];
    for (const BufferId id : {buffers.weights, buffers.bias})
      if (id != BufferId::none) step.reads.push_back(id);
    step.reads.insert(step.reads.end(), buffers.operands.begin(), buffers.operands.end());
    step.flop += chain->stages()[s].problem.flop();
    if (chain->has_weights(s)) step.bytes += 4.0 * static_cast<double>(chain->packed_size(s));
  }
  step.next_weights = std::make_shared<const void*>(nullptr);
  step.run = [=, next = step.next_weights](const StepArgs& args) {
    ConvChain::Arguments arguments;
    arguments.source = args.at<const float>(source);
    arguments.target = args.at<float>(target);
    if (args.ends_run()) arguments.next_weights = *next;
    for (size_t s = 0; s < bound.size(); ++s) {
      ConvChain::StageArguments& stage = arguments.stages[s];
      if (bound[s].weights != BufferId::none) stage.weights = args.at<const float>(bound[s].weights);
      if (bound[s].bias != BufferId::none) stage.bias = args.at<const float>(bound[s].bias);
      for (size_t i = 0; i < bound[s].operands.size(); ++i)
        stage.operands[i] = args.at<const void>(bound[s].operands[i]);
    }
    chain->run(arguments, args.own<void>(scratch), args.share);
  };
  last.add(std::move(step));
}

}  // namespace

std::vector<std::vector<NodeId>> conv_chains(const Graph& graph, const SoleReaders& readers, const Target& target) {
  return find_chains(graph, readers, target, &ChainFinder::around);
}

std::vector<std::vector<NodeId>> pooled_convs(const Graph& graph, const SoleReaders& readers, const Target& target) {
  return find_chains(graph, readers, target, &ChainFinder::pooled);
}

bool lower_conv_chain(std::span<const LowerContext> nodes) {
  const LowerContext& last = nodes.back();
  std::optional<BoundChain> bound = bind_stages(nodes);
  if (!bound) return false;
  double flop = 0;
  for (const ChainStage& stage : bound->stages) flop += stage.problem.flop();
  const int threads = conv_threads(flop, last.target);
  const int64_t rows =
      rows_within(bound->stages, static_cast<int64_t>(kBand * static_cast<double>(last.target.near_cache_bytes)));
  if (!choose_plans(bound->stages, last, threads)) return false;
  ChainSchedule schedule = schedule_of(bound->stages, threads, rows);
  if (schedule.longest_share() > kLongest) return false;
  try {
    const auto chain =
        std::make_shared<const ConvChain>(std::move(bound->stages), last.target.isa, std::move(schedule));
    add_chain_step(nodes, chain, bound->operands, threads);
  } catch (const JitError&) {
    return false;
  }
  return true;
}

}  // namespace lathe
