#include "ops/pointwise/row_loops.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "ops/pointwise/broadcast.h"
#include "ops/work_split.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// Rows longer than this are cut, so that threads find shares in a result of few rows.
constexpr int64_t kLongestRow = 4096;
// Rows shorter than this are joined to some of up to so many elements, for which operands are brought together.
constexpr int64_t kShortRow = 32, kJoinedRow = 512;
using JoinedElements = std::array<std::byte, kJoinedRow * sizeof(double)>;

template <class T>
[[gnu::target("avx2")]] void gather(const std::vector<int32_t>& places, const char* from, int64_t count, void* to) {
  const T* in = reinterpret_cast<const T*>(from);
  T* out = static_cast<T*>(to);
  for (int64_t i = 0; i < count; ++i) out[i] = in[places[static_cast<size_t>(i)]];
}

void gather_elements(const std::vector<int32_t>& places, const char* from, int64_t count, size_t bytes, void* to) {
  if (bytes == 1) return gather<uint8_t>(places, from, count, to);
  if (bytes == 2) return gather<uint16_t>(places, from, count, to);
  bytes == 4 ? gather<uint32_t>(places, from, count, to) : gather<uint64_t>(places, from, count, to);
}

struct Rows {
  struct Axis {
    int64_t extent = 1;
    std::array<int64_t, RowOperands::kMost> stride{};
  };

  std::vector<Axis> outer;  // outermost first
  Axis row;
  int64_t elements = 1;  // of one index of `row`: of the short rows that it joins
  int64_t longest = kLongestRow;
  std::array<int64_t, RowOperands::kMost> stride{};  // from element to element
  // By operand: where the elements of a joined row are; empty: `stride` tells.
  std::array<std::vector<int32_t>, RowOperands::kMost> places;
  int operands = 0;
  std::array<size_t, RowOperands::kMost> bytes{};
  size_t out_bytes = 0;

  int64_t pieces_of_row() const { return (row.extent + longest - 1) / longest; }
  int64_t count() const {
    int64_t count = pieces_of_row();
    for (const Axis& axis : outer) count *= axis.extent;
    return count;
  }
  // Piece `number` of all, for `loop`.
  void run(int64_t number, const std::array<const char*, RowOperands::kMost>& in, char* out,
           const RowLoop& loop) const {
    const Range piece =
        split_evenly(row.extent, static_cast<int>(number % pieces_of_row()), static_cast<int>(pieces_of_row()));
    number /= pieces_of_row();
    RowOperands found{};
    found.length = (piece.end - piece.begin) * elements;
    std::array<int64_t, RowOperands::kMost> from{};
    for (size_t k = 0; k < from.size(); ++k) from[k] = piece.begin * row.stride[k];
    int64_t left = number;
    for (size_t axis = outer.size(); axis-- > 0; left /= outer[axis].extent) {
      for (size_t k = 0; k < from.size(); ++k) from[k] += left % outer[axis].extent * outer[axis].stride[k];
    }
    alignas(64) std::array<JoinedElements, RowOperands::kMost> joined;
    for (size_t k = 0; k < from.size(); ++k) {
      const char* first = in[k] + from[k] * static_cast<int64_t>(bytes[k]);
      if (!places[k].empty()) gather_elements(places[k], first, found.length, bytes[k], joined[k].data());
      found.in[k] = places[k].empty() ? static_cast<const void*>(first) : joined[k].data();
      found.stride[k] = stride[k];
    }
    found.out = out + (number * row.extent + piece.begin) * elements * static_cast<int64_t>(out_bytes);
    loop(found);
  }

  // Requires: the innermost axis is the last of `outer`.
  void choose_row() {
    const bool fits = *std::max_element(bytes.begin(), bytes.end()) <= sizeof(double);
    if (outer.size() > 1 && outer.back().extent < kShortRow && fits) return join_short_rows();
    row = outer.back();
    outer.pop_back();
    stride = row.stride;
  }

 private:
  void join_short_rows() {
    std::vector<Axis> inner;  // innermost first
    while (!outer.empty() && elements * outer.back().extent <= kJoinedRow) {
      elements *= outer.back().extent;
      inner.push_back(outer.back());
      outer.pop_back();
    }
    if (!outer.empty()) {
      row = outer.back();
      outer.pop_back();
    }
    longest = kJoinedRow / elements;
    for (int k = 0; k < operands; ++k) find_places(inner, static_cast<size_t>(k));
  }

  void find_places(const std::vector<Axis>& inner, size_t operand) {
    std::vector<int32_t> found;
    for (int64_t i = 0; i < std::min(longest, row.extent) * elements; ++i) {
      int64_t left = i, place = 0;
      for (const Axis& axis : inner) {
        place += left % axis.extent * axis.stride[operand];
        left /= axis.extent;
      }
      found.push_back(static_cast<int32_t>(place + left * row.stride[operand]));
    }
    const int32_t step = found.size() > 1 ? std::min(found[1], 1) : 0;
    bool is_even = true;
    for (size_t i = 0; i < found.size(); ++i) is_even = is_even && found[i] == step * static_cast<int32_t>(i);
    stride[operand] = is_even ? step : 1;
    if (!is_even) places[operand] = std::move(found);
  }
};

// Neighbouring axes along which every operand steps evenly become one.
std::vector<Rows::Axis> merged_axes(const Dims& result, const std::vector<std::vector<int64_t>>& strides) {
  std::vector<Rows::Axis> axes;
  for (size_t i = 0; i < result.size(); ++i) {
    if (result[i] == 1) continue;
    Rows::Axis axis{result[i], {}};
    for (size_t k = 0; k < strides.size(); ++k) axis.stride[k] = strides[k][i];
    const auto continues = [&](const Rows::Axis& before) {
      for (size_t k = 0; k < strides.size(); ++k) {
        if (before.stride[k] != axis.stride[k] * axis.extent) return false;
      }
      return true;
    };
    if (!axes.empty() && continues(axes.back())) {
      axis.extent *= axes.back().extent;
      axes.back() = axis;
    } else {
      axes.push_back(axis);
    }
  }
  if (axes.empty()) axes.emplace_back();
  return axes;
}

}  // namespace

bool add_row_step(LowerContext& context, const RowLoop& loop, const std::string& kernel, double work) {
  const TensorType& result = context.output_type(0);
  if (context.node.epilogue || context.node.captures > 0 || context.input_count() > RowOperands::kMost) return false;
  if (has_legacy_alignment(context.node) || result.layout != Layout{}) return false;
  Rows rows;
  Step step;
  step.kernel = kernel;
  std::vector<std::vector<int64_t>> strides;
  std::array<BufferId, RowOperands::kMost> from{};
  for (int k = 0; k < context.input_count(); ++k) {
    if (!context.has_input(k) || context.input_type(k).layout != Layout{}) return false;
    const TensorType& type = context.input_type(k);
    strides.push_back(broadcast_strides(type.extents(), result.extents()));
    rows.bytes[static_cast<size_t>(k)] = static_cast<size_t>(bits_of(type.dtype) / 8);
    from[static_cast<size_t>(k)] = context.buffer(context.input(k));
    step.reads.push_back(from[static_cast<size_t>(k)]);
    step.bytes += static_cast<double>(type.storage_bytes());
  }
  if (result.storage_bytes() == 0) return true;
  rows.outer = merged_axes(result.extents(), strides);
  rows.operands = context.input_count();
  rows.choose_row();
  rows.out_bytes = static_cast<size_t>(bits_of(result.dtype) / 8);
  const BufferId to = context.buffer(context.output(0));
  step.writes = {to};
  step.bytes += static_cast<double>(result.storage_bytes());
  const double elements = static_cast<double>(result.storage_bytes()) / static_cast<double>(rows.out_bytes);
  step.threads = static_cast<int>(std::min<int64_t>(
      worthwhile_threads(std::max(work * elements, step.bytes / 2) * 4, context.target.threads), rows.count()));
  step.run = [rows = std::move(rows), loop, from, to](const StepArgs& args) {
    std::array<const char*, RowOperands::kMost> in{};
    for (int k = 0; k < rows.operands; ++k) {
      in[static_cast<size_t>(k)] = args.at<const char>(from[static_cast<size_t>(k)]);
    }
    const Range own = split_evenly(rows.count(), args.share, args.shares);
    for (int64_t i = own.begin; i < own.end; ++i) rows.run(i, in, args.at<char>(to), loop);
  };
  context.add(std::move(step));
  return true;
}

}  // namespace lathe
