#include "ops/copy/index_check.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "lathe/error.h"

namespace lathe {
namespace {

// Without branches, so that the loop becomes vector code: one comparison, as distances from the least index.
template <class Index>
[[gnu::target("avx2")]] bool are_within(const Index* indices, int64_t count, int64_t depth, int64_t extent) {
  using Distance = std::make_unsigned_t<Index>;
  const auto below = static_cast<Distance>(std::min<int64_t>(extent, std::numeric_limits<Index>::max()));
  if (below == 0) return count == 0;
  const Distance farthest = 2 * below - 1;
  Distance beyond = 0;
  if (depth == 1) {
    for (int64_t i = 0; i < count; ++i) {
      beyond |= static_cast<Distance>(indices[i]) + below > farthest ? Distance{1} : Distance{0};
    }
  } else {
    for (int64_t i = 0; i < count; ++i) {
      beyond |= static_cast<Distance>(indices[i * depth]) + below > farthest ? Distance{1} : Distance{0};
    }
  }
  return beyond == 0;
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
  return IndexTuples{context.buffer(context.input(input)), type.dtype, count / depth, std::move(extents),
                     context.constant(input)};
}

bool are_known_within(const IndexTuples& indices) {
  if (!indices.constant.defined()) return false;
  bool are_all_within = true;
  visit_index_type(indices.dtype, [&]<class T>() {
    for (int64_t k = 0; k < indices.depth(); ++k) {
      const T* at = indices.constant.data<T>() + k;
      are_all_within =
          are_all_within && are_within(at, indices.tuples, indices.depth(), indices.extents[static_cast<size_t>(k)]);
    }
  });
  return are_all_within;
}

void add_index_check(LowerContext& context, const IndexTuples& indices) {
  if (are_known_within(indices)) return;
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
