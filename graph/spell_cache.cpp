// How ONNX says what attention over the caches of several sequences needs.
#include <numeric>

#include "graph/spelling.h"

namespace lathe {
namespace {

// 0, 1, ... in a row.
ValueId counted(Spelling& spelling, int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return spelling.integers(numbers);
}

}  // namespace

void spell_positions(Spelling& spelling, const Node& node, ValueId result) {
  const int64_t length = node.attributes.get_int("length", 0), total = node.attributes.get_int("total", 0);
  const ValueId last = spelling.reshaped(spelling.cast(node.inputs[0], DType::i64), {-1, 1});
  const ValueId begin =
      length == total
          ? spelling.op("Mul", {last, spelling.integers({0})})
          : spelling.op("Max", {spelling.op("Sub", {last, spelling.integers({length - 1})}), spelling.integers({0})});
  spelling.op("Add", {begin, counted(spelling, length)}, {}, result);
}

// From the past, the new rows and a row of zeros, one below the other, for each row of the result one.
void spell_append(Spelling& spelling, const Node& node, ValueId result) {
  const TensorType past = spelling.type(node.inputs[0]), now = spelling.type(node.inputs[1]);
  if (!past.is_static() || !now.is_static()) Spelling::fail(node, "its extents are not known");
  const Dims before = past.extents();
  const int64_t total = node.attributes.get_int("total", 0), capacity = before[2], length = now.extents()[2];
  const ValueId zeros = spelling.constant(Tensor(past.dtype, {before[0], before[1], 1, before[3]}));
  const ValueId all = spelling.op("Concat", {node.inputs[0], node.inputs[1], zeros}, {{"axis", int64_t{2}}});
  const ValueId begin =
      spelling.op("Slice", {node.inputs[2], spelling.integers({0}), spelling.integers({1}), spelling.integers({1})});
  const ValueId row = counted(spelling, total);
  const ValueId behind = spelling.op("Add", {spelling.op("Sub", {row, begin}), spelling.integers({capacity})});
  const ValueId is_past = spelling.op("Less", {row, begin});
  const ValueId from =
      spelling.op("Where", {is_past, row, spelling.op("Min", {behind, spelling.integers({capacity + length})})});
  const ValueId places = spelling.op("Expand", {spelling.reshaped(from, {before[0], 1, total, 1}),
                                                spelling.integers({before[0], before[1], total, before[3]})});
  spelling.op("GatherElements", {all, places}, {{"axis", int64_t{2}}}, result);
}

}  // namespace lathe
