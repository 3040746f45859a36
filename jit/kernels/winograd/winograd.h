#pragma once
// The transforms of Winograd's convolution for square windows and for lines, on channel blocks: between tiles of
// pixels, one vector a pixel, and frequencies, each a matrix with a row for every tile. The products between the two
// are matrix products (gemm.h).
//
// With stride 2, the pixels of even and of odd number along an axis (phases 0 and 1, from the tile's corner) are two
// convolutions of stride 1, with the taps of even and of odd number. The second, which has one tap less for odd
// windows, uses all of the first one's interpolation points but the last: their products add up in the frequencies,
// and one transform makes outputs of them.
//
// A large window is cut into pieces: convolutions of the same form whose inputs lie `taps` pixels further, and whose
// products add up in the frequencies alike.
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "jit/kernels/conv/conv_epilogue.h"
#include "jit/kernels/winograd/winograd_matrices.h"
#include "src/base/cpu.h"

namespace lathe {

// F(outputs x outputs, taps x taps), or F(1 x outputs, 1 x taps).
struct WinogradForm {
  int outputs = 4, taps = 3;
  int stride = 1;
  bool is_line = false;
  int pieces = 1;  // along an axis, of `taps` each; more than 1 with stride 1 only
  // Phases or pieces, which are treated alike from here on.
  int column_phases() const { return pieces > 1 ? pieces : stride; }
  int row_phases() const { return is_line ? 1 : column_phases(); }
  // From the first pixel of one to that of the next.
  int phase_pixels() const { return pieces > 1 ? taps : 1; }
  // Along x: frequencies of a phase; those of phase 0 are all that there are.
  int size(int phase = 0) const { return outputs - 1 + (stride == 1 ? taps : (taps - phase + stride - 1) / stride); }
  // Along y.
  int rows(int phase = 0) const { return is_line ? 1 : size(phase); }
  int out_rows() const { return is_line ? 1 : outputs; }
  int frequencies() const { return rows() * size(); }
  bool operator==(const WinogradForm&) const = default;
};

std::string to_string(const WinogradForm& form);

// The matrices along x and along y. `part`: the outputs of a tile that has fewer and takes a part of the points; 0:
// all.
const WinogradMatrices& column_matrices(const WinogradForm& form, int phase, int part = 0);
const WinogradMatrices& row_matrices(const WinogradForm& form, int phase, int part = 0);
// By points: whether any output depends on it.
std::vector<bool> needed_points(const Matrix& output);

// Arguments of one call: a run of tiles of one channel block.
struct WinogradCall {
  const float* source = nullptr;  // input: the first tile's corner, which may be outside; output: its first frequency
  float* target = nullptr;        // the other way round
  int64_t tiles = 1;              // >= 1
  int64_t source_step_bytes = 0;  // from tile to tile
  int64_t target_step_bytes = 0;
  int64_t row_bytes = 0;                                  // from one row of pixels to the next
  int64_t frequency_bytes = 0;                            // from one frequency to the next
  const float* bias = nullptr;                            // of the block; read by plans with a bias
  const void* operands[ConvEpilogue::kMaxOperands] = {};  // moved like target (full), or to the block; changed
};
using WinogradKernel = Kernel<void(WinogradCall*)>;

// What a transform fetches into L1 of frequencies that are beyond L2: each has a stream of its own, too many for the
// CPU's own prefetcher.
enum class FrequencyFetch {
  none,
  lines,  // behind each line that is written or read: neighbouring blocks of channels follow each other
  tiles,  // of tiles that come later
};

// The pixels of an input tile that exist, counted within a phase: others are zeros. The call's `source` is the phase's
// first pixel, its row_bytes lead to the phase's next row. Frequencies that a part does without are not written.
struct WinogradInputPlan {
  Isa isa = Isa::avx2;
  WinogradForm form;
  int first_row = 0, last_row = 0;  // [first, last)
  int first_column = 0, last_column = 0;
  int row_phase = 0, column_phase = 0;
  int part_rows = 0, part_columns = 0;  // outputs of a tile that takes a part of the points; 0: all
  bool fetches_ahead = false;           // pixels of tiles that come later, into L2
  FrequencyFetch fetch = FrequencyFetch::none;
};
std::string to_string(const WinogradInputPlan& plan);

struct WinogradOutputPlan {
  Isa isa = Isa::avx2;
  WinogradForm form;
  int rows = 0, columns = 0;  // pixels that are stored
  bool has_bias = false;
  ConvEpilogue epilogue;
  bool is_part = false;        // on the points that these pixels need, as the inputs were
  bool fetches_ahead = false;  // where tiles that come later will be stored, into L2
  FrequencyFetch fetch = FrequencyFetch::none;
  // 2: what is stored are the maxima of 2 x 2 pixels, and the call's target has these; rows and columns are even, and
  // no operand is of kind full.
  int pool = 1;
};
std::string to_string(const WinogradOutputPlan& plan);

// From the process's cache, or emitted now. Throw JitError.
WinogradKernel winograd_input(const WinogradInputPlan& plan);
WinogradKernel winograd_output(const WinogradOutputPlan& plan);

}  // namespace lathe
