#pragma once
#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "lathe/session.h"

namespace lathe::tools {

struct ProofOptions {
  SessionOptions session;
  // Of the largest element of an output. By default 2e-4; 0.1 where the graph quantizes: a rounding may decide about a
  // whole step there, and later layers carry it on.
  std::optional<double> tolerance;
  int orders = 2;    // in which the load passes run before the usual ones
  std::string only;  // a pass; empty: each one in turn
};

struct Proof {
  int runs = 0;
  int idle = 0;                         // passes and orders that change nothing here, which needs no run
  bool is_random = false;               // two plain runs differ: there is nothing to prove
  std::vector<std::string> departures;  // "without fuse-softmax: output 0: ..."
};

// Runs the graph as it is, with all passes, without each in turn of those that change it, and behind load passes in a
// random order, and compares all of that with the first.
Proof prove_passes(const Graph& graph, const std::vector<Tensor>& inputs, const ProofOptions& options);

}  // namespace lathe::tools
