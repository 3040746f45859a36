#pragma once
// The matrices of Winograd's short convolutions F(outputs, taps), built by Cook and Toom's scheme from interpolation
// points: with `size` = outputs + taps - 1 inputs,
//   result = output * ((weights * w) .* (input * x)),   result[i] = sum over k of x[i + k] * w[k].
// A tile that has fewer outputs needs as many points less, by the weights of all: rows of `input` and columns of
// `output` of points that it does without are zeros.
#include <cstddef>
#include <vector>

namespace lathe {

struct Matrix {
  int rows = 0, columns = 0;
  std::vector<double> values;  // row-major
  double at(int row, int column) const { return values[static_cast<size_t>(row * columns + column)]; }
  double& at(int row, int column) { return values[static_cast<size_t>(row * columns + column)]; }
};

struct WinogradMatrices {
  int outputs = 0, taps = 0;
  Matrix output;   // outputs x points
  Matrix weights;  // points x taps
  Matrix input;    // points x size
  int size() const { return outputs + taps - 1; }
};

// `part`: the outputs of a tile that has fewer; 0: all.
// Requires: outputs + taps - 1 is 4, 6, 7 or 8.
const WinogradMatrices& winograd_matrices(int outputs, int taps, int part = 0);

// Those of the taps phase, phase + 2, ... of a convolution with stride 2. `taps`: of both phases together. Phase 1 uses
// the first interpolation points of phase 0, and in a part of a tile some of those of phase 0, so that their products
// may be added. The weights of a single tap are the same at all points.
// Requires: phase 0 has 3 to 7 points.
const WinogradMatrices& winograd_phase_matrices(int outputs, int taps, int phase, int part = 0);

}  // namespace lathe
