#pragma once
// The transforms of Winograd's F(4x4,3x3) in whole numbers, exact, on channel blocks of bytes: tiles of 6x6 pixels less
// their zero point become 36 frequencies of 16 bits, and products of 32 bits become tiles of 4x4 outputs.
//
// Weights are transformed by G' = G with its fractions taken out of the rows: (1/4)/3, -1/6, -1/6, 1/24, 1/24, 1/3.
// Put into the output's transform, times 24 a side, they make 576 times the result, which may wrap around: 576 is 64
// times 9, and 9 has an inverse modulo 2^32. Results of less than 2^25 in size come out exactly.
#include <cstdint>
#include <string>

#include "jit/kernel.h"
#include "jit/kernels/common/int8_store.h"
#include "jit/kernels/conv/conv_epilogue.h"

namespace lathe {

struct WinogradInt8 {
  static constexpr int kOutputs = 4, kTaps = 3, kSize = 6, kFrequencies = 36;
  static constexpr int64_t kLargestResult = (int64_t{1} << 25) - 1;
  // Of a tile of F(2,3) along an axis.
  static constexpr int kSmallOutputs = 2, kSmallSize = 4;
  static constexpr int kSmallFrequencies[kSmallSize] = {0, 1, 2, 5};
  static constexpr int frequency_of(int size, int i) { return size == kSmallSize ? kSmallFrequencies[i] : i; }
  // Along an axis, frequencies are of two classes: those of small tiles, too, and those of large ones only.
  static constexpr bool is_large_only(int frequency) { return frequency == 3 || frequency == 4; }
  static constexpr int class_size(bool is_large) { return is_large ? kSize - kSmallSize : kSmallSize; }
  // Rows of G'. With weights less their zero point, frequencies stay within 49 * 255.
  static constexpr int kWeights[kSize][kTaps] = {{3, 0, 0}, {1, 1, 1}, {1, -1, 1}, {1, 2, 4}, {1, -2, 4}, {0, 0, 3}};
};

// Arguments of one call: a run of tiles of one channel block, or (input) of several.
struct WinogradInt8Call {
  const void* source = nullptr;  // input: the first tile's corner, which may be outside; output: its first frequency
  void* target = nullptr;        // the other way round
  int64_t tiles = 1;             // >= 1
  int64_t blocks = 1;            // input: >= 1; counted down, while source and target move
  int64_t source_block_bytes = 0, target_block_bytes = 0;
  int64_t source_step_bytes = 0;
  int64_t target_step = 0;        // input: bytes; output: elements
  int64_t row = 0;                // from one row of pixels to the next; in bytes (input), in elements (output)
  int64_t frequency_bytes = 0;    // from one frequency to the next
  const int32_t* init = nullptr;  // output: added to the results, of the block
  const void* operands[ConvEpilogue::kMaxOperands] = {};  // moved like target (full), or to the block; changed
};
using WinogradInt8Kernel = Kernel<void(WinogradInt8Call*)>;

// The pixels of an input tile that exist: others count as the zero point.
struct WinogradInt8InputPlan {
  Isa isa = Isa::avx2;
  bool is_signed = false;
  int zero = 0;
  int first_row = 0, last_row = 0;  // [first, last)
  int first_column = 0, last_column = 0;
  int tile_rows = WinogradInt8::kSize, tile_columns = WinogradInt8::kSize;  // or kSmallSize
  // Blocks two by two, so that lines are written whole; WinogradInt8Call::blocks is even.
  bool is_pair = false;
};
std::string to_string(const WinogradInt8InputPlan& plan);

struct WinogradInt8OutputPlan {
  Isa isa = Isa::avx2;
  int rows = 0, columns = 0;  // pixels that are stored
  // As of ConvInt8Plan.
  ConvEpilogue epilogue;
  Int8Store store = {DType::i32};
  int tile_rows = WinogradInt8::kSize, tile_columns = WinogradInt8::kSize;  // or kSmallSize
};
std::string to_string(const WinogradInt8OutputPlan& plan);

// Windows of weights become frequencies. A unit is a vector of each frequency, two input channels of each lane's output
// channel side by side; it is read from nine half vectors of signed bytes, one for each tap.
struct WinogradInt8WeightsCall {
  const void* source = nullptr;
  void* target = nullptr;       // the first unit in the first frequency
  int64_t units = 1;            // >= 1
  int64_t frequency_bytes = 0;  // from one frequency of the class to the next, row by row
};
using WinogradInt8WeightsKernel = Kernel<void(WinogradInt8WeightsCall*)>;

// A class of rows by one of columns.
struct WinogradInt8WeightsPlan {
  Isa isa = Isa::avx2;
  bool is_large_y = false, is_large_x = false;
};
std::string to_string(const WinogradInt8WeightsPlan& plan);

// From the process's cache, or emitted now. Throw JitError.
WinogradInt8Kernel winograd_int8_input(const WinogradInt8InputPlan& plan);
WinogradInt8Kernel winograd_int8_output(const WinogradInt8OutputPlan& plan);
WinogradInt8WeightsKernel winograd_int8_weights(const WinogradInt8WeightsPlan& plan);

}  // namespace lathe
