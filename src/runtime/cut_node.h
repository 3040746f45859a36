#pragma once
// A node at a cut: its outputs' shapes depend on data. Where what they depend on are a few numbers (the ends of a
// Slice, the shape of an Expand), the node is specialized, alone, for these numbers and the shapes of its inputs, and
// its generated code runs; else its reference does.
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "graph/infer.h"
#include "lathe/profile.h"
#include "src/runtime/result_memory.h"
#include "src/runtime/runner_context.h"
#include "src/runtime/specialization.h"

namespace lathe {

// Thread-safe.
class CutNode {
 public:
  CutNode(Node node, std::shared_ptr<RunnerContext> context, BodyRunner run_body);

  const Node& node() const { return node_; }
  // `inputs`: all of node().inputs, undefined where absent. `buffers`: by output, where the caller wants it to be;
  // undefined, or of another type, is no wish. Throws Error as references do. `profile` may be null.
  std::vector<Tensor> run(std::span<const Tensor> inputs, std::span<const Tensor> buffers, Profile* profile) const;

 private:
  // Generated code for inputs of one set of types, shapes and parameters.
  struct Version {
    bool fits(std::span<const Tensor> inputs) const;

    std::vector<DType> dtypes;
    std::vector<Dims> shapes;
    std::vector<Tensor> parameters;              // by input; undefined: any values
    std::unique_ptr<const Specialization> code;  // null: not made yet
    bool has_no_code = false;                    // and never will
    std::optional<ResultMemory> memory;
  };
  // Null: the reference shall run.
  std::shared_ptr<const Version> version_for(std::span<const Tensor> inputs) const;
  std::shared_ptr<Version> describe(std::span<const Tensor> inputs) const;
  bool make_code(Version& version, std::span<const Tensor> inputs) const;
  std::vector<Tensor> run_code(const Version& version, std::span<const Tensor> inputs, std::span<const Tensor> buffers,
                               Profile* profile) const;

  const Node node_;
  const std::shared_ptr<RunnerContext> context_;
  const BodyRunner run_body_;
  const bool has_code_;  // may have: its operator does
  mutable std::mutex mutex_;
  mutable std::list<std::shared_ptr<Version>> recent_;  // most recently used first
};

}  // namespace lathe
