// Resize (version 10: scales are input 1; 11 on: roi, scales, sizes) and Upsample (1: two attributes, 7: attribute, 9:
// input).
#include <algorithm>
#include <cmath>

#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/resize/repeated_pixels.h"
#include "ops/resize/resize_axis.h"
#include "ops/resize/resize_mixed.h"
#include "ops/resize/resize_picked.h"
#include "ops/resize/resize_planes.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

bool is_resize11(const Node& node) { return node.op->name == "Resize" && node.op->since >= 11; }

ResizeMode mode_of(const Node& node) {
  ResizeMode mode;
  const Attributes& attributes = node.attributes;
  mode.mode = attributes.get_string("mode", "nearest");
  if (mode.mode == "bilinear") mode.mode = "linear";
  if (is_resize11(node)) {
    mode.coordinates = attributes.get_string("coordinate_transformation_mode", "half_pixel");
    mode.nearest = attributes.get_string("nearest_mode", "round_prefer_floor");
    mode.cubic_coefficient = static_cast<double>(attributes.get_float("cubic_coeff_a", -0.75f));
    mode.exclude_outside = attributes.get_int("exclude_outside", 0) != 0;
    mode.antialias = attributes.get_int("antialias", 0) != 0;
  } else {
    mode.coordinates = "asymmetric";
    mode.nearest = "floor";
  }
  return mode;
}

template <class Context>
void check_mode(const Context& context, const ResizeMode& mode) {
  const auto one_of = [&](const std::string& name, const std::string& given, std::initializer_list<const char*> known) {
    if (std::find(known.begin(), known.end(), given) == known.end()) context.fail(name + " '" + given + "' is unknown");
  };
  one_of("mode", mode.mode, {"nearest", "linear", "cubic"});
  one_of("coordinate_transformation_mode", mode.coordinates,
         {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
          "tf_crop_and_resize", "tf_half_pixel_for_nn"});
  one_of("nearest_mode", mode.nearest, {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"});
}

// Float32 or wider elements as float64.
template <class Context>
std::vector<double> floats_of(const Context& context, const Tensor& tensor, const char* what) {
  if (tensor.rank() > 1) context.fail(std::string(what) + " has rank " + std::to_string(tensor.rank()));
  if (!is_float(tensor.dtype())) context.fail(std::string(what) + " is not of floating point");
  return reals_of(tensor);
}

struct ResizeParameters {
  std::vector<double> scales;  // by listed axis; or
  std::vector<int64_t> sizes;  // by listed axis
  std::vector<double> roi;     // starts, then ends, by listed axis; or empty
  bool are_known = true;
};

template <class Context, class Fetch>
ResizeParameters parameters_of(const Context& context, Fetch fetch) {
  ResizeParameters result;
  const Node& node = context.node;
  if (node.op->name == "Upsample" && node.op->since < 9) {
    if (node.op->since < 7) {
      result.scales = {1, 1, static_cast<double>(node.attributes.get_float("height_scale", 1)),
                       static_cast<double>(node.attributes.get_float("width_scale", 1))};
    } else {
      for (const float scale : node.attributes.get_floats("scales"))
        result.scales.push_back(static_cast<double>(scale));
    }
    return result;
  }
  if (!is_resize11(node)) {
    result.scales = floats_of(context, fetch(1), "input 1 (scales)");
    return result;
  }
  if (const Tensor roi = fetch(1); roi.defined() && roi.size() > 0)
    result.roi = floats_of(context, roi, "input 1 (roi)");
  const Tensor scales = fetch(2), sizes = fetch(3);
  if (scales.defined() && scales.size() > 0) result.scales = floats_of(context, scales, "input 2 (scales)");
  if (sizes.defined() && sizes.size() > 0) result.sizes = integers_of(context, sizes, "input 3 (sizes)");
  if (result.scales.empty() && result.sizes.empty()) context.fail("neither scales nor sizes are given");
  return result;
}

template <class Context>
int64_t scaled_extent(const Context& context, int64_t extent, double scale) {
  // In float32, as scales are: 480 * 0.35 is 168, which it just is not as 480 times the float64 nearest below 0.35.
  const double product = extent < (int64_t{1} << 24)
                             ? static_cast<double>(static_cast<float>(extent) * static_cast<float>(scale))
                             : static_cast<double>(extent) * scale;
  const double scaled = std::floor(product);
  if (!(scale > 0) || !(scaled < 1e15)) context.fail("scale " + std::to_string(scale) + " is out of range");
  return static_cast<int64_t>(scaled);
}

// Every axis of the data, those that are not resized with scale 1.
template <class Context>
std::vector<ResizeAxis> axes_of(const Context& context, const Dims& dims, const ResizeParameters& parameters) {
  const auto rank = static_cast<int64_t>(dims.size());
  std::vector<int64_t> listed;
  for (int64_t i = 0; i < rank; ++i) listed.push_back(i);
  if (is_resize11(context.node) && context.node.attributes.has("axes")) {
    listed = axes_within(context, context.node.attributes.get_ints("axes"), rank);
  }
  const bool by_size = !parameters.sizes.empty();
  const size_t given = by_size ? parameters.sizes.size() : parameters.scales.size();
  if (given != listed.size()) {
    context.fail(std::to_string(given) + (by_size ? " sizes" : " scales") + " for " + std::to_string(listed.size()) +
                 " axes");
  }
  std::vector<ResizeAxis> axes;
  for (const int64_t extent : dims) axes.push_back({extent, extent, 1, 0, 1});
  double common = 0;  // of keep_aspect_ratio_policy
  const std::string policy = context.node.attributes.get_string("keep_aspect_ratio_policy", "stretch");
  for (size_t i = 0; i < listed.size(); ++i) {
    ResizeAxis& axis = axes[static_cast<size_t>(listed[i])];
    if (by_size) {
      if (parameters.sizes[i] < 0) context.fail("size " + std::to_string(parameters.sizes[i]) + " is negative");
      axis.out = parameters.sizes[i];
      axis.scale = axis.in == 0 ? 1 : static_cast<double>(axis.out) / static_cast<double>(axis.in);
      common = i == 0                   ? axis.scale
               : policy == "not_larger" ? std::min(common, axis.scale)
                                        : std::max(common, axis.scale);
    } else {
      axis.scale = parameters.scales[i];
      axis.out = scaled_extent(context, axis.in, axis.scale);
    }
    if (parameters.roi.size() == 2 * listed.size()) {
      axis.roi_begin = parameters.roi[i];
      axis.roi_end = parameters.roi[i + listed.size()];
    }
  }
  if (by_size && policy != "stretch") {
    if (policy != "not_larger" && policy != "not_smaller")
      context.fail("keep_aspect_ratio_policy '" + policy + "' is unknown");
    for (const int64_t i : listed) {
      ResizeAxis& axis = axes[static_cast<size_t>(i)];
      axis.scale = common;
      axis.out = static_cast<int64_t>(std::floor(common * static_cast<double>(axis.in) + 0.5));
    }
  }
  for (const ResizeAxis& axis : axes) {
    if (axis.in == 0 && axis.out != 0) context.fail("cannot enlarge an empty axis");
  }
  return axes;
}

void infer(InferContext& context) {
  const TensorType& data = context.input(0);
  check_mode(context, mode_of(context.node));
  if (!data.has_rank) return context.set_output(0, TensorType::unranked(data.dtype));
  TensorType result = ranked(data.dtype, data.dims.size());
  bool is_known = data.is_static();
  for (int i = 1; i < context.input_count(); ++i) {
    if (context.has_input(i) && !context.constant(i).defined()) is_known = false;
  }
  if (is_known) {
    const auto parameters = parameters_of(context, [&](int i) { return context.constant(i); });
    const std::vector<ResizeAxis> axes = axes_of(context, data.extents(), parameters);
    for (size_t i = 0; i < axes.size(); ++i) result.dims[i] = known_dim(axes[i].out);
  } else {
    // Symbolic axes whose scale is 1 stay; the rest is known when the extents are.
    bool has_parameters = true;
    for (int i = 1; i < context.input_count(); ++i) {
      if (context.has_input(i) && !context.constant(i).defined()) has_parameters = false;
    }
    if (has_parameters) {
      const auto parameters = parameters_of(context, [&](int i) { return context.constant(i); });
      for (size_t i = 0; i < data.dims.size(); ++i) {
        if (parameters.scales.size() == data.dims.size()) {
          if (parameters.scales[i] == 1) {
            result.dims[i] = data.dims[i];
          } else if (data.dims[i].known()) {
            result.dims[i] = known_dim(scaled_extent(context, data.dims[i].extent, parameters.scales[i]));
          }
        } else if (parameters.sizes.size() == data.dims.size() &&
                   !context.node.attributes.has("keep_aspect_ratio_policy")) {
          result.dims[i] = known_dim(std::max<int64_t>(parameters.sizes[i], 0));
        }
      }
    }
  }
  context.set_output(0, std::move(result));
}

// One axis of `data` (outer, in, inner) by its terms.
std::vector<double> resize_along(const std::vector<double>& data, int64_t outer, int64_t in, int64_t inner,
                                 const std::vector<ResizeTerms>& terms) {
  const auto out = static_cast<int64_t>(terms.size());
  std::vector<double> result(static_cast<size_t>(outer * out * inner), 0.0);
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t x = 0; x < out; ++x) {
      double* to = result.data() + (o * out + x) * inner;
      for (const ResizeTerm& term : terms[static_cast<size_t>(x)]) {
        const double* from = data.data() + (o * in + term.index) * inner;
        for (int64_t i = 0; i < inner; ++i) to[i] += term.weight * from[i];
      }
    }
  }
  return result;
}

// Puts the extrapolation value where any axis has no terms.
void extrapolate(std::vector<double>& result, const Dims& dims, const std::vector<std::vector<ResizeTerms>>& terms,
                 double value) {
  const std::vector<int64_t> strides = strides_of(dims);
  for (size_t i = 0; i < result.size(); ++i) {
    for (size_t d = 0; d < dims.size(); ++d) {
      const auto at = static_cast<size_t>(static_cast<int64_t>(i) / strides[d] % dims[d]);
      if (terms[d][at].empty()) result[i] = value;
    }
  }
}

void reference(ReferenceContext& context) {
  const Tensor& data = context.inputs[0];
  const ResizeMode mode = mode_of(context.node);
  check_mode(context, mode);
  const auto fetch = [&](size_t i) { return context.has_input(i) ? context.inputs[i] : Tensor(); };
  const std::vector<ResizeAxis> axes = axes_of(context, data.dims(), parameters_of(context, fetch));
  const bool is_crop = mode.coordinates == "tf_crop_and_resize";
  Dims dims;
  for (const ResizeAxis& axis : axes) dims.push_back(axis.out);
  Tensor result = make_output(context, spread_elements(data).dtype(), dims);  // checks the size first
  context.outputs[0] = pack_elements(result, data.dtype());
  if (result.size() == 0) return;
  std::vector<std::vector<ResizeTerms>> terms;
  for (const ResizeAxis& axis : axes) terms.push_back(resize_terms(mode, axis));
  if (mode.mode == "nearest" && !is_crop) {
    std::vector<std::vector<int64_t>> tables;
    for (const auto& axis : terms) {
      tables.emplace_back();
      for (const ResizeTerms& term : axis) tables.back().push_back(term.front().index);
    }
    pick_elements(spread_elements(data), result, tables);
    context.outputs[0] = pack_elements(result, data.dtype());
    return;
  }
  std::vector<double> values = reals_of(data);
  Dims now = data.dims();
  for (size_t d = axes.size(); d-- > 0;) {
    const bool is_same = axes[d].in == axes[d].out && axes[d].scale == 1 && !is_crop;
    if (is_same) continue;
    int64_t outer = 1, inner = 1;
    for (size_t k = 0; k < now.size(); ++k) (k < d ? outer : inner) *= k == d ? 1 : now[k];
    values = resize_along(values, outer, now[d], inner, terms[d]);
    now[d] = axes[d].out;
  }
  if (is_crop) {
    extrapolate(values, dims, terms, static_cast<double>(context.node.attributes.get_float("extrapolation_value", 0)));
  }
  context.outputs[0] = tensor_of_reals(context, data.dtype(), dims, values);
}

// ---- Lowering

bool accepts_blocked(const Node& node, std::span<const TensorType> inputs, int) {
  // Scales of 1 on batch and channels are checked by lowering, which reads them; models that resize anything else have
  // plain pictures, and the layout follows the picture.
  return inputs[0].dtype == DType::f32 && (inputs[0].rank() == 3 || inputs[0].rank() == 4) &&
         mode_of(node).coordinates != "tf_crop_and_resize";
}

bool lower(LowerContext& context) {
  const TensorType& type = context.input_type(0);
  const ResizeMode mode = mode_of(context.node);
  if (mode.coordinates == "tf_crop_and_resize") return false;
  for (int i = 1; i < context.input_count(); ++i) {
    if (context.has_input(i) && !context.constant(i).defined()) return false;
  }
  const InferContext messages(context.node, {}, {});
  const auto fetch = [&](int i) { return context.has_input(i) ? context.constant(i) : Tensor(); };
  const std::vector<ResizeAxis> axes = axes_of(messages, type.extents(), parameters_of(messages, fetch));
  if (mode.mode != "nearest") return add_mixed_resize(context, mode, axes);
  if (add_nearest_planes(context, mode, axes)) return true;
  const bool is_empty = std::any_of(axes.begin(), axes.end(), [](const ResizeAxis& axis) { return axis.in == 0; });
  return !is_empty && add_picked_rows(context, mode, axes);
}

OpDef resize_def(std::string_view name, int since, int until, int max_inputs, std::vector<AttributeSpec> attributes) {
  return {.schema = {.name = name,
                     .since = since,
                     .until = until,
                     .min_inputs = since == 9 || since == 10 ? 2 : 1,
                     .max_inputs = max_inputs,
                     .attributes = std::move(attributes),
                     .infer = infer,
                     .reference = reference,
                     .layout = LayoutRole::blocked,
                     .accepts_blocked = accepts_blocked},
          .lower = lower};
}

// Along an axis; 0: something else.
int64_t repeats_along(const ResizeMode& mode, const ResizeAxis& axis) {
  if (axis.in == 0 || axis.out % axis.in != 0) return 0;
  const int64_t repeats = axis.out / axis.in;
  const std::vector<ResizeTerms> terms = resize_terms(mode, axis);
  for (size_t x = 0; x < terms.size(); ++x) {
    if (terms[x].size() != 1 || terms[x].front().index != static_cast<int64_t>(x) / repeats) return 0;
  }
  return repeats;
}

}  // namespace

std::vector<OpDef> resize_ops() {
  using Kind = AttributeSpec::Kind;
  const std::vector<AttributeSpec> since_11 = {{"mode", Kind::string},
                                               {"coordinate_transformation_mode", Kind::string},
                                               {"nearest_mode", Kind::string},
                                               {"cubic_coeff_a", Kind::real},
                                               {"exclude_outside", Kind::integer},
                                               {"extrapolation_value", Kind::real},
                                               {"axes", Kind::integers},
                                               {"antialias", Kind::integer},
                                               {"keep_aspect_ratio_policy", Kind::string}};
  return {resize_def("Upsample", 1, 6, 1,
                     {{"mode", Kind::string}, {"height_scale", Kind::real, true}, {"width_scale", Kind::real, true}}),
          resize_def("Upsample", 7, 8, 1, {{"mode", Kind::string}, {"scales", Kind::reals, true}}),
          resize_def("Upsample", 9, 1 << 20, 2, {{"mode", Kind::string}}),
          resize_def("Resize", 10, 10, 2, {{"mode", Kind::string}}), resize_def("Resize", 11, 1 << 20, 4, since_11)};
}

}  // namespace lathe::ops

namespace lathe {

std::optional<std::vector<int64_t>> pixel_repeats(const Graph& graph, const Node& node) {
  const ResizeMode mode = ops::mode_of(node);
  const TensorType& type = graph.value(node.inputs[0]).type;
  if (mode.mode != "nearest" || mode.coordinates == "tf_crop_and_resize" || !type.is_static() || type.rank() < 3)
    return std::nullopt;
  const auto fetch = [&](int i) {
    const auto slot = static_cast<size_t>(i);
    return slot < node.inputs.size() && node.inputs[slot] != ValueId::none ? graph.value(node.inputs[slot]).constant
                                                                           : Tensor();
  };
  for (size_t i = 1; i < node.inputs.size(); ++i) {
    if (node.inputs[i] != ValueId::none && !graph.value(node.inputs[i]).constant.defined()) return std::nullopt;
  }
  const InferContext messages(node, {}, {});
  const std::vector<ResizeAxis> axes = ops::axes_of(messages, type.extents(), ops::parameters_of(messages, fetch));
  if (!is_kept(axes[0]) || !is_kept(axes[1])) return std::nullopt;
  std::vector<int64_t> repeats;
  for (size_t axis = 2; axis < axes.size(); ++axis) {
    repeats.push_back(ops::repeats_along(mode, axes[axis]));
    if (repeats.back() == 0) return std::nullopt;
  }
  return repeats;
}

}  // namespace lathe
