#include "ops/pointwise/broadcast.h"

#include <algorithm>

#include "lathe/error.h"

namespace lathe {
namespace {

constexpr int kFirstNumpyVersion = 7;

Dim broadcast_dim(const InferContext& context, const Dim& a, const Dim& b) {
  if (a == b || b.extent == 1) return a;
  if (a.extent == 1) return b;
  if (a.known() && b.known())
    context.fail("operands do not broadcast: extents " + std::to_string(a.extent) + " and " + std::to_string(b.extent));
  if (a.known()) return a;  // beside a known extent > 1, an unknown one is 1 or equal
  if (b.known()) return b;
  return {};
}

bool is_prelu(const Node& node) { return node.op->name == "PRelu"; }

}  // namespace

bool has_legacy_alignment(const Node& node) {
  if (node.version >= kFirstNumpyVersion || !node.op->domain.empty()) return false;
  return is_prelu(node) || (node.attributes.has("axis") && node.attributes.get_int("broadcast", 0) != 0);
}

Dims aligned_dims(const Node& node, int i, Dims dims, int rank) {
  if (i != 1 || !has_legacy_alignment(node)) return dims;
  if (is_prelu(node)) {
    if (dims.size() == 1 && rank > 2) dims.insert(dims.end(), static_cast<size_t>(rank) - 2, 1);
    return dims;
  }
  int64_t axis = node.attributes.get_int("axis", -1);
  if (axis < 0) axis += rank;
  const int64_t trailing = rank - axis - static_cast<int64_t>(dims.size());
  if (axis < 0 || trailing < 0)
    throw Error(ErrorCode::invalid_model, "node '" + node.name + "' (" + std::string(node.op->name) + "): axis " +
                                              std::to_string(axis) + " does not fit the operands");
  dims.insert(dims.end(), static_cast<size_t>(trailing), 1);
  return dims;
}

Dims broadcast_dims(const Node& node, std::span<const Dims> operands) {
  size_t rank = 0;
  for (const Dims& dims : operands) rank = std::max(rank, dims.size());
  Dims result(rank, 1);
  for (const Dims& dims : operands)
    for (size_t i = 0; i < dims.size(); ++i) {
      int64_t& into = result[rank - dims.size() + i];
      if (dims[i] == into || dims[i] == 1) continue;
      if (into != 1)
        throw Error(ErrorCode::invalid_argument, "node '" + node.name + "' (" + std::string(node.op->name) +
                                                     "): operands do not broadcast: " + to_string(dims) + " to " +
                                                     to_string(result));
      into = dims[i];
    }
  return result;
}

TensorType broadcast_types(const InferContext& context, DType dtype, std::span<const TensorType> operands) {
  std::vector<TensorType> aligned(operands.begin(), operands.end());
  int rank = 0;
  for (const TensorType& type : aligned)
    if (!type.has_rank) return TensorType::unranked(dtype);
  if (aligned.size() == 2 && has_legacy_alignment(context.node)) {
    const size_t own = aligned[1].dims.size();
    const size_t padded = aligned_dims(context.node, 1, Dims(own, 1), aligned[0].rank()).size();
    aligned[1].dims.insert(aligned[1].dims.end(), padded - own, Dim{1, ""});
  }
  for (const TensorType& type : aligned) rank = std::max(rank, type.rank());
  TensorType result{dtype, true, std::vector<Dim>(static_cast<size_t>(rank), Dim{1, ""}), {}};
  for (const TensorType& type : aligned)
    for (size_t i = 0; i < type.dims.size(); ++i) {
      Dim& into = result.dims[static_cast<size_t>(rank) - type.dims.size() + i];
      into = broadcast_dim(context, into, type.dims[i]);
    }
  return result;
}

std::vector<int64_t> broadcast_strides(const Dims& operand, const Dims& result) {
  std::vector<int64_t> strides(result.size(), 0);
  int64_t stride = 1;
  for (size_t i = 0; i < operand.size() && i < result.size(); ++i) {
    const int64_t extent = operand[operand.size() - 1 - i];
    if (extent != 1) strides[result.size() - 1 - i] = stride;
    stride *= extent;
  }
  return strides;
}

BroadcastRows::BroadcastRows(const Dims& result, std::span<const Dims> operands)
    : dims_(result), offsets_(operands.size(), 0) {
  if (dims_.empty()) dims_.push_back(1);
  for (const Dims& operand : operands) strides_.push_back(broadcast_strides(operand, dims_));
  index_.assign(dims_.size(), 0);
  length_ = dims_.back();
  for (size_t i = 0; i + 1 < dims_.size(); ++i) rows_ *= dims_[i];
  if (length_ == 0) rows_ = 0;
}

void BroadcastRows::next() {
  ++row_;
  for (size_t axis = dims_.size() - 1; axis-- > 0;) {
    for (size_t k = 0; k < offsets_.size(); ++k) offsets_[k] += strides_[k][axis];
    if (++index_[axis] < dims_[axis]) return;
    for (size_t k = 0; k < offsets_.size(); ++k) offsets_[k] -= strides_[k][axis] * dims_[axis];
    index_[axis] = 0;
  }
}

}  // namespace lathe
