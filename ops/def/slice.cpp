// Slice: a range with a step on some axes. Attributes up to version 9, inputs from version 10.
#include <algorithm>
#include <numeric>

#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_step.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

struct AxisRange {
  int64_t axis = 0, start = 0, end = 0, step = 1;
};

// The ranges as written, one per axis. `fetch(i)` gives input i or an undefined tensor.
template <class Context, class Fetch>
std::vector<AxisRange> ranges_of(const Context& context, int64_t rank, Fetch fetch) {
  std::vector<int64_t> starts, ends, axes, steps;
  if (context.node.op->since < 10) {
    starts = context.node.attributes.get_ints("starts");
    ends = context.node.attributes.get_ints("ends");
    axes = context.node.attributes.get_ints("axes");
  } else {
    starts = integers_of(context, fetch(1), "input 1 (starts)");
    ends = integers_of(context, fetch(2), "input 2 (ends)");
    if (const Tensor given = fetch(3); given.defined()) axes = integers_of(context, given, "input 3 (axes)");
    if (const Tensor given = fetch(4); given.defined()) steps = integers_of(context, given, "input 4 (steps)");
  }
  if (axes.empty()) {
    axes.resize(starts.size());
    std::iota(axes.begin(), axes.end(), 0);
  }
  if (steps.empty()) steps.assign(starts.size(), 1);
  if (ends.size() != starts.size() || axes.size() != starts.size() || steps.size() != starts.size()) {
    context.fail("starts, ends, axes and steps have " + std::to_string(starts.size()) + ", " +
                 std::to_string(ends.size()) + ", " + std::to_string(axes.size()) + " and " +
                 std::to_string(steps.size()) + " elements");
  }
  axes = axes_within(context, axes, rank);
  std::vector<AxisRange> ranges;
  for (size_t i = 0; i < starts.size(); ++i) {
    if (steps[i] == 0) context.fail("the step on axis " + std::to_string(axes[i]) + " is 0");
    ranges.push_back({axes[i], starts[i], ends[i], steps[i]});
  }
  return ranges;
}

// Start and number of elements within an axis of `extent`, after ONNX's clamping.
struct Taken {
  int64_t start = 0, count = 0;
};
Taken clamp_range(const AxisRange& range, int64_t extent) {
  int64_t start = range.start < 0 ? range.start + extent : range.start;
  int64_t end = range.end < 0 ? range.end + extent : range.end;
  if (range.step > 0) {
    start = std::clamp<int64_t>(start, 0, extent);
    end = std::clamp<int64_t>(end, 0, extent);
    return {start, end > start ? (end - start - 1) / range.step + 1 : 0};
  }
  if (extent == 0) return {};
  start = std::clamp<int64_t>(start, 0, extent - 1);
  end = std::clamp<int64_t>(end, -1, extent - 1);
  const uint64_t step = 0 - static_cast<uint64_t>(range.step);
  return {start, start > end ? static_cast<int64_t>((static_cast<uint64_t>(start - end) - 1) / step) + 1 : 0};
}

void infer(InferContext& context) {
  const TensorType& data = context.input(0);
  if (!data.has_rank) return context.set_output(0, TensorType::unranked(data.dtype));
  bool is_known = true;
  for (int i = 1; i < context.input_count(); ++i) {
    if (context.has_input(i) && !context.constant(i).defined()) is_known = false;
  }
  if (!is_known) {
    // Axes that are not sliced keep their extent.
    TensorType result = data;
    if (context.has_input(3) && context.constant(3).defined()) {
      for (const int64_t axis :
           axes_within(context, integers_of(context, context.constant(3), "input 3 (axes)"), data.rank())) {
        result.dims[static_cast<size_t>(axis)] = Dim{};
      }
    } else {
      result.dims.assign(data.dims.size(), Dim{});
    }
    return context.set_output(0, std::move(result));
  }
  if (context.node.op->since >= 10 && (!context.has_input(1) || !context.has_input(2))) {
    context.fail("inputs 1 (starts) and 2 (ends) must be there");
  }
  TensorType result = data;
  for (const AxisRange& range : ranges_of(context, data.rank(), [&](int i) { return context.constant(i); })) {
    Dim& dim = result.dims[static_cast<size_t>(range.axis)];
    if (dim.known()) {
      dim = known_dim(clamp_range(range, dim.extent).count);
    } else if (range.start != 0 || range.step != 1 || range.end < INT32_MAX) {
      dim = Dim{};
    }
  }
  context.set_output(0, std::move(result));
}

struct SliceMove {
  Dims dims;
  int64_t from_offset = 0;
  std::vector<MoveAxis> axes;
};

SliceMove move_of(const Dims& data, const std::vector<AxisRange>& ranges) {
  SliceMove move{data, 0, {}};
  std::vector<int64_t> from = strides_of(data);
  for (const AxisRange& range : ranges) {
    const auto axis = static_cast<size_t>(range.axis);
    const Taken taken = clamp_range(range, data[axis]);
    move.dims[axis] = taken.count;
    move.from_offset += taken.start * from[axis];
    from[axis] = taken.count > 1 ? from[axis] * range.step : 0;
  }
  const std::vector<int64_t> to = strides_of(move.dims);
  for (size_t i = 0; i < data.size(); ++i) move.axes.push_back({move.dims[i], from[i], to[i]});
  return move;
}

void reference(ReferenceContext& context) {
  const Tensor data = spread_elements(context.inputs[0]);
  const auto fetch = [&](size_t i) { return context.has_input(i) ? context.inputs[i] : Tensor(); };
  if (context.node.op->since >= 10 && (!context.has_input(1) || !context.has_input(2))) {
    context.fail("inputs 1 (starts) and 2 (ends) must be there");
  }
  const SliceMove move = move_of(data.dims(), ranges_of(context, data.rank(), fetch));
  Tensor result = make_output(context, data.dtype(), move.dims);
  move_elements(data, move.from_offset, result, 0, move.axes);
  context.outputs[0] = pack_elements(result, context.inputs[0].dtype());
}

bool lower(LowerContext& context) {
  const TensorType& type = context.input_type(0);
  const int bits = bits_of(type.dtype);
  if (bits < 8 || type.dtype == DType::string) return false;
  for (int i = 1; i < context.input_count(); ++i) {
    if (context.has_input(i) && !context.constant(i).defined()) return false;
  }
  const InferContext messages(context.node, {}, {});
  // LowerContext cannot fail by itself; this was validated by infer().
  struct Fetcher {
    const Node& node;
    const InferContext& messages;
    [[noreturn]] void fail(const std::string& what) const { messages.fail(what); }
  } fetcher{context.node, messages};
  const auto fetch = [&](int i) { return context.has_input(i) ? context.constant(i) : Tensor(); };
  const SliceMove move = move_of(type.extents(), ranges_of(fetcher, type.rank(), fetch));
  // One run of the input's bytes is a view: only the outermost axis with more than one element is cut.
  bool is_run = true;
  int64_t expected = 1;
  for (size_t i = move.axes.size(); i-- > 0;) {
    const MoveAxis& axis = move.axes[i];
    if (axis.count > 1 && axis.from_stride != expected) is_run = false;
    expected *= axis.count;
  }
  const auto offset_bytes = static_cast<size_t>(move.from_offset) * static_cast<size_t>(bits) / 8;
  if (is_run && expected > 0 && context.view_of(context.output(0), context.input(0), offset_bytes)) return true;
  return add_copy_step(
      context, type.dtype,
      {{context.buffer(context.input(0)), context.buffer(context.output(0)), move.from_offset, 0, move.axes}});
}

}  // namespace

std::vector<OpDef> slice_ops() {
  using Kind = AttributeSpec::Kind;
  return {{.schema = {.name = "Slice",
                      .until = 9,
                      .attributes = {{"starts", Kind::integers, true},
                                     {"ends", Kind::integers, true},
                                     {"axes", Kind::integers}},
                      .infer = infer,
                      .reference = reference},
           .lower = lower},
          {.schema =
               {.name = "Slice", .since = 10, .min_inputs = 3, .max_inputs = 5, .infer = infer, .reference = reference},
           .lower = lower}};
}

}  // namespace lathe::ops
