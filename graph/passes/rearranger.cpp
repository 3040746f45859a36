#include "graph/passes/rearranger.h"

#include <algorithm>

#include "src/base/axis_order.h"

namespace lathe {

namespace {

constexpr int kReshapeVersion = 14, kTransposeVersion = 13, kSliceVersion = 13;

// What -1 stands for: the elements of `from` over those that the other axes have.
Dim rest_of(const std::vector<Dim>& from, const std::vector<int64_t>& dims) {
  int64_t left = 1, taken = 1;
  Dim open{1, ""};
  for (size_t axis = 0; axis < std::max(from.size(), dims.size()); ++axis) {
    if (axis < dims.size() && dims[axis] == 0) continue;  // the same on both sides
    if (axis < dims.size() && dims[axis] > 0) taken *= dims[axis];
    if (axis >= from.size()) continue;
    if (from[axis].known()) {
      left *= from[axis].extent;
    } else if (open.known()) {
      open = from[axis];
    } else {
      return {};
    }
  }
  if (open.known()) return {left / taken, ""};
  return left == taken ? open : Dim{};
}

std::vector<Dim> reshaped_dims(const std::vector<Dim>& from, const std::vector<int64_t>& dims) {
  std::vector<Dim> result;
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    if (dims[axis] > 0) {
      result.push_back({dims[axis], ""});
    } else {
      result.push_back(dims[axis] == 0 ? from[axis] : rest_of(from, dims));
    }
  }
  return result;
}

}  // namespace

ValueId Rearranger::reshaped(ValueId x, const std::vector<int64_t>& dims, ValueId result) {
  const Value& from = rewriter_.graph().value(x);
  const ValueId shape = rewriter_.add_integers(from.name + "/shape", dims);
  if (result == ValueId::none) {
    TensorType type = from.type;
    type.dims = reshaped_dims(from.type.dims, dims);
    result = rewriter_.add_value(from.name, std::move(type));
  }
  rewriter_.add(made_node(ops_, "Reshape", kReshapeVersion, {x, shape}, result), place_);
  return result;
}

ValueId Rearranger::transposed(ValueId x, const std::vector<int64_t>& perm, ValueId result) {
  if (result == ValueId::none) {
    const Value& from = rewriter_.graph().value(x);
    TensorType type = from.type;
    type.dims = permuted(from.type.dims, perm);
    result = rewriter_.add_value(from.name, std::move(type));
  }
  Node node = made_node(ops_, "Transpose", kTransposeVersion, {x}, result);
  node.attributes.set("perm", perm);
  rewriter_.add(std::move(node), place_);
  return result;
}

ValueId Rearranger::sliced(ValueId x, const std::vector<Piece>& pieces) {
  const std::string name = rewriter_.graph().value(x).name;
  TensorType type = rewriter_.graph().value(x).type;
  std::vector<int64_t> starts, ends, axes;
  for (const Piece& piece : pieces) {
    starts.push_back(piece.begin);
    ends.push_back(piece.end);
    axes.push_back(piece.axis);
    type.dims[static_cast<size_t>(piece.axis)] = {piece.end - piece.begin, ""};
  }
  const ValueId result = rewriter_.add_value(name, std::move(type));
  rewriter_.add(made_node(ops_, "Slice", kSliceVersion,
                          {x, rewriter_.add_integers(name + "/starts", starts),
                           rewriter_.add_integers(name + "/ends", ends), rewriter_.add_integers(name + "/axes", axes)},
                          result),
                place_);
  return result;
}

}  // namespace lathe
