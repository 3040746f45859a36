// Attention over shifted windows of a batch of pictures adds a mask of each window, which all pictures share:
//   [pictures * windows, ...] -Reshape-> [pictures, windows, ...] -Add a constant, Reshape-> [pictures * windows, ...]
// The constant becomes one of all windows of all pictures, and the Reshapes go: what stands around them fuses.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>

#include "graph/passes/passes.h"
#include "graph/passes/rewrite.h"

namespace lathe::passes {
namespace {

// The first axis of a value, cut in two.
struct Cut {
  int64_t outer, inner;
};

bool are_known(const std::vector<Dim>& dims) {
  return std::all_of(dims.begin(), dims.end(), [](const Dim& dim) { return dim.known() && dim.extent > 0; });
}

std::optional<Cut> cut_between(const TensorType& whole, const TensorType& cut) {
  if (!whole.has_rank || !cut.has_rank || whole.rank() < 1 || cut.rank() != whole.rank() + 1) return std::nullopt;
  if (!are_known(whole.dims) || !are_known(cut.dims)) return std::nullopt;
  const int64_t outer = cut.dims[0].extent, inner = cut.dims[1].extent;
  if (whole.dims[0].extent / outer != inner || whole.dims[0].extent % outer != 0) return std::nullopt;
  if (!std::equal(whole.dims.begin() + 1, whole.dims.end(), cut.dims.begin() + 2, same_dim)) return std::nullopt;
  return Cut{outer, inner};
}

// What the constant has along the axes of a cut; `rank`: of what it broadcasts to.
Cut cut_of(const Tensor& constant, size_t rank) {
  const Dims& dims = constant.dims();
  Cut cut{1, 1};
  if (dims.size() == rank) cut.outer = dims[0];
  if (dims.size() + 1 >= rank) cut.inner = dims[dims.size() + 1 - rank];
  return cut;
}

// It broadcasts to this type, and is not too large as one of all windows.
bool can_join(const Tensor& constant, const TensorType& type) {
  constexpr int64_t kMostBytes = 16 << 20;
  if (!constant.defined() || bits_of(constant.dtype()) % 8 != 0) return false;
  if (!broadcasts_into(TensorType::of(constant.dtype(), constant.dims()), type)) return false;
  const Cut own = cut_of(constant, static_cast<size_t>(type.rank()));
  const int64_t each = static_cast<int64_t>(constant.bytes()) / (own.outer * own.inner);
  return each <= kMostBytes / (type.dims[0].extent * type.dims[1].extent);
}

// The constant as one whose first axis is not cut.
Tensor joined(const Tensor& constant, const Cut& cut, size_t rank) {
  if (constant.dims().size() + 1 < rank) return constant;  // the same for all windows
  const Cut own = cut_of(constant, rank);
  Dims dims(constant.dims().end() - static_cast<std::ptrdiff_t>(rank - 1), constant.dims().end());
  dims[0] = own.outer == 1 && own.inner == 1 ? 1 : cut.outer * cut.inner;
  Tensor result(constant.dtype(), dims);
  const size_t each = constant.bytes() / static_cast<size_t>(own.outer * own.inner);
  const auto* from = static_cast<const char*>(constant.raw());
  auto* to = static_cast<char*>(result.mutable_raw());
  for (int64_t i = 0; i < dims[0]; ++i) {
    const int64_t window = i / cut.inner % own.outer * own.inner + i % own.inner;
    std::memcpy(to + static_cast<size_t>(i) * each, from + static_cast<size_t>(window) * each, each);
  }
  return result;
}

class CutSinker {
 public:
  explicit CutSinker(Rewriter& rewriter) : rewriter_(rewriter), graph_(rewriter.graph()) {}

  void sink(NodeId id) {
    const Node& node = graph_.node(id);
    if (!is_plain_reshape(node)) return;
    const ValueId whole = node.inputs[0], shaped = node.outputs[0];
    const NodeId user = rewriter_.only_user(shaped);
    if (user == NodeId::none || !rewriter_.has_one_use(shaped)) return;
    const std::optional<Cut> cut = cut_between(graph_.value(whole).type, graph_.value(shaped).type);
    if (!cut || !can_follow(user, shaped)) return;
    const NodeId joining = rewriter_.only_user(graph_.node(user).outputs[0]);
    if (joining == NodeId::none || !is_plain_reshape(graph_.node(joining))) return;
    if (graph_.node(joining).inputs[0] != graph_.node(user).outputs[0]) return;
    const ValueId result = graph_.node(joining).outputs[0];
    if (!same_shape(graph_.value(result).type, graph_.value(whole).type)) return;
    move(id, user, joining, *cut);
  }

 private:
  // Pointwise, of the value and constants.
  bool can_follow(NodeId id, ValueId shaped) const {
    const Node& node = graph_.node(id);
    const TensorType& type = graph_.value(shaped).type;
    if (!is_one_of(node, {"Add", "Sub", "Mul", "Where"}) || node.epilogue || node.attributes.has("broadcast"))
      return false;
    return same_shape(graph_.value(node.outputs[0]).type, type) &&
           std::all_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId input) { return input == shaped || can_join(graph_.value(input).constant, type); });
  }

  void move(NodeId cutting, NodeId id, NodeId joining, const Cut& cut) {
    const ValueId whole = graph_.node(cutting).inputs[0], shaped = graph_.node(cutting).outputs[0];
    const auto rank = static_cast<size_t>(graph_.value(shaped).type.rank());
    Node moved = graph_.node(id);
    for (ValueId& input : moved.inputs) {
      if (input == shaped) {
        input = whole;
      } else {
        const std::string name = graph_.value(input).name;
        input = rewriter_.add_constant(name, joined(graph_.value(input).constant, cut, rank));
      }
    }
    const ValueId result = graph_.node(joining).outputs[0];
    moved.outputs = {ValueId::none};
    rewriter_.erase(cutting);
    rewriter_.erase(id);
    rewriter_.erase(joining);
    rewriter_.move_output(result, rewriter_.add(std::move(moved), id));
  }

  Rewriter& rewriter_;
  Graph& graph_;
};

}  // namespace

bool sink_cuts(Graph& graph, const PassContext&) {
  Rewriter rewriter(graph);
  CutSinker sinker(rewriter);
  return rewrite_each(rewriter, [&](NodeId id) { sinker.sink(id); });
}

}  // namespace lathe::passes
