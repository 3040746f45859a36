#include "tests/fuzz/graph_maker.h"

#include <algorithm>

#include "graph/infer.h"
#include "graph/passes/rewrite.h"
#include "ops/op_def.h"

namespace lathe::testing {
namespace {

constexpr int kVersion = 17;
constexpr int64_t kMostElements = 6000;

bool spreads(const Dims& from, const Dims& into) {
  if (from.size() > into.size()) return false;
  const size_t shift = into.size() - from.size();
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] != 1 && from[i] != into[shift + i]) return false;
  }
  return true;
}

}  // namespace

void GraphMaker::add_inputs() {
  // A picture, a batch of sequences, a small matrix: of one first extent, which may be open.
  const int64_t batch = 1 + static_cast<int64_t>(random_() % 2);
  static constexpr int64_t kChannels[] = {3, 8, 16, 20};
  const Dims shapes[] = {{batch, kChannels[random_() % 4], 5, 6}, {batch, 7, 12}, {batch, 12}};
  for (const Dims& dims : shapes) {
    const ValueId id = graph_.add_value("input" + std::to_string(dims.size()), TensorType::of(DType::f32, dims));
    graph_.inputs.push_back(id);
    tensors_.push_back(noise(dims, -1, 1));
    values_.push_back({id, dims});
  }
  inputs_ = values_;
}

const GraphMaker::Made& GraphMaker::pick(uint32_t choice) const {
  // Half of all picks take one of the last three values.
  const size_t recent = std::min<size_t>(3, values_.size());
  const size_t back = choice % 2 == 0 ? (choice / 2) % recent : (choice / 2) % values_.size();
  return values_[values_.size() - 1 - back];
}

const GraphMaker::Made* GraphMaker::pick_of_rank(uint32_t choice, size_t rank) const {
  std::vector<const Made*> fitting;
  for (const Made& made : values_) {
    if (made.dims.size() == rank) fitting.push_back(&made);
  }
  if (fitting.empty()) return nullptr;
  const size_t recent = std::min<size_t>(2, fitting.size());
  const size_t back = choice % 2 == 0 ? (choice / 2) % recent : (choice / 2) % fitting.size();
  return fitting[fitting.size() - 1 - back];
}

const GraphMaker::Made* GraphMaker::pick_spreading(uint32_t choice, const Dims& dims) const {
  std::vector<const Made*> fitting;
  for (const Made& made : values_) {
    if (spreads(made.dims, dims)) fitting.push_back(&made);
  }
  return fitting.empty() ? nullptr : fitting[choice % fitting.size()];
}

Tensor GraphMaker::noise(const Dims& dims, float low, float high) {
  std::uniform_real_distribution<float> uniform(low, high);
  Tensor tensor(DType::f32, dims);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.mutable_data<float>()[i] = uniform(random_);
  return tensor;
}

ValueId GraphMaker::weights(const Dims& dims, float low, float high) {
  return graph_.add_constant(fresh(), noise(dims, low, high));
}

ValueId GraphMaker::scalar(float value) { return graph_.add_constant(fresh(), Tensor::scalar<float>(value)); }

ValueId GraphMaker::constant(Tensor tensor) { return graph_.add_constant(fresh(), std::move(tensor)); }

ValueId GraphMaker::integers(const std::vector<int64_t>& values) {
  return graph_.add_constant(fresh(), Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values));
}

ValueId GraphMaker::place(int64_t index) { return graph_.add_constant(fresh(), Tensor::scalar<int64_t>(index)); }

std::vector<ValueId> GraphMaker::nodes(const char* type, std::vector<ValueId> operands, int results,
                                       NamedAttributes attributes) {
  Node made;
  made.op = &OpRegistry::builtin().require("", type, kVersion);
  made.version = kVersion;
  made.name = "n" + fresh();
  made.inputs = std::move(operands);
  for (auto& [key, value] : attributes) made.attributes.set(key, std::move(value));
  for (int i = 0; i < results; ++i) made.outputs.push_back(graph_.add_value(fresh(), {}));
  const std::vector<ValueId> outputs = made.outputs;
  const NodeId id = graph_.add_node(std::move(made));
  const std::vector<TensorType> types = infer_node(graph_, graph_.node(id));
  for (size_t i = 0; i < outputs.size(); ++i) graph_.value(outputs[i]).type = types[i];
  return outputs;
}

void GraphMaker::keep(ValueId id) {
  const TensorType& type = graph_.value(id).type;
  if (type.dtype != DType::f32 || !type.is_static()) return;
  const Dims dims = type.extents();
  int64_t elements = 1;
  for (const int64_t extent : dims) elements *= extent;
  if (!dims.empty() && elements > 0 && elements <= kMostElements) values_.push_back({id, dims});
}

void GraphMaker::mark_output(ValueId id) {
  if (!graph_.is_output(id)) graph_.outputs.push_back(id);
}

BuiltCase GraphMaker::finish(bool has_symbol) {
  for (const NodeId id : graph_.order()) {
    for (const ValueId output : graph_.node(id).outputs) graph_.value(output).type = {};
  }
  if (has_symbol) {
    for (const ValueId id : graph_.inputs) graph_.value(id).type.dims[0] = {-1, "batch"};
  }
  return {std::move(graph_), std::move(tensors_)};
}

}  // namespace lathe::testing
