#pragma once
// A Graph back as an ONNX file.
#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/op_schema.h"

namespace lathe {

struct ExportOptions {
  std::map<std::string, int> opsets;  // of the model that the graph came from; ai.onnx is ""
  int64_t ir_version = 8;
  std::vector<std::string> outputs;  // names, in order; empty: those of the values
};

// Writes the graph as a model that any engine reads: what only Lathe knows is spelled out in nodes of ai.onnx, at the
// first opset from the model's on that has every node as it is meant. Requires: inferred types, plain layouts.
// Throws Error: unsupported (a node has no spelling), limit (2 GiB and more), io.
void export_model_file(const std::string& path, const Graph& graph, const OpLookup& ops, const ExportOptions& options);

}  // namespace lathe
