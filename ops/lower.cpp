#include "ops/lower.h"

#include <algorithm>
#include <cstring>

#include "ops/constant_release.h"
#include "ops/reference_step.h"
#include "ops/step_chains.h"
#include "src/base/check.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

BufferId add_buffer(LoweredGraph& out, Buffer buffer) {
  out.buffers.push_back(std::move(buffer));
  return static_cast<BufferId>(out.buffers.size() - 1);
}

BufferId fixed_buffer(LoweredGraph& out, Tensor tensor) {
  Buffer buffer;
  buffer.bytes = tensor.bytes();
  buffer.fixed = tensor.raw();
  buffer.keep_alive = std::move(tensor);
  return add_buffer(out, std::move(buffer));
}

Step copy_step(BufferId from, BufferId to, size_t bytes) {
  Step step;
  step.op = "Copy";
  step.kernel = "memcpy";
  step.reads = {from};
  step.writes = {to};
  step.bytes = 2.0 * static_cast<double>(bytes);
  step.run = [from, to, bytes](const StepArgs& args) {
    if (bytes > 0) std::memcpy(args.at<void>(to), args.at<const void>(from), bytes);
  };
  return step;
}

size_t plane_bytes(const TensorType& type) {
  if (!type.is_static() || type.layout.channel_block == 0 || type.rank() < 3 || type.dims[0].extent != 1) return 0;
  const int64_t blocks = divide_up(type.dims[1].extent, type.layout.channel_block);
  return blocks == 0 ? 0 : type.storage_bytes() / static_cast<size_t>(blocks);
}

// Gives every value that is used a buffer. A graph output that a node makes is written in place by that node; one that
// is also an input, a constant or another output is copied at the end.
void assign_buffers(const Graph& graph, LoweredGraph& out) {
  out.of_value.assign(graph.value_count(), BufferId::none);
  auto assign = [&](ValueId id, bool external) {
    if (id == ValueId::none || out.of_value[index_of(id)] != BufferId::none) return;
    const Value& value = graph.value(id);
    if (value.is_constant()) {
      out.of_value[index_of(id)] = fixed_buffer(out, value.constant);
      return;
    }
    Buffer buffer;
    // An object among the inputs is for what lies behind a cut; no step reads it.
    const bool is_unread = external && value.type.is_object();
    LATHE_CHECK(is_unread || value.type.is_static(),
                "value '" + value.name + "' has no static type: " + to_string(value.type));
    buffer.bytes = is_unread ? 0 : value.type.storage_bytes();
    buffer.external = external;
    buffer.plane_bytes = plane_bytes(value.type);
    out.of_value[index_of(id)] = add_buffer(out, std::move(buffer));
  };
  for (ValueId id : graph.inputs) assign(id, true);
  for (ValueId id : graph.outputs)
    if (!graph.value(id).is_constant()) assign(id, true);
  for (NodeId id : graph.order()) {
    for (ValueId input : graph.node(id).inputs) assign(input, false);
    for (ValueId output : graph.node(id).outputs) assign(output, false);
  }
  for (ValueId id : graph.inputs) out.inputs.push_back(out.of_value[index_of(id)]);
}

void bind_outputs(const Graph& graph, LoweredGraph& out) {
  for (ValueId id : graph.outputs) {
    if (graph.value(id).is_constant() && out.of_value[index_of(id)] == BufferId::none)
      out.of_value[index_of(id)] = fixed_buffer(out, graph.value(id).constant);
    const BufferId source = out.of_value[index_of(id)];
    const Buffer& buffer = out.buffer(source);
    const bool is_taken = std::find(out.outputs.begin(), out.outputs.end(), source) != out.outputs.end();
    const bool is_input = std::find(out.inputs.begin(), out.inputs.end(), source) != out.inputs.end();
    if (buffer.external && !is_taken && !is_input) {
      out.outputs.push_back(source);
      continue;
    }
    Buffer copy;
    copy.bytes = buffer.bytes;
    copy.external = true;
    const size_t bytes = copy.bytes;
    const BufferId target = add_buffer(out, std::move(copy));
    out.steps.push_back(copy_step(source, target, bytes));
    out.steps.back().node = graph.value(id).name;
    out.outputs.push_back(target);
  }
}

}  // namespace

std::pair<BufferId, size_t> LoweredGraph::root(BufferId id) const {
  size_t offset = 0;
  while (buffer(id).inside != BufferId::none) {
    offset += buffer(id).offset;
    id = buffer(id).inside;
  }
  return {id, offset};
}

LowerContext::LowerContext(const Graph& g, NodeId id, const Target& t, PackedWeights& packed, PlanSource& source,
                           LoweredGraph& out)
    : graph(g), node(g.node(id)), target(t), plans(source), packed_(packed), out_(out) {}

int LowerContext::input_count() const {
  return static_cast<int>(node.inputs.size()) - node.captures - (node.epilogue ? node.epilogue->inputs : 0);
}

bool LowerContext::has_input(int i) const { return i < input_count() && input(i) != ValueId::none; }

bool LowerContext::has_output(int i) const {
  return i < static_cast<int>(node.outputs.size()) && output(i) != ValueId::none;
}

Tensor LowerContext::constant(int i) const { return has_input(i) ? graph.value(input(i)).constant : Tensor(); }

std::vector<ValueId> LowerContext::epilogue_inputs() const {
  const int count = node.epilogue ? node.epilogue->inputs : 0;
  return {node.inputs.end() - count, node.inputs.end()};
}

BufferId LowerContext::buffer(ValueId id) const { return out_.of_value[index_of(id)]; }

BufferId LowerContext::scratch(size_t bytes) const {
  Buffer buffer;
  buffer.bytes = bytes;
  return add_buffer(out_, std::move(buffer));
}

BufferId LowerContext::thread_scratch(size_t bytes) const {
  Buffer buffer;
  buffer.bytes = bytes;
  buffer.per_thread = true;
  return add_buffer(out_, std::move(buffer));
}

BufferId LowerContext::constant_buffer(Tensor tensor) const { return fixed_buffer(out_, std::move(tensor)); }

Tensor LowerContext::packed(ValueId source, const std::string& format, const std::function<Tensor()>& pack) const {
  const Tensor& constant = graph.value(source).constant;
  LATHE_CHECK(constant.defined(), "only constants are packed ahead");
  return packed_.get(constant, format, pack);
}

bool LowerContext::is_true_of(ValueId constant, const std::string& question, const std::function<bool()>& find) const {
  const Tensor answer = packed(constant, question, [&] {
    Tensor found(DType::boolean, {1});
    *found.mutable_data<bool>() = find();
    return found;
  });
  return *answer.data<bool>();
}

void LowerContext::add(Step step) const {
  step.node = node.name;
  step.op = node.origin();
  if (condition_ != BufferId::none) {
    step.reads.push_back(condition_);
    step.runs = [at = condition_, runs = runs_](const StepArgs& args) { return runs(args.at<const void>(at)); };
  }
  out_.steps.push_back(std::move(step));
}

LowerContext LowerContext::only_if(BufferId buffer, const std::string& name,
                                   std::function<bool(const void*)> runs) const {
  LowerContext same = *this;
  same.condition_ = buffer;
  same.condition_name_ = "if " + std::to_string(static_cast<int>(buffer)) + " is " + name + ": ";
  same.runs_ = std::move(runs);
  return same;
}

bool LowerContext::alias(ValueId output, ValueId input) const { return view_of(output, input, 0); }

bool LowerContext::view_of(ValueId part, ValueId whole, size_t offset_bytes) const {
  const BufferId part_id = buffer(part), whole_id = buffer(whole);
  const auto [whole_root, whole_offset] = out_.root(whole_id);
  if (out_.buffer(part_id).is_planned()) {
    LATHE_CHECK(part_id != whole_root, "a buffer cannot lie inside itself");
    out_.buffer(part_id).inside = whole_id;
    out_.buffer(part_id).offset = offset_bytes;
    return true;
  }
  // The part is a graph output. If it is all of a planned buffer, that one can become the output instead.
  const Buffer& root = out_.buffer(whole_root);
  if (out_.buffer(part_id).inside != BufferId::none || !root.is_planned() || whole_offset + offset_bytes != 0 ||
      root.bytes != out_.buffer(part_id).bytes)
    return false;
  out_.buffer(whole_root).inside = part_id;
  return true;
}

bool LowerContext::place_inside(ValueId part, ValueId whole, size_t offset_bytes) const {
  const auto [part_root, part_offset] = out_.root(buffer(part));
  const BufferId whole_id = buffer(whole);
  Buffer& root = out_.buffer(part_root);
  if (!root.is_planned() || part_offset != 0 || root.bytes != out_.buffer(buffer(part)).bytes ||
      out_.root(whole_id).first == part_root)
    return false;
  // Equal sizes do not tell that the part is all that lies there: channels that fill a block only together have the
  // size of each. What is blocked and lies elsewhere is a part there.
  if (type(part).layout.channel_block != 0 && part_root != buffer(part)) return false;
  root.inside = whole_id;
  root.offset = offset_bytes;
  return true;
}

namespace {

void lower_node(const Graph& graph, NodeId id, const LowerOptions& options, LoweredGraph& out) {
  LowerContext context(graph, id, options.target, options.packed, options.plans, out);
  LowerFn* lower = options.ops.lowering_of(*context.node.op);
  if (lower != nullptr && lower(context)) return;
  if (context.node.op->reference == nullptr)
    throw Error(ErrorCode::unsupported, "node '" + context.node.name + "' (" + std::string(context.node.op->name) +
                                            "): these types or attributes are not supported");
  context.add(reference_step(graph, context.node, out, options.run_body));
}

// One step for the whole chain, or for as much of its end as can be; each other node by itself.
void lower_chain(const Graph& graph, const StepChain& chain, const LowerOptions& options, LoweredGraph& out) {
  std::vector<LowerContext> nodes;
  for (const NodeId id : chain.nodes) nodes.emplace_back(graph, id, options.target, options.packed, options.plans, out);
  size_t alone = 0;
  const auto rest = [&] { return std::span<const LowerContext>(nodes).subspan(alone); };
  while (rest().size() > 1 && !chain.lower(rest())) {
    lower_node(graph, chain.nodes[alone++], options, out);
  }
  if (rest().size() == 1) return lower_node(graph, chain.nodes.back(), options, out);
  // What lies between them is nowhere.
  for (size_t i = alone; i + 1 < chain.nodes.size(); ++i)
    out.buffer(out.of_value[index_of(graph.node(chain.nodes[i]).outputs[0])]).bytes = 0;
}

template <class AfterNode>
LoweredGraph lower_all(const Graph& graph, const LowerOptions& options, AfterNode after) {
  LoweredGraph out;
  assign_buffers(graph, out);
  const StepChains chains(graph, options.target);
  for (const NodeId id : graph.order()) {
    if (chains.is_inner(id)) continue;
    const StepChain* chain = chains.ending_at(id);
    if (chain == nullptr) {
      lower_node(graph, id, options, out);
      after(id, out);
      continue;
    }
    lower_chain(graph, *chain, options, out);
    for (const NodeId member : chain->nodes) after(member, out);
  }
  bind_outputs(graph, out);
  out.shared.clear();  // steps have what they want of it
  // Specializations are kept, and there are many.
  out.steps.shrink_to_fit();
  out.buffers.shrink_to_fit();
  return out;
}

}  // namespace

LoweredGraph lower_graph(const Graph& graph, const LowerOptions& options) {
  return lower_all(graph, options, [](NodeId, LoweredGraph&) {});
}

LoweredGraph lower_graph_once(Graph& graph, const LowerOptions& options) {
  graph.drop_unused_constants();
  ConstantRelease release(graph, options.packed);
  return lower_all(graph, options, [&](NodeId id, LoweredGraph& out) { release.after_lowering(id, out); });
}

}  // namespace lathe
