// Pad in modes constant, reflect, edge and wrap. Pads come from attributes up to version 10, then from input 1.
#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "ops/copy/copy_elements.h"
#include "ops/copy/copy_step.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

struct AxisPad {
  int64_t begin = 0, end = 0;
};

// Pads of every axis; `pads` and `axes` are inputs 1 and 3 or undefined.
template <class Context>
std::vector<AxisPad> pads_of(const Context& context, int64_t rank, const Tensor& pads, const Tensor& axes_input) {
  std::vector<int64_t> values, axes(static_cast<size_t>(rank));
  std::iota(axes.begin(), axes.end(), 0);
  if (context.node.op->since < 11) {
    values = context.node.attributes.get_ints(context.node.op->since < 2 ? "paddings" : "pads");
  } else {
    values = integers_of(context, pads.rank() == 2 ? pads.reshaped({pads.size()}) : pads, "input 1 (pads)");
    if (axes_input.defined()) axes = axes_within(context, integers_of(context, axes_input, "input 3 (axes)"), rank);
  }
  if (values.size() != 2 * axes.size()) {
    context.fail("pads has " + std::to_string(values.size()) + " elements, expected " +
                 std::to_string(2 * axes.size()));
  }
  std::vector<AxisPad> result(static_cast<size_t>(rank));
  for (size_t i = 0; i < axes.size(); ++i) result[static_cast<size_t>(axes[i])] = {values[i], values[i + axes.size()]};
  return result;
}

template <class Context>
std::string mode_of(const Context& context) {
  std::string mode = context.node.attributes.get_string("mode", "constant");
  if (mode != "constant" && mode != "reflect" && mode != "edge" && mode != "wrap") {
    context.fail("mode '" + mode + "' is not one of constant, reflect, edge, wrap");
  }
  return mode;
}

template <class Context>
int64_t padded_extent(const Context& context, int64_t extent, const AxisPad& pad) {
  int64_t sum = 0;
  if (__builtin_add_overflow(extent, pad.begin, &sum) || __builtin_add_overflow(sum, pad.end, &sum)) {
    context.fail("a padded axis overflows");
  }
  if (sum < 0) context.fail("negative pads take more than the axis of " + std::to_string(extent));
  return sum;
}

void infer(InferContext& context) {
  const TensorType& data = context.input(0);
  mode_of(context);  // before anything is made
  if (!data.has_rank) return context.set_output(0, TensorType::unranked(data.dtype));
  TensorType result = ranked(data.dtype, data.dims.size());
  const bool by_input = context.node.op->since >= 11;
  if (by_input && !context.has_input(1)) context.fail("input 1 (pads) is missing");
  const bool is_known =
      !by_input || (context.constant(1).defined() && (!context.has_input(3) || context.constant(3).defined()));
  if (is_known) {
    const std::vector<AxisPad> pads = pads_of(context, data.rank(), context.constant(1), context.constant(3));
    for (size_t i = 0; i < pads.size(); ++i) {
      if (data.dims[i].known()) {
        result.dims[i] = known_dim(padded_extent(context, data.dims[i].extent, pads[i]));
      } else if (pads[i].begin == 0 && pads[i].end == 0) {
        result.dims[i] = data.dims[i];
      }
    }
  }
  context.set_output(0, std::move(result));
}

// The input index for each output index of an axis; -1: the constant.
template <class Context>
std::vector<int64_t> source_table(const Context& context, const std::string& mode, int64_t extent, int64_t padded,
                                  const AxisPad& pad) {
  std::vector<int64_t> table(static_cast<size_t>(padded));
  if (mode != "constant" && extent == 0 && padded > 0) context.fail("mode " + mode + " on an empty axis");
  const int64_t period = std::max<int64_t>(2 * (extent - 1), 1);
  const auto modulo = [](int64_t a, int64_t b) { return ((a % b) + b) % b; };
  for (int64_t i = 0; i < padded; ++i) {
    int64_t at = i - pad.begin;
    if (at < 0 || at >= extent) {
      if (mode == "constant") {
        at = -1;
      } else if (mode == "edge") {
        at = std::clamp<int64_t>(at, 0, extent - 1);
      } else if (mode == "wrap") {
        at = modulo(at, extent);
      } else {
        at = modulo(at, period);
        if (at >= extent) at = period - at;
        if (extent == 1) at = 0;
      }
    }
    table[static_cast<size_t>(i)] = at;
  }
  return table;
}

Tensor constant_value(const ReferenceContext& context, DType dtype) {
  if (context.node.op->since < 11) {
    const float value = context.node.attributes.get_float("value", 0);
    if (value == 0) return {};
    if (dtype == DType::f32) return Tensor::scalar<float>(value);
    if (dtype == DType::f64) return Tensor::scalar<double>(static_cast<double>(value));
    context.fail("a value other than 0 is not supported for " + std::string(name_of(dtype)));
  }
  if (!context.has_input(2) || context.inputs[2].size() == 0) return {};
  if (context.inputs[2].size() != 1 || context.inputs[2].dtype() != dtype) {
    context.fail("input 2 (constant_value) is not one " + std::string(name_of(dtype)));
  }
  return spread_elements(context.inputs[2]);
}

void reference(ReferenceContext& context) {
  const Tensor data = spread_elements(context.inputs[0]);
  const std::string mode = mode_of(context);
  const std::vector<AxisPad> pads = pads_of(context, data.rank(), context.has_input(1) ? context.inputs[1] : Tensor(),
                                            context.has_input(3) ? context.inputs[3] : Tensor());
  Dims dims = data.dims();
  for (size_t i = 0; i < dims.size(); ++i) dims[i] = padded_extent(context, dims[i], pads[i]);
  Tensor result = make_output(context, data.dtype(), dims);
  std::vector<std::vector<int64_t>> tables;
  for (size_t i = 0; i < dims.size(); ++i) {
    tables.push_back(source_table(context, mode, data.dims()[i], result.size() == 0 ? 0 : dims[i], pads[i]));
  }
  if (mode == "constant") {
    if (const Tensor value = constant_value(context, context.inputs[0].dtype()); value.defined()) {
      const MoveAxis all{result.size(), 0, 1};
      move_elements(value, 0, result, 0, std::span(&all, 1));
    }
  }
  pick_elements(data, result, tables);
  context.outputs[0] = pack_elements(result, context.inputs[0].dtype());
}

// Constant mode only: fill, then copy what is kept.
// Both sides as they lie in memory: with channel blocks, each block is an axis of its own at the end.
struct PadForm {
  Dims from, to;
  std::vector<AxisPad> pads;
};

PadForm pad_form(const TensorType& from, const TensorType& to, std::vector<AxisPad> pads) {
  PadForm form{from.extents(), to.extents(), std::move(pads)};
  const int64_t block = from.layout.channel_block;
  if (block == 0) return form;
  for (Dims* dims : {&form.from, &form.to}) {
    (*dims)[1] = ((*dims)[1] + block - 1) / block;
    dims->push_back(block);
  }
  form.pads.emplace_back();
  return form;
}

// What stays of the input, to its place.
CopyJob kept_part(const PadForm& form) {
  CopyJob job;
  const std::vector<int64_t> from_strides = strides_of(form.from), to_strides = strides_of(form.to);
  for (size_t i = 0; i < form.from.size(); ++i) {
    const AxisPad& pad = form.pads[i];
    const int64_t cut_front = std::max<int64_t>(-pad.begin, 0), cut_back = std::max<int64_t>(-pad.end, 0);
    job.from_offset += cut_front * from_strides[i];
    job.to_offset += std::max<int64_t>(pad.begin, 0) * to_strides[i];
    job.axes.push_back({std::max<int64_t>(form.from[i] - cut_front - cut_back, 0), from_strides[i], to_strides[i]});
  }
  return job;
}

int64_t count_of(const CopyJob& job) {
  int64_t count = 1;
  for (const MoveAxis& axis : job.axes) count *= axis.count;
  return count;
}

// Along each axis in turn, what the mode repeats of the part that is there: by axis, copies within the result. nullopt:
// it repeats what was cut away.
std::optional<std::vector<std::vector<CopyJob>>> repeats(const InferContext& messages, const PadForm& form,
                                                         const std::string& mode, const CopyJob& kept) {
  const std::vector<int64_t> strides = strides_of(form.to);
  std::vector<MoveAxis> there = kept.axes;
  for (size_t i = 0; i < there.size(); ++i) there[i].from_stride = strides[i];
  int64_t offset = kept.to_offset;
  std::vector<std::vector<CopyJob>> by_axis;
  for (size_t i = 0; i < there.size(); ++i) {
    const AxisPad& pad = form.pads[i];
    const std::vector<int64_t> table = source_table(messages, mode, form.from[i], form.to[i], pad);
    offset -= std::max<int64_t>(pad.begin, 0) * strides[i];
    std::vector<CopyJob> jobs;
    for (int64_t at = 0; at < form.to[i]; ++at) {
      const int64_t source = table[static_cast<size_t>(at)] + pad.begin;
      if (source == at) continue;
      if (source < 0 || source >= form.to[i]) return std::nullopt;
      CopyJob job{kept.to, kept.to, offset + source * strides[i], offset + at * strides[i], there};
      job.axes[i].count = 1;
      jobs.push_back(std::move(job));
    }
    there[i].count = form.to[i];
    if (!jobs.empty()) by_axis.push_back(std::move(jobs));
  }
  return by_axis;
}

// The value that fills the padding, as a tensor of one element; undefined: zero. nullopt: not known yet.
std::optional<Tensor> fill_value(const LowerContext& context, DType dtype) {
  if (context.node.op->since >= 11) {
    if (!context.has_input(2)) return Tensor();
    const Tensor value = context.constant(2);
    if (!value.defined()) return std::nullopt;
    return value.size() == 1 ? value : Tensor();
  }
  const float given = context.node.attributes.get_float("value", 0);
  if (given == 0) return Tensor();
  return dtype == DType::f32 ? std::optional(Tensor::scalar<float>(given)) : std::nullopt;
}

bool lower(LowerContext& context) {
  const TensorType &type = context.input_type(0), &result = context.output_type(0);
  if (bits_of(type.dtype) < 8 || type.dtype == DType::string || type.layout != result.layout) return false;
  const auto constant = [&](int i) { return context.has_input(i) ? context.constant(i) : Tensor(); };
  for (const int i : {1, 3}) {
    if (context.has_input(i) && !constant(i).defined()) return false;
  }
  const std::optional<Tensor> value = fill_value(context, type.dtype);
  if (!value) return false;
  const InferContext messages(context.node, {}, {});
  const PadForm form = pad_form(type, result, pads_of(messages, type.rank(), constant(1), constant(3)));
  CopyJob kept = kept_part(form);
  kept.from = context.buffer(context.input(0));
  kept.to = context.buffer(context.output(0));
  const int64_t total = std::accumulate(form.to.begin(), form.to.end(), int64_t{1}, std::multiplies<>());
  const std::string mode = mode_of(messages);
  if (form.from == form.to && count_of(kept) == total) return lower_as_same_bytes(context);
  if (mode == "constant" || total == 0) {
    if (count_of(kept) != total &&
        !add_fill_step(context, type.dtype, kept.to, total, value->defined() ? value->raw() : nullptr)) {
      return false;
    }
    return count_of(kept) == 0 || add_copy_step(context, type.dtype, {std::move(kept)});
  }
  const auto repeated = repeats(messages, form, mode, kept);
  if (!repeated || count_of(kept) == 0) return false;
  add_copy_step(context, type.dtype, {kept});
  for (const std::vector<CopyJob>& jobs : *repeated) add_copy_step(context, type.dtype, jobs);
  return true;
}

}  // namespace

std::vector<OpDef> pad_ops() {
  using Kind = AttributeSpec::Kind;
  const struct {
    int since, until, min_inputs, max_inputs;
    std::vector<AttributeSpec> attributes;
  } versions[] = {{1, 1, 1, 1, {{"paddings", Kind::integers, true}, {"mode", Kind::string}, {"value", Kind::real}}},
                  {2, 10, 1, 1, {{"pads", Kind::integers, true}, {"mode", Kind::string}, {"value", Kind::real}}},
                  {11, 17, 2, 3, {{"mode", Kind::string}}},
                  {18, 1 << 20, 2, 4, {{"mode", Kind::string}}}};
  std::vector<OpDef> defs;
  for (const auto& version : versions) {
    defs.push_back({.schema = {.name = "Pad",
                               .since = version.since,
                               .until = version.until,
                               .min_inputs = version.min_inputs,
                               .max_inputs = version.max_inputs,
                               .attributes = version.attributes,
                               .infer = infer,
                               .reference = reference},
                    .lower = lower});
  }
  return defs;
}

}  // namespace lathe::ops
