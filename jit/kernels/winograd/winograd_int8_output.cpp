#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "jit/expression/epilogue.h"
#include "jit/kernels/winograd/winograd_int8_emitter.h"

namespace lathe {
namespace {

class OutputEmitter : public WinogradInt8Emitter {
 public:
  explicit OutputEmitter(const WinogradInt8OutputPlan& plan)
      : WinogradInt8Emitter(plan.isa, vector_lanes(plan.isa) * 4, plan.tile_rows, plan.tile_columns), plan_(plan) {
    // Of a line, what is no result is free when its results are finished.
    constexpr int kFree = 5, kMostTemps = 10;
    int needed = store_temps(plan.store);
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
    load_init();
    constexpr uint32_t kInverseOf9 = 954437177;
    static_assert(kInverseOf9 * 9U == 1);
    fill(inverse_, kInverseOf9, scratch_);
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
  // The frequency of the point 1, which is the second, is in all results alike, -4 or 3 times along an axis: one
  // addition to it is one to all pixels, in the scale that they still have then (24 or 6 along an axis).
  void load_init() {
    const auto in_frequency = [](int size) { return size == WinogradInt8::kSmallSize ? 2 : -6; };
    fill(init_, static_cast<uint32_t>(in_frequency(tile_rows_) * in_frequency(tile_columns_)), scratch_);
    mov(scratch_, qword[call_ + offsetof(WinogradInt8Call, init)]);
    vpmulld(init_, init_, ptr[scratch_]);
  }

  void transform_column(int column) {
    for (int row = 0; row < tile_rows_; ++row) {
      const Vec& line = line_[static_cast<size_t>(row)];
      const Xbyak::RegExp at = frequency_at(moving_, row);
      row == 1 && column == 1 ? vpaddd(line, init_, ptr[at]) : load(line, at);
    }
    const std::array<Vec, 4> results = transform(line_, tile_rows_);
    for (int row = 0; row < plan_.rows; ++row) {
      const int cell = cell_at(row, column);
      const Vec& result = results[static_cast<size_t>(row)];
      is_in_register(cell) ? vmovaps(register_of(cell), result) : store(frame_at(cell), result);
    }
  }

  // The four rows of A'^T x, each without its power of two (power_of_2()), where x is clobbered:
  //   2 -4 -4 1 1 0;  (0 -4 4 2 -2 0) / 2;  (0 -4 -4 4 4 0) / 4;  (0 -4 4 8 -8 8) / 4
  std::array<Vec, 4> transform(const Line& x, int size) {
    if (size == WinogradInt8::kSmallSize) return transform_small(x);
    const auto& [sums, far_sums, result] = temps_;
    vpaddd(sums, x[1], x[2]);
    vpsubd(x[1], x[1], x[2]);
    vpaddd(far_sums, x[3], x[4]);
    vpsubd(x[3], x[3], x[4]);
    vpsubd(x[0], x[0], sums);
    vpsubd(x[0], x[0], sums);
    vpaddd(x[0], x[0], x[0]);
    vpaddd(x[0], x[0], far_sums);
    vpsubd(result, x[3], x[1]);
    vpsubd(result, result, x[1]);
    vpsubd(far_sums, far_sums, sums);
    vpaddd(x[5], x[5], x[3]);
    vpaddd(x[5], x[5], x[5]);
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
    for (size_t column = 0; column < stored.size(); ++column) {
      const Vec& sum = stored[column];
      vpmulld(sum, sum, inverse_);
      vpsrad(sum, sum, power_of_2(tile_rows_, row) + power_of_2(tile_columns_, static_cast<int>(column)));
    }
    apply_epilogue(stored, temps);
    store_row(results, temps);
  }

  // The factor of result i along an axis, but for its 3: 24 = 8 * 3 in large tiles, 6 = 2 * 3 in small ones, less what
  // the transform has left out.
  static int power_of_2(int size, int i) {
    static constexpr int kLarge[] = {3, 2, 1, 1};
    return size == WinogradInt8::kSmallSize ? 1 : kLarge[i];
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

  void store_row(const std::array<Vec, 4>& sums, std::span<const Vec> temps) {
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
                          plan_.store, temps);
      } else {
        store_as(at, sums[static_cast<size_t>(column)], plan_.store.dtype, temps[0]);
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

std::string to_string(const WinogradInt8OutputPlan& plan) {
  return fmt::format("winograd_int8_output {} {}x{} of {}x{} {} then {}", name_of(plan.isa), plan.rows, plan.columns,
                     plan.tile_rows, plan.tile_columns, to_string(plan.store), to_string(plan.epilogue));
}

WinogradInt8Kernel winograd_int8_output(const WinogradInt8OutputPlan& plan) {
  const std::string key = to_string(plan);
  return WinogradInt8Kernel(cached_code(key, [&] { return OutputEmitter(plan).emit(key); }));
}

}  // namespace lathe
