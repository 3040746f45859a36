#pragma once
// Lowering: from one node of a specialized Graph (all extents known, layouts chosen) to steps.
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "graph/infer.h"
#include "graph/op_schema.h"
#include "lathe/accuracy.h"
#include "ops/op_def.h"
#include "ops/step.h"
#include "src/base/cpu.h"
#include "tuner/task.h"

namespace lathe {

// Constants repacked for a kernel; made once per model and shared by all its specializations, as long as the constant
// lives. Thread-safe.
class PackedWeights {
 public:
  // `after_packing` is told now and then how many bytes were packed: their source may give its memory back.
  explicit PackedWeights(std::function<void(size_t bytes)> after_packing = nullptr)
      : after_packing_(std::move(after_packing)) {}

  // `source` is known by its address. `pack` fills and returns the packed tensor; it runs outside the lock.
  Tensor get(const Tensor& source, const std::string& format, const std::function<Tensor()>& pack);
  bool contains(const Tensor& source) const;  // in any format
  // By `pack`, of a large tensor: what lies before has been read and need not stay in memory until the end.
  void has_packed(size_t bytes) const {
    if (after_packing_) after_packing_(bytes);
  }
  size_t bytes() const;

 private:
  struct Entry {
    bool is_of(const Tensor& source) const { return owner.lock() == source.owner(); }
    // Another constant may come to lie where this one was.
    std::weak_ptr<const void> owner;
    bool has_owner = false;
    std::unordered_map<std::string, Tensor> by_format;
  };
  void drop_stale();

  const std::function<void(size_t)> after_packing_;
  mutable std::mutex mutex_;
  std::unordered_map<const void*, Entry> packed_;  // by address of the source
};
// 64-byte aligned, on huge pages where it is large.
Tensor allocate_weights(DType dtype, Dims dims);

// Products in one float32 sum, at most; 0: any number. Rounding errors grow with the length of a sum, so that `strict`
// adds up short ones (pairwise summation: Higham, Accuracy and Stability of Numerical Algorithms, chapter 4). Models
// have more convolutions one behind the other than products, and shorter sums cost them less.
constexpr int longest_product_sum(Accuracy accuracy) { return accuracy == Accuracy::strict ? 128 : 0; }
constexpr int longest_convolution_sum(Accuracy accuracy) { return accuracy == Accuracy::strict ? 32 : 0; }

struct Target {
  Isa isa = Isa::avx2;
  int threads = 1;
  Accuracy accuracy = Accuracy::normal;
  // What stays near a core: larger results between convolutions are kept in bands of rows (conv_chain_lower.h).
  size_t near_cache_bytes = cpu_facts().l2_bytes;
};

struct Buffer {
  size_t bytes = 0;
  const void* fixed = nullptr;       // constant: its address
  Tensor keep_alive;                 // owner of `fixed`
  BufferId inside = BufferId::none;  // lies inside another buffer (views, Concat without a copy)
  size_t offset = 0;                 // bytes into `inside`
  bool per_thread = false;           // every thread has one of `bytes`, in memory that no other thread uses
  // Of one channel block of a picture, when this is all of one picture: threads share its pixels, so that each has the
  // same part of every such plane. 0: something else.
  size_t plane_bytes = 0;
  bool external = false;  // graph input or output: the address comes with each run

  bool is_planned() const { return !external && fixed == nullptr && inside == BufferId::none; }
};

// Everything that lowering makes: becomes a Specialization.
struct LoweredGraph {
  Buffer& buffer(BufferId id) { return buffers[static_cast<size_t>(id)]; }
  const Buffer& buffer(BufferId id) const { return buffers[static_cast<size_t>(id)]; }
  // The buffer that `id` finally lies in, and how many bytes from its start.
  std::pair<BufferId, size_t> root(BufferId id) const;

  std::vector<Buffer> buffers;
  std::vector<BufferId> of_value;  // by ValueId
  std::vector<Step> steps;
  std::vector<BufferId> inputs, outputs;
  std::unordered_map<std::string, std::shared_ptr<const void>> shared;  // LowerContext::shared()
};

class LowerContext {
 public:
  LowerContext(const Graph& graph, NodeId node, const Target& target, PackedWeights& packed, PlanSource& plans,
               LoweredGraph& out);

  const Graph& graph;
  const Node& node;
  const Target& target;
  PlanSource& plans;

  // Own inputs (without the epilogue's), by number.
  int input_count() const;
  bool has_input(int i) const;
  ValueId input(int i) const { return node.inputs[static_cast<size_t>(i)]; }
  ValueId output(int i) const { return node.outputs[static_cast<size_t>(i)]; }
  bool has_output(int i) const;
  const TensorType& type(ValueId id) const { return graph.value(id).type; }
  const TensorType& input_type(int i) const { return type(input(i)); }
  const TensorType& output_type(int i) const { return type(output(i)); }
  Tensor constant(int i) const;  // undefined: not a constant, or absent
  std::vector<ValueId> epilogue_inputs() const;

  BufferId buffer(ValueId id) const;              // of an input or output value
  BufferId scratch(size_t bytes) const;           // written before it is read within this node's steps
  BufferId thread_scratch(size_t bytes) const;    // such a one for every thread: see StepArgs::own
  BufferId constant_buffer(Tensor tensor) const;  // for packed weights and tables; keeps the tensor alive
  Tensor packed(ValueId source, const std::string& format, const std::function<Tensor()>& pack) const;
  // The answer to a question about a constant's elements, which are read once for all shapes.
  bool is_true_of(ValueId constant, const std::string& question, const std::function<bool()>& find) const;

  // What nodes that are alike have in common, as the layers of a model do: made for the first of them, with the steps
  // that fill it if it is a buffer. `key` names all that it depends on, and its type.
  template <class T, class Make>
  std::shared_ptr<const T> shared(const std::string& key, Make make) const {
    const std::string full = condition_name_ + key;
    if (const auto found = out_.shared.find(full); found != out_.shared.end())
      return std::static_pointer_cast<const T>(found->second);
    auto made = std::make_shared<const T>(make());
    out_.shared.emplace(full, made);
    return made;
  }

  // Adds steps that only run where `runs` says so of what is in this buffer then: Step::runs. `name`: tells it from
  // others.
  LowerContext only_if(BufferId buffer, const std::string& name, std::function<bool(const void*)> runs) const;

  void has_packed(size_t bytes) const { packed_.has_packed(bytes); }  // within `pack`: see PackedWeights

  // Appends a step; node and op are filled in.
  void add(Step step) const;

  // `output` is the same bytes as `input` (Reshape): no step. False when the memory plan cannot grant it
  // (a graph input or constant flowing to a graph output): then copy.
  bool alias(ValueId output, ValueId input) const;
  // `part` (an input, produced by an earlier step) shall be written right into `whole` at `offset`. False: copy it.
  bool place_inside(ValueId part, ValueId whole, size_t offset_bytes) const;
  // `part` (an output) is a view into `whole` (an input) at `offset` (Split, Slice of the outermost axis).
  bool view_of(ValueId part, ValueId whole, size_t offset_bytes) const;

 private:
  PackedWeights& packed_;
  LoweredGraph& out_;
  BufferId condition_ = BufferId::none;
  std::string condition_name_;
  std::function<bool(const void*)> runs_;  // of what is in `condition_`
};

struct LowerOptions {
  const OpRegistry& ops;
  Target target;
  PackedWeights& packed;
  PlanSource& plans;
  BodyRunner run_body;
};

// Lowers every node in order. Nodes without a lowering run their reference (see reference_step.h). The graph must
// outlive the result. Requires: infer_types() gave every value a static type.
LoweredGraph lower_graph(const Graph& graph, const LowerOptions& options);
// The same for a graph that nobody lowers again: a constant goes as soon as it is packed, when no node to come and no
// step reads it as it is.
LoweredGraph lower_graph_once(Graph& graph, const LowerOptions& options);

}  // namespace lathe
