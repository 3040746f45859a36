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
  // A node's results by generated code; null: there is none. Throws Error.
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

// Runs the passes of `level` and below, except `disabled`, repeating load passes until nothing changes (bounded).
std::vector<PassReport> run_passes(Graph& graph, const std::vector<Pass>& passes, const PassContext& context, int level,
                                   const std::vector<std::string>& disabled);

}  // namespace lathe
