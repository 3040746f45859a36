#pragma once
// A convolution as a linear map from pixels to pixels, which can be scaled and added to another one.
#include <optional>
#include <vector>

#include "graph/passes/rewrite.h"

namespace lathe {

struct LinearMap {
  // By spatial axis. The window of result o covers pixels o * stride + begin + i * dilation.
  struct Axis {
    int64_t window = 1, dilation = 1, stride = 1;
    int64_t begin = 0;  // minus the padding before
    int64_t slack = 0;  // what pads add to an extent beyond what the window takes: equal for results of equal extents
    bool operator==(const Axis&) const = default;
  };
  int64_t outputs = 0, groups = 1;
  int64_t inputs = 0;  // of one group
  std::vector<Axis> axes;
  std::vector<double> weights;  // [outputs][inputs][window...]
  std::vector<double> bias;     // by output

  int64_t taps() const;
  // Multiply-adds for each pixel of the result.
  double cost() const { return static_cast<double>(outputs * inputs * taps()); }
  void scale(const std::vector<double>& factors);  // by output
};

// A Conv of constant float32 weights and bias; nullopt for any other node, and for pads that depend on the extents.
std::optional<LinearMap> linear_map_of(const Graph& graph, const Node& node);
// Each channel as it is, as a convolution that reads and steps like `like`.
LinearMap identity_map(int64_t channels, const LinearMap& like);

// The sum of two maps over one operand: a window that holds both, in as few groups as one of them has. nullopt where
// their results need not be of equal extents, their taps do not meet, or it is more to compute than both.
std::optional<LinearMap> sum_of(const LinearMap& a, const LinearMap& b);

}  // namespace lathe
