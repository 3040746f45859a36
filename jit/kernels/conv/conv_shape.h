#pragma once
// What a direct convolution computes, as taps on two axes: every output pixel (y, x) is the sum over taps (ty, tx) and
// input channels of input[y * stride + ty.offset][x * stride + tx.offset] * weights[ty.kernel][tx.kernel]. Taps that
// fall outside the input add nothing. A transposed convolution is one such problem for each phase of its stride.
#include <cstdint>
#include <string>
#include <vector>

namespace lathe {

struct ConvTap {
  int kernel = 0;      // coordinate in the kernel window, to find the weight
  int64_t offset = 0;  // input coordinate relative to output coordinate * stride
  bool operator==(const ConvTap&) const = default;
};

struct ConvAxis {
  int64_t in = 1;      // input extent
  int64_t out = 1;     // outputs of this problem
  int64_t stride = 1;  // input pixels for one step of the output
  std::vector<ConvTap> taps = {{0, 0}};
  // Output number i is stored at pixel first + i * step of out_extent.
  int64_t out_extent = 1, out_step = 1, out_first = 0;
  bool operator==(const ConvAxis&) const = default;

  // What the tap reads for output number `i` exists.
  bool is_inside(int64_t i, const ConvTap& tap) const {
    const int64_t at = i * stride + tap.offset;
    return at >= 0 && at < in;
  }
};

struct ConvShape {
  ConvAxis y, x;
  // Channels that lie together in the input: the vector's lanes when it is blocked, 1 when it is plain ([C][H][W]).
  int lanes = 16;
  bool operator==(const ConvShape&) const = default;

  int taps() const { return static_cast<int>(y.taps.size() * x.taps.size()); }
};

std::string to_string(const ConvShape& shape);

}  // namespace lathe
