// ArgMax, ArgMin: the place of the extreme along one axis. A NaN counts as the extreme, as in NumPy.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "ops/copy/copy_elements.h"
#include "ops/expansion.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "ops/work_split.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

bool keeps_dims(const Node& node) { return node.attributes.get_int("keepdims", 1) != 0; }

void infer_arg(InferContext& context) {
  const TensorType& data = context.input(0);
  if (!data.has_rank) return context.set_output(0, TensorType::unranked(DType::i64));
  const auto axis = static_cast<size_t>(axis_within(context, context.node.attributes.get_int("axis", 0), data.rank()));
  TensorType result = data;
  result.dtype = DType::i64;
  if (data.dims[axis].extent == 0) context.fail("axis " + std::to_string(axis) + " is empty");
  if (keeps_dims(context.node)) {
    result.dims[axis] = known_dim(1);
  } else {
    result.dims.erase(result.dims.begin() + static_cast<ptrdiff_t>(axis));
  }
  context.set_output(0, std::move(result));
}

// Index of the extreme along each line.
template <class T>
void find_extremes(const std::vector<T>& values, const AxisSplit& split, bool is_max, bool takes_last, int64_t* to) {
  for (int64_t outer = 0; outer < split.outer; ++outer) {
    for (int64_t inner = 0; inner < split.inner; ++inner) {
      const T* at = values.data() + outer * split.extent * split.inner + inner;
      int64_t best = 0;
      for (int64_t i = 1; i < split.extent; ++i) {
        const T x = at[i * split.inner], y = at[best * split.inner];
        const bool is_nan = x != x, was_nan = y != y;
        const bool is_better = !was_nan && (is_nan || (is_max ? x > y : x < y));
        if (is_better || (takes_last && (x == y || (is_nan && was_nan)))) best = i;
      }
      to[outer * split.inner + inner] = best;
    }
  }
}

void reference_arg(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  const int64_t axis = axis_within(context, context.node.attributes.get_int("axis", 0), data.rank());
  const AxisSplit split = split_at(data.dims(), axis);
  if (split.extent == 0) context.fail("axis " + std::to_string(axis) + " is empty");
  Dims dims = data.dims();
  dims[static_cast<size_t>(axis)] = 1;
  if (!keeps_dims(context.node)) dims.erase(dims.begin() + static_cast<ptrdiff_t>(axis));
  Tensor result = make_output(context, DType::i64, dims);
  const bool is_max = context.node.op->name == "ArgMax";
  const bool takes_last = context.node.attributes.get_int("select_last_index", 0) != 0;
  if (data.dtype() == DType::i64) {
    find_extremes(integers_of_any(data), split, is_max, takes_last, result.mutable_data<int64_t>());
  } else {
    find_extremes(reals_of(data), split, is_max, takes_last, result.mutable_data<int64_t>());
  }
  context.outputs[0] = result;
}

// ---- Lowering: lanes side by side, each with its best so far and where that was, in loops that become vector code

struct ArgShape {
  AxisSplit split;
  bool is_max, takes_last;
};

// Places are counted in the type as wide as the elements, so that both fill vectors alike.
template <class T>
using Place = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;

// `x` takes the place of `best`. Without branches: the loops around this are vector code.
template <bool IsMax, bool TakesLast, class T>
[[gnu::always_inline]] inline bool replaces(T x, T best) {
  const bool is_beyond = IsMax ? x > best : x < best;
  if constexpr (std::is_floating_point_v<T>) {
    const bool is_nan = x != x, was_number = best == best;
    const bool wins = is_beyond | (is_nan & was_number);
    return TakesLast ? wins | (x == best) | (is_nan & !was_number) : wins;
  } else {
    return TakesLast ? is_beyond | (x == best) : is_beyond;
  }
}

// One vector of the best so far, lane by lane, and of their places.
template <class T>
struct BestLanes {
  using Values [[gnu::vector_size(32)]] = T;
  using Places [[gnu::vector_size(32)]] = Place<T>;
  static constexpr int64_t kLanes = 32 / sizeof(T);

  Values best;
  Places at;
};

template <bool IsMax, bool TakesLast, class T>
[[gnu::target("avx2"), gnu::always_inline]] inline void offer(BestLanes<T>& lanes, const T* row,
                                                              const typename BestLanes<T>::Places& places) {
  typename BestLanes<T>::Values x;
  std::memcpy(&x, row, sizeof x);
  auto wins = IsMax ? x > lanes.best : x < lanes.best;
  if (TakesLast) wins |= x == lanes.best;
  if constexpr (std::is_floating_point_v<T>) {
    const auto is_nan = x != x, was_nan = lanes.best != lanes.best;
    wins |= TakesLast ? is_nan : is_nan & ~was_nan;
  }
  lanes.best = wins ? x : lanes.best;
  lanes.at = wins ? places : lanes.at;
}

// The extreme of all lanes of `Count` vectors; of equal ones the place decides.
template <bool IsMax, bool TakesLast, class T>
int64_t extreme_of_lanes(const T* best, const Place<T>* at, int64_t count, T& top) {
  int64_t lane = 0;
  for (int64_t i = 1; i < count; ++i) {
    const T x = best[i], old = best[lane];
    const bool is_same = x == old || (x != x && old != old);
    const bool wins = is_same ? (TakesLast ? at[i] > at[lane] : at[i] < at[lane]) : replaces<IsMax, false>(x, old);
    lane = wins ? i : lane;
  }
  top = best[lane];
  return at[lane];
}

template <bool IsMax, bool TakesLast, int64_t kVectors, class T>
[[gnu::target("avx2")]] int64_t extreme_of_row(const T* row, int64_t extent) {
  using Lanes = BestLanes<T>;
  constexpr int64_t kStep = kVectors * Lanes::kLanes;
  Lanes lanes[kVectors];
  typename Lanes::Places places{};
  for (int64_t i = 0; i < Lanes::kLanes; ++i) places[i] = static_cast<Place<T>>(i);
  for (int64_t v = 0; v < kVectors; ++v) {
    std::memcpy(&lanes[v].best, row + v * Lanes::kLanes, sizeof lanes[v].best);
    lanes[v].at = places;
    places += static_cast<Place<T>>(Lanes::kLanes);
  }
  int64_t begin = kStep;
  for (; begin + kStep <= extent; begin += kStep) {
    for (int64_t v = 0; v < kVectors; ++v) {
      offer<IsMax, TakesLast>(lanes[v], row + begin + v * Lanes::kLanes, places);
      places += static_cast<Place<T>>(Lanes::kLanes);
    }
  }
  std::array<T, kStep> best;
  std::array<Place<T>, kStep> at;
  for (int64_t v = 0; v < kVectors; ++v) {
    std::memcpy(best.data() + v * Lanes::kLanes, &lanes[v].best, sizeof lanes[v].best);
    std::memcpy(at.data() + v * Lanes::kLanes, &lanes[v].at, sizeof lanes[v].at);
  }
  T top{};
  int64_t place = extreme_of_lanes<IsMax, TakesLast>(best.data(), at.data(), kStep, top);
  for (; begin < extent; ++begin) {  // later places: those of equal ones win only where the last is wanted
    if (!replaces<IsMax, TakesLast>(row[begin], top)) continue;
    top = row[begin];
    place = begin;
  }
  return place;
}

template <bool IsMax, bool TakesLast, class T>
int64_t extreme_of_row(const T* row, int64_t extent) {
  // Four vectors: comparisons of one wait for nobody. One where a row is short: lanes must be compared at its end.
  constexpr int64_t kVector = BestLanes<T>::kLanes, kLong = 32 * kVector;
  if (extent >= kLong) return extreme_of_row<IsMax, TakesLast, 4>(row, extent);
  if (extent >= kVector) return extreme_of_row<IsMax, TakesLast, 1>(row, extent);
  int64_t place = 0;
  for (int64_t i = 1; i < extent; ++i) place = replaces<IsMax, TakesLast>(row[i], row[place]) ? i : place;
  return place;
}

// Columns [0, count) of a matrix whose rows are `inner` apart: few enough that both lists stay in the nearest cache.
constexpr int64_t kColumns = 1024;

template <bool IsMax, bool TakesLast, class T>
[[gnu::target("avx2")]] void extremes_of_columns(const T* from, int64_t extent, int64_t inner, int64_t count,
                                                 int64_t* to) {
  std::array<T, kColumns> best;
  std::array<Place<T>, kColumns> at;
  std::copy(from, from + count, best.begin());
  std::fill(at.begin(), at.begin() + count, Place<T>{0});
  for (int64_t i = 1; i < extent; ++i) {
    const T* row = from + i * inner;
    const auto place = static_cast<Place<T>>(i);
    for (int64_t c = 0; c < count; ++c) {
      const auto lane = static_cast<size_t>(c);
      const T x = row[c], old = best[lane];
      const bool is_better = replaces<IsMax, TakesLast>(x, old);
      best[lane] = is_better ? x : old;
      at[lane] = is_better ? place : at[lane];
    }
  }
  for (int64_t c = 0; c < count; ++c) to[c] = at[static_cast<size_t>(c)];
}

// Of `rows` rows, or of tasks of columns.
int64_t tasks_of(const ArgShape& shape) {
  const int64_t pieces = (shape.split.inner + kColumns - 1) / kColumns;
  return shape.split.inner == 1 ? shape.split.outer : shape.split.outer * pieces;
}

template <bool IsMax, bool TakesLast, class T>
void run_tasks(const ArgShape& shape, const T* from, int64_t* to, Range own) {
  const auto [outer, extent, inner] = shape.split;
  if (inner == 1) {
    for (int64_t row = own.begin; row < own.end; ++row) {
      to[row] = extreme_of_row<IsMax, TakesLast>(from + row * extent, extent);
    }
    return;
  }
  const int64_t pieces = tasks_of(shape) / outer;
  for (int64_t task = own.begin; task < own.end; ++task) {
    const int64_t row = task / pieces;
    const Range columns = split_evenly(inner, static_cast<int>(task % pieces), static_cast<int>(pieces));
    extremes_of_columns<IsMax, TakesLast>(from + row * extent * inner + columns.begin, extent, inner,
                                          columns.end - columns.begin, to + row * inner + columns.begin);
  }
}

template <class T>
void run_arg(const ArgShape& shape, const T* from, int64_t* to, Range own) {
  if (shape.is_max) {
    shape.takes_last ? run_tasks<true, true>(shape, from, to, own) : run_tasks<true, false>(shape, from, to, own);
  } else {
    shape.takes_last ? run_tasks<false, true>(shape, from, to, own) : run_tasks<false, false>(shape, from, to, own);
  }
}

template <class Visit>
bool visit_compared(DType dtype, Visit visit) {
  if (dtype == DType::f32) return visit.template operator()<float>(), true;
  if (dtype == DType::i64) return visit.template operator()<int64_t>(), true;
  if (dtype == DType::i32) return visit.template operator()<int32_t>(), true;
  return false;
}

bool lower_arg(LowerContext& context) {
  const TensorType& type = context.input_type(0);
  const InferContext messages(context.node, {}, {});
  const int64_t axis = axis_within(messages, context.node.attributes.get_int("axis", 0), type.rank());
  const ArgShape shape{split_at(type.extents(), axis), context.node.op->name == "ArgMax",
                       context.node.attributes.get_int("select_last_index", 0) != 0};
  const int64_t elements = shape.split.outer * shape.split.extent * shape.split.inner;
  if (shape.split.extent > std::numeric_limits<int32_t>::max()) return false;
  if (!visit_compared(type.dtype, []<class T>() {})) return false;
  if (elements == 0) return true;
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  Step step;
  step.kernel = shape.split.inner == 1 ? "extreme of rows" : "extremes of columns";
  step.reads = {from};
  step.writes = {to};
  step.bytes = static_cast<double>(type.storage_bytes());
  step.flop = static_cast<double>(elements);
  constexpr double kWorkOfElement = 16;  // in floating point operations: two vectors, of results too
  step.threads = static_cast<int>(
      std::min<int64_t>(worthwhile_threads(kWorkOfElement * step.flop, context.target.threads), tasks_of(shape)));
  step.run = [=, dtype = type.dtype](const StepArgs& args) {
    const Range own = split_evenly(tasks_of(shape), args.share, args.shares);
    visit_compared(dtype, [&]<class T>() { run_arg(shape, args.at<const T>(from), args.at<int64_t>(to), own); });
  };
  context.add(std::move(step));
  return true;
}

// Short integers are float32 numbers, which have loops.
bool expand_short_integers(ExpandContext& context) {
  const DType dtype = context.input_type(0).dtype;
  if (!is_integer(dtype) || bits_of(dtype) < 8 || bits_of(dtype) > 16) return false;
  const ValueId floats = context.add("Cast", {context.input(0)}, {{"to", static_cast<int64_t>(DType::f32)}});
  context.set_output(0, context.add_copy(context.node, {floats})[0]);
  return true;
}

}  // namespace

std::vector<OpDef> arg_extreme_ops() {
  using Kind = AttributeSpec::Kind;
  std::vector<OpDef> defs;
  for (const std::string_view name : {"ArgMax", "ArgMin"}) {
    defs.push_back({.schema = {.name = name,
                               .attributes = {{"axis", Kind::integer},
                                              {"keepdims", Kind::integer},
                                              {"select_last_index", Kind::integer}},
                               .infer = infer_arg,
                               .reference = reference_arg,
                               .expand = expand_short_integers},
                    .lower = lower_arg});
  }
  return defs;
}

}  // namespace lathe::ops
