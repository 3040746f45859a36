#pragma once
// Winograd's weights: windows become frequencies, packed as the panels of one matrix product for each frequency.
#include <cstdint>
#include <vector>

#include "jit/kernels/winograd/winograd.h"
#include "ops/conv/conv_problem.h"
#include "ops/gemm/gemm_pack.h"

namespace lathe {

// Frequencies that take products of the same phases of the input. A row of their matrix is the channels of the class's
// phases, one phase behind the other: the slots [first_slot, first_slot + slots) of a tile's row.
struct WinogradClass {
  std::vector<int> frequencies;
  std::vector<int> matrices;  // by frequency: which of the class's `matrix_count` packed ones is its own
  int matrix_count = 0;
  int first_slot = 0, slots = 1;
  bool adds = false;       // to the products of classes before
  bool continues = false;  // some of the matrices of the class before, for fewer tiles
  // Only tiles that are whole along the axis need these frequencies.
  bool whole_rows = false, whole_columns = false;
  PanelFormat format;   // of the products' weights
  int64_t weights = 0;  // floats from the beginning of the packed weights

  // Floats of one matrix, of all groups.
  int64_t weights_each(const ConvProblem& problem) const {
    return slots * problem.in_channels_each() * problem.out_blocks() * problem.lanes;
  }
};

// Of the matrix that a frequency's values of a group's input channels are multiplied by: its output channels, in
// blocks.
int64_t columns_of_group(const ConvProblem& problem);

// Where a phase or piece lies in the row of a tile, so that every class's phases are neighbours.
int winograd_slot(const WinogradForm& form, int row_phase, int column_phase);
inline int winograd_slots(const WinogradForm& form) { return form.row_phases() * form.column_phases(); }

// How tiles and phases differ.
struct WinogradParts {
  // Outputs of the tiles at the ends of the axes, if these take a part of the points; 0: they do not.
  int rows = 0, columns = 0;
  // Each pair of phases is multiplied by itself. Then a phase of one tap, which has the same weights at all points of
  // its axis, has them once, and takes the points that it needs.
  bool phases_apart = false;
};

// In the order of the packed weights, which `rows` and `columns` do not change; without formats and places of weights.
std::vector<WinogradClass> winograd_classes(const WinogradForm& form, const WinogradParts& parts = {});

// `weights`: [out][in][window]. Frequencies of no class are left out.
void pack_winograd(const ConvProblem& problem, const WinogradForm& form, const std::vector<WinogradClass>& classes,
                   const float* weights, float* packed);

}  // namespace lathe
