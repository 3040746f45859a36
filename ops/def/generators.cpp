// Range, OneHot, EyeLike and Trilu.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "lathe/error.h"
#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_step.h"
#include "ops/copy/index_check.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"
#include "ops/work_split.h"
#include "src/base/thread_team.h"

namespace lathe::ops {
namespace {

// ---- Range

// max(ceil((limit - start) / delta), 0); integers without a detour over floating point.
template <class Context>
int64_t range_count(const Context& context, const Tensor& start, const Tensor& limit, const Tensor& delta) {
  if (is_integer(start.dtype())) {
    const __int128 from = integer_scalar(context, start, "input 0 (start)"),
                   to = integer_scalar(context, limit, "input 1 (limit)"),
                   step = integer_scalar(context, delta, "input 2 (delta)");
    if (step == 0) context.fail("delta is 0");
    const __int128 distance = step > 0 ? to - from : from - to, size = step > 0 ? step : -step;
    if (distance <= 0) return 0;
    const __int128 count = (distance + size - 1) / size;
    if (count > INT64_MAX) context.fail("has more than 2^63 elements");
    return static_cast<int64_t>(count);
  }
  const double from = real_scalar(context, start, "input 0 (start)"),
               to = real_scalar(context, limit, "input 1 (limit)"),
               step = real_scalar(context, delta, "input 2 (delta)");
  if (step == 0 || !std::isfinite(from) || !std::isfinite(to) || std::isnan(step)) {
    context.fail("start, limit and delta must be finite, and delta not 0");
  }
  const double count = std::ceil((to - from) / step);
  if (count > 1e15) context.fail("has " + std::to_string(count) + " elements");
  return count > 0 ? static_cast<int64_t>(count) : 0;
}

void infer_range(InferContext& context) {
  TensorType result = ranked(context.input(0).dtype, 1);
  const Tensor start = context.constant(0), limit = context.constant(1), delta = context.constant(2);
  if (start.defined() && limit.defined() && delta.defined()) {
    result.dims[0] = known_dim(range_count(context, start, limit, delta));
  }
  context.set_output(0, std::move(result));
}

void run_range(ReferenceContext& context) {
  const Tensor &start = context.inputs[0], &limit = context.inputs[1], &delta = context.inputs[2];
  if (limit.dtype() != start.dtype() || delta.dtype() != start.dtype()) context.fail("its inputs differ in type");
  Tensor result = make_output(context, start.dtype(), {range_count(context, start, limit, delta)});
  const int64_t count = result.size();
  if (start.dtype() == DType::i64) {
    auto value = static_cast<uint64_t>(*start.data<int64_t>());
    const auto step = static_cast<uint64_t>(*delta.data<int64_t>());
    auto* out = result.mutable_data<int64_t>();
    for (int64_t i = 0; i < count; ++i, value += step) out[i] = static_cast<int64_t>(value);
  } else {
    const double from = reals_of(start)[0], step = reals_of(delta)[0];
    const auto element = [&](int64_t i) { return from + static_cast<double>(i) * step; };
    const auto fill = [&]<class T>(T* out) {
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(element(i));
    };
    if (start.dtype() == DType::f32) {
      fill(result.mutable_data<float>());
    } else if (start.dtype() == DType::f64) {
      fill(result.mutable_data<double>());
    } else if (start.dtype() == DType::i32) {  // all lie between start and limit
      fill(result.mutable_data<int32_t>());
    } else {
      for (int64_t i = 0; i < count; ++i) store_real(result, i, element(i));
    }
  }
  context.outputs[0] = std::move(result);
}

// ---- OneHot

void infer_one_hot(InferContext& context) {
  const TensorType& indices = context.input(0);
  const DType dtype = context.has_input(2) ? context.input(2).dtype : DType::undefined;
  if (!indices.has_rank) return context.set_output(0, TensorType::unranked(dtype));
  const int64_t axis = axis_within(context, context.node.attributes.get_int("axis", -1), indices.rank() + 1);
  TensorType result = indices;
  result.dtype = dtype;
  Dim depth;
  if (const Tensor known = context.constant(1); known.defined()) {
    const double value = real_scalar(context, known, "input 1 (depth)");
    if (!(value >= 0 && value < 1e15)) context.fail("depth is " + std::to_string(value));
    depth = known_dim(static_cast<int64_t>(value));
  }
  result.dims.insert(result.dims.begin() + axis, depth);
  context.set_output(0, std::move(result));
}

void run_one_hot(ReferenceContext& context) {
  const Tensor& indices = context.inputs[0];
  const Tensor values = spread_elements(context.inputs[2]);
  if (values.size() != 2) context.fail("values has " + std::to_string(values.size()) + " elements, expected 2");
  const double depth_value = real_scalar(context, context.inputs[1], "input 1 (depth)");
  if (!(depth_value >= 0 && depth_value < 1e15)) context.fail("depth is " + std::to_string(depth_value));
  const auto depth = static_cast<int64_t>(depth_value);
  const int64_t axis = axis_within(context, context.node.attributes.get_int("axis", -1), indices.rank() + 1);
  Dims dims = indices.dims();
  dims.insert(dims.begin() + axis, depth);
  Tensor result = make_output(context, values.dtype(), dims);
  const AxisSplit split = split_at(dims, axis);
  const ElementCopy copy(values.dtype());
  for (int64_t i = 0; i < result.size(); ++i) copy(values, 0, result, i);
  const std::vector<double> where = reals_of(indices);
  for (size_t i = 0; i < where.size() && depth > 0; ++i) {
    const double index = where[i] < 0 ? where[i] + static_cast<double>(depth) : where[i];
    if (!(index >= 0 && index < static_cast<double>(depth))) continue;
    const int64_t outer = static_cast<int64_t>(i) / split.inner, inner = static_cast<int64_t>(i) % split.inner;
    copy(values, 1, result, (outer * depth + static_cast<int64_t>(index)) * split.inner + inner);
  }
  context.outputs[0] = pack_elements(result, context.inputs[2].dtype());
}

// Where in the result the element of index i, counted from the front, lies; -1: nowhere.
template <class Index>
struct HotPlace {
  AxisSplit split;
  int64_t operator()(const Index* indices, int64_t i) const {
    const double given = static_cast<double>(indices[i]);
    const double index = given < 0 ? given + static_cast<double>(split.extent) : given;
    if (!(index >= 0 && index < static_cast<double>(split.extent))) return -1;
    return (i / split.inner * split.extent + static_cast<int64_t>(index)) * split.inner + i % split.inner;
  }
};

template <class Index, class T>
void put_hot(const Index* indices, int64_t count, const AxisSplit& split, T value, T* out) {
  const HotPlace<Index> place{split};
  for (int64_t i = 0; i < count; ++i) {
    if (const int64_t to = place(indices, i); to >= 0) out[to] = value;
  }
}

// All off, then one on for each index.
bool lower_one_hot(LowerContext& context) {
  const TensorType &indices = context.input_type(0), &result = context.output_type(0);
  const Tensor values = context.constant(2);
  const int64_t width = bits_of(result.dtype) / 8;
  if (!values.defined() || values.size() != 2 || result.dtype == DType::string) return false;
  if (!visit_width(width, []<class T>() {})) return false;
  if (!visit_native(indices.dtype, []<class T>() {})) return false;
  const InferContext messages(context.node, {}, {});
  const int64_t axis = axis_within(messages, context.node.attributes.get_int("axis", -1), result.rank());
  const AxisSplit split = split_at(result.extents(), axis);
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  if (!add_fill_step(context, result.dtype, to, split.outer * split.extent * split.inner, values.raw())) return false;
  if (split.extent == 0) return true;
  Step step;
  step.kernel = "one hot";
  step.reads = {from, to};
  step.writes = {to};
  step.run = [=, dtype = indices.dtype](const StepArgs& args) {
    visit_width(width, [&]<class T>() {
      T on{};
      std::memcpy(&on, static_cast<const T*>(values.raw()) + 1, sizeof(T));
      visit_native(dtype, [&]<class Index>() {
        put_hot(args.at<const Index>(from), split.outer * split.inner, split, on, args.at<T>(to));
      });
    });
  };
  context.add(std::move(step));
  return true;
}

// ---- EyeLike

DType eye_type(const Node& node, DType input) {
  return static_cast<DType>(node.attributes.get_int("dtype", static_cast<int64_t>(input)));
}

void infer_eye_like(InferContext& context) {
  TensorType result = context.input(0);
  if (result.has_rank && result.rank() != 2) context.fail("input 0 has rank " + std::to_string(result.rank()));
  const int64_t dtype = context.node.attributes.get_int("dtype", static_cast<int64_t>(result.dtype));
  if (dtype < 0 || dtype >= kDTypeCount) context.fail("attribute 'dtype' is " + std::to_string(dtype));
  result.dtype = eye_type(context.node, result.dtype);
  context.set_output(0, std::move(result));
}

void run_eye_like(ReferenceContext& context) {
  const Tensor& like = context.inputs[0];
  if (like.rank() != 2) context.fail("input 0 has rank " + std::to_string(like.rank()));
  Tensor result = make_output(context, eye_type(context.node, like.dtype()), like.dims());
  const int64_t k = context.node.attributes.get_int("k", 0), rows = like.dims()[0], columns = like.dims()[1];
  for (int64_t row = 0; row < rows; ++row) {
    int64_t column = 0;
    if (__builtin_add_overflow(row, k, &column) || column < 0 || column >= columns) continue;
    store_real(result, row * columns + column, 1);
  }
  context.outputs[0] = std::move(result);
}

bool lower_eye_like(LowerContext& context) {
  const TensorType& type = context.output_type(0);
  const int bits = bits_of(type.dtype);
  if (bits < 8 || type.dtype == DType::string || type.layout != Layout{}) return false;
  const Dims dims = type.extents();
  const int64_t rows = dims[0], columns = dims[1], k = context.node.attributes.get_int("k", 0);
  Tensor one(type.dtype, {1});
  store_real(one, 0, 1);
  // Rows [first, last) have a one.
  const int64_t shift = std::clamp(k, -rows, columns), first = std::max<int64_t>(0, -shift),
                last = std::max(first, std::min(rows, columns - shift));
  const BufferId to = context.buffer(context.output(0));
  if (rows * columns == 0) return true;
  Step step{.kernel = "identity matrix", .writes = {to}};
  step.bytes = static_cast<double>(type.storage_bytes());
  step.run = [=, size = static_cast<size_t>(bits) / 8, bytes = type.storage_bytes()](const StepArgs& args) {
    char* out = args.at<char>(to);
    std::memset(out, 0, bytes);
    visit_width(static_cast<int64_t>(size), [&]<class T>() {
      T value{};
      std::memcpy(&value, one.raw(), sizeof(T));
      T* diagonal = reinterpret_cast<T*>(out) + first * columns + first + shift;
      for (int64_t row = first; row < last; ++row, diagonal += columns + 1) *diagonal = value;
    });
  };
  context.add(std::move(step));
  return true;
}

// ---- Trilu

void infer_trilu(InferContext& context) {
  const TensorType& data = context.input(0);
  if (data.has_rank && data.rank() < 2) context.fail("input 0 has rank " + std::to_string(data.rank()));
  context.set_output(0, data);
}

void run_trilu(ReferenceContext& context) {
  const Tensor data = spread_elements(context.inputs[0]);
  if (data.rank() < 2) context.fail("input 0 has rank " + std::to_string(data.rank()));
  int64_t k = context.has_input(1) ? integer_scalar(context, context.inputs[1], "input 1 (k)") : 0;
  const bool is_upper = context.node.attributes.get_int("upper", 1) != 0;
  const int64_t columns = data.dims().back(), rows = data.dims()[data.dims().size() - 2];
  k = std::clamp(k, -rows - 1, columns + 1);  // beyond these nothing changes
  Tensor result = make_output(context, data.dtype(), data.dims());
  const ElementCopy copy(data.dtype());
  const int64_t all_rows = columns == 0 ? 0 : data.size() / columns;
  for (int64_t row = 0; row < all_rows; ++row) {
    const int64_t diagonal = row % rows + k;
    const int64_t begin = is_upper ? std::clamp<int64_t>(diagonal, 0, columns) : 0;
    const int64_t end = is_upper ? columns : std::clamp<int64_t>(diagonal + 1, 0, columns);
    copy(data, row * columns + begin, result, row * columns + begin, end - begin);
  }
  context.outputs[0] = pack_elements(result, context.inputs[0].dtype());
}

bool lower_trilu(LowerContext& context) {
  const TensorType& type = context.input_type(0);
  const Tensor diagonal = context.constant(1);
  const int bits = bits_of(type.dtype);
  if ((context.has_input(1) && !diagonal.defined()) || bits < 8 || type.dtype == DType::string) return false;
  const Dims dims = type.extents();
  const int64_t columns = dims.back(), rows = dims[dims.size() - 2];
  const InferContext messages(context.node, {}, {});
  const int64_t given = diagonal.defined() ? integer_scalar(messages, diagonal, "input 1 (k)") : 0;
  const int64_t k = std::clamp(given, -rows - 1, columns + 1);  // beyond these nothing changes
  const bool is_upper = context.node.attributes.get_int("upper", 1) != 0;
  int64_t all_rows = 1;
  for (size_t i = 0; i + 1 < dims.size(); ++i) all_rows *= dims[i];
  if (all_rows * columns == 0) return true;
  const BufferId from = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  Step step;
  step.kernel = "triangle";
  step.reads = {from};
  step.writes = {to};
  step.in_place = {{to, from}};
  step.bytes = 2 * static_cast<double>(type.storage_bytes());
  step.threads =
      static_cast<int>(std::min<int64_t>(worthwhile_threads(4 * step.bytes, context.target.threads), all_rows));
  step.run = [=, size = static_cast<size_t>(bits) / 8](const StepArgs& args) {
    const Range own = split_evenly(all_rows, args.share, args.shares);
    for (int64_t row = own.begin; row < own.end; ++row) {
      const auto width = static_cast<size_t>(columns) * size;
      const size_t cut =
          static_cast<size_t>(std::clamp<int64_t>(row % rows + k + (is_upper ? 0 : 1), 0, columns)) * size;
      const char* in = args.at<const char>(from) + static_cast<size_t>(row) * width;
      char* out = args.at<char>(to) + static_cast<size_t>(row) * width;
      const size_t begin = is_upper ? cut : 0, end = is_upper ? width : cut;
      if (in != out) std::memcpy(out + begin, in + begin, end - begin);
      is_upper ? std::memset(out, 0, cut) : std::memset(out + cut, 0, width - cut);
    }
  };
  context.add(std::move(step));
  return true;
}

OpDef range(int since, int until, std::vector<AttributeSpec> attributes) {
  return {.schema = {.name = "Range",
                     .since = since,
                     .until = until,
                     .min_inputs = 3,
                     .max_inputs = 3,
                     .attributes = std::move(attributes),
                     .infer = infer_range,
                     .reference = run_range}};
}

}  // namespace

std::vector<OpDef> generators_ops() {
  using Kind = AttributeSpec::Kind;
  return {range(11, 26, {}),
          range(27, 1 << 20, {{"stash_type", Kind::integer}}),
          {.schema = {.name = "OneHot",
                      .since = 9,
                      .min_inputs = 3,
                      .max_inputs = 3,
                      .attributes = {{"axis", Kind::integer}},
                      .infer = infer_one_hot,
                      .reference = run_one_hot},
           .lower = lower_one_hot},
          {.schema = {.name = "EyeLike",
                      .since = 9,
                      .attributes = {{"dtype", Kind::integer}, {"k", Kind::integer}},
                      .infer = infer_eye_like,
                      .reference = run_eye_like},
           .lower = lower_eye_like},
          {.schema = {.name = "Trilu",
                      .since = 14,
                      .max_inputs = 2,
                      .attributes = {{"upper", Kind::integer}},
                      .infer = infer_trilu,
                      .reference = run_trilu},
           .lower = lower_trilu}};
}

}  // namespace lathe::ops
