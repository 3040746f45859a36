#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <optional>

#include "jit/kernels/winograd/winograd_int8_emitter.h"

namespace lathe {
namespace {

// In lanes of 16 bits: half a vector for a block of channels, a whole one for two.
class InputEmitter : public WinogradInt8Emitter {
 public:
  explicit InputEmitter(const WinogradInt8InputPlan& plan)
      : WinogradInt8Emitter(plan.isa, vector_lanes(plan.isa) * (plan.is_pair ? 4 : 2), plan.tile_rows,
                            plan.tile_columns),
        plan_(plan) {
    if (plan.zero != 0) zero_ = claim_vec("zero point");
    claim_grid(plan.tile_rows);
  }

  std::shared_ptr<const CodePages> emit(const std::string& name) {
    begin();
    open_frame();
    if (zero_) {
      mov(moving_.cvt32(), plan_.zero);
      vmovd(Xbyak::Xmm(zero_->getIdx()), moving_.cvt32());
      vpbroadcastw(narrow(*zero_), Xbyak::Xmm(zero_->getIdx()));
    }
    if (plan_.is_pair) mov(plane_, qword[call_ + offsetof(WinogradInt8Call, source_block_bytes)]);
    Xbyak::Label next_block;
    L(next_block);
    loop_down(tiles_left_, [&] {
      mov(moving_, source_);
      for (int row = 0; row < tile_rows_; ++row) {
        if (row > 0) add(moving_, row_);
        transform_row(row);
      }
      mov(moving_, target_);
      for (int column = 0; column < tile_columns_; ++column) {
        enter_column(column);
        transform_column(column);
      }
      add(source_, qword[call_ + offsetof(WinogradInt8Call, source_step_bytes)]);
      add(target_, qword[call_ + offsetof(WinogradInt8Call, target_step)]);
    });
    go_to_next_block(next_block);
    close_frame();
    end();
    return finish(name);
  }

 private:
  void go_to_next_block(const Xbyak::Label& next_block) {
    const auto move_on = [&](const Gpr& moved, size_t place, size_t step) {
      mov(moved, qword[call_ + place]);
      for (int i = 0; i < (plan_.is_pair ? 2 : 1); ++i) add(moved, qword[call_ + step]);
      mov(qword[call_ + place], moved);
    };
    move_on(source_, offsetof(WinogradInt8Call, source), offsetof(WinogradInt8Call, source_block_bytes));
    move_on(target_, offsetof(WinogradInt8Call, target), offsetof(WinogradInt8Call, target_block_bytes));
    mov(tiles_left_, qword[call_ + offsetof(WinogradInt8Call, tiles)]);
    sub(qword[call_ + offsetof(WinogradInt8Call, blocks)], plan_.is_pair ? 2 : 1);
    jnz(next_block, T_NEAR);
  }
  // What one block takes of a vector, or two do.
  Xbyak::Xmm narrow(const Vec& vec) const { return plan_.is_pair ? Xbyak::Xmm(vec) : half(vec); }
  Xbyak::Xmm half(const Vec& vec) const {
    if (has_masks()) return Xbyak::Ymm(vec.getIdx());
    return Xbyak::Xmm(vec.getIdx());
  }
  bool has_row(int row) const {
    return row >= plan_.first_row && row < plan_.last_row && plan_.first_column < plan_.last_column;
  }

  void load_pixel(const Vec& pixel, int offset) {
    const Xbyak::Address at = ptr[moving_ + offset];
    if (!plan_.is_pair) return plan_.is_signed ? vpmovsxbw(narrow(pixel), at) : vpmovzxbw(narrow(pixel), at);
    const Xbyak::Xmm low(pixel.getIdx());
    const Xbyak::Address second = ptr[moving_ + plane_ + offset];
    if (has_masks()) {
      vmovups(low, at);
      const Xbyak::Ymm both(pixel.getIdx());
      vinserti32x4(both, both, second, 1);
    } else {
      vmovq(low, at);
      vmovhps(low, low, second);
    }
    plan_.is_signed ? vpmovsxbw(pixel, half(pixel)) : vpmovzxbw(pixel, half(pixel));
  }

  void transform_row(int row) {
    if (!has_row(row)) return;
    Line pixels;
    for (int column = 0; column < tile_columns_; ++column) {
      const int cell = cell_at(row, column);
      Vec& pixel = pixels[static_cast<size_t>(column)];
      pixel = is_in_register(cell) ? register_of(cell) : line_[static_cast<size_t>(column)];
      if (column < plan_.first_column || column >= plan_.last_column) {
        zero(pixel);
        continue;
      }
      load_pixel(pixel, column * lanes());
      if (zero_) vpsubw(narrow(pixel), narrow(pixel), narrow(*zero_));
    }
    transform(pixels, tile_columns_);
    for (int column = 0; column < tile_columns_; ++column) {
      const int cell = cell_at(row, column);
      if (!is_in_register(cell)) vmovups(ptr[frame_at(cell)], narrow(pixels[static_cast<size_t>(column)]));
    }
  }

  void transform_column(int column) {
    Line values;
    for (int row = 0; row < tile_rows_; ++row) {
      const int cell = cell_at(row, column);
      Vec& value = values[static_cast<size_t>(row)];
      value = is_in_register(cell) ? register_of(cell) : line_[static_cast<size_t>(row)];
      if (!has_row(row)) {
        zero(value);
      } else if (!is_in_register(cell)) {
        vmovups(narrow(value), ptr[frame_at(cell)]);
      }
    }
    transform(values, tile_rows_);
    for (int row = 0; row < tile_rows_; ++row) {
      vmovups(ptr[frequency_at(moving_, row)], narrow(values[static_cast<size_t>(row)]));
    }
  }

  // x = B^T x, in place:
  //   4 0 -5 0 1 0;  0 -4 -4 1 1 0;  0 4 -4 -1 1 0;  0 -2 -1 2 1 0;  0 2 -1 -2 1 0;  0 4 0 -5 0 1
  void transform(const Line& values, int size) {
    std::array<Xbyak::Xmm, kSize> x;
    for (size_t i = 0; i < static_cast<size_t>(size); ++i) x[i] = narrow(values[i]);
    if (size == WinogradInt8::kSmallSize) return transform_small(x);
    const Xbyak::Xmm even = narrow(temps_[0]), odd = narrow(temps_[1]), twice = narrow(temps_[2]);
    vpsubw(even, x[4], x[2]);
    vpsubw(odd, x[3], x[1]);
    vpaddw(odd, odd, odd);
    vpsubw(x[0], x[0], x[2]);
    vpsllw(x[0], x[0], 2);
    vpaddw(x[0], x[0], even);
    vpaddw(twice, odd, odd);
    vpsubw(x[5], x[5], x[3]);
    vpsubw(x[5], x[5], twice);
    vpsllw(x[2], x[2], 2);
    vpsubw(twice, x[4], x[2]);
    vpsllw(x[1], x[1], 2);
    vpsubw(x[4], x[3], x[1]);
    vpaddw(x[1], twice, x[4]);
    vpsubw(x[2], twice, x[4]);
    vpaddw(x[3], even, odd);
    vpsubw(x[4], even, odd);
  }

  //   1 0 -1 0;  0 1 1 0;  0 -1 1 0;  0 1 0 -1
  void transform_small(const std::array<Xbyak::Xmm, kSize>& x) {
    vpsubw(x[3], x[1], x[3]);
    vpsubw(x[0], x[0], x[2]);
    vpsubw(x[2], x[2], x[1]);
    vpaddw(x[1], x[1], x[1]);
    vpaddw(x[1], x[1], x[2]);
  }

  const WinogradInt8InputPlan plan_;
  const Gpr plane_ = claim_gpr("plane");
  std::optional<Vec> zero_;
};

}  // namespace

std::string to_string(const WinogradInt8InputPlan& plan) {
  return fmt::format("winograd_int8_input {} {}{} {}x{} zero {} rows {}-{} columns {}-{}", name_of(plan.isa),
                     plan.is_signed ? "i8" : "u8", plan.is_pair ? " pairs" : "", plan.tile_rows, plan.tile_columns,
                     plan.zero, plan.first_row, plan.last_row, plan.first_column, plan.last_column);
}

WinogradInt8Kernel winograd_int8_input(const WinogradInt8InputPlan& plan) {
  const std::string key = to_string(plan);
  return WinogradInt8Kernel(cached_code(key, [&] { return InputEmitter(plan).emit(key); }));
}

}  // namespace lathe
