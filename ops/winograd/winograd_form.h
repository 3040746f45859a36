#pragma once
// Which convolutions Winograd's algorithm can compute, in which form, and which of the forms is worth it.
#include <string>

#include "jit/kernels/winograd/winograd.h"
#include "ops/conv/conv_problem.h"
#include "ops/conv/conv_program.h"

namespace lathe {

struct WinogradPlan {
  Isa isa = Isa::avx2;
  WinogradForm form;
  int tile_group = 0;     // tiles that go through all three parts before the next ones; 0: all, part by part
  bool strassen = false;  // frequencies are multiplied by fewer products of blocks (fewer_products.h)
  bool narrow = false;    // weights are of 24 bits (jit/kernels/gemm/bfp24.h)
  bool operator==(const WinogradPlan&) const = default;
};
std::string to_string(const WinogradPlan& plan);
// Of a plan whose `winograd` is not 0.
WinogradPlan winograd_plan(const ConvPlan& plan);

// All outputs, each from as many neighbouring inputs as the window has taps.
bool has_plain_taps(const ConvAxis& axis);
// Stride 1 or 2, dilation 1, a square window or a line with a form of `outputs`, channels in blocks (with stride 2, or
// a window cut into pieces, in whole ones). Several groups: of whole blocks each, with stride 1 and windows in one
// piece.
bool is_winograd_of_blocks(const ConvProblem& problem, int outputs);
// Stride 2, dilation 1, one group, a square window of 5 to 7 taps, at most four plain channels: for WinogradStem.
bool is_winograd_stem(const ConvProblem& problem, int outputs);
inline bool is_winograd(const ConvProblem& problem, int outputs) {
  return is_winograd_of_blocks(problem, outputs) || is_winograd_stem(problem, outputs);
}
// Requires: is_winograd().
WinogradForm winograd_form(const ConvProblem& problem, int outputs);
// More than six points along an axis: the transforms lose so many digits that few are left for sums to lose.
inline bool is_large(const WinogradForm& form) { return form.size() > 6; }
// Products that one float32 sum of a frequency may have; 0: any number.
int longest_sum_of(const WinogradForm& form, const ConvProblem& problem);

// Whether phases of a single tap, and with them all, shall be multiplied apart to have their weights once: where
// threads that share the columns have enough of them. `is_all`: of all tiles at once.
bool shares_weights(const ConvProblem& problem, const WinogradForm& form, int threads, bool is_all);

// The choice without measurements.
struct WinogradChoice {
  int outputs = 0;  // 0: no form fits
  int tile_group = 0;
  bool narrow = false;
  double cycles = 0;  // of one thread
};
WinogradChoice choose_winograd(const ConvProblem& problem, Isa isa, int threads, const CoreRates& rates = core_rates());

}  // namespace lathe
