// TopK, NonZero, Compress and Unique: elements chosen by their values.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "ops/copy/copy_elements.h"
#include "ops/copy/index_check.h"
#include "ops/lower.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/rows/topk_select.h"
#include "ops/shape_arguments.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

// Calls visit with a "less" over element numbers of `tensor`; NaN counts as larger than any number, as in NumPy.
template <class Visit>
void with_order(const ReferenceContext& context, const Tensor& tensor, Visit visit) {
  const auto ordered = [&](const auto* data) {
    using T = std::remove_cvref_t<decltype(*data)>;
    visit([data](int64_t a, int64_t b) {
      if constexpr (std::is_floating_point_v<T>) {
        if (std::isnan(data[a])) return false;
        if (std::isnan(data[b])) return true;
      }
      return data[a] < data[b];
    });
  };
  if (tensor.dtype() == DType::string) return ordered(static_cast<const std::string*>(tensor.raw()));
  if (tensor.dtype() == DType::f16 || tensor.dtype() == DType::bf16) return ordered(reals_of(tensor).data());
  if (!visit_native(tensor.dtype(), [&]<class T>() { ordered(tensor.data<T>()); })) {
    context.fail("cannot order " + std::string(name_of(tensor.dtype())));
  }
}

// ---- TopK

template <class Context>
int64_t topk_count(const Context& context, const Tensor& k, int64_t extent) {
  const int64_t count =
      context.node.op->since < 10 ? context.node.attributes.get_int("k", 0) : integer_scalar(context, k, "input 1 (K)");
  if (count < 0 || (extent >= 0 && count > extent)) {
    context.fail("k is " + std::to_string(count) + ", the axis has " + std::to_string(extent) + " elements");
  }
  return count;
}

void infer_topk(InferContext& context) {
  TensorType values = context.input(0);
  if (values.has_rank) {
    if (values.rank() == 0) context.fail("input 0 is a scalar");
    const int64_t axis = axis_within(context, context.node.attributes.get_int("axis", -1), values.rank());
    Dim& dim = values.dims[static_cast<size_t>(axis)];
    const Tensor k = context.node.op->since < 10 ? Tensor() : context.constant(1);
    const bool is_known = context.node.op->since < 10 || k.defined();
    dim = is_known ? known_dim(topk_count(context, k, dim.extent)) : Dim();
  }
  TensorType indices = values;
  indices.dtype = DType::i64;
  context.set_output(0, std::move(values));
  context.set_output(1, std::move(indices));
}

void run_topk(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  if (data.rank() == 0) context.fail("input 0 is a scalar");
  const int64_t axis = axis_within(context, context.node.attributes.get_int("axis", -1), data.rank());
  const AxisSplit split = split_at(data.dims(), axis);
  const int64_t count = topk_count(context, context.node.op->since < 10 ? Tensor() : context.inputs[1], split.extent);
  const bool is_largest = context.node.attributes.get_int("largest", 1) != 0;
  Dims dims = data.dims();
  dims[static_cast<size_t>(axis)] = count;
  Tensor values = make_output(context, data.dtype(), dims), indices = make_output(context, DType::i64, dims);
  const ElementCopy copy(data.dtype());
  std::vector<int64_t> order(static_cast<size_t>(split.extent));
  with_order(context, data, [&](const auto& less) {
    for (int64_t row = 0; row < split.outer * split.inner; ++row) {
      const int64_t base = row / split.inner * split.extent * split.inner + row % split.inner;
      std::iota(order.begin(), order.end(), int64_t{0});
      const auto before = [&](int64_t a, int64_t b) {
        const int64_t at = base + a * split.inner, bt = base + b * split.inner;
        const bool is_less = less(at, bt), is_more = less(bt, at);
        if (is_less == is_more) return a < b;
        return is_largest ? is_more : is_less;
      };
      std::partial_sort(order.begin(), order.begin() + count, order.end(), before);
      const int64_t out_base = row / split.inner * count * split.inner + row % split.inner;
      for (int64_t i = 0; i < count; ++i) {
        copy(data, base + order[static_cast<size_t>(i)] * split.inner, values, out_base + i * split.inner);
        indices.mutable_data<int64_t>()[out_base + i * split.inner] = order[static_cast<size_t>(i)];
      }
    }
  });
  context.outputs[0] = std::move(values);
  if (context.outputs.size() > 1) context.outputs[1] = std::move(indices);
}

bool lower_topk(LowerContext& context) {
  const TensorType& type = context.input_type(0);
  const InferContext messages(context.node, {}, {});
  const Tensor k = context.node.op->since < 10 ? Tensor() : context.constant(1);
  if (context.node.op->since >= 10 && !k.defined()) return false;
  const Dims dims = type.extents();
  const AxisSplit split =
      split_at(dims, axis_within(messages, context.node.attributes.get_int("axis", -1), type.rank()));
  const int64_t count = topk_count(messages, k, split.extent);
  if (count * split.outer * split.inner == 0) return true;
  const auto select = TopKSelect::make(context.target.isa,
                                       {type.dtype, split, count, context.node.attributes.get_int("largest", 1) != 0});
  if (!select) return false;
  const BufferId from = context.buffer(context.input(0));
  const auto result = [&](int i) { return context.has_output(i) ? context.buffer(context.output(i)) : BufferId::none; };
  const BufferId values = result(0), places = result(1);
  Step step{.kernel = "select " + std::to_string(count) + " of " + std::to_string(split.extent), .reads = {from}};
  // Comparing an element takes about as long as two operations of a vector's lane.
  const double work = 2 * static_cast<double>(select->rows() * split.extent);
  step.bytes = static_cast<double>(type.storage_bytes());
  step.threads =
      static_cast<int>(std::min<int64_t>(worthwhile_threads(8 * work, context.target.threads), select->rows()));
  step.shares = worthwhile_shares(8 * work, step.threads);
  const BufferId scratch = context.thread_scratch(select->scratch_bytes());
  step.reads.push_back(scratch);
  for (const BufferId id : {scratch, values, places}) {
    if (id != BufferId::none) step.writes.push_back(id);
  }
  step.run = [=, select = *select](const StepArgs& args) {
    select.run(args.at<const void>(from), values == BufferId::none ? nullptr : args.at<void>(values),
               places == BufferId::none ? nullptr : args.at<int64_t>(places), args.own<char>(scratch),
               split_evenly(select.rows(), args.share, args.shares));
  };
  context.add(std::move(step));
  return true;
}

// ---- NonZero

void infer_nonzero(InferContext& context) {
  const TensorType& data = context.input(0);
  TensorType result = ranked(DType::i64, 2);
  if (data.has_rank) result.dims[0] = known_dim(data.rank());
  context.set_output(0, std::move(result));
}

// Counted first, so that each axis' row of the result is written right away.
template <class T>
Tensor places_of_nonzero(const ReferenceContext& context, const Tensor& data) {
  const T* values = static_cast<const T*>(data.raw());
  const int64_t size = data.size();
  int64_t columns = 0;
  for (int64_t i = 0; i < size; ++i) columns += values[i] != T{} ? 1 : 0;
  const auto rank = static_cast<size_t>(data.rank());
  Tensor result = make_output(context, DType::i64, {static_cast<int64_t>(rank), columns});
  auto* out = result.mutable_data<int64_t>();
  const int64_t length = rank == 0 ? 1 : data.dims().back();
  Dims at(rank, 0);  // of a row's begin
  for (int64_t begin = 0, column = 0; begin < size && column < columns; begin += length) {
    for (int64_t i = 0; i < length; ++i) {
      if (values[begin + i] == T{}) continue;
      for (size_t axis = 0; axis + 1 < rank; ++axis) out[static_cast<int64_t>(axis) * columns + column] = at[axis];
      if (rank > 0) out[static_cast<int64_t>(rank - 1) * columns + column] = i;
      ++column;
    }
    for (size_t axis = rank == 0 ? 0 : rank - 1; axis-- > 0 && ++at[axis] == data.dims()[axis];) at[axis] = 0;
  }
  return result;
}

void run_nonzero(ReferenceContext& context) {
  const Tensor data = spread_elements(context.inputs[0]);
  const bool is_native =
      visit_native(data.dtype(), [&]<class T>() { context.outputs[0] = places_of_nonzero<T>(context, data); });
  if (is_native) return;
  Tensor values(DType::f64, data.dims());
  const std::vector<double> reals = reals_of(data);
  std::copy(reals.begin(), reals.end(), values.mutable_data<double>());
  context.outputs[0] = places_of_nonzero<double>(context, values);
}

// ---- Compress

void infer_compress(InferContext& context) {
  const TensorType& data = context.input(0);
  if (!context.node.attributes.has("axis")) return context.set_output(0, ranked(data.dtype, 1));
  if (!data.has_rank) return context.set_output(0, TensorType::unranked(data.dtype));
  TensorType result = data;
  const int64_t axis = axis_within(context, context.node.attributes.get_int("axis", 0), data.rank());
  result.dims[static_cast<size_t>(axis)] = Dim();
  context.set_output(0, std::move(result));
}

// Without a branch: what is not kept is written over. Nothing is written behind the last element that is kept.
template <class T>
void keep_elements(const T* in, const AxisSplit& split, const bool* condition, int64_t end, T* out) {
  for (int64_t outer = 0; outer < split.outer; ++outer, in += split.extent) {
    for (int64_t i = 0; i < end; ++i) {
      *out = in[i];
      out += condition[i] ? 1 : 0;
    }
  }
}

void keep_slices(const Tensor& data, const AxisSplit& split, const bool* condition, int64_t end, Tensor& result) {
  const ElementCopy copy(data.dtype());
  int64_t to = 0;
  for (int64_t outer = 0; outer < split.outer && split.inner > 0; ++outer) {
    for (int64_t i = 0; i < end;) {
      int64_t behind = i;
      while (behind < end && condition[behind]) ++behind;
      const int64_t count = (behind - i) * split.inner;
      if (count > 0) copy(data, (outer * split.extent + i) * split.inner, result, to, count);
      to += count;
      i = behind + 1;
    }
  }
}

// The attribute `axis`; where there is none, all elements become one axis.
int64_t axis_or_flattened(const ReferenceContext& context, Tensor& data) {
  if (context.node.attributes.has("axis"))
    return axis_within(context, context.node.attributes.get_int("axis", 0), data.rank());
  data = data.reshaped({data.size()});
  return 0;
}

void run_compress(ReferenceContext& context) {
  Tensor data = spread_elements(context.inputs[0]);
  const int64_t axis = axis_or_flattened(context, data);
  const AxisSplit split = split_at(data.dims(), axis);
  if (context.inputs[1].rank() != 1) context.fail("the condition must have one axis");
  if (context.inputs[1].dtype() != DType::boolean) context.fail("the condition is not of bool");
  const bool* condition = context.inputs[1].data<bool>();
  int64_t end = context.inputs[1].size(), count = 0;  // end: behind the last element that is kept
  while (end > 0 && !condition[end - 1]) --end;
  if (end > split.extent) {
    context.fail("the condition picks element " + std::to_string(end - 1) + " of " + std::to_string(split.extent));
  }
  for (int64_t i = 0; i < end; ++i) count += condition[i] ? 1 : 0;
  Dims dims = data.dims();
  dims[static_cast<size_t>(axis)] = count;
  Tensor result = make_output(context, data.dtype(), dims);
  const bool is_flat =
      split.inner == 1 && data.dtype() != DType::string &&
      visit_width(static_cast<int64_t>(whole_element_bytes(data.dtype())), [&]<class T>() {
        keep_elements(static_cast<const T*>(data.raw()), split, condition, end, static_cast<T*>(result.mutable_raw()));
      });
  if (!is_flat) keep_slices(data, split, condition, end, result);
  context.outputs[0] = pack_elements(result, context.inputs[0].dtype());
}

// ---- Unique

void infer_unique(InferContext& context) {
  const TensorType& data = context.input(0);
  TensorType values = ranked(data.dtype, 1);
  if (context.node.attributes.has("axis")) {
    values = data;
    if (data.has_rank) {
      const int64_t axis = axis_within(context, context.node.attributes.get_int("axis", 0), data.rank());
      values.dims[static_cast<size_t>(axis)] = Dim();
    }
  }
  context.set_output(0, std::move(values));
  for (int i = 1; i < 4; ++i) context.set_output(i, ranked(DType::i64, 1));
}

struct UniqueSlices {
  std::vector<int64_t> first, counts;  // per unique slice
  std::vector<int64_t> inverse;        // per slice
};

template <class Less>
UniqueSlices unique_slices(const AxisSplit& split, bool is_sorted, const Less& less) {
  const auto at = [&](int64_t slice, int64_t outer, int64_t inner) {
    return (outer * split.extent + slice) * split.inner + inner;
  };
  const auto slice_less = [&](int64_t a, int64_t b) {
    for (int64_t outer = 0; outer < split.outer; ++outer) {
      for (int64_t inner = 0; inner < split.inner; ++inner) {
        const int64_t x = at(a, outer, inner), y = at(b, outer, inner);
        if (less(x, y)) return true;
        if (less(y, x)) return false;
      }
    }
    return false;
  };
  UniqueSlices result;
  std::map<int64_t, int64_t, decltype(slice_less)> known(slice_less);  // slice -> number by first occurrence
  for (int64_t slice = 0; slice < split.extent; ++slice) {
    const auto [found, is_new] = known.emplace(slice, static_cast<int64_t>(result.first.size()));
    if (is_new) {
      result.first.push_back(slice);
      result.counts.push_back(0);
    }
    ++result.counts[static_cast<size_t>(found->second)];
    result.inverse.push_back(found->second);
  }
  if (!is_sorted) return result;
  std::vector<int64_t> rank(result.first.size());
  UniqueSlices sorted;
  for (const auto& [slice, number] : known) {
    rank[static_cast<size_t>(number)] = static_cast<int64_t>(sorted.first.size());
    sorted.first.push_back(slice);
    sorted.counts.push_back(result.counts[static_cast<size_t>(number)]);
  }
  for (const int64_t number : result.inverse) sorted.inverse.push_back(rank[static_cast<size_t>(number)]);
  return sorted;
}

void run_unique(ReferenceContext& context) {
  Tensor data = context.inputs[0];
  const int64_t axis = axis_or_flattened(context, data);
  const AxisSplit split = split_at(data.dims(), axis);
  const bool is_sorted = context.node.attributes.get_int("sorted", 1) != 0;
  UniqueSlices unique;
  with_order(context, data, [&](const auto& less) { unique = unique_slices(split, is_sorted, less); });
  const auto count = static_cast<int64_t>(unique.first.size());
  Dims dims = data.dims();
  dims[static_cast<size_t>(axis)] = count;
  Tensor values = make_output(context, data.dtype(), dims);
  const ElementCopy copy(data.dtype());
  for (int64_t outer = 0; outer < split.outer; ++outer) {
    for (int64_t i = 0; i < count; ++i) {
      copy(data, (outer * split.extent + unique.first[static_cast<size_t>(i)]) * split.inner, values,
           (outer * count + i) * split.inner, split.inner);
    }
  }
  context.outputs[0] = std::move(values);
  const std::vector<int64_t>* lists[] = {&unique.first, &unique.inverse, &unique.counts};
  for (size_t i = 0; i < 3 && i + 1 < context.outputs.size(); ++i) {
    const std::vector<int64_t>& list = *lists[i];
    context.outputs[i + 1] = Tensor::from<int64_t>({static_cast<int64_t>(list.size())}, std::span<const int64_t>(list));
  }
}

OpDef topk(int since, int until, int inputs, std::vector<AttributeSpec> attributes) {
  return {.schema = {.name = "TopK",
                     .since = since,
                     .until = until,
                     .min_inputs = inputs,
                     .max_inputs = inputs,
                     .min_outputs = 1,
                     .max_outputs = 2,
                     .attributes = std::move(attributes),
                     .infer = infer_topk,
                     .reference = run_topk},
          .lower = lower_topk};
}

}  // namespace

std::vector<OpDef> selection_ops() {
  using Kind = AttributeSpec::Kind;
  return {topk(1, 9, 1, {{"axis", Kind::integer}, {"k", Kind::integer, true}}),
          topk(10, 10, 2, {{"axis", Kind::integer}}),
          topk(11, 1 << 20, 2, {{"axis", Kind::integer}, {"largest", Kind::integer}, {"sorted", Kind::integer}}),
          {.schema = {.name = "NonZero", .since = 9, .infer = infer_nonzero, .reference = run_nonzero}},
          {.schema = {.name = "Compress",
                      .since = 9,
                      .min_inputs = 2,
                      .max_inputs = 2,
                      .attributes = {{"axis", Kind::integer}},
                      .infer = infer_compress,
                      .reference = run_compress}},
          {.schema = {.name = "Unique",
                      .since = 11,
                      .max_outputs = 4,
                      .attributes = {{"axis", Kind::integer}, {"sorted", Kind::integer}},
                      .infer = infer_unique,
                      .reference = run_unique}}};
}

}  // namespace lathe::ops
