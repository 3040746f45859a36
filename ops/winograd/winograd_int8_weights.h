#pragma once
// Weights of Winograd's convolution in whole numbers: windows become frequencies of 16 bits, packed as the panels of
// one matrix product for each frequency.
#include <array>
#include <cstdint>
#include <span>

#include "jit/kernels/winograd/winograd_int8.h"
#include "ops/conv/conv_int8_program.h"

namespace lathe {

struct WinogradInt8Problem {
  // As a direct convolution has it, but for the input: blocks of bytes as they are in the graph, without a border.
  ConvInt8Problem conv;
  bool is_signed = false;
  int32_t zero = 0;         // of the input
  bool fits_bytes = false;  // differences_fit_bytes()

  int64_t in_blocks() const { return (conv.in_channels + conv.shape.lanes - 1) / conv.shape.lanes; }
};

// No result for any input leaves what the transforms are exact for. `weights`: as ConvInt8Program::pack() takes them.
// `bias`: what is added to each channel's sums; empty: nothing.
bool stays_exact(const WinogradInt8Problem& problem, const ByteMatrix& weights, const ByteZeros& zeros,
                 std::span<const int32_t> bias = {});

// Weights less their zero points are signed bytes, whatever the weights are.
bool differences_fit_bytes(bool is_signed, const ByteZeros& zeros);

struct WinogradInt8Packing {
  int64_t panel_columns = 0;
  std::array<int, WinogradInt8::kFrequencies> matrix_of;  // by frequency: which matrix is its own
};

// Of one frequency.
int64_t winograd_int8_matrix_bytes(const WinogradInt8Problem& problem);
void pack_winograd_int8(const WinogradInt8Problem& problem, const WinogradInt8Packing& packing,
                        const ByteMatrix& weights, const ByteZeros& zeros, void* packed);

// Before their transform, as units of WinogradInt8WeightsCall, in the order in which the panels want their vectors.
int64_t winograd_int8_window_bytes(const WinogradInt8Problem& problem, int64_t columns);
void pack_winograd_int8_windows(const WinogradInt8Problem& problem, int64_t panel_columns, const ByteMatrix& weights,
                                const ByteZeros& zeros, void* packed);

}  // namespace lathe
