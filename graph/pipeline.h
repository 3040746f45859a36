#pragma once
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/op_schema.h"

namespace lathe {

struct PassContext {
  const OpLookup& ops;
  const Limits& limits;
  int channel_block = 0;                        // of blocked layouts on this machine (8 or 16)
  std::set<std::string_view>* fired = nullptr;  // null or takes in the name of each pass that changes a graph
  // A node's results, by generated code where it has any; null: there is none. Throws Error.
  std::function<std::vector<Tensor>(const Node&, std::span<const Tensor> inputs)> run_node = nullptr;
};

struct Pass {
  std::string_view name;                    // "fuse-epilogue": the file is graph/passes/fuse_epilogue.cpp
  bool (*run)(Graph&, const PassContext&);  // true: changed
  int level = 1;                            // 1 basic, 2 extended, 3 layout
};

// Passes that need no extents: run once, at load. In order, with reasons, in pipeline.cpp.
const std::vector<Pass>& load_passes();
// Passes that run when the extents of the inputs are bound, before it is known whether all others follow from them.
const std::vector<Pass>& bind_passes();
// Passes that run for each specialization, when every extent is known.
const std::vector<Pass>& specialize_passes();

struct PassReport {
  std::string_view name;
  int fired = 0;  // times it changed the graph
  size_t nodes_before = 0, nodes_after = 0;
  int nodes_saved = 0;  // by all its firings together; negative: it added nodes
  double milliseconds = 0;
};

// Which passes changed a graph, in order. The same passes, run on the same graph with other extents, are as right as
// any, for every pass is: they only may leave undone what these extents would allow.
struct PassScript {
  static constexpr size_t kInferTypes = ~size_t{0};
  std::vector<size_t> steps;  // numbers of passes in their list, or kInferTypes
  bool operator==(const PassScript&) const = default;
};

// Runs the passes of `level` and below, except `disabled`, repeating load passes until nothing changes (bounded).
// `script`: null or takes in what did.
std::vector<PassReport> run_passes(Graph& graph, const std::vector<Pass>& passes, const PassContext& context, int level,
                                   const std::vector<std::string>& disabled, PassScript* script = nullptr);
// Requires: a script of these passes.
void replay_passes(Graph& graph, const std::vector<Pass>& passes, const PassContext& context, const PassScript& script);

}  // namespace lathe
