#include "ops/index_check.h"

#include <algorithm>
#include <limits>

#include "lathe/error.h"

namespace lathe {
namespace {

// Without branches, so that the loop becomes vector code.
template <class Index>
[[gnu::target("avx2")]] bool are_within(const Index* indices, int64_t count, int64_t depth, int64_t extent) {
  using Limits = std::numeric_limits<Index>;
  const auto low = static_cast<Index>(std::max<int64_t>(-extent, Limits::min()));
  const auto high = static_cast<Index>(std::min<int64_t>(extent - 1, Limits::max()));
  bool fits = true;
  if (depth == 1) {
    for (int64_t i = 0; i < count; ++i) fits &= (indices[i] >= low) & (indices[i] <= high);
    return fits;
  }
  for (int64_t i = 0; i < count; ++i) fits &= (indices[i * depth] >= low) & (indices[i * depth] <= high);
  return fits;
}

template <class Index>
[[noreturn]] void fail(const Node& node, const Index* indices, int64_t depth, int64_t extent) {
  while (*indices >= -extent && *indices < extent) indices += depth;
  throw Error(ErrorCode::invalid_argument, "node '" + node.name + "' (" + std::string(node.op->name) + "): index " +
                                               std::to_string(*indices) + " is out of range for an axis of " +
                                               std::to_string(extent));
}

}  // namespace

std::optional<IndexTuples> index_tuples(const LowerContext& context, int input, std::vector<int64_t> extents) {
  const TensorType& type = context.input_type(input);
  if (type.dtype != DType::i64 && type.dtype != DType::i32) return std::nullopt;
  int64_t count = 1;
  for (const int64_t extent : type.extents()) count *= extent;
  const int64_t depth = std::max<int64_t>(static_cast<int64_t>(extents.size()), 1);
  return IndexTuples{context.buffer(context.input(input)), type.dtype, count / depth, std::move(extents)};
}

void add_index_check(LowerContext& context, const IndexTuples& indices) {
  Step step;
  step.kernel = "check indices";
  step.reads = {indices.buffer};
  step.run = [indices, node = &context.node](const StepArgs& args) {
    visit_index_type(indices.dtype, [&]<class T>() {
      for (int64_t k = 0; k < indices.depth(); ++k) {
        const T* at = args.at<const T>(indices.buffer) + k;
        const int64_t extent = indices.extents[static_cast<size_t>(k)];
        if (!are_within(at, indices.tuples, indices.depth(), extent)) fail(*node, at, indices.depth(), extent);
      }
    });
  };
  context.add(std::move(step));
}

}  // namespace lathe
