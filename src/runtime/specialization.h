#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "graph/graph.h"
#include "lathe/profile.h"
#include "ops/lower.h"
#include "src/base/thread_team.h"
#include "src/runtime/arena_pool.h"
#include "src/runtime/memory_plan.h"

namespace lathe {

// Whether the graph of a specialization keeps its constants, for others that are made from it, or lets go of those that
// are packed and not read again.
enum class Constants { keep, release };

// All steps, and the memory plan, of a Graph whose extents are all known. Immutable; many threads may run it at a time,
// each in memory of its own, which is the pool's between runs.
class Specialization {
 public:
  // Requires: infer_types() gave every value of `graph` a static type.
  Specialization(std::unique_ptr<Graph> graph, const LowerOptions& options, std::shared_ptr<ThreadTeam> team,
                 std::shared_ptr<ArenaPool> arenas, Constants constants);
  ~Specialization();

  // Types of the outputs; always plain.
  const std::vector<TensorType>& output_types() const { return output_types_; }
  // Requires: as many tensors as the graph has inputs and outputs, of its types. `profile` may be null.
  void run(std::span<const Tensor> inputs, std::span<Tensor> outputs, Profile* profile) const;

  const Graph& graph() const { return *graph_; }
  const LoweredGraph& lowered() const { return lowered_; }
  const MemoryPlan& memory() const { return memory_; }

 private:
  struct Arena;
  std::unique_ptr<Arena> take_arena() const;
  void place(Arena& arena) const;
  void bind(Arena& arena, std::span<const Tensor> inputs, std::span<Tensor> outputs) const;
  void link_weights();

  std::unique_ptr<Graph> graph_;
  std::vector<TensorType> output_types_;
  LoweredGraph lowered_;
  MemoryPlan memory_;
  std::shared_ptr<ThreadTeam> team_;
  std::shared_ptr<ArenaPool> arenas_;
  // Buffers whose address comes with each run: (buffer, root, offset).
  struct Bound {
    size_t buffer, root, offset;
  };
  std::vector<Bound> bound_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Arena>> idle_;
};

}  // namespace lathe
