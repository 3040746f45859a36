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
  int first_slot = 0, slots = 1;
  // Only tiles that are whole along the axis need these frequencies.
  bool whole_rows = false, whole_columns = false;
  PanelFormat format;   // of the products' weights
  int64_t weights = 0;  // floats from the beginning of the packed weights

  int64_t weights_each(const ConvProblem& problem) const {
    return slots * problem.in_channels * problem.out_blocks() * problem.lanes;
  }
};

// Where a phase or piece lies in the row of a tile, so that every class's phases are neighbours.
int winograd_slot(const WinogradForm& form, int row_phase, int column_phase);
inline int winograd_slots(const WinogradForm& form) { return form.row_phases() * form.column_phases(); }

// In the order of the packed weights; without formats and places of weights. `part_rows`, `part_columns`: outputs of
// the tiles at the ends of the axes, if these take a part of the points; 0: they do not.
std::vector<WinogradClass> winograd_classes(const WinogradForm& form, int part_rows = 0, int part_columns = 0);

// `weights`: [out][in][window]. Frequencies of no class are left out.
void pack_winograd(const ConvProblem& problem, const WinogradForm& form, const std::vector<WinogradClass>& classes,
                   const float* weights, float* packed);

}  // namespace lathe
