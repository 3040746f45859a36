#include "ops/custom/custom_op_call.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "graph/text.h"
#include "lathe/error.h"
#include "ops/copy/copy_elements.h"
#include "ops/lower.h"
#include "ops/shape_arguments.h"

// What the library holds a pointer to while it is called. Outputs go where `set_output` or `output` says.
struct LatheCall {
  const lathe::Node& node;
  std::string message = {};               // of fail()
  std::vector<std::string> symbols = {};  // of open extents: the library sees the i-th as -2 - i
  std::function<void(int32_t, lathe::TensorType)> set_output = nullptr;
  std::function<void*(int32_t, lathe::DType, const lathe::Dims&)> output = nullptr;
};

namespace lathe {
namespace {

// What OpSchema::extension points to.
struct CustomOp {
  std::shared_ptr<void> library;
  LatheCustomOp functions;
  std::string name, domain;
};

constexpr int64_t kFirstSymbol = LATHE_UNKNOWN - 1;

const CustomOp& custom_op(const Node& node) { return *static_cast<const CustomOp*>(node.op->extension.get()); }

// ---- What the library may call: nothing is thrown into it.

template <class Work>
auto guarded(LatheCall* call, Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    if (call->message.empty()) call->message = error.what();
    return {};
  }
}

template <class T>
const T* attribute(LatheCall* call, const char* name) {
  const Attribute* found = name == nullptr ? nullptr : call->node.attributes.find(name);
  return found == nullptr ? nullptr : std::get_if<T>(found);
}

template <class T, class Value>
int get_value(LatheCall* call, const char* name, Value* value) {
  const T* found = attribute<T>(call, name);
  if (found == nullptr || value == nullptr) return 0;
  *value = *found;
  return 1;
}

template <class T>
int get_list(LatheCall* call, const char* name, const T** values, size_t* count) {
  const auto* found = attribute<std::vector<T>>(call, name);
  if (found == nullptr || values == nullptr || count == nullptr) return 0;
  *values = found->data();
  *count = found->size();
  return 1;
}

int get_string(LatheCall* call, const char* name, const char** value) {
  const auto* found = attribute<std::string>(call, name);
  if (found == nullptr || value == nullptr) return 0;
  *value = found->c_str();
  return 1;
}

LatheTensor shown(const Tensor& tensor) {
  return {static_cast<int32_t>(tensor.dtype()), tensor.rank(), tensor.dims().data(), tensor.raw()};
}

int get_tensor(LatheCall* call, const char* name, LatheTensor* value) {
  const auto* found = attribute<Tensor>(call, name);
  if (found == nullptr || value == nullptr) return 0;
  *value = shown(*found);
  return 1;
}

DType checked_type(int32_t type) {
  if (type <= 0 || type >= kDTypeCount || static_cast<DType>(type) == DType::string) {
    throw Error(ErrorCode::invalid_argument, "element type " + std::to_string(type) + " is not known");
  }
  return static_cast<DType>(type);
}

void check_output(const LatheCall& call, int32_t output) {
  if (output < 0 || static_cast<size_t>(output) >= call.node.outputs.size()) {
    throw Error(ErrorCode::invalid_argument, "there is no output " + std::to_string(output));
  }
}

Dim dim_of(const LatheCall& call, int64_t extent) {
  if (extent >= 0) return known_dim(extent);
  const auto symbol = static_cast<size_t>(-(extent + 2));
  return extent <= kFirstSymbol && symbol < call.symbols.size() ? Dim{-1, call.symbols[symbol]} : Dim();
}

// The other way round: a name gets the number of its first appearance.
int64_t shown_extent(LatheCall& call, const Dim& dim) {
  if (dim.known()) return dim.extent;
  if (dim.symbol.empty()) return LATHE_UNKNOWN;
  const auto found = std::find(call.symbols.begin(), call.symbols.end(), dim.symbol);
  const auto index = found - call.symbols.begin();
  if (found == call.symbols.end()) call.symbols.push_back(dim.symbol);
  return kFirstSymbol - index;
}

int set_output(LatheCall* call, int32_t output, int32_t type, int32_t rank, const int64_t* dims) {
  return guarded(call, [&]() -> int {
    check_output(*call, output);
    if (call->set_output == nullptr) throw Error(ErrorCode::invalid_argument, "set_output was called outside infer");
    TensorType result = TensorType::unranked(checked_type(type));
    result.has_rank = rank >= 0;
    for (int32_t i = 0; i < rank; ++i) result.dims.push_back(dim_of(*call, dims[i]));
    call->set_output(output, std::move(result));
    return 1;
  });
}

void* get_output(LatheCall* call, int32_t output, int32_t type, int32_t rank, const int64_t* dims) {
  return guarded(call, [&]() -> void* {
    check_output(*call, output);
    if (call->output == nullptr) throw Error(ErrorCode::invalid_argument, "output was called outside compute");
    return call->output(output, checked_type(type), rank > 0 ? Dims(dims, dims + rank) : Dims());
  });
}

void fail(LatheCall* call, const char* message) { call->message = message == nullptr ? "failed" : message; }

constexpr LatheHost kHost = {.size = sizeof(LatheHost),
                             .get_int = get_value<int64_t, int64_t>,
                             .get_float = get_value<float, float>,
                             .get_string = get_string,
                             .get_ints = get_list<int64_t>,
                             .get_floats = get_list<float>,
                             .get_tensor = get_tensor,
                             .set_output = set_output,
                             .output = get_output,
                             .fail = fail};

[[noreturn]] void throw_failure(const LatheCall& call, ErrorCode code) {
  throw Error(code, describe(call.node) + ": " + (call.message.empty() ? "failed" : call.message));
}

// ---- Kernels

class KernelInstance {
 public:
  explicit KernelInstance(const Node& node) : op_(node.op->extension) {
    const LatheCustomOp& functions = custom_op(node).functions;
    if (functions.create == nullptr) return;
    LatheCall call{node};
    if (functions.create(&kHost, &call, &kernel_) != 1) throw_failure(call, ErrorCode::invalid_argument);
  }
  ~KernelInstance() {
    const LatheCustomOp& functions = static_cast<const CustomOp*>(op_.get())->functions;
    if (functions.destroy != nullptr && kernel_ != nullptr) functions.destroy(kernel_);
  }
  KernelInstance(const KernelInstance&) = delete;
  KernelInstance& operator=(const KernelInstance&) = delete;

  void compute(LatheCall& call, std::span<const LatheTensor> inputs) const {
    const LatheCustomOp& functions = static_cast<const CustomOp*>(op_.get())->functions;
    const int done = functions.compute(&kHost, &call, kernel_, static_cast<int32_t>(inputs.size()), inputs.data(),
                                       static_cast<int32_t>(call.node.outputs.size()));
    if (done != 1) throw_failure(call, ErrorCode::invalid_argument);
  }

 private:
  std::shared_ptr<const void> op_;
  void* kernel_ = nullptr;
};

// ---- OpDef's functions

std::string types_in(uint64_t set) {
  std::string names;
  for (int type = 1; type < kDTypeCount; ++type) {
    if ((set >> type & 1) != 0) names += (names.empty() ? "" : " or ") + std::string(name_of(static_cast<DType>(type)));
  }
  return names;
}

void check_input_types(const InferContext& context, const LatheCustomOp& op) {
  for (int i = 0; i < context.input_count() && op.input_type_count > 0; ++i) {
    const uint64_t allowed = op.input_types[std::min(static_cast<uint32_t>(i), op.input_type_count - 1)];
    const DType dtype = context.input(i).dtype;
    if (dtype == DType::undefined || allowed == 0 || (allowed >> static_cast<int>(dtype) & 1) != 0) continue;
    context.fail("input " + std::to_string(i) + " is " + std::string(name_of(dtype)) + ", expected " +
                 types_in(allowed));
  }
}

void infer_custom(InferContext& context) {
  const CustomOp& op = custom_op(context.node);
  check_input_types(context, op.functions);
  std::vector<Dims> dims;
  std::vector<Tensor> constants;
  std::vector<LatheTensor> inputs;
  LatheCall call{context.node};
  for (int i = 0; i < context.input_count(); ++i) {
    const TensorType& type = context.input(i);
    constants.push_back(context.constant(i));
    dims.emplace_back();
    for (const Dim& dim : type.dims) dims.back().push_back(shown_extent(call, dim));
    inputs.push_back({static_cast<int32_t>(type.dtype), type.has_rank ? type.rank() : LATHE_UNKNOWN, dims.back().data(),
                      constants.back().defined() ? constants.back().raw() : nullptr});
  }
  std::vector<bool> is_set(context.node.outputs.size());
  call.set_output = [&](int32_t output, TensorType type) {
    is_set[static_cast<size_t>(output)] = true;
    context.set_output(output, std::move(type));
  };
  const auto count = static_cast<int32_t>(is_set.size());
  if (op.functions.infer(&kHost, &call, static_cast<int32_t>(inputs.size()), inputs.data(), count) != 1) {
    throw_failure(call, ErrorCode::invalid_model);
  }
  for (size_t i = 0; i < is_set.size(); ++i) {
    if (!is_set[i]) context.fail("its inference gives no type for output " + std::to_string(i));
  }
}

// At load, for folding, and where a shape depends on data.
void reference_custom(ReferenceContext& context) {
  const KernelInstance kernel(context.node);
  std::vector<LatheTensor> inputs;
  for (const Tensor& input : context.inputs) inputs.push_back(shown(input));
  LatheCall call{context.node};
  call.output = [&](int32_t output, DType type, const Dims& dims) {
    Tensor& result = context.outputs[static_cast<size_t>(output)];
    result = make_output(context, type, dims);
    return result.mutable_raw();
  };
  kernel.compute(call, inputs);
  for (size_t i = 0; i < context.outputs.size(); ++i) {
    if (context.node.outputs[i] != ValueId::none && !context.outputs[i].defined()) {
      context.fail("did not compute output " + std::to_string(i));
    }
  }
}

struct Operand {
  BufferId buffer = BufferId::none;
  DType dtype = DType::undefined;
  Dims dims;
};

Operand operand_of(const LowerContext& context, ValueId id) {
  if (id == ValueId::none) return {};
  return {context.buffer(id), context.type(id).dtype, context.type(id).extents()};
}

void run_step(const Node& node, const KernelInstance& kernel, const std::vector<Operand>& operands,
              const std::vector<Operand>& results, const StepArgs& args) {
  // Nothing is allocated for the usual few inputs, nor for outputs that are not wanted.
  std::array<LatheTensor, 16> few;
  std::vector<LatheTensor> many(operands.size() > few.size() ? operands.size() : 0);
  LatheTensor* inputs = many.empty() ? few.data() : many.data();
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& operand = operands[i];
    inputs[i] = {static_cast<int32_t>(operand.dtype), static_cast<int32_t>(operand.dims.size()), operand.dims.data(),
                 operand.buffer == BufferId::none ? nullptr : args.at<const void>(operand.buffer)};
  }
  LatheCall call{node};
  std::vector<Tensor> unwanted;
  call.output = [&](int32_t output, DType type, const Dims& dims) -> void* {
    const Operand& result = results[static_cast<size_t>(output)];
    if (result.buffer == BufferId::none) return unwanted.emplace_back(type, dims).mutable_raw();
    if (type != result.dtype || dims != result.dims) {
      throw Error(ErrorCode::invalid_argument,
                  "output " + std::to_string(output) + " is " + std::string(name_of(type)) + " " + to_string(dims) +
                      ", its inference said " + std::string(name_of(result.dtype)) + " " + to_string(result.dims));
    }
    return args.at<void>(result.buffer);
  };
  kernel.compute(call, {inputs, operands.size()});
}

bool lower_custom(LowerContext& context) {
  Step step;
  std::vector<Operand> operands, results;
  for (const ValueId id : context.node.inputs) {
    operands.push_back(operand_of(context, id));
    if (operands.back().buffer != BufferId::none) step.reads.push_back(operands.back().buffer);
  }
  for (const ValueId id : context.node.outputs) {
    results.push_back(operand_of(context, id));
    if (results.back().buffer != BufferId::none) step.writes.push_back(results.back().buffer);
  }
  step.kernel = "custom";
  const auto kernel = std::make_shared<const KernelInstance>(context.node);
  step.run = [&node = context.node, kernel, operands, results](const StepArgs& args) {
    run_step(node, *kernel, operands, results, args);
  };
  context.add(std::move(step));
  return true;
}

}  // namespace

OpDef custom_op_def(const LatheCustomOp& op, std::shared_ptr<void> library) {
  const auto owned = std::make_shared<const CustomOp>(CustomOp{std::move(library), op, op.name, op.domain});
  OpDef def;
  def.schema = {.name = owned->name,
                .domain = owned->domain,
                .since = op.since_version,
                .min_inputs = op.min_inputs,
                .max_inputs = op.max_inputs,
                .min_outputs = op.min_outputs,
                .max_outputs = op.max_outputs,
                .infer = infer_custom,
                .reference = reference_custom,
                .deterministic = (op.flags & LATHE_OP_VARIES) == 0,
                .extension = owned};
  def.lower = lower_custom;
  return def;
}

}  // namespace lathe
