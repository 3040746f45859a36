#pragma once
// How a pointwise expression runs over broadcast tensors: as few loops as the shapes allow, innermost ones in generated
// code. Plain data, made at lowering; run() allocates nothing.
#include <optional>
#include <vector>

#include "graph/type.h"
#include "jit/kernels/pointwise/pointwise.h"

namespace lathe {

// One operand against the result: elements to step along each stored axis of the result. nullopt: stored in a way that
// no kernel reads (plain beside a blocked result with more than one element per channel).
std::optional<std::vector<int64_t>> pointwise_strides(const TensorType& operand, const TensorType& result);

// One nest of loops.
struct PointwiseLoops {
  static constexpr int kMaxInputs = 24;

  Kernel<void(const PointwiseArgs*)> kernel;
  int64_t length = 1, rows = 1;
  std::vector<int64_t> outer;  // extents of the loops around the kernel, outermost first
  struct Operand {
    int64_t begin_bytes = 0, row_stride_bytes = 0;
    std::vector<int64_t> outer_stride_bytes;
    // > 0: the vector at `begin` has only so many bytes in memory; the rest reads as zero.
    int partial_bytes = 0;
  };
  std::vector<Operand> inputs;
  Operand out;
  std::vector<int64_t> element_stride_bytes;  // along a row, of each input and of the result; 0: scalar or repeated
  float lane_mask[16] = {};

  int64_t total_rows() const;
  // `inputs` are the operands' first bytes.
  void run(const void* const* inputs, void* out, int share, int shares) const noexcept;

 private:
  void run_rows(const void* const* inputs, void* out, int64_t begin, int64_t end, int64_t first, int64_t count) const;
};

// All nests for one node: one, or two and more where the last block of channels is partly padding.
// Throws JitError when the kernel cannot be emitted; nullopt as pointwise_strides.
std::optional<std::vector<PointwiseLoops>> plan_pointwise(Isa isa, const Expression& expression,
                                                          const std::vector<TensorType>& inputs,
                                                          const TensorType& result);

}  // namespace lathe
