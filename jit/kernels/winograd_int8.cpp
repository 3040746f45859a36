#include "jit/kernels/winograd_int8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>

namespace lathe {
namespace {

constexpr int kLine = 64;  // cache line
constexpr int kSize = WinogradInt8::kSize;

// Both transforms go over a grid of vectors twice, once along each axis. What lies between waits in registers as far as
// they reach, the rest in the stack's frame.
class TransformEmitter : public Int8Emitter {
 protected:
  using Line = std::array<Vec, kSize>;

  TransformEmitter(Isa isa, int cell_bytes, int tile_rows, int tile_columns)
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
    and_(rsp, -kLine);
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

// In lanes of 16 bits: half a vector for a block of channels.
class InputEmitter : public TransformEmitter {
 public:
  explicit InputEmitter(const WinogradInt8InputPlan& plan)
      : TransformEmitter(plan.isa, vector_lanes(plan.isa) * 2, plan.tile_rows, plan.tile_columns), plan_(plan) {
    if (plan.zero != 0) zero_ = claim_vec("zero point");
    claim_grid(plan.tile_rows);
  }

  std::shared_ptr<const CodePages> emit(const std::string& name) {
    begin();
    open_frame();
    if (zero_) {
      mov(moving_.cvt32(), plan_.zero);
      vmovd(Xbyak::Xmm(zero_->getIdx()), moving_.cvt32());
      vpbroadcastw(half(*zero_), Xbyak::Xmm(zero_->getIdx()));
    }
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
    close_frame();
    end();
    return finish(name);
  }

 private:
  Xbyak::Xmm half(const Vec& vec) const {
    if (has_masks()) return Xbyak::Ymm(vec.getIdx());
    return Xbyak::Xmm(vec.getIdx());
  }
  bool has_row(int row) const {
    return row >= plan_.first_row && row < plan_.last_row && plan_.first_column < plan_.last_column;
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
      const Xbyak::Address at = ptr[moving_ + column * lanes()];
      plan_.is_signed ? vpmovsxbw(half(pixel), at) : vpmovzxbw(half(pixel), at);
      if (zero_) vpsubw(half(pixel), half(pixel), half(*zero_));
    }
    transform(pixels, tile_columns_);
    for (int column = 0; column < tile_columns_; ++column) {
      const int cell = cell_at(row, column);
      if (!is_in_register(cell)) vmovups(ptr[frame_at(cell)], half(pixels[static_cast<size_t>(column)]));
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
        vmovups(half(value), ptr[frame_at(cell)]);
      }
    }
    transform(values, tile_rows_);
    for (int row = 0; row < tile_rows_; ++row) {
      vmovups(ptr[frequency_at(moving_, row)], half(values[static_cast<size_t>(row)]));
    }
  }

  // x = B^T x, in place:
  //   4 0 -5 0 1 0;  0 -4 -4 1 1 0;  0 4 -4 -1 1 0;  0 -2 -1 2 1 0;  0 2 -1 -2 1 0;  0 4 0 -5 0 1
  void transform(const Line& values, int size) {
    std::array<Xbyak::Xmm, kSize> x;
    for (size_t i = 0; i < static_cast<size_t>(size); ++i) x[i] = half(values[i]);
    if (size == WinogradInt8::kSmallSize) return transform_small(x);
    const Xbyak::Xmm even = half(temps_[0]), odd = half(temps_[1]), twice = half(temps_[2]);
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
  std::optional<Vec> zero_;
};

class OutputEmitter : public TransformEmitter {
 public:
  explicit OutputEmitter(const WinogradInt8OutputPlan& plan)
      : TransformEmitter(plan.isa, vector_lanes(plan.isa) * 4, plan.tile_rows, plan.tile_columns), plan_(plan) {
    // Of a line, what is no result is free when its results are finished.
    constexpr int kFree = 5, kMostTemps = 10;
    int needed = stores_bytes(plan.store) ? 1 : 0;
    if (plan.epilogue.expression) {
      epilogue_ = std::make_unique<EpilogueEmitter>(static_cast<Xbyak::CodeGenerator&>(*this), plan.isa,
                                                    *plan.epilogue.expression);
      needed = std::max(needed, epilogue_->temps_needed());
    }
    if (needed > kMostTemps) throw JitError("the epilogue needs too many registers");
    inverse_ = claim_vec("inverse of 9");
    init_ = claim_vec("init");
    spare_ = claim_vecs("epilogue", std::max(0, needed - kFree));
    claim_grid(plan.rows);
  }

  std::shared_ptr<const CodePages> emit(const std::string& name) {
    begin();
    open_frame();
    mov(scratch_, qword[call_ + offsetof(WinogradInt8Call, init)]);
    load(init_, Xbyak::RegExp(scratch_));
    constexpr uint32_t kInverseOf9 = 954437177;
    static_assert(kInverseOf9 * 9U == 1);
    mov(scratch_.cvt32(), kInverseOf9);
    vmovd(Xbyak::Xmm(inverse_.getIdx()), scratch_.cvt32());
    vpbroadcastd(inverse_, Xbyak::Xmm(inverse_.getIdx()));
    loop_down(tiles_left_, [&] {
      mov(moving_, source_);
      for (int column = 0; column < tile_columns_; ++column) {
        enter_column(column);
        transform_column(column);
      }
      for (int row = 0; row < plan_.rows; ++row) finish_row(row);
      step();
    });
    close_frame();
    end();
    if (epilogue_) epilogue_->emit_constants();
    if (stores_bytes(plan_.store)) emit_requantization(plan_.store);
    return finish(name);
  }

 private:
  void transform_column(int column) {
    for (int row = 0; row < tile_rows_; ++row) load(line_[static_cast<size_t>(row)], frequency_at(moving_, row));
    const std::array<Vec, 4> results = transform(line_, tile_rows_);
    for (int row = 0; row < plan_.rows; ++row) {
      const int cell = cell_at(row, column);
      const Vec& result = results[static_cast<size_t>(row)];
      is_in_register(cell) ? vmovaps(register_of(cell), result) : store(frame_at(cell), result);
    }
  }

  // The four rows of A'^T x, where x is clobbered:
  //   2 -4 -4 1 1 0;  0 -4 4 2 -2 0;  0 -4 -4 4 4 0;  0 -4 4 8 -8 8
  std::array<Vec, 4> transform(const Line& x, int size) {
    if (size == WinogradInt8::kSmallSize) return transform_small(x);
    const auto& [sums, far_sums, result] = temps_;
    vpaddd(sums, x[1], x[2]);
    vpsubd(x[1], x[1], x[2]);
    vpaddd(far_sums, x[3], x[4]);
    vpsubd(x[3], x[3], x[4]);
    vpslld(sums, sums, 2);
    vpslld(x[1], x[1], 2);
    vpaddd(x[0], x[0], x[0]);
    vpsubd(x[0], x[0], sums);
    vpaddd(x[0], x[0], far_sums);
    vpaddd(result, x[3], x[3]);
    vpsubd(result, result, x[1]);
    vpslld(far_sums, far_sums, 2);
    vpsubd(far_sums, far_sums, sums);
    vpaddd(x[5], x[5], x[3]);
    vpslld(x[5], x[5], 3);
    vpsubd(x[5], x[5], x[1]);
    return {x[0], result, far_sums, x[5]};
  }

  // Two rows:
  //   2 3 3 0;  0 3 -3 -2
  std::array<Vec, 4> transform_small(const Line& x) {
    const auto& [sums, thrice, differences] = temps_;
    vpaddd(sums, x[1], x[2]);
    vpsubd(differences, x[1], x[2]);
    vpaddd(x[0], x[0], x[0]);
    vpaddd(x[3], x[3], x[3]);
    vpaddd(thrice, sums, sums);
    vpaddd(thrice, thrice, sums);
    vpaddd(x[0], x[0], thrice);
    vpaddd(thrice, differences, differences);
    vpaddd(thrice, thrice, differences);
    vpsubd(x[3], thrice, x[3]);
    return {x[0], x[3], Vec(), Vec()};
  }

  // moving_: elements from the target to the row.
  void finish_row(int row) {
    row == 0 ? xor_(moving_.cvt32(), moving_.cvt32()) : add(moving_, row_);
    Line values;
    for (int column = 0; column < tile_columns_; ++column) {
      const int cell = cell_at(row, column);
      Vec& value = values[static_cast<size_t>(column)];
      value = is_in_register(cell) ? register_of(cell) : line_[static_cast<size_t>(column)];
      if (!is_in_register(cell)) load(value, frame_at(cell));
    }
    const std::array<Vec, 4> results = transform(values, tile_columns_);
    std::vector<Vec> temps = {values[1], values[2], values[3], values[4], temps_[0]};
    const bool is_small = tile_columns_ == WinogradInt8::kSmallSize;
    if (is_small) temps = {values[1], values[2], temps_[0], temps_[1], temps_[2]};
    temps.insert(temps.end(), spare_.begin(), spare_.end());
    const std::span<const Vec> stored = std::span<const Vec>(results).first(static_cast<size_t>(plan_.columns));
    for (const Vec& sum : stored) {
      vpmulld(sum, sum, inverse_);
      vpsrad(sum, sum, power_of_2());
      vpaddd(sum, sum, init_);
    }
    apply_epilogue(stored, temps);
    store_row(results, temps[0]);
  }

  // The factor of the results, but for its 9: 24 = 8 * 3 along the axes of large tiles, 6 = 2 * 3 of small ones.
  int power_of_2() const {
    const auto of = [](int size) { return size == WinogradInt8::kSmallSize ? 1 : 3; };
    return of(tile_rows_) + of(tile_columns_);
  }

  // As many pixels at a time as there are temporaries for.
  void apply_epilogue(std::span<const Vec> sums, const std::vector<Vec>& temps) {
    if (!epilogue_) return;
    for (const Vec& sum : sums) vcvtdq2ps(sum, sum);
    const auto needed = static_cast<size_t>(std::max(1, epilogue_->temps_needed()));
    const size_t together = std::min<size_t>(temps.size() / needed, sums.size());
    for (size_t first = 0; first < sums.size(); first += together) {
      const size_t count = std::min(together, sums.size() - first);
      epilogue_->apply(sums.subspan(first, count), temps, [&](size_t which, int slot, const Xbyak::Xmm& into) {
        load_operand(static_cast<size_t>(slot - 1), static_cast<int>(first + which), into);
      });
    }
  }

  void load_operand(size_t operand, int column, const Xbyak::Xmm& into) {
    const DType dtype = plan_.epilogue.expression->inputs[operand + 1];
    mov(scratch_, qword[call_ + offsetof(WinogradInt8Call, operands) + 8 * operand]);
    switch (plan_.epilogue.operands[operand]) {
      case ConvOperand::scalar:
        return broadcast_as_float(into, Xbyak::RegExp(scratch_), dtype);
      case ConvOperand::per_channel:
        return load_as_float(into, Xbyak::RegExp(scratch_), dtype);
      case ConvOperand::full:
        return load_as_float(into, element_at(scratch_, column, dtype), dtype);
    }
  }
  // Column `column` of the row.
  Xbyak::RegExp element_at(const Gpr& base, int column, DType dtype) const {
    const int bytes = bits_of(dtype) / 8;
    return base + moving_ * bytes + column * lanes() * bytes;
  }

  void store_row(const std::array<Vec, 4>& sums, const Vec& temp) {
    for (int column = 0; column < plan_.columns;) {
      const Xbyak::RegExp at = element_at(target_, column, plan_.store.dtype);
      int count = 1;
      if (!epilogue_) {
        store(at, sums[static_cast<size_t>(column)]);
      } else if (stores_bytes(plan_.store)) {
        const int left = plan_.columns - column;
        count = left >= 4 ? 4 : left >= 2 ? 2 : 1;
        store_requantized(at,
                          std::span<const Vec>(sums).subspan(static_cast<size_t>(column), static_cast<size_t>(count)),
                          plan_.store, temp);
      } else {
        store_as(at, sums[static_cast<size_t>(column)], plan_.store.dtype, temp);
      }
      column += count;
    }
  }

  void step() {
    add(source_, qword[call_ + offsetof(WinogradInt8Call, source_step_bytes)]);
    mov(moving_, qword[call_ + offsetof(WinogradInt8Call, target_step)]);
    lea(target_, ptr[target_ + moving_ * (bits_of(plan_.store.dtype) / 8)]);
    for (size_t i = 0; i < plan_.epilogue.operands.size(); ++i) {
      if (plan_.epilogue.operands[i] != ConvOperand::full) continue;
      lea(scratch_, ptr[moving_ * (bits_of(plan_.epilogue.expression->inputs[i + 1]) / 8)]);
      add(qword[call_ + offsetof(WinogradInt8Call, operands) + 8 * i], scratch_);
    }
  }

  const WinogradInt8OutputPlan plan_;
  std::unique_ptr<EpilogueEmitter> epilogue_;
  const Gpr scratch_ = claim_gpr("scratch");
  Vec inverse_, init_;
  std::vector<Vec> spare_;
};

}  // namespace

std::string to_string(const WinogradInt8InputPlan& plan) {
  return fmt::format("winograd_int8_input {} {} {}x{} zero {} rows {}-{} columns {}-{}", name_of(plan.isa),
                     plan.is_signed ? "i8" : "u8", plan.tile_rows, plan.tile_columns, plan.zero, plan.first_row,
                     plan.last_row, plan.first_column, plan.last_column);
}

std::string to_string(const WinogradInt8OutputPlan& plan) {
  return fmt::format("winograd_int8_output {} {}x{} of {}x{} {} then {}", name_of(plan.isa), plan.rows, plan.columns,
                     plan.tile_rows, plan.tile_columns, to_string(plan.store), to_string(plan.epilogue));
}

WinogradInt8Kernel winograd_int8_input(const WinogradInt8InputPlan& plan) {
  const std::string key = to_string(plan);
  return WinogradInt8Kernel(cached_code(key, [&] { return InputEmitter(plan).emit(key); }));
}

WinogradInt8Kernel winograd_int8_output(const WinogradInt8OutputPlan& plan) {
  const std::string key = to_string(plan);
  return WinogradInt8Kernel(cached_code(key, [&] { return OutputEmitter(plan).emit(key); }));
}

}  // namespace lathe
