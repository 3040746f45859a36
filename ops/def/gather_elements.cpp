// GatherElements (one element for each index), lathe::TakeAlongAxis (the same, with indices that are spread over axes)
// and GatherND (runs by index tuples).
#include <algorithm>
#include <cstring>

#include "ops/copy/copy_elements.h"
#include "ops/copy/gather_indices.h"
#include "ops/copy/index_check.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

constexpr double kWorkOfElement = 100;  // about 1 ns, in floating point operations

// ---- GatherElements and TakeAlongAxis

void infer_elements(InferContext& context) {
  check_index_type(context);
  const TensorType &data = context.input(0), &indices = context.input(1);
  TensorType result = indices;
  result.dtype = data.dtype;
  if (data.has_rank) {
    axis_within(context, context.node.attributes.get_int("axis", 0), data.rank());
    if (indices.has_rank && indices.rank() != data.rank()) context.fail("indices and data differ in rank");
  }
  context.set_output(0, std::move(result));
}

// Of indices of one place along other axes than `axis`: as many as data has there.
void infer_along(InferContext& context) {
  check_index_type(context);
  const TensorType &data = context.input(0), &indices = context.input(1);
  TensorType result = TensorType::unranked(data.dtype);
  if (data.has_rank && indices.has_rank) {
    const int64_t axis = axis_within(context, context.node.attributes.get_int("axis", 0), data.rank());
    if (indices.rank() != data.rank()) context.fail("indices and data differ in rank");
    result = indices;
    result.dtype = data.dtype;
    for (int d = 0; d < data.rank(); ++d) {
      Dim& dim = result.dims[static_cast<size_t>(d)];
      if (d == axis) continue;
      if (!dim.known()) dim = Dim();
      if (dim.extent == 1) dim = data.dims[static_cast<size_t>(d)];
    }
  }
  context.set_output(0, std::move(result));
}

void take_elements(ReferenceContext& context, const Tensor& indices) {
  const Tensor data = spread_elements(context.inputs[0]);
  if (indices.rank() != data.rank()) context.fail("indices and data differ in rank");
  const auto axis = static_cast<size_t>(axis_within(context, context.node.attributes.get_int("axis", 0), data.rank()));
  for (size_t d = 0; d < indices.dims().size(); ++d) {
    if (d != axis && indices.dims()[d] > data.dims()[d]) {
      context.fail("indices have extent " + std::to_string(indices.dims()[d]) + " on axis " + std::to_string(d) +
                   ", data has " + std::to_string(data.dims()[d]));
    }
  }
  const std::vector<int64_t> picks = indices_within(context, indices, data.dims()[axis]);
  const std::vector<int64_t> strides = strides_of(data.dims());
  Tensor result = make_output(context, data.dtype(), indices.dims());
  Dims at(indices.dims().size(), 0);
  for (size_t i = 0; i < picks.size(); ++i) {
    int64_t from = picks[i] * strides[axis];
    for (size_t d = 0; d < at.size(); ++d) from += d == axis ? 0 : at[d] * strides[d];
    move_elements(data, from, result, static_cast<int64_t>(i), {});
    for (size_t d = at.size(); d-- > 0 && ++at[d] == indices.dims()[d];) at[d] = 0;
  }
  context.outputs[0] = pack_elements(result, context.inputs[0].dtype());
}

void reference_elements(ReferenceContext& context) { take_elements(context, context.inputs[1]); }

// Strides of indices in the result's extents: 0 where they are spread.
std::vector<int64_t> spread_strides(const Dims& indices, const Dims& result) {
  std::vector<int64_t> strides = strides_of(indices);
  for (size_t d = 0; d < strides.size(); ++d) {
    if (indices[d] != result[d]) strides[d] = 0;
  }
  return strides;
}

void reference_along(ReferenceContext& context) {
  const Tensor& indices = context.inputs[1];
  const Dims& data = context.inputs[0].dims();
  if (indices.rank() != context.inputs[0].rank()) context.fail("indices and data differ in rank");
  const auto axis =
      static_cast<size_t>(axis_within(context, context.node.attributes.get_int("axis", 0), indices.rank()));
  Dims dims = indices.dims();
  for (size_t d = 0; d < dims.size(); ++d) {
    if (d != axis && dims[d] == 1) dims[d] = data[d];
  }
  Tensor spread(indices.dtype(), dims);
  const std::vector<int64_t> from = spread_strides(indices.dims(), dims), to = strides_of(dims);
  std::vector<MoveAxis> axes;
  for (size_t d = 0; d < dims.size(); ++d) axes.push_back({dims[d], from[d], to[d]});
  move_elements(indices, 0, spread, 0, axes);
  take_elements(context, spread);
}

// Everything that the run-time lookup needs, by value. Rows run along the result's last axis.
struct ElementLookup {
  BufferId data, out;
  IndexTuples indices;
  Dims dims;                                    // of the result
  std::vector<int64_t> strides, index_strides;  // of the data; of the indices
  size_t axis;
  int64_t element_bytes;

  int64_t count() const { return checked_elements(dims); }
  int64_t rows() const { return dims.back() == 0 ? 0 : count() / dims.back(); }

  // Of the data, what the indices of a row are counted from; and where these are.
  struct Row {
    int64_t data = 0, indices = 0;
  };
  Row at(int64_t row) const {
    Row result;
    for (size_t d = dims.size() - 1; d-- > 0; row /= dims[d]) {
      result.data += d == axis ? 0 : row % dims[d] * strides[d];
      result.indices += row % dims[d] * index_strides[d];
    }
    return result;
  }

  template <class Index, class T>
  void take(const StepArgs& args, Range own) const {
    const int64_t length = dims.back(), stride = strides[axis], extent = indices.extents[0];
    const T* from = args.at<const T>(data);
    const Index* places = args.at<const Index>(indices.buffer);
    T* to = args.at<T>(out) + own.begin * length;
    const bool is_along = axis + 1 == dims.size();
    Row next = at(own.begin);
    for (int64_t row = own.begin; row < own.end; ++row, to += length) {
      const T* x = from + next.data;
      const Index* at_row = places + next.indices;
      if (row + 1 < own.end) next = at(row + 1);
      if (is_along) {
        fetch(from + next.data, extent);
        for (int64_t i = 0; i < length; ++i) to[i] = x[from_front(at_row[i], extent)];
      } else if (index_strides.back() == 0) {
        const T* first = x + from_front(at_row[0], extent) * stride;
        std::copy(first, first + length, to);
      } else {
        for (int64_t i = 0; i < length; ++i) to[i] = x[from_front(at_row[i], extent) * stride + i];
      }
    }
  }

  // The next row to pick from comes into L1 meanwhile: places that jump or fall lead no prefetcher of the CPU.
  template <class T>
  static void fetch(const T* row, int64_t count) {
    constexpr int64_t kLine = 64, kMostBytes = 8 << 10;
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    if (bytes > kMostBytes) return;
    for (int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(reinterpret_cast<const char*>(row) + at);
  }
};

bool lower_elements(LowerContext& context) {
  const TensorType& data = context.input_type(0);
  const int bits = bits_of(data.dtype);
  if (bits < 8 || bits > 64 || data.dtype == DType::string || data.rank() == 0) return false;
  int64_t axis = context.node.attributes.get_int("axis", 0);
  if (axis < 0) axis += data.rank();
  const Dims from = data.extents(), dims = context.output_type(0).extents();
  for (size_t d = 0; d < dims.size(); ++d) {
    if (static_cast<int64_t>(d) != axis && dims[d] > from[d]) return false;  // the reference says so
  }
  const auto indices = index_tuples(context, 1, {from[static_cast<size_t>(axis)]});
  if (!indices) return false;
  if (checked_elements(dims) == 0) return true;
  add_index_check(context, *indices);
  ElementLookup lookup{context.buffer(context.input(0)),
                       context.buffer(context.output(0)),
                       *indices,
                       dims,
                       strides_of(from),
                       spread_strides(context.input_type(1).extents(), dims),
                       static_cast<size_t>(axis),
                       bits / 8};
  Step step;
  step.kernel = "take elements";
  step.reads = {lookup.data, indices->buffer};
  step.writes = {lookup.out};
  const auto count = static_cast<double>(lookup.count());
  step.bytes = static_cast<double>(context.input_type(1).storage_bytes()) + 2 * count * bits / 8;
  step.threads = static_cast<int>(
      std::min<int64_t>(worthwhile_threads(kWorkOfElement * count, context.target.threads), lookup.rows()));
  step.run = [lookup = std::move(lookup)](const StepArgs& args) {
    const Range own = split_evenly(lookup.rows(), args.share, args.shares);
    visit_width(lookup.element_bytes, [&]<class T>() {
      visit_index_type(lookup.indices.dtype, [&]<class Index>() { lookup.take<Index, T>(args, own); });
    });
  };
  context.add(std::move(step));
  return true;
}

// ---- GatherND

void infer_nd(InferContext& context) {
  check_index_type(context);
  const TensorType &data = context.input(0), &indices = context.input(1);
  if (!data.has_rank || !indices.has_rank || indices.dims.empty() || !indices.dims.back().known()) {
    if (indices.has_rank && indices.dims.empty()) context.fail("indices have rank 0");
    return context.set_output(0, TensorType::unranked(data.dtype));
  }
  const int64_t batch = context.node.attributes.get_int("batch_dims", 0), depth = indices.dims.back().extent;
  if (batch < 0 || batch >= indices.rank() || depth < 0 || depth > data.rank() - batch) {
    context.fail("batch_dims " + std::to_string(batch) + " and tuples of " + std::to_string(depth) +
                 " indices do not fit data of rank " + std::to_string(data.rank()));
  }
  TensorType result = ranked(data.dtype, 0);
  result.dims.assign(indices.dims.begin(), indices.dims.end() - 1);
  result.dims.insert(result.dims.end(), data.dims.begin() + static_cast<ptrdiff_t>(batch + depth), data.dims.end());
  context.set_output(0, std::move(result));
}

void reference_nd(ReferenceContext& context) {
  const Tensor data = spread_elements(context.inputs[0]);
  const Tensor& indices = context.inputs[1];
  if (indices.rank() == 0) context.fail("indices have rank 0");
  const int64_t batch = context.node.attributes.get_int("batch_dims", 0), depth = indices.dims().back();
  if (batch < 0 || batch >= indices.rank() || depth > data.rank() - batch) context.fail("batch_dims does not fit");
  int64_t batches = 1, tuples = 1, inner = 1;
  for (size_t d = 0; d + 1 < indices.dims().size(); ++d) {
    const bool is_batch = static_cast<int64_t>(d) < batch;
    if (is_batch && indices.dims()[d] != data.dims()[d]) context.fail("batch extents of indices and data differ");
    (is_batch ? batches : tuples) *= indices.dims()[d];
  }
  for (size_t d = static_cast<size_t>(batch + depth); d < data.dims().size(); ++d) inner *= data.dims()[d];
  const std::vector<int64_t> strides = strides_of(data.dims());
  const std::vector<int64_t> picks = integers_of(context, indices.reshaped({indices.size()}), "input 1 (indices)");
  Dims dims(indices.dims().begin(), indices.dims().end() - 1);
  dims.insert(dims.end(), data.dims().begin() + static_cast<ptrdiff_t>(batch + depth), data.dims().end());
  Tensor result = make_output(context, data.dtype(), dims);
  const int64_t batch_stride = batches == 0 ? 0 : data.size() / batches;
  for (int64_t i = 0; i < batches * tuples; ++i) {
    int64_t from = i / tuples * batch_stride;
    for (int64_t k = 0; k < depth; ++k) {
      const auto axis = static_cast<size_t>(batch + k);
      const int64_t index = picks[static_cast<size_t>(i * depth + k)], extent = data.dims()[axis];
      if (index < -extent || index >= extent) {
        context.fail("index " + std::to_string(index) + " is out of range for an axis of " + std::to_string(extent));
      }
      from += (index < 0 ? index + extent : index) * strides[axis];
    }
    const MoveAxis run{inner, 1, 1};
    move_elements(data, from, result, i * inner, std::span(&run, 1));
  }
  context.outputs[0] = pack_elements(result, context.inputs[0].dtype());
}

// As ElementLookup: runs of `inner` elements, one for each tuple.
struct RunLookup {
  BufferId data, out;
  IndexTuples indices;
  std::vector<int64_t> stride_bytes;  // of each index of a tuple
  int64_t run_bytes, tuples_of_batch, batch_bytes;

  template <class Index>
  int64_t place(const Index* tuple, int64_t number) const {
    int64_t from = number / tuples_of_batch * batch_bytes;
    for (size_t k = 0; k < stride_bytes.size(); ++k) {
      from += from_front(tuple[k], indices.extents[k]) * stride_bytes[k];
    }
    return from;
  }
  template <class Index>
  void take(const StepArgs& args, Range own) const {
    const auto* from = args.at<const char>(data);
    auto* to = args.at<char>(out);
    const Index* tuples = args.at<const Index>(indices.buffer);
    const bool is_element = visit_width(run_bytes, [&]<class T>() {
      for (int64_t i = own.begin; i < own.end; ++i) {
        std::memcpy(to + i * run_bytes, from + place(tuples + i * indices.depth(), i), sizeof(T));
      }
    });
    if (is_element) return;
    for (int64_t i = own.begin; i < own.end; ++i) {
      std::memcpy(to + i * run_bytes, from + place(tuples + i * indices.depth(), i), static_cast<size_t>(run_bytes));
    }
  }
};

bool lower_nd(LowerContext& context) {
  const TensorType& data = context.input_type(0);
  const Dims from = data.extents(), dims = context.input_type(1).extents();
  if (bits_of(data.dtype) < 8 || data.dtype == DType::string || dims.empty() || dims.back() == 0) return false;
  const auto batch = static_cast<size_t>(context.node.attributes.get_int("batch_dims", 0));
  const auto depth = static_cast<size_t>(dims.back());
  for (size_t d = 0; d < batch; ++d) {
    if (dims[d] != from[d]) return false;  // the reference says so
  }
  const auto begin = from.begin() + static_cast<ptrdiff_t>(batch);
  const auto indices = index_tuples(context, 1, {begin, begin + static_cast<ptrdiff_t>(depth)});
  if (!indices) return false;
  RunLookup lookup{context.buffer(context.input(0)), context.buffer(context.output(0)), *indices, {}, 0, 1, 0};
  const int64_t element = bits_of(data.dtype) / 8;
  const std::vector<int64_t> strides = strides_of(from);
  for (size_t k = 0; k < depth; ++k) lookup.stride_bytes.push_back(strides[batch + k] * element);
  lookup.run_bytes = lookup.stride_bytes.back();
  lookup.batch_bytes = batch == 0 ? 0 : strides[batch - 1] * element;
  for (size_t d = batch; d + 1 < dims.size(); ++d) lookup.tuples_of_batch *= dims[d];
  if (indices->tuples == 0 || lookup.run_bytes == 0) return true;
  add_index_check(context, *indices);
  Step step;
  step.kernel = "take runs of " + std::to_string(lookup.run_bytes) + " bytes";
  step.reads = {lookup.data, indices->buffer};
  step.writes = {lookup.out};
  const auto count = static_cast<double>(indices->tuples);
  step.bytes = 2 * count * static_cast<double>(lookup.run_bytes);
  const double work = count * static_cast<double>(depth) * kWorkOfElement + step.bytes;
  step.threads = static_cast<int>(std::min<int64_t>(worthwhile_threads(work, context.target.threads), indices->tuples));
  step.run = [lookup = std::move(lookup)](const StepArgs& args) {
    const Range own = split_evenly(lookup.indices.tuples, args.share, args.shares);
    visit_index_type(lookup.indices.dtype, [&]<class Index>() { lookup.take<Index>(args, own); });
  };
  context.add(std::move(step));
  return true;
}

}  // namespace

std::vector<OpDef> gather_elements_ops() {
  using Kind = AttributeSpec::Kind;
  const auto gather = [](const char* name, const char* attribute, InferFn* infer, ReferenceFn* reference,
                         LowerFn* lower) {
    return OpDef{.schema = {.name = name,
                            .since = 11,
                            .min_inputs = 2,
                            .max_inputs = 2,
                            .attributes = {{attribute, Kind::integer}},
                            .infer = infer,
                            .reference = reference},
                 .lower = lower};
  };
  OpDef along = gather("TakeAlongAxis", "axis", infer_along, reference_along, lower_elements);
  along.schema.domain = "lathe";
  along.schema.since = 1;
  return {gather("GatherElements", "axis", infer_elements, reference_elements, lower_elements), std::move(along),
          gather("GatherND", "batch_dims", infer_nd, reference_nd, lower_nd)};
}

}  // namespace lathe::ops
