#include "tests/ops/one_node.h"

#include <algorithm>
#include <cstring>

#include "ops/op_def.h"
#include "tests/ops/step_memory.h"

namespace lathe::testing {
namespace {

Tensor read_bytes(const void* from, const TensorType& type) {
  Tensor plain(type.dtype, type.extents());
  const int block = type.layout.channel_block;
  for (int64_t i = 0; i < plain.size(); ++i) {
    static_cast<uint8_t*>(plain.mutable_raw())[i] =
        static_cast<const uint8_t*>(from)[block == 0 ? i : blocked_index(plain.dims(), block, i)];
  }
  return plain;
}

}  // namespace

Candidate RandomPlans::choose(const TuningTask& task) {
  for (int tries = 0; tries < 1000; ++tries) {
    Candidate candidate;
    for (const Knob& knob : task.space.knobs) {
      candidate[knob.name] = knob.choices[random_() % knob.choices.size()];
    }
    if (task.space.allowed == nullptr || task.space.allowed(candidate)) return candidate;
  }
  return task.space.fallback;
}

Tensor random_tensor(const Dims& dims, std::mt19937& random, float low, float high) {
  Tensor tensor(DType::f32, dims);
  std::uniform_real_distribution<float> uniform(low, high);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<float>()[i] = uniform(random);
  return tensor;
}

Tensor random_bytes(DType dtype, const Dims& dims, std::mt19937& random) {
  Tensor tensor(dtype, dims);
  auto* bytes = static_cast<uint8_t*>(tensor.mutable_raw());
  for (size_t i = 0; i < tensor.bytes(); ++i) bytes[i] = static_cast<uint8_t>(random());
  return tensor;
}

int64_t blocked_index(const Dims& dims, int block, int64_t flat) {
  int64_t pixels = 1;
  for (size_t i = 2; i < dims.size(); ++i) pixels *= dims[i];
  const int64_t pixel = flat % pixels, channel = flat / pixels % dims[1], image = flat / pixels / dims[1];
  const int64_t blocks = (dims[1] + block - 1) / block;
  return ((image * blocks + channel / block) * pixels + pixel) * block + channel % block;
}

void write_value(void* to, const TensorType& type, const Tensor& plain) {
  auto* out = static_cast<float*>(to);
  const int block = type.layout.channel_block;
  if (block == 0) {
    std::memcpy(to, plain.raw(), plain.bytes());
    return;
  }
  if (bits_of(type.dtype) == 8) {
    std::memset(to, 0xa5, type.storage_bytes());
    for (int64_t i = 0; i < plain.size(); ++i) {
      static_cast<uint8_t*>(to)[blocked_index(plain.dims(), block, i)] = static_cast<const uint8_t*>(plain.raw())[i];
    }
    return;
  }
  std::fill(out, out + type.storage_bytes() / sizeof(float), 1e30f);
  for (int64_t i = 0; i < plain.size(); ++i) out[blocked_index(plain.dims(), block, i)] = plain.data<float>()[i];
}

Tensor read_value(const void* from, const TensorType& type) {
  if (bits_of(type.dtype) == 8) return read_bytes(from, type);
  if (bits_of(type.dtype) == 16) {
    Tensor plain(type.dtype, type.extents());
    std::memcpy(plain.mutable_raw(), from, plain.bytes());
    return plain;
  }
  Tensor plain(DType::f32, type.extents());
  const auto* in = static_cast<const float*>(from);
  const int block = type.layout.channel_block;
  for (int64_t i = 0; i < plain.size(); ++i) {
    plain.mutable_data<float>()[i] = in[block == 0 ? i : blocked_index(plain.dims(), block, i)];
  }
  return plain;
}

void OneNode::make(const std::string& op, int version, Attributes attributes, const std::vector<int>& blocks,
                   int out_block, std::optional<Epilogue> epilogue) {
  Node made;
  made.op = &OpRegistry::builtin().require(domain, op, version);
  made.version = version;
  made.name = "tested";
  made.attributes = std::move(attributes);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) {
      made.inputs.push_back(ValueId::none);
      continue;
    }
    TensorType type = TensorType::of(inputs[i].dtype(), inputs[i].dims());
    type.layout.channel_block = blocks[i];
    const std::string name = "input" + std::to_string(i);
    if (is_constant[i]) {
      made.inputs.push_back(graph.add_constant(name, inputs[i]));
    } else {
      made.inputs.push_back(graph.add_value(name, type));
      graph.inputs.push_back(made.inputs.back());
    }
  }
  made.epilogue = std::move(epilogue);
  const ValueId output = graph.add_value("output", TensorType());
  made.outputs = {output};
  node = graph.add_node(made);
  graph.value(output).type = infer_node(graph, graph.node(node))[0];
  graph.value(output).type.layout.channel_block = out_block;
  graph.outputs = {output};
}

Tensor OneNode::expected() const { return run_reference(graph.node(node), inputs, {})[0]; }

std::optional<Tensor> OneNode::run(Isa isa, int threads) const {
  FallbackPlans plans;
  return run(isa, threads, plans);
}

std::optional<Tensor> OneNode::run(Isa isa, int threads, PlanSource& plans) const {
  PackedWeights packed;
  const LoweredGraph lowered = lower_graph(graph, {OpRegistry::builtin(), {isa, threads}, packed, plans, nullptr});
  for (const Step& step : lowered.steps) {
    if (step.kernel == "reference") return std::nullopt;
  }
  const StepMemory memory(lowered);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ValueId id = graph.node(node).inputs[i];
    if (id == ValueId::none || is_constant[i]) continue;
    write_value(memory.at(id), graph.value(id).type, inputs[i]);
  }
  memory.run();
  return read_value(memory.at(lowered.outputs[0]), graph.value(graph.outputs[0]).type);
}

}  // namespace lathe::testing
