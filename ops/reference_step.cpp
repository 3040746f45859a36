#include "ops/reference_step.h"

#include <cstring>

#include "src/base/check.h"
#include "src/base/checked_size.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

// One operand of the step: where it lies and what it is.
struct Operand {
  BufferId buffer = BufferId::none;
  TensorType type;
  Tensor constant;
};

// Copies between the plain and the blocked form of the same elements, element by element.
void convert_layout(const TensorType& type, const std::byte* from, std::byte* to, bool to_plain) {
  const Dims dims = type.extents();
  const int64_t block = type.layout.channel_block, blocks = divide_up(dims[1], block);
  int64_t spatial = 1;
  for (size_t d = 2; d < dims.size(); ++d) spatial *= dims[d];
  const auto element = static_cast<size_t>(bits_of(type.dtype) / 8);
  for (int64_t n = 0; n < dims[0]; ++n)
    for (int64_t c = 0; c < dims[1]; ++c)
      for (int64_t s = 0; s < spatial; ++s) {
        const auto plain = static_cast<size_t>((n * dims[1] + c) * spatial + s) * element;
        const auto blocked =
            static_cast<size_t>(((n * blocks + c / block) * spatial + s) * block + c % block) * element;
        std::memcpy(to + (to_plain ? plain : blocked), from + (to_plain ? blocked : plain), element);
      }
}

Tensor read_operand(const Operand& operand, const StepArgs& args) {
  if (operand.constant.defined()) return operand.constant;
  if (operand.buffer == BufferId::none) return {};
  const Dims dims = operand.type.extents();
  const auto* bytes = args.at<const std::byte>(operand.buffer);
  if (operand.type.layout == Layout{}) return Tensor::view(operand.type.dtype, dims, bytes);
  Tensor plain(operand.type.dtype, dims);
  convert_layout(operand.type, bytes, static_cast<std::byte*>(plain.mutable_raw()), true);
  return plain;
}

void write_result(const Operand& operand, const Tensor& result, const std::string& node, const StepArgs& args) {
  if (operand.buffer == BufferId::none) return;
  const Dims dims = operand.type.extents();
  if (result.dims() != dims || result.dtype() != operand.type.dtype)
    throw Error(ErrorCode::internal, "node '" + node + "': its reference gave " + to_string(result.dims()) +
                                         ", shape inference said " + to_string(operand.type));
  auto* bytes = args.at<std::byte>(operand.buffer);
  if (operand.type.layout == Layout{}) {
    if (result.bytes() > 0) std::memcpy(bytes, result.raw(), result.bytes());
    return;
  }
  std::memset(bytes, 0, operand.type.storage_bytes());
  convert_layout(operand.type, static_cast<const std::byte*>(result.raw()), bytes, false);
}

Operand operand_of(const Graph& graph, const LoweredGraph& lowered, ValueId id) {
  if (id == ValueId::none) return {};
  const Value& value = graph.value(id);
  return {lowered.of_value[index_of(id)], value.type, value.constant};
}

}  // namespace

Step reference_step(const Graph& graph, const Node& node, const LoweredGraph& lowered, const BodyRunner& run_body) {
  std::vector<Operand> inputs, outputs;
  Step step;
  for (ValueId id : node.inputs) {
    inputs.push_back(operand_of(graph, lowered, id));
    if (inputs.back().buffer != BufferId::none) step.reads.push_back(inputs.back().buffer);
  }
  for (ValueId id : node.outputs) {
    outputs.push_back(operand_of(graph, lowered, id));
    if (outputs.back().buffer != BufferId::none) step.writes.push_back(outputs.back().buffer);
  }
  step.kernel = "reference";
  step.run = [&node, run_body, inputs = std::move(inputs), outputs = std::move(outputs)](const StepArgs& args) {
    std::vector<Tensor> operands;
    for (const Operand& input : inputs) operands.push_back(read_operand(input, args));
    const std::vector<Tensor> results = run_reference(node, operands, Limits{}, run_body);
    for (size_t i = 0; i < outputs.size(); ++i) write_result(outputs[i], results[i], node.name, args);
  };
  return step;
}

}  // namespace lathe
