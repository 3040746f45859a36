#include "ops/pointwise/pointwise_loops.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "src/base/check.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Extents and, for each operand (the result last), strides in elements: loops not yet merged.
struct Nest {
  std::vector<int64_t> extents;
  std::vector<std::vector<int64_t>> strides;  // [operand][axis]

  size_t rank() const { return extents.size(); }
  void erase(size_t axis) {
    extents.erase(extents.begin() + static_cast<std::ptrdiff_t>(axis));
    for (auto& each : strides) each.erase(each.begin() + static_cast<std::ptrdiff_t>(axis));
  }
};

std::vector<int64_t> dense_strides(const Dims& dims) {
  std::vector<int64_t> strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

// Axes of one element vanish; an axis that continues the next inner one, for all operands, joins it.
void merge(Nest& nest) {
  for (size_t i = nest.rank(); i-- > 0;)
    if (nest.extents[i] == 1) nest.erase(i);
  for (size_t i = nest.rank(); i-- > 1;) {
    const bool continues = std::all_of(nest.strides.begin(), nest.strides.end(), [&](const auto& strides) {
      return strides[i - 1] == strides[i] * nest.extents[i];
    });
    if (!continues) continue;
    nest.extents[i - 1] *= nest.extents[i];
    for (auto& strides : nest.strides) strides[i - 1] = strides[i];
    nest.erase(i);
  }
  if (nest.rank() == 0) {
    nest.extents.push_back(1);
    for (auto& strides : nest.strides) strides.push_back(1);
  }
}

// Rows of one vector each, where every operand goes on, stays, or repeats its vector, are one long row.
bool join_vectors(Nest& nest, int lanes, std::vector<PointwiseAccess>& access) {
  if (nest.rank() < 2) return false;
  const size_t inner = nest.rank() - 1, outer = inner - 1;
  if (nest.extents[inner] != lanes) return false;
  std::vector<PointwiseAccess> joined;
  for (const auto& strides : nest.strides) {
    if (strides[inner] == 1 && strides[outer] == lanes)
      joined.push_back(PointwiseAccess::contiguous);
    else if (strides[inner] == 0 && strides[outer] == 0)
      joined.push_back(PointwiseAccess::scalar);
    else if (strides[inner] == 1 && strides[outer] == 0)
      joined.push_back(PointwiseAccess::repeated);
    else
      return false;
  }
  joined.pop_back();  // the result
  access = std::move(joined);
  nest.extents[outer] *= lanes;
  for (auto& strides : nest.strides) strides[outer] = strides[inner];
  nest.erase(inner);
  return true;
}

class Planner {
 public:
  Planner(Isa isa, const Expression& expression, const TensorType& result)
      : isa_(isa), expression_(expression), result_(result), block_(result.layout.channel_block) {
    nest_.extents = result.storage_dims();
  }

  bool add(const TensorType& operand) {
    auto strides = pointwise_strides(operand, result_);
    if (!strides) return false;
    nest_.strides.push_back(std::move(*strides));
    return true;
  }

  std::vector<PointwiseLoops> plan() {
    nest_.strides.push_back(dense_strides(nest_.extents));
    std::vector<PointwiseLoops> all;
    const int64_t used_lanes = block_ == 0 ? 0 : result_.dims[1].extent % block_;
    if (used_lanes == 0) {
      all.push_back(finish(nest_, {}, 0));
      return all;
    }
    // The last block of channels runs apart, with its padding masked to zero.
    const int64_t blocks = nest_.extents[1];
    if (blocks > 1) {
      Nest whole = nest_;
      whole.extents[1] = blocks - 1;
      all.push_back(finish(whole, {}, 0));
    }
    for (int64_t n = 0; n < nest_.extents[0]; ++n) {
      Nest last = nest_;
      last.extents[0] = last.extents[1] = 1;
      std::vector<int64_t> begins;
      for (const auto& strides : nest_.strides) begins.push_back(n * strides[0] + (blocks - 1) * strides[1]);
      all.push_back(finish(last, begins, static_cast<int>(used_lanes)));
    }
    return all;
  }

  void set_plain(std::vector<bool> is_plain) { is_plain_ = std::move(is_plain); }

 private:
  int64_t bytes_of(size_t operand) const {
    const DType dtype = operand < expression_.inputs.size() ? expression_.inputs[operand] : expression_.output;
    return bits_of(dtype) / 8;
  }

  PointwiseLoops finish(Nest nest, const std::vector<int64_t>& begins, int used_lanes) const {
    const size_t inputs = expression_.inputs.size();
    const std::vector<int64_t> lane_strides = [&] {
      std::vector<int64_t> strides;
      for (const auto& each : nest.strides) strides.push_back(each.empty() ? 0 : each.back());
      return strides;
    }();
    merge(nest);
    const int lanes = vector_lanes(isa_);
    PointwisePlan plan{.isa = isa_, .expression = expression_, .masks_lanes = used_lanes > 0};
    const bool is_joined = join_vectors(nest, lanes, plan.access);
    if (!is_joined)
      for (size_t k = 0; k < inputs; ++k)
        plan.access.push_back(nest.strides[k].back() == 0 ? PointwiseAccess::scalar : PointwiseAccess::contiguous);
    PointwiseLoops loops;
    loops.length = nest.extents.back();
    if (nest.rank() > 1) loops.rows = nest.extents[nest.rank() - 2];
    if (nest.rank() > 2) loops.outer.assign(nest.extents.begin(), nest.extents.end() - 2);
    for (size_t k = 0; k <= inputs; ++k) {
      const bool moves = k == inputs || plan.access[k] == PointwiseAccess::contiguous;
      loops.element_stride_bytes.push_back(moves ? bytes_of(k) : 0);
      PointwiseLoops::Operand operand;
      const auto& strides = nest.strides[k];
      if (!begins.empty()) operand.begin_bytes = begins[k] * bytes_of(k);
      if (nest.rank() > 1) operand.row_stride_bytes = strides[nest.rank() - 2] * bytes_of(k);
      for (size_t axis = 0; axis + 2 < nest.rank(); ++axis)
        operand.outer_stride_bytes.push_back(strides[axis] * bytes_of(k));
      const bool is_partial = used_lanes > 0 && k < inputs && is_plain_[k] && lane_strides[k] == 1;
      if (is_partial) operand.partial_bytes = static_cast<int>(used_lanes * bytes_of(k));
      (k < inputs ? loops.inputs.emplace_back() : loops.out) = std::move(operand);
    }
    for (int i = 0; i < used_lanes; ++i) loops.lane_mask[i] = std::bit_cast<float>(~0u);
    // The mask is one vector: blocks of another width would need another form.
    if (used_lanes > 0 && block_ != lanes) throw JitError("pointwise: a partial channel block of another width");
    loops.kernel = pointwise_kernel(plan);
    return loops;
  }

  Isa isa_;
  const Expression& expression_;
  const TensorType& result_;
  int block_;
  Nest nest_;
  std::vector<bool> is_plain_;
};

}  // namespace

std::optional<std::vector<int64_t>> pointwise_strides(const TensorType& operand, const TensorType& result) {
  const int block = result.layout.channel_block;
  const auto rank = static_cast<size_t>(result.rank());
  const Dims dims = operand.extents();
  if (dims.size() > rank || (block == 0 && operand.layout.channel_block != 0)) return std::nullopt;
  const size_t shift = rank - dims.size();
  std::vector<int64_t> logical(rank, 0);
  if (operand.layout.channel_block == 0) {
    const std::vector<int64_t> dense = dense_strides(dims);
    for (size_t i = 0; i < dims.size(); ++i)
      if (dims[i] != 1) logical[shift + i] = dense[i];
    if (block == 0) return logical;
    // Channels step by blocks outside and by one inside, which memory must allow.
    if (rank < 2 || logical[1] > 1) return std::nullopt;
    const int64_t channel_stride = logical[1];
    logical[1] *= block;
    logical.push_back(channel_stride);
    return logical;
  }
  if (shift != 0 || operand.layout.channel_block != block) return std::nullopt;
  const Dims stored = operand.storage_dims();
  std::vector<int64_t> strides = dense_strides(stored);
  for (size_t i = 0; i < rank; ++i)
    if (dims[i] == 1) strides[i] = 0;
  // One channel beside many: its lane 0 for all of them.
  if (dims[1] == 1 && result.dims[1].extent != 1) strides.back() = 0;
  return strides;
}

int64_t PointwiseLoops::total_rows() const {
  int64_t total = rows;
  for (const int64_t extent : outer) total *= extent;
  return total;
}

void PointwiseLoops::run(const void* const* bases, void* out_base, int share, int shares) const noexcept {
  const int64_t total = total_rows();
  if (length == 0 || total == 0) return;
  if (total >= 2 * shares || shares == 1) {
    const Range mine = split_evenly(total, share, shares);
    if (mine.begin < mine.end) run_rows(bases, out_base, mine.begin, mine.end, 0, length);
    return;
  }
  // Few long rows: each share has a part of every row, in whole cache lines.
  const int64_t granule = 64;
  const Range mine = split_evenly((length + granule - 1) / granule, share, shares);
  const int64_t first = mine.begin * granule, last = std::min<int64_t>(mine.end * granule, length);
  if (first < last) run_rows(bases, out_base, 0, total, first, last - first);
}

void PointwiseLoops::run_rows(const void* const* bases, void* out_base, int64_t begin, int64_t end, int64_t first,
                              int64_t count) const {
  const void* at[kMaxInputs];
  int64_t strides[kMaxInputs];
  alignas(64) std::byte padded[kMaxInputs][64];
  const size_t operands = inputs.size();
  for (int64_t row = begin; row < end;) {
    const int64_t in_nest = row % rows, stretch = std::min(end - row, rows - in_nest);
    const auto place = [&](const Operand& operand) {
      int64_t offset = operand.begin_bytes + in_nest * operand.row_stride_bytes;
      int64_t rest = row / rows;
      for (size_t axis = outer.size(); axis-- > 0; rest /= outer[axis])
        offset += rest % outer[axis] * operand.outer_stride_bytes[axis];
      return offset;
    };
    for (size_t k = 0; k < operands; ++k) {
      const auto* source = static_cast<const std::byte*>(bases[k]) + place(inputs[k]);
      strides[k] = inputs[k].row_stride_bytes;
      if (inputs[k].partial_bytes > 0) {
        std::memset(padded[k], 0, sizeof padded[k]);
        std::memcpy(padded[k], source, static_cast<size_t>(inputs[k].partial_bytes));
        at[k] = padded[k];
      } else {
        at[k] = source + first * element_stride_bytes[k];
      }
    }
    auto* target = static_cast<std::byte*>(out_base) + place(out) + first * element_stride_bytes[operands];
    const PointwiseArgs args{at, strides, target, out.row_stride_bytes, count, stretch, lane_mask};
    kernel(&args);
    row += stretch;
  }
}

std::optional<std::vector<PointwiseLoops>> plan_pointwise(Isa isa, const Expression& expression,
                                                          const std::vector<TensorType>& inputs,
                                                          const TensorType& result) {
  if (inputs.size() > static_cast<size_t>(PointwiseLoops::kMaxInputs)) return std::nullopt;
  Planner planner(isa, expression, result);
  std::vector<bool> is_plain;
  for (const TensorType& input : inputs) {
    if (!planner.add(input)) return std::nullopt;
    is_plain.push_back(input.layout.channel_block == 0);
  }
  planner.set_plain(std::move(is_plain));
  return planner.plan();
}

}  // namespace lathe
