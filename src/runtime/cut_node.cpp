#include "src/runtime/cut_node.h"

#include <algorithm>
#include <cstring>

#include "lathe/error.h"
#include "src/base/box.h"
#include "src/base/clock.h"
#include "src/runtime/node_runner.h"

namespace lathe {
namespace {

constexpr size_t kKeptVersions = 16;
// A version takes 20 us to make: worth it for the first run where the plain loops take longer, else for the second.
constexpr size_t kBytesWorthCode = size_t{256} << 10;

bool has_same_bytes(const Tensor& a, const Tensor& b) {
  return a.bytes() == b.bytes() && (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

}  // namespace

CutNode::CutNode(Node node, std::shared_ptr<RunnerContext> context, BodyRunner run_body)
    : node_(std::move(node)),
      context_(std::move(context)),
      run_body_(std::move(run_body)),
      has_code_(has_code(node_, context_->ops)) {}

bool CutNode::Version::fits(std::span<const Tensor> inputs) const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (dtypes[i] != inputs[i].dtype() || shapes[i] != inputs[i].dims()) return false;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (parameters[i].defined() && !has_same_bytes(parameters[i], inputs[i])) return false;
  }
  return true;
}

std::shared_ptr<CutNode::Version> CutNode::describe(std::span<const Tensor> inputs) const {
  auto version = std::make_shared<Version>();
  for (size_t i = 0; i < inputs.size(); ++i) {
    version->dtypes.push_back(inputs[i].dtype());
    version->shapes.push_back(inputs[i].dims());
    const bool is_fixed = inputs[i].defined() && is_parameter(node_, i, inputs[i]);
    version->parameters.push_back(is_fixed ? inputs[i].clone() : Tensor());
  }
  return version;
}

// False: the outputs' shapes depend on more than the parameters, or the reference has to say what is wrong.
bool CutNode::make_code(Version& version, std::span<const Tensor> inputs) const {
  try {
    auto graph = graph_of_node(node_, inputs, version.parameters);
    infer_types(*graph, context_->limits);
    for (const ValueId id : graph->outputs) {
      const TensorType& type = graph->value(id).type;
      if (!type.is_static() || !type.fits_buffer() || type.storage_bytes() > context_->limits.tensor_bytes)
        return false;
    }
    const LowerOptions options{context_->ops, context_->target, *context_->packed, *context_->plans, run_body_};
    version.code = std::make_unique<const Specialization>(std::move(graph), options, context_->team, context_->arenas,
                                                          Constants::keep);
    version.memory.emplace(*context_->results, version.code->output_types().size());
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::shared_ptr<const CutNode::Version> CutNode::version_for(std::span<const Tensor> inputs) const {
  if (!has_code_) return nullptr;
  size_t bytes = 0;
  for (const Tensor& input : inputs) {
    if (!input.defined()) continue;
    if (is_boxed(input) || input.dtype() == DType::string) return nullptr;
    bytes += input.bytes();
  }
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(recent_.begin(), recent_.end(), [&](const auto& one) { return one->fits(inputs); });
  const bool is_new = found == recent_.end();
  if (is_new) {
    recent_.push_front(describe(inputs));
    if (recent_.size() > kKeptVersions) recent_.pop_back();
    if (bytes < kBytesWorthCode) return nullptr;
  } else {
    recent_.splice(recent_.begin(), recent_, found);
  }
  const std::shared_ptr<Version>& version = recent_.front();
  if (version->code == nullptr && !version->has_no_code) version->has_no_code = !make_code(*version, inputs);
  return version->has_no_code ? nullptr : version;
}

std::vector<Tensor> CutNode::run_code(const Version& version, std::span<const Tensor> inputs,
                                      std::span<const Tensor> buffers, Profile* profile) const {
  std::vector<Tensor> given, made, results(node_.outputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && !version.parameters[i].defined()) given.push_back(inputs[i]);
  }
  const std::vector<TensorType>& types = version.code->output_types();
  for (size_t i = 0; i < results.size(); ++i) {
    if (node_.outputs[i] == ValueId::none) continue;
    const TensorType& type = types[made.size()];
    const bool is_wished =
        buffers[i].defined() && buffers[i].dtype() == type.dtype && buffers[i].dims() == type.extents();
    results[i] = is_wished ? buffers[i] : version.memory->make(type);
    made.push_back(results[i]);
  }
  version.code->run(given, made, profile);
  return results;
}

std::vector<Tensor> CutNode::run(std::span<const Tensor> inputs, std::span<const Tensor> buffers,
                                 Profile* profile) const {
  if (const auto version = version_for(inputs)) return run_code(*version, inputs, buffers, profile);
  const int64_t begin = now_ns();
  std::vector<Tensor> results = run_reference(node_, inputs, context_->limits, run_body_);
  if (profile != nullptr) {
    StepTime time;
    time.node = node_.name;
    time.op = std::string(node_.op->name);
    time.kernel = "reference";
    time.begin_ns = begin;
    time.end_ns = now_ns();
    profile->steps.push_back(std::move(time));
  }
  return results;
}

}  // namespace lathe
