#include "tools/node_task.h"

#include <algorithm>
#include <array>
#include <set>

#include "graph/made_up_tensor.h"
#include "graph/node_text.h"
#include "jit/expression/vector_program.h"
#include "lathe/error.h"
#include "ops/bench_operands.h"
#include "src/runtime/specialization.h"

namespace lathe::tools {
namespace {

using Level = std::pair<std::string_view, Accuracy>;
constexpr std::array<Level, 2> kAccuracies = {
    {{"accuracy=strict ", Accuracy::strict}, {"accuracy=fast ", Accuracy::fast}}};
constexpr std::string_view kPrefix = "node ";

Arithmetic arithmetic_of(const Step& step) {
  const auto has = [&](std::string_view word) { return step.kernel.find(word) != std::string::npos; };
  // Winograd's products are of 16-bit integers, but what it saves is measured at the direct algorithm.
  if (has("u8s8") || has("s8u8") || has("int8 winograd")) return Arithmetic::bytes;
  if (has("pairs")) return Arithmetic::pairs;
  return step.kernel.ends_with(" bf16") ? Arithmetic::bf16 : Arithmetic::f32;
}

// Which element of its first operand a node looks at first, by an operand that holds indices or lengths.
void fill_indices(const Graph& graph, const Node& node, size_t slot, Tensor& tensor) {
  if (tensor.dtype() != DType::i64 && tensor.dtype() != DType::i32) return;
  int64_t bound = 1, step = 1;
  const TensorType& data = graph.value(node.inputs[0]).type;
  if (node.op->name == "Gather" && slot == 1 && data.rank() > 0) {
    const int64_t axis = node.attributes.get_int("axis", 0);
    bound = data.dims[static_cast<size_t>(axis < 0 ? axis + data.rank() : axis)].extent;
    step = 7919;  // far from each other
  } else if (!node.op->name.starts_with("Gather") && !node.op->name.starts_with("Scatter")) {
    return;
  }
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const int64_t index = i * step % std::max<int64_t>(bound, 1);
    if (tensor.dtype() == DType::i64) {
      tensor.mutable_data<int64_t>()[i] = index;
    } else {
      tensor.mutable_data<int32_t>()[i] = static_cast<int32_t>(index);
    }
  }
}

void fill_lengths(const Graph& graph, const Node& node, size_t slot, Tensor& tensor) {
  const bool is_recurrent = node.op->name == "LSTM" || node.op->name == "GRU" || node.op->name == "RNN";
  if (!is_recurrent || slot != 4 || tensor.dtype() != DType::i32) return;
  const auto length = static_cast<int32_t>(graph.value(node.inputs[0]).type.dims[0].extent);
  std::fill_n(tensor.mutable_data<int32_t>(), tensor.size(), length);
}

Tensor input_tensor(const Graph& graph, ValueId id) {
  Tensor tensor = made_up_tensor(graph.value(id).type.dtype, graph.value(id).type.storage_dims());
  for (const NodeId node : graph.order()) {
    const std::vector<ValueId>& inputs = graph.node(node).inputs;
    const auto slot = static_cast<size_t>(std::find(inputs.begin(), inputs.end(), id) - inputs.begin());
    if (slot == inputs.size() || inputs[0] == ValueId::none) continue;
    fill_indices(graph, graph.node(node), slot, tensor);
    fill_lengths(graph, graph.node(node), slot, tensor);
  }
  return tensor;
}

class NodeBench {
 public:
  NodeBench(Graph graph, const Target& target, PlanSource& plans)
      : team_(std::make_shared<ThreadTeam>(target.threads)),
        specialization_(std::make_unique<Graph>(std::move(graph)),
                        {OpRegistry::builtin(), target, packed_, plans, nullptr}, team_, std::make_shared<ArenaPool>(),
                        Constants::keep) {
    const Graph& own = specialization_.graph();
    for (const ValueId id : own.inputs) inputs_.push_back(input_tensor(own, id));
    for (const ValueId id : own.outputs)
      outputs_.push_back(made_up_tensor(own.value(id).type.dtype, own.value(id).type.storage_dims()));
    find_constants();
  }

  const std::vector<Step>& steps() const { return specialization_.lowered().steps; }

  void describe(TuningTask& task) const {
    double most_flop = -1;
    for (const Step& step : steps()) {
      task.flop += step.flop;
      task.bytes += step.bytes;
      task.reread_bytes += step.reread_bytes;
      task.reread_near_bytes = std::max(task.reread_near_bytes, step.reread_near_bytes);
      if (step.reread_bytes > 0) task.reread_flop += step.flop;
      if (step.flop > most_flop) {
        most_flop = step.flop;
        task.arithmetic = arithmetic_of(step);
      }
    }
    const double written = bytes_of(outputs_), constants = constant_bytes();
    const double operands = bytes_of(inputs_) + written + constants;
    // Steps between which something is handed on count it too; a Gather does not read all that it may.
    if (task.bytes == 0 || task.bytes > operands) task.bytes = operands;
    task.written_bytes = std::min(written, task.bytes);
    task.weight_bytes = std::min(constants, std::max(0.0, task.bytes - task.written_bytes - bytes_of(inputs_)));
  }

  void prepare() {
    const void* weights = nullptr;
    for (const Step& step : steps())
      if (weights == nullptr) weights = step.weights;
    caches_.prepare(*team_, inputs_, constants_, weights);
  }
  void run() { specialization_.run(inputs_, outputs_, nullptr); }

 private:
  static double bytes_of(const std::vector<Tensor>& tensors) {
    double bytes = 0;
    for (const Tensor& tensor : tensors) bytes += static_cast<double>(tensor.bytes());
    return bytes;
  }
  double constant_bytes() const {
    double bytes = 0;
    for (const ModelCaches::Memory& memory : constants_) bytes += static_cast<double>(memory.bytes);
    return bytes;
  }

  // Those that steps read, packed or as they are.
  void find_constants() {
    const LoweredGraph& lowered = specialization_.lowered();
    std::set<BufferId> seen;
    for (const Step& step : steps()) {
      for (const BufferId read : step.reads) {
        const BufferId root = lowered.root(read).first;
        if (lowered.buffer(root).fixed == nullptr || !seen.insert(root).second) continue;
        constants_.push_back({lowered.buffer(root).fixed, lowered.buffer(root).bytes});
      }
    }
  }

  PackedWeights packed_;
  std::shared_ptr<ThreadTeam> team_;
  Specialization specialization_;
  std::vector<Tensor> inputs_, outputs_;
  std::vector<ModelCaches::Memory> constants_;
  ModelCaches caches_;
};

// Sets the accuracy that the text asks for.
Graph read_task(std::string_view text, Target& target) {
  std::string_view line = text.substr(std::min(text.size(), kPrefix.size()));
  for (const auto& [word, level] : kAccuracies) {
    if (!line.starts_with(word)) continue;
    target.accuracy = level;
    line.remove_prefix(word.size());
  }
  return read_nodes(line, OpRegistry::builtin(), vector_lanes(target.isa));
}

void add_work(PointwiseWork& work, const Expression& expression, Isa isa, double elements) {
  for (const VecInstruction& instruction : lower_expression(expression, isa).code) {
    const VecOp op = instruction.op;
    if (op == VecOp::mul || op == VecOp::fma || op == VecOp::fnma || op == VecOp::fms) work.flop += 2 * elements;
    if (op == VecOp::div) work.divisions += elements;
  }
}

bool is_float_work(const Graph& graph, const Node& node) {
  return graph.value(node.inputs[0]).type.dtype == DType::f32 && node.epilogue->expression.output == DType::f32;
}

}  // namespace

std::optional<std::string> node_task_text(const Graph& graph, std::span<const NodeId> nodes, Accuracy accuracy) {
  std::string text(kPrefix);
  for (const auto& [word, level] : kAccuracies)
    if (level == accuracy) text += word;
  const std::optional<std::string> node = node_text(graph, nodes);
  return node ? std::optional(text + *node) : std::nullopt;
}

bool is_node_task(std::string_view text) { return text.starts_with(kPrefix); }

TuningTask parse_node_task(std::string_view text, int threads, PlanSource& plans) {
  Target target{usable_isa(), threads};
  const auto bench = std::make_shared<NodeBench>(read_task(text, target), target, plans);
  if (bench->steps().empty())
    throw Error(ErrorCode::invalid_argument, "'" + std::string(text) + "': there is nothing to compute");
  TuningTask task;
  task.family = "node";
  task.key = std::string(text.substr(kPrefix.size()));
  task.threads = threads;
  bench->describe(task);
  task.space.allowed = [](const Candidate& candidate) { return candidate.empty(); };
  task.build = [bench](const Candidate&) -> Runner {
    return {[bench] { bench->run(); }, [bench] { bench->prepare(); }};
  };
  return task;
}

PointwiseWork pointwise_work(std::string_view text) {
  Target target{usable_isa()};
  const Graph graph = read_task(text, target);
  PointwiseWork work;
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    const bool is_bare = node.op->domain == "lathe" && node.op->name == "Pointwise";  // all that it does is behind it
    const bool is_pointwise = node.op->express != nullptr || is_bare;
    // What others do on their accumulators is beside products of float32; integers may look it up.
    if (!is_pointwise && (!node.op->fuses_epilogue || !node.epilogue || !is_float_work(graph, node))) {
      work.is_all = false;
      continue;
    }
    work.is_all = work.is_all && is_pointwise;
    double elements = 1;
    for (const int64_t extent : graph.value(node.outputs[0]).type.extents()) elements *= static_cast<double>(extent);
    std::vector<TensorType> types;
    for (const ValueId input : node.inputs)
      types.push_back(input == ValueId::none ? TensorType() : graph.value(input).type);
    if (node.op->express != nullptr) {
      const auto constant = [&](int i) {
        const auto slot = static_cast<size_t>(i);
        const bool is_there = slot < node.inputs.size() && node.inputs[slot] != ValueId::none;
        return is_there ? graph.value(node.inputs[slot]).constant : Tensor();
      };
      if (const auto expression = node.op->express(node, types, constant))
        add_work(work, *expression, target.isa, elements);
    }
    if (node.epilogue) add_work(work, node.epilogue->expression, target.isa, elements);
  }
  return work;
}

}  // namespace lathe::tools
