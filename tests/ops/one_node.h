#pragma once
// Runs one node through its lowering, with inputs and output blocked or plain, against its reference.
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "ops/lower.h"

namespace lathe::testing {

class FallbackPlans : public PlanSource {
 public:
  Candidate choose(const TuningTask& task) override { return task.space.fallback; }
};

// Any plan that the search may try.
class RandomPlans : public PlanSource {
 public:
  explicit RandomPlans(std::mt19937& random) : random_(random) {}
  Candidate choose(const TuningTask& task) override;

 private:
  std::mt19937& random_;
};

Tensor random_tensor(const Dims& dims, std::mt19937& random, float low = -1, float high = 1);
Tensor random_bytes(DType dtype, const Dims& dims, std::mt19937& random);

int64_t blocked_index(const Dims& dims, int block, int64_t flat);
// Elements in the type's layout; the lanes past the channels hold rubbish, as they may.
void write_value(void* to, const TensorType& type, const Tensor& plain);
Tensor read_value(const void* from, const TensorType& type);

struct OneNode {
  std::string domain = {};  // of the operator
  Graph graph = {};
  NodeId node = NodeId::none;
  std::vector<Tensor> inputs;  // of node.inputs in order
  std::vector<bool> is_constant;

  // Adds the node. `blocks`: channel block of each input; output gets `out_block`.
  void make(const std::string& op, int version, Attributes attributes, const std::vector<int>& blocks, int out_block,
            std::optional<Epilogue> epilogue = {});

  Tensor expected() const;

  // nullopt: the lowering declined, so that the reference would run.
  std::optional<Tensor> run(Isa isa, int threads) const;
  std::optional<Tensor> run(Isa isa, int threads, PlanSource& plans) const;
};

}  // namespace lathe::testing
