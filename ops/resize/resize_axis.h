#pragma once
// Resize along one axis: which input elements, with which weights, make each output element.
#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

struct ResizeMode {
  std::string mode = "nearest";  // nearest, linear, cubic
  std::string coordinates = "half_pixel";
  std::string nearest = "round_prefer_floor";
  double cubic_coefficient = -0.75;
  bool exclude_outside = false;
  bool antialias = false;
};

struct ResizeAxis {
  int64_t in = 0, out = 0;
  double scale = 1;                   // out / in, as the model gives it
  double roi_begin = 0, roi_end = 1;  // of tf_crop_and_resize
};

inline bool is_kept(const ResizeAxis& axis) { return axis.in == axis.out && axis.scale == 1; }

// The elements of one output position. Indices lie within the axis; no terms: the extrapolation value.
struct ResizeTerm {
  int64_t index;
  double weight;
};
using ResizeTerms = std::vector<ResizeTerm>;

// One list of terms for each output position. Requires: axis.in > 0.
std::vector<ResizeTerms> resize_terms(const ResizeMode& mode, const ResizeAxis& axis);

}  // namespace lathe
