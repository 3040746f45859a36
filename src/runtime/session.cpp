#include "lathe/session.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "graph/infer.h"
#include "ops/custom/custom_ops.h"
#include "src/base/box.h"
#include "src/base/clock.h"
#include "src/base/topology.h"
#include "src/runtime/default_plans.h"
#include "src/runtime/session_state.h"

namespace lathe {
namespace {

ValueInfo info_of(const Value& value) {
  ValueInfo info;
  info.name = value.name;
  if (value.type.is_object()) {
    info.container = to_string(value.type);
    return info;
  }
  info.dtype = value.type.dtype;
  info.has_rank = value.type.has_rank;
  for (const Dim& dim : without_inferred_symbols(value.type).dims) {
    info.dims.push_back(dim.extent);
    info.symbols.push_back(dim.symbol);
  }
  return info;
}

std::string describe(const ValueInfo& info) {
  if (!info.container.empty()) return info.container;
  std::string text(name_of(info.dtype));
  if (!info.has_rank) return text;
  text += "[";
  for (size_t d = 0; d < info.dims.size(); ++d) {
    if (d > 0) text += ",";
    text += info.dims[d] >= 0 ? std::to_string(info.dims[d]) : info.symbols[d].empty() ? "?" : info.symbols[d];
  }
  return text + "]";
}

std::string describe(const Tensor& tensor) {
  if (is_boxed(tensor)) return unbox(tensor).kind();
  std::string text(name_of(tensor.dtype()));
  text += "[";
  for (size_t d = 0; d < tensor.dims().size(); ++d) text += (d > 0 ? "," : "") + std::to_string(tensor.dims()[d]);
  return text + "]";
}

[[noreturn]] void fail_input(const ValueInfo& info, const Tensor& tensor) {
  throw Error(ErrorCode::invalid_argument,
              "input '" + info.name + "': expected " + describe(info) + ", got " + describe(tensor));
}

// Element types and containers; shapes of what lies inside are the operators' business.
bool fits(const TensorType& type, const AnyValue& value) {
  if (!type.container) return value.is_tensor() && value.tensor().dtype() == type.dtype;
  const TensorType& element = type.container->element;
  switch (type.container->kind) {
    case ContainerType::Kind::sequence:
      return value.is_sequence() && std::all_of(value.items().begin(), value.items().end(),
                                                [&](const AnyValue& item) { return fits(element, item); });
    case ContainerType::Kind::optional:
      return value.is_nothing() || fits(element, value);
    case ContainerType::Kind::map:
      return value.is_map() && value.pairs().keys.dtype() == type.container->key &&
             value.pairs().values.dtype() == element.dtype;
  }
  return false;
}

int wanted_threads(const SessionOptions& options) {
  if (options.threads < 0)
    throw Error(ErrorCode::invalid_argument,
                "option threads: expected 0 or more, got " + std::to_string(options.threads));
  return options.threads > 0 ? options.threads : usable_threads();
}

// A misspelt name would silently leave the pass on.
void check_disabled_passes(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    bool is_known = false;
    for (const auto* passes : {&load_passes(), &bind_passes(), &specialize_passes()})
      for (const Pass& pass : *passes) is_known |= pass.name == name;
    if (!is_known) throw Error(ErrorCode::invalid_argument, "option disabled_passes: there is no pass '" + name + "'");
  }
}

// Weights that are packed are not read again soon: the mapped file's pages go back now and then, so that a model that
// is being packed does not take its size twice.
std::function<void(size_t)> page_release(std::vector<std::shared_ptr<const MappedFile>> files) {
  constexpr size_t kReleaseEvery = size_t{8} << 20;
  auto unreleased = std::make_shared<std::atomic<size_t>>(0);
  return [files = std::move(files), unreleased](size_t bytes) {
    if (unreleased->fetch_add(bytes) + bytes < kReleaseEvery) return;
    unreleased->store(0);
    for (const auto& file : files) file->release_pages();
  };
}

}  // namespace

Session::State::State(Model loaded, std::shared_ptr<const OpRegistry> ops, const SessionOptions& options)
    : model(std::move(loaded)) {
  check_disabled_passes(options.disabled_passes);
  for (ValueId id : model.graph->inputs) {
    inputs.push_back(info_of(model.graph->value(id)));
    input_types.push_back(model.graph->value(id).type);
  }
  find_shared_extents();
  const int threads = wanted_threads(options);
  context = std::make_shared<RunnerContext>(
      RunnerContext{.registry = ops,
                    .ops = *ops,
                    .limits = {},
                    .target = {usable_isa(), threads, options.accuracy},
                    .team = std::make_shared<ThreadTeam>(threads),
                    .packed = std::make_shared<PackedWeights>(page_release(model.files)),
                    .plans = default_plans(options, CachedPlans::Recording::on),
                    .optimization_level = options.optimization_level,
                    .disabled_passes = options.disabled_passes});
  // Passes may put another value in an output's place: the names are those of the file.
  std::vector<std::string> output_names;
  for (ValueId id : model.graph->outputs) {
    output_names.push_back(model.graph->value(id).name);
    output_types.push_back(model.graph->value(id).type);
  }
  runner = std::make_unique<GraphRunner>(std::make_unique<Graph>(std::move(*model.graph)), context, 0, Growing::cut);
  model.graph.reset();
  // check_inputs() holds callers to it.
  const bool has_one_shape = std::all_of(input_types.begin(), input_types.end(),
                                         [](const TensorType& type) { return !type.is_object() && type.is_static(); });
  if (has_one_shape) runner->expect_one_shape();
  for (const auto& file : model.files) file->release_pages();
  for (size_t i = 0; i < output_names.size(); ++i) {
    outputs.push_back(info_of(runner->graph().value(runner->graph().outputs[i])));
    outputs[i].name = output_names[i];
    // An optional that is known to hold a tensor is inferred to be one.
    if (output_types[i].is_object()) outputs[i] = {.name = output_names[i], .container = to_string(output_types[i])};
  }
}

// Once per model: checking inputs is part of every run, which allocates nothing.
void Session::State::find_shared_extents() {
  std::map<std::string, std::pair<size_t, size_t>> first_of;
  for (size_t i = 0; i < inputs.size(); ++i)
    for (size_t d = 0; d < inputs[i].dims.size(); ++d) {
      if (inputs[i].dims[d] >= 0 || inputs[i].symbols[d].empty()) continue;
      const auto [first, is_new] = first_of.emplace(inputs[i].symbols[d], std::pair(i, d));
      if (!is_new) shared_extents_.push_back({i, d, first->second.first, first->second.second});
    }
}

void Session::State::check_inputs(std::span<const Tensor> given) const {
  if (given.size() != inputs.size())
    throw Error(ErrorCode::invalid_argument,
                "the model has " + std::to_string(inputs.size()) + " inputs, got " + std::to_string(given.size()));
  for (size_t i = 0; i < given.size(); ++i) {
    const ValueInfo& info = inputs[i];
    const Tensor& tensor = given[i];
    if (!tensor.defined()) throw Error(ErrorCode::invalid_argument, "input '" + info.name + "' is missing");
    if (input_types[i].is_object()) {
      if (!fits(input_types[i], unbox(tensor))) fail_input(info, tensor);
      continue;
    }
    if (tensor.dtype() != info.dtype) fail_input(info, tensor);
    if (!info.has_rank) continue;
    if (tensor.dims().size() != info.dims.size()) fail_input(info, tensor);
    for (size_t d = 0; d < info.dims.size(); ++d) {
      const int64_t extent = tensor.dims()[d];
      if (info.dims[d] >= 0 && info.dims[d] != extent) fail_input(info, tensor);
    }
  }
  for (const SharedExtent& shared : shared_extents_) {
    const int64_t extent = given[shared.input].dims()[shared.axis];
    const int64_t first = given[shared.first_input].dims()[shared.first_axis];
    if (extent == first) continue;
    throw Error(ErrorCode::invalid_argument, "input '" + inputs[shared.input].name + "': extent '" +
                                                 inputs[shared.input].symbols[shared.axis] + "' is " +
                                                 std::to_string(extent) + ", but " + std::to_string(first) +
                                                 " in input '" + inputs[shared.first_input].name + "'");
  }
}

void Session::State::run(std::span<const Tensor> given, std::span<Tensor> results, Profile* profile) const {
  check_inputs(given);
  const ThreadTeam::Awake awake(*context->team);
  runner->run(given, results, profile);
}

Session Session::load(const std::string& path, const SessionOptions& options) {
  const auto ops = registry_with(options.custom_op_libraries);
  return Session(std::make_shared<State>(import_model_file(path, *ops), ops, options));
}

Session Session::load(std::span<const std::byte> bytes, const std::string& base_directory,
                      const SessionOptions& options) {
  auto copy = std::make_shared<const std::string>(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const auto ops = registry_with(options.custom_op_libraries);
  return Session(std::make_shared<State>(import_model_bytes(copy, base_directory, *ops), ops, options));
}

const std::vector<ValueInfo>& Session::inputs() const { return state_->inputs; }
const std::vector<ValueInfo>& Session::outputs() const { return state_->outputs; }

std::vector<Tensor> Session::run(std::span<const Tensor> inputs) const {
  std::vector<Tensor> results(state_->outputs.size());
  state_->run(inputs, results, nullptr);
  for (size_t i = 0; i < results.size(); ++i)
    if (is_boxed(results[i]))
      throw Error(ErrorCode::invalid_argument, "output '" + state_->outputs[i].name + "' is " +
                                                   unbox(results[i]).kind() + ": run the model with AnyValue inputs");
  return results;
}

std::vector<AnyValue> Session::run(std::span<const AnyValue> inputs) const {
  std::vector<Tensor> boxed, results(state_->outputs.size());
  for (const AnyValue& input : inputs) boxed.push_back(box(input));
  state_->run(boxed, results, nullptr);
  return {std::make_move_iterator(results.begin()), std::make_move_iterator(results.end())};
}

std::vector<Tensor> Session::run(std::span<const NamedTensor> named) const {
  std::vector<Tensor> ordered(state_->inputs.size());
  for (const NamedTensor& input : named) {
    size_t i = 0;
    while (i < ordered.size() && state_->inputs[i].name != input.name) ++i;
    if (i == ordered.size()) {
      std::string known;
      for (const ValueInfo& info : state_->inputs) known += (known.empty() ? "'" : ", '") + info.name + "'";
      throw Error(ErrorCode::invalid_argument, "the model has no input '" + input.name + "'; it has " + known);
    }
    ordered[i] = input.tensor;
  }
  return run(std::span<const Tensor>(ordered));
}

void Session::run_into(std::span<const Tensor> inputs, std::span<Tensor> outputs) const {
  if (outputs.size() != state_->outputs.size())
    throw Error(ErrorCode::invalid_argument, "the model has " + std::to_string(state_->outputs.size()) +
                                                 " outputs, got " + std::to_string(outputs.size()) + " buffers");
  for (size_t i = 0; i < outputs.size(); ++i)
    if (!outputs[i].defined())
      throw Error(ErrorCode::invalid_argument, "the buffer of output '" + state_->outputs[i].name + "' is undefined");
  state_->run(inputs, outputs, nullptr);
}

std::vector<Tensor> Session::run_profiled(std::span<const Tensor> inputs, Profile& profile) const {
  std::vector<Tensor> results(state_->outputs.size());
  profile.steps.clear();
  const int64_t origin = now_ns();
  state_->run(inputs, results, &profile);
  profile.total_ns = now_ns() - origin;
  for (StepTime& step : profile.steps) {
    step.begin_ns -= origin;
    step.end_ns -= origin;
  }
  return results;
}

}  // namespace lathe
