#pragma once
// What the graph knows of an operator: signature, shape inference, reference and traits. ops/ defines them all; the
// graph finds them through OpLookup and depends on nobody.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "src/base/limits.h"

namespace lathe {

// What shape inference of one node sees. Unknown is allowed everywhere: an op says what it can.
class InferContext {
 public:
  // None of the inputs is null.
  InferContext(const Node& inferred, std::span<const TensorType* const> inputs,
               std::span<const Tensor* const> constants)
      : node(inferred), inputs_(inputs), constants_(constants), outputs_(inferred.outputs.size()) {}

  const Node& node;
  int input_count() const { return static_cast<int>(inputs_.size()); }  // the op's own, without epilogue inputs
  bool has_input(int i) const {
    return i < input_count() && inputs_[static_cast<size_t>(i)]->dtype != DType::undefined;
  }
  const TensorType& input(int i) const { return *inputs_[static_cast<size_t>(i)]; }  // Requires: has_input(i).
  // The elements, when they are known at this time; undefined otherwise.
  Tensor constant(int i) const { return has_input(i) ? *constants_[static_cast<size_t>(i)] : Tensor(); }
  int output_count() const { return static_cast<int>(outputs_.size()); }
  void set_output(int i, TensorType type) {
    if (i < output_count()) outputs_[static_cast<size_t>(i)] = std::move(type);
  }
  const std::vector<TensorType>& outputs() const { return outputs_; }
  std::vector<TensorType> take_outputs() { return std::move(outputs_); }
  // Throws Error(invalid_model) "node 'conv3' (Conv): <what>".
  [[noreturn]] void fail(const std::string& what) const;
  // Infers a body: types of its outputs for these input types. Provided by the driver.
  std::function<std::vector<TensorType>(const Graph& body, std::span<const TensorType> inputs)> infer_body;

 private:
  std::span<const TensorType* const> inputs_;
  std::span<const Tensor* const> constants_;
  std::vector<TensorType> outputs_;
};

// What a plain reference sees. It allocates its outputs (types and shapes may depend on the data).
struct ReferenceContext {
  const Node& node;
  std::span<const Tensor> inputs;  // the op's own; undefined: absent
  std::vector<Tensor>& outputs;    // sized to node.outputs
  const Limits& limits;
  // Runs a body (If, Loop, Scan): inputs incl. captures -> outputs. Provided by the executor.
  std::function<std::vector<Tensor>(const Graph& body, std::span<const Tensor> inputs)> run_body;
  std::span<const Tensor> captures;

  bool has_input(size_t i) const { return i < inputs.size() && inputs[i].defined(); }
  [[noreturn]] void fail(const std::string& what) const;  // Throws Error(invalid_argument) naming the node.
};

using InferFn = void(InferContext&);
using ReferenceFn = void(ReferenceContext&);
// The node as an expression of its inputs in order (0, 1, ...), or nullopt when this node (attributes, types) has none.
// Non-scalar shapes are the caller's business: inputs broadcast as in numpy. Scalar parameters that come in as constant
// inputs (Clip's bounds) are read through `constant(i)` and become constants.
using ExpressFn = std::optional<Expression>(const Node& node, std::span<const TensorType> inputs,
                                            const std::function<Tensor(int)>& constant);

class ExpandContext;
// Puts other nodes in this node's place (graph/expand.h); false: not with what is known of its inputs now.
using ExpandFn = bool(ExpandContext&);

// How an operator copes with channel-blocked layouts; the layout pass asks.
enum class LayoutRole : uint8_t {
  plain_only,    // needs plain inputs, gives plain outputs
  any_same,      // pointwise: any layout, if all non-scalar inputs and outputs of full rank share it
  blocked,       // prefers blocked input 0 and output 0 (convolution, pooling): see OpSchema::accepts_blocked
  channel_join,  // Concat on axis 1 (Split: channel_part): blocked when most of what it joins is (what it splits)
  channel_part,
};

struct AttributeSpec {
  enum class Kind : uint8_t { integer, real, string, tensor, graph, integers, reals, strings, type, any };
  std::string_view name;
  Kind kind = Kind::any;
  bool required = false;
};

struct OpSchema {
  std::string_view name;
  std::string_view domain = "";        // "" is ai.onnx
  int since = 1;                       // first opset version this entry is right for
  int until = 1 << 20;                 // last one
  int min_inputs = 1, max_inputs = 1;  // max -1: variadic
  int min_outputs = 1, max_outputs = 1;
  std::vector<AttributeSpec> attributes = {};
  InferFn* infer = nullptr;          // never null
  ReferenceFn* reference = nullptr;  // null: only functions and rewrites give it meaning
  ExpressFn* express = nullptr;      // pointwise operators
  LayoutRole layout = LayoutRole::plain_only;
  // For LayoutRole::blocked: can this node (static types, plain dims) run blocked by `block`? Null: never.
  bool (*accepts_blocked)(const Node& node, std::span<const TensorType> inputs, int block) = nullptr;
  bool fuses_epilogue = false;                      // lowering honours Node::epilogue
  bool deterministic = true;                        // false: never folded (RandomNormal, ...)
  bool takes_objects = false;                       // inputs may be sequences, optionals, maps; else rejected
  ExpandFn* expand = nullptr;                       // operators that are compositions of others
  std::shared_ptr<const void> extension = nullptr;  // of an operator that a custom library brought: its description
};

struct OpVersions {
  int since, until;
};

class OpLookup {
 public:
  virtual ~OpLookup() = default;
  // The entry for this operator at this opset version, or null.
  virtual const OpSchema* find(std::string_view domain, std::string_view name, int version) const = 0;
  // All opset versions for which there is an entry, in order; for messages.
  virtual std::vector<OpVersions> versions_of(std::string_view, std::string_view) const { return {}; }
  // Null-free helper for passes: throws Error(internal) when the op does not exist. Domain "lathe" is Lathe's own.
  const OpSchema& require(std::string_view domain, std::string_view name, int version = 1) const;
};

}  // namespace lathe
