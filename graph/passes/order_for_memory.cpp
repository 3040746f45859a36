// Another order of execution, where it lets much less memory be alive at once: next comes what frees most.
#include <algorithm>
#include <span>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

// An order that is nearly as good stays: it is the exporter's, and steps behind one another share caches.
constexpr double kWorthIt = 0.9;
constexpr size_t kMostLookedAt = 64;  // of nodes that could come next

bool is_view(const Node& node) {
  return (is_reshape(node) || is_one_of(node, {"Identity", "Split"})) && !node.epilogue;
}

class Scheduler {
 public:
  explicit Scheduler(const Graph& graph)
      : graph_(graph),
        root_(graph.value_count(), ValueId::none),
        bytes_(graph.value_count(), 0),
        uses_(graph.value_count(), 0) {
    for (const NodeId id : graph.order()) {
      const Node& node = graph.node(id);
      for (const ValueId output : node.outputs) {
        if (output == ValueId::none) continue;
        const bool shares = is_view(node) && node.inputs[0] != ValueId::none;
        root_[index_of(output)] = shares ? root(node.inputs[0]) : output;
        const TensorType& type = graph.value(output).type;
        if (!shares && type.fits_buffer()) bytes_[index_of(output)] = static_cast<double>(type.storage_bytes());
      }
      find_roots(id);
      for (const ValueId value : roots_read(id)) ++uses_[index_of(value)];
    }
    // These lie in the caller's memory, or stay until the end in any order.
    for (const ValueId output : graph.outputs) bytes_[index_of(root(output))] = 0;
  }

  double peak_of(const std::vector<NodeId>& order) const {
    std::vector<int> left = uses_;
    double live = 0, peak = 0;
    for (const NodeId id : order) {
      live += made_by(id);
      peak = std::max(peak, live);
      live -= freed_by(id, left);
      for (const ValueId value : roots_read(id)) --left[index_of(value)];
    }
    return peak;
  }

  // No order needs less than its hungriest node.
  double bound() const {
    double most = 0;
    for (const NodeId id : graph_.order()) {
      double bytes = made_by(id);
      for (const ValueId value : roots_read(id)) bytes += bytes_[index_of(value)];
      most = std::max(most, bytes);
    }
    return most;
  }

  std::vector<NodeId> greedy() const {
    const std::vector<int> position = positions_in(graph_.order());
    const std::vector<std::vector<Graph::Use>> uses = graph_.uses();
    std::vector<int> left = uses_, waits_for(position.size(), 0);
    std::vector<NodeId> ready, order;
    for (const NodeId id : graph_.order()) {
      for (const ValueId input : graph_.node(id).inputs) {
        waits_for[index_of(id)] += input != ValueId::none && graph_.value(input).producer != NodeId::none;
      }
      if (waits_for[index_of(id)] == 0) ready.push_back(id);
    }
    while (!ready.empty()) {
      size_t best = 0;
      double best_growth = 0;
      for (size_t i = 0; i < std::min(ready.size(), kMostLookedAt); ++i) {
        const double growth = made_by(ready[i]) - freed_by(ready[i], left);
        const bool is_earlier = position[index_of(ready[i])] < position[index_of(ready[best])];
        if (i > 0 && (growth > best_growth || (growth == best_growth && !is_earlier))) continue;
        best = i;
        best_growth = growth;
      }
      const NodeId next = ready[best];
      ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(best));
      order.push_back(next);
      for (const ValueId value : roots_read(next)) --left[index_of(value)];
      for (const ValueId output : graph_.node(next).outputs) {
        if (output == ValueId::none) continue;
        for (const Graph::Use use : uses[index_of(output)]) {
          if (index_of(use.node) < waits_for.size() && --waits_for[index_of(use.node)] == 0) ready.push_back(use.node);
        }
      }
    }
    return order;
  }

 private:
  ValueId root(ValueId id) const { return root_[index_of(id)] == ValueId::none ? id : root_[index_of(id)]; }

  // What must be there while the node runs, each once.
  std::span<const ValueId> roots_read(NodeId id) const {
    const auto [begin, end] = roots_of_[index_of(id)];
    return std::span(roots_).subspan(begin, end - begin);
  }
  void find_roots(NodeId id) {
    const auto begin = static_cast<std::ptrdiff_t>(roots_.size());
    for (const ValueId input : graph_.node(id).inputs) {
      if (input != ValueId::none) roots_.push_back(root(input));
    }
    std::sort(roots_.begin() + begin, roots_.end());
    roots_.erase(std::unique(roots_.begin() + begin, roots_.end()), roots_.end());
    if (roots_of_.size() <= index_of(id)) roots_of_.resize(index_of(id) + 1);
    roots_of_[index_of(id)] = {static_cast<size_t>(begin), roots_.size()};
  }

  double made_by(NodeId id) const {
    double bytes = 0;
    for (const ValueId output : graph_.node(id).outputs) {
      if (output != ValueId::none && root(output) == output) bytes += bytes_[index_of(output)];
    }
    return bytes;
  }

  // Behind this node, with `left` readers left of each value before it.
  double freed_by(NodeId id, const std::vector<int>& left) const {
    double bytes = 0;
    for (const ValueId value : roots_read(id)) {
      if (left[index_of(value)] == 1) bytes += bytes_[index_of(value)];
    }
    for (const ValueId output : graph_.node(id).outputs) {
      if (output != ValueId::none && root(output) == output && uses_[index_of(output)] == 0)
        bytes += bytes_[index_of(output)];
    }
    return bytes;
  }

  const Graph& graph_;
  std::vector<ValueId> root_;  // by value: in whose memory it lies
  std::vector<double> bytes_;  // by root
  std::vector<int> uses_;      // by root: nodes that read it
  std::vector<ValueId> roots_;
  std::vector<std::pair<size_t, size_t>> roots_of_;  // by node: from where to where in them
};

}  // namespace

bool order_for_memory(Graph& graph, const PassContext&) {
  const Scheduler scheduler(graph);
  const double peak = scheduler.peak_of(graph.order());
  if (scheduler.bound() > kWorthIt * peak) return false;
  const std::vector<NodeId> order = scheduler.greedy();
  if (order.size() != graph.order().size() || scheduler.peak_of(order) > kWorthIt * peak) return false;
  graph.set_order(order);
  return true;
}

}  // namespace lathe::passes
