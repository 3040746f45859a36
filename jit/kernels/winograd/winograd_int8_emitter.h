#pragma once
// Shared by the emitters of the integer Winograd transforms (winograd_int8.h): their registers, the grid between the
// passes along the two axes, and the places of frequencies.
#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "jit/kernels/common/int8_lanes.h"
#include "jit/kernels/winograd/winograd_int8.h"

namespace lathe {

// Both transforms go over a grid of vectors twice, once along each axis. What lies between waits in registers as far as
// they reach, the rest in the stack's frame.
class WinogradInt8Emitter : public Int8Emitter {
 protected:
  static constexpr int kSize = WinogradInt8::kSize;
  using Line = std::array<Vec, kSize>;

  WinogradInt8Emitter(Isa isa, int cell_bytes, int tile_rows, int tile_columns)
      : Int8Emitter(isa), cell_bytes_(cell_bytes), tile_rows_(tile_rows), tile_columns_(tile_columns) {
    for (Vec& vec : line_) vec = claim_vec("line");
    for (Vec& vec : temps_) vec = claim_vec("temp");
  }

  // Claims what is left of the registers.
  void claim_grid(int rows) {
    const int cells = rows * tile_columns_;
    in_registers_ = claim_vecs("grid", std::min(cells, free_vecs()));
    frame_bytes_ = (cells - static_cast<int>(in_registers_.size())) * cell_bytes_;
  }
  int cell_at(int row, int column) const { return row * tile_columns_ + column; }
  bool is_in_register(int cell) const { return cell < static_cast<int>(in_registers_.size()); }
  const Vec& register_of(int cell) const { return in_registers_[static_cast<size_t>(cell)]; }
  Xbyak::RegExp frame_at(int cell) const { return rsp + (cell - static_cast<int>(in_registers_.size())) * cell_bytes_; }

  void open_frame() {
    mov(old_stack_, rsp);
    sub(rsp, frame_bytes_);
    and_(rsp, -64);  // cache line
    mov(source_, qword[call_ + offsetof(WinogradInt8Call, source)]);
    mov(target_, qword[call_ + offsetof(WinogradInt8Call, target)]);
    mov(tiles_left_, qword[call_ + offsetof(WinogradInt8Call, tiles)]);
    mov(row_, qword[call_ + offsetof(WinogradInt8Call, row)]);
    // Frequencies of one column lie six apart.
    mov(frequency_, qword[call_ + offsetof(WinogradInt8Call, frequency_bytes)]);
    imul(strides_[0], frequency_, kSize);
    lea(strides_[1], ptr[strides_[0] + strides_[0] * 2]);
    lea(strides_[2], ptr[strides_[0] + strides_[0] * 4]);
  }
  void close_frame() { mov(rsp, old_stack_); }

  // Row r of the tile in a column of frequencies that begins at `base`.
  Xbyak::RegExp frequency_at(const Gpr& base, int tile_row) const {
    const int row = WinogradInt8::frequency_of(tile_rows_, tile_row);
    if (row == 0) return Xbyak::RegExp(base);
    int odd = row, scale = 1;
    for (; odd % 2 == 0; odd /= 2) scale *= 2;
    return base + strides_[static_cast<size_t>(odd / 2)] * scale;
  }

  // moving_: from the frequencies of the tile's column before to those of this one.
  void enter_column(int column) {
    if (column == 0) return;
    const int from = WinogradInt8::frequency_of(tile_columns_, column - 1);
    for (int i = from; i < WinogradInt8::frequency_of(tile_columns_, column); ++i) add(moving_, frequency_);
  }

  const int cell_bytes_, tile_rows_, tile_columns_;
  const Gpr call_ = argument(0);
  const Gpr source_ = claim_gpr("source"), target_ = claim_gpr("target"), tiles_left_ = claim_gpr("tiles left");
  const Gpr moving_ = claim_gpr("row or column"), row_ = claim_gpr("row");
  const Gpr frequency_ = claim_gpr("frequency"), old_stack_ = claim_gpr("old stack");
  const std::array<Gpr, 3> strides_ = {claim_gpr("stride"), claim_gpr("3 strides"), claim_gpr("5 strides")};
  Line line_;
  std::array<Vec, 3> temps_;

 private:
  int frame_bytes_ = 0;
  std::vector<Vec> in_registers_;
};

}  // namespace lathe
