// Scatter, ScatterElements and ScatterND, with reductions.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "ops/copy/copy_elements.h"
#include "ops/copy/index_check.h"
#include "ops/copy/run_copies.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "ops/work_split.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

enum class Reduction { none, add, mul, max, min };

std::optional<Reduction> reduction_named(const std::string& name) {
  const std::pair<const char*, Reduction> known[] = {{"none", Reduction::none},
                                                     {"add", Reduction::add},
                                                     {"mul", Reduction::mul},
                                                     {"max", Reduction::max},
                                                     {"min", Reduction::min}};
  for (const auto& [text, reduction] : known) {
    if (name == text) return reduction;
  }
  return std::nullopt;
}

Reduction reduction_of(const ReferenceContext& context) {
  const std::string name = context.node.attributes.get_string("reduction", "none");
  if (const auto reduction = reduction_named(name)) return *reduction;
  context.fail("attribute 'reduction' is '" + name + "', expected none, add, mul, max or min");
}

template <class T>
T combine(Reduction reduction, T old, T update) {
  // A NaN wins over any number, as in NumPy.
  if constexpr (std::is_floating_point_v<T>) {
    const bool compares = reduction == Reduction::max || reduction == Reduction::min;  // arithmetic sees to it itself
    if (compares && std::isnan(old)) return old;
    if (compares && std::isnan(update)) return update;
  }
  if constexpr (std::is_same_v<T, bool>) {
    const bool is_or = reduction == Reduction::add || reduction == Reduction::max;
    return reduction == Reduction::none ? update : is_or ? old || update : old && update;
  } else {
    // Integers wrap; unsigned arithmetic (in 64 bits, for promotion) has no overflow.
    const auto wrapped = [](auto a, auto b, auto op) {
      if constexpr (std::is_integral_v<T>) {
        return static_cast<T>(op(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
      } else {
        return op(a, b);
      }
    };
    switch (reduction) {
      case Reduction::none:
        return update;
      case Reduction::add:
        return wrapped(old, update, [](auto a, auto b) { return a + b; });
      case Reduction::mul:
        return wrapped(old, update, [](auto a, auto b) { return a * b; });
      case Reduction::max:
        return std::max(old, update);
      case Reduction::min:
        return std::min(old, update);
    }
    return update;
  }
}

// result[to[i]] = combine(result[to[i]], updates[from[i]]) for runs of `count` elements, in order.
struct Move {
  int64_t to, from;
};
void apply(const ReferenceContext& context, Tensor& result, const Tensor& updates, Reduction reduction,
           const std::vector<Move>& moves, int64_t count) {
  if (reduction == Reduction::none) {
    const ElementCopy copy(result.dtype());
    for (const Move& move : moves) copy(updates, move.from, result, move.to, count);
    return;
  }
  const bool is_native = visit_native(result.dtype(), [&]<class T>() {
    T* out = result.mutable_data<T>();
    const T* in = updates.data<T>();
    for (const Move& move : moves) {
      for (int64_t i = 0; i < count; ++i) {
        out[move.to + i] = combine<T>(reduction, out[move.to + i], in[move.from + i]);
      }
    }
  });
  if (is_native) return;
  if (result.dtype() != DType::f16 && result.dtype() != DType::bf16) {
    context.fail("has no reduction over " + std::string(name_of(result.dtype())));
  }
  const std::vector<double> in = reals_of(updates);
  std::vector<double> out = reals_of(result);
  for (const Move& move : moves) {
    for (int64_t i = 0; i < count; ++i) {
      double& into = out[static_cast<size_t>(move.to + i)];
      into = rounded_to(result.dtype(), combine(reduction, into, in[static_cast<size_t>(move.from + i)]));
      store_real(result, move.to + i, into);
    }
  }
}

int64_t index_within(const ReferenceContext& context, int64_t index, int64_t extent) {
  if (index < -extent || index >= extent) {
    context.fail("index " + std::to_string(index) + " is out of range for an extent of " + std::to_string(extent));
  }
  return index < 0 ? index + extent : index;
}

Tensor own_copy(const ReferenceContext& context, const Tensor& data) {
  Tensor result = make_output(context, data.dtype(), data.dims());
  ElementCopy(data.dtype())(data, 0, result, 0, data.size());
  return result;
}

void check_updates(const ReferenceContext& context) {
  if (context.inputs[2].dtype() != context.inputs[0].dtype()) {
    context.fail("updates are " + std::string(name_of(context.inputs[2].dtype())) + ", the data " +
                 std::string(name_of(context.inputs[0].dtype())));
  }
}

void infer_same(InferContext& context) { context.set_output(0, context.input(0)); }

// ---- ScatterElements

void run_scatter_elements(ReferenceContext& context) {
  check_updates(context);
  const Tensor data = spread_elements(context.inputs[0]), updates = spread_elements(context.inputs[2]);
  const Tensor& indices = context.inputs[1];
  if (indices.dims() != updates.dims() || indices.rank() != data.rank()) {
    context.fail("indices are " + to_string(indices.dims()) + ", updates " + to_string(updates.dims()) + ", data " +
                 to_string(data.dims()));
  }
  if (data.rank() == 0) context.fail("data must have at least one axis");
  const auto axis = static_cast<size_t>(axis_within(context, context.node.attributes.get_int("axis", 0), data.rank()));
  for (size_t i = 0; i < data.dims().size(); ++i) {
    if (i != axis && indices.dims()[i] > data.dims()[i]) {
      context.fail("indices are " + to_string(indices.dims()) + ", larger than data " + to_string(data.dims()));
    }
  }
  const std::vector<int64_t> where = integers_of_any(indices), strides = strides_of(data.dims());
  std::vector<Move> moves;
  moves.reserve(where.size());
  for (IndexWalk at(indices.dims()); !at.done(); at.next()) {
    const auto from = static_cast<int64_t>(moves.size());
    int64_t to = index_within(context, where[moves.size()], data.dims()[axis]) * strides[axis];
    for (size_t i = 0; i < strides.size(); ++i) to += i == axis ? 0 : at.index()[i] * strides[i];
    moves.push_back({to, from});
  }
  Tensor result = own_copy(context, data);
  apply(context, result, updates, reduction_of(context), moves, 1);
  context.outputs[0] = pack_elements(result, context.inputs[0].dtype());
}

// ---- ScatterND

void run_scatter_nd(ReferenceContext& context) {
  check_updates(context);
  const Tensor data = spread_elements(context.inputs[0]), updates = spread_elements(context.inputs[2]);
  const Tensor& indices = context.inputs[1];
  if (indices.rank() < 1) context.fail("indices must have at least one axis");
  const int64_t depth = indices.dims().back();
  if (depth > data.rank()) context.fail("indices of " + std::to_string(depth) + " axes into " + to_string(data.dims()));
  Dims expected(indices.dims().begin(), indices.dims().end() - 1);
  expected.insert(expected.end(), data.dims().begin() + depth, data.dims().end());
  if (updates.dims() != expected) {
    context.fail("updates are " + to_string(updates.dims()) + ", expected " + to_string(expected));
  }
  const std::vector<int64_t> where = integers_of_any(indices), strides = strides_of(data.dims());
  int64_t count = 1, rows = 1;
  for (size_t i = static_cast<size_t>(depth); i < data.dims().size(); ++i) count *= data.dims()[i];
  for (size_t i = 0; i + 1 < indices.dims().size(); ++i) rows *= indices.dims()[i];
  std::vector<Move> moves;
  if (count == 0) rows = 0;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t to = 0;
    for (int64_t i = 0; i < depth; ++i) {
      const auto axis = static_cast<size_t>(i);
      to += index_within(context, where[static_cast<size_t>(row * depth + i)], data.dims()[axis]) * strides[axis];
    }
    moves.push_back({to, row * count});
  }
  Tensor result = own_copy(context, data);
  apply(context, result, updates, reduction_of(context), moves, count);
  context.outputs[0] = pack_elements(result, context.inputs[0].dtype());
}

// ---- Lowering: the data is copied (or taken over where nobody else reads it), then updates go in, in their order

// Runs of `count` elements of `updates`, in order, at the places that the indices say.
struct ScatterWork {
  BufferId out, updates;
  IndexTuples indices;
  std::vector<int64_t> strides;  // ScatterND: of each index of a tuple, in elements
  int64_t count = 1;
  // ScatterElements: rows along the last axis; strides are those of all axes of the data.
  Dims dims;
  size_t axis = 0;
  Reduction reduction = Reduction::none;

  static constexpr int64_t kColumns = 16;  // a cache line of float32

  // Updates of one place come in their order: shares have their own columns, or rows of other places.
  static Range columns_of(int64_t count, const StepArgs& args) {
    const Range own = split_evenly(count / kColumns, args.share, args.shares);
    return {own.begin * kColumns, args.share + 1 == args.shares ? count : own.end * kColumns};
  }
  bool is_along_rows() const { return axis + 1 == dims.size(); }
  int64_t rows_of_elements() const { return dims.back() == 0 ? 0 : indices.tuples / dims.back(); }
  int64_t most_shares() const {
    if (dims.empty()) return count / kColumns;
    return is_along_rows() ? rows_of_elements() : dims.back() / kColumns;
  }

  template <class Index, class T>
  void put_runs(const StepArgs& args) const {
    const Range own = columns_of(count, args);
    const int64_t columns = own.end - own.begin;
    const Index* tuple = args.at<const Index>(indices.buffer);
    const T* from = args.at<const T>(updates) + own.begin;
    for (int64_t i = 0; i < indices.tuples; ++i, tuple += strides.size(), from += count) {
      T* to = args.at<T>(out) + own.begin;
      for (size_t k = 0; k < strides.size(); ++k) to += from_front(tuple[k], indices.extents[k]) * strides[k];
      if (reduction == Reduction::none) {
        std::copy(from, from + columns, to);
      } else {
        combine_run(reduction, to, from, columns);
      }
    }
  }

  template <class Index, class T>
  void put_elements(const StepArgs& args) const {
    const int64_t length = dims.back(), stride = strides[axis], extent = indices.extents[0];
    const int64_t along = is_along_rows() ? 0 : 1, rows = rows_of_elements();
    const Range own_rows = is_along_rows() ? split_evenly(rows, args.share, args.shares) : Range{0, rows};
    const Range own = is_along_rows() ? Range{0, length} : columns_of(length, args);
    for (int64_t row = own_rows.begin; row < own_rows.end; ++row) {
      const Index* places = args.at<const Index>(indices.buffer) + row * length;
      const T* from = args.at<const T>(updates) + row * length;
      T* to = args.at<T>(out);
      int64_t left = row;
      for (size_t d = dims.size() - 1; d-- > 0; left /= dims[d]) to += d == axis ? 0 : left % dims[d] * strides[d];
      if (reduction == Reduction::none) {
        for (int64_t i = own.begin; i < own.end; ++i) to[from_front(places[i], extent) * stride + i * along] = from[i];
      } else {
        for (int64_t i = own.begin; i < own.end; ++i) {
          T& into = to[from_front(places[i], extent) * stride + i * along];
          into = combine<T>(reduction, into, from[i]);
        }
      }
    }
  }

  // One branch for a run, not for an element.
  template <class T>
  static void combine_run(Reduction reduction, T* to, const T* from, int64_t count) {
    const auto each = [&](auto kind) {
      for (int64_t i = 0; i < count; ++i) to[i] = combine<T>(kind(), to[i], from[i]);
    };
    if (reduction == Reduction::add) return each([] { return Reduction::add; });
    if (reduction == Reduction::mul) return each([] { return Reduction::mul; });
    each([reduction] { return reduction; });
  }

  template <class T>
  void put(const StepArgs& args) const {
    visit_index_type(indices.dtype,
                     [&]<class Index>() { dims.empty() ? put_runs<Index, T>(args) : put_elements<Index, T>(args); });
  }
};

// What an assignment to a slice is exported as: a constant tuple of indices for each element.
bool add_known_runs(LowerContext& context, const ScatterWork& work) {
  if (!work.dims.empty() || work.reduction != Reduction::none) return false;
  const auto runs = scattered_runs(work.indices, work.strides, work.count);
  if (!runs || !runs->are_long() || !runs->are_apart()) return false;
  const int64_t bytes = bits_of(context.input_type(0).dtype) / 8;
  Step step = runs->copy_step(work.updates, work.out, bytes, {}, context.target.threads);
  step.reads.push_back(work.out);  // what lies between the runs
  context.add(std::move(step));
  return true;
}

void add_scatter_steps(LowerContext& context, ScatterWork work) {
  const BufferId data = context.buffer(context.input(0));
  const auto bytes = static_cast<size_t>(context.input_type(0).storage_bytes());
  if (work.indices.tuples > 0) add_index_check(context, work.indices);
  context.add(take_over_step(data, work.out, bytes, context.target.threads));
  if (work.indices.tuples * work.count == 0) return;
  if (add_known_runs(context, work)) return;
  Step step;
  step.kernel = "scatter";
  step.reads = {work.updates, work.indices.buffer, work.out};
  step.writes = {work.out};
  const DType dtype = context.input_type(0).dtype;
  step.bytes = 3 * static_cast<double>(work.indices.tuples * work.count) * bits_of(dtype) / 8;
  const int64_t most = std::clamp<int64_t>(work.most_shares(), 1, context.target.threads);
  step.threads = worthwhile_threads(step.bytes, static_cast<int>(most));
  step.run = [work = std::move(work), dtype](const StepArgs& args) {
    if (work.reduction == Reduction::none) {
      visit_width(bits_of(dtype) / 8, [&]<class T>() { work.put<T>(args); });
    } else {
      visit_native(dtype, [&]<class T>() { work.put<T>(args); });
    }
  };
  context.add(std::move(step));
}

// What both forms ask of their operands; what is wrong with them the reference says.
std::optional<ScatterWork> scatter_work(const LowerContext& context, std::vector<int64_t> extents) {
  const DType dtype = context.input_type(0).dtype;
  const auto reduction = reduction_named(context.node.attributes.get_string("reduction", "none"));
  if (!reduction || context.input_type(2).dtype != dtype) return std::nullopt;
  if (dtype == DType::string || bits_of(dtype) < 8 || bits_of(dtype) > 64) return std::nullopt;
  if (*reduction != Reduction::none && !visit_native(dtype, []<class T>() {})) return std::nullopt;
  auto indices = index_tuples(context, 1, std::move(extents));
  if (!indices) return std::nullopt;
  ScatterWork work;
  work.out = context.buffer(context.output(0));
  work.updates = context.buffer(context.input(2));
  work.indices = std::move(*indices);
  work.reduction = *reduction;
  return work;
}

bool lower_scatter_elements(LowerContext& context) {
  const Dims data = context.input_type(0).extents(), dims = context.input_type(1).extents();
  if (data.empty() || dims.size() != data.size() || context.input_type(2).extents() != dims) return false;
  int64_t axis = context.node.attributes.get_int("axis", 0);
  if (axis < 0) axis += static_cast<int64_t>(data.size());
  if (axis < 0 || axis >= static_cast<int64_t>(data.size())) return false;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (static_cast<int64_t>(d) != axis && dims[d] > data[d]) return false;
  }
  auto work = scatter_work(context, {data[static_cast<size_t>(axis)]});
  if (!work) return false;
  work->dims = dims;
  work->axis = static_cast<size_t>(axis);
  work->strides = strides_of(data);
  add_scatter_steps(context, std::move(*work));
  return true;
}

bool lower_scatter_nd(LowerContext& context) {
  const Dims data = context.input_type(0).extents(), dims = context.input_type(1).extents();
  if (dims.empty() || dims.back() <= 0 || dims.back() > static_cast<int64_t>(data.size())) return false;
  const auto inside = data.begin() + dims.back();
  Dims expected(dims.begin(), dims.end() - 1);
  expected.insert(expected.end(), inside, data.end());
  if (context.input_type(2).extents() != expected) return false;
  auto work = scatter_work(context, {data.begin(), inside});
  if (!work) return false;
  work->strides = strides_of(data);
  work->strides.resize(static_cast<size_t>(dims.back()));
  for (auto extent = inside; extent != data.end(); ++extent) work->count *= *extent;
  add_scatter_steps(context, std::move(*work));
  return true;
}

}  // namespace

std::vector<OpDef> scatter_ops() {
  using Kind = AttributeSpec::Kind;
  const auto scatter = [](const char* name, int since, int until, std::vector<AttributeSpec> attributes,
                          ReferenceFn* reference, LowerFn* lower) {
    return OpDef{.schema = {.name = name,
                            .since = since,
                            .until = until,
                            .min_inputs = 3,
                            .max_inputs = 3,
                            .attributes = std::move(attributes),
                            .infer = infer_same,
                            .reference = reference},
                 .lower = lower};
  };
  constexpr int kLatest = 1 << 20;
  return {scatter("Scatter", 9, kLatest, {{"axis", Kind::integer}}, run_scatter_elements, lower_scatter_elements),
          scatter("ScatterElements", 11, 15, {{"axis", Kind::integer}}, run_scatter_elements, lower_scatter_elements),
          scatter("ScatterElements", 16, kLatest, {{"axis", Kind::integer}, {"reduction", Kind::string}},
                  run_scatter_elements, lower_scatter_elements),
          scatter("ScatterND", 11, 15, {}, run_scatter_nd, lower_scatter_nd),
          scatter("ScatterND", 16, kLatest, {{"reduction", Kind::string}}, run_scatter_nd, lower_scatter_nd)};
}

}  // namespace lathe::ops
