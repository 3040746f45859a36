#include "jit/kernels/winograd/winograd.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "jit/kernels/conv/conv_epilogue_emitter.h"
#include "jit/kernels/winograd/line_transform.h"

namespace lathe {
namespace {

constexpr int kLine = 64;  // cache line
constexpr int kMostTemps = 8;
// So much later comes what is fetched into L2: L1 has no room for it beside the frequencies.
constexpr int kTilesAhead = 4;
// Of each frequency's own line, in bytes: L1 holds two lines of them all beside the pixels.
constexpr int kWriteAhead = kLine, kReadAhead = 2 * kLine;
// So much later comes what is fetched into L1: with one tile, 256 channels of 56x56 pixels are read 7 to 14 % slower at
// 1 thread (Zen 5); 3 and 4 are level.
constexpr int kTilesAheadInL1 = 2;

std::string to_string(FrequencyFetch fetch) {
  return fetch == FrequencyFetch::none ? "" : fetch == FrequencyFetch::lines ? " lines" : " tiles";
}

Matrix first_rows(const Matrix& matrix, int rows) {
  return {rows, matrix.columns, {matrix.values.begin(), matrix.values.begin() + rows * matrix.columns}};
}

// The numbers of a phase's points that a tile takes, and these rows of its matrix.
struct PointRows {
  std::vector<int> points;
  Matrix matrix;
};
PointRows taken_rows(const Matrix& input, const std::vector<bool>& needs) {
  PointRows taken;
  taken.matrix.columns = input.columns;
  for (int point = 0; point < input.rows; ++point) {
    if (!needs[static_cast<size_t>(point)]) continue;
    taken.points.push_back(point);
    const auto first = input.values.begin() + point * input.columns;
    taken.matrix.values.insert(taken.matrix.values.end(), first, first + input.columns);
  }
  taken.matrix.rows = static_cast<int>(taken.points.size());
  return taken;
}

// Both transforms go over a grid of vectors twice, once along each axis. What lies between waits in registers as far as
// they reach, the rest in the stack's frame.
class TransformEmitter : public Emitter {
 protected:
  using Input = LineTransform::Input;

  TransformEmitter(Isa isa, const WinogradForm& form, FrequencyFetch fetch)
      : Emitter(isa), form_(form), fetches_tiles_(fetch == FrequencyFetch::tiles) {}

  // Claims what is left of the registers. `keep`: free for others.
  void claim_grid(int rows, int columns, int keep) {
    columns_ = columns;
    const int cells = rows * columns;
    const int most = std::max(0, free_vecs() - keep);
    in_registers_ = claim_vecs("grid", std::min(cells, most));
    is_zero_.assign(static_cast<size_t>(cells), false);
    frame_bytes_ = (cells - static_cast<int>(in_registers_.size())) * vec_bytes();
  }

  void open_frame() {
    mov(old_stack_, rsp);
    sub(rsp, frame_bytes_);
    and_(rsp, -kLine);
  }
  void close_frame() { mov(rsp, old_stack_); }

  void put(int row, int column, const Vec& value) {
    const int cell = row * columns_ + column;
    is_zero_[static_cast<size_t>(cell)] = false;
    if (is_in_register(cell)) {
      vmovaps(in_registers_[static_cast<size_t>(cell)], value);
    } else {
      store(frame_at(cell), value);
    }
  }
  void put_zero(int row, int column) { is_zero_[static_cast<size_t>(row * columns_ + column)] = true; }
  // The cell's own register, or `into` after a load.
  Input get(int row, int column, const Vec& into) {
    const int cell = row * columns_ + column;
    if (is_zero_[static_cast<size_t>(cell)]) return {};
    if (is_in_register(cell)) return in_registers_[static_cast<size_t>(cell)];
    load(into, frame_at(cell));
    return into;
  }

  void load_arguments() {
    mov(source_, qword[call_ + offsetof(WinogradCall, source)]);
    mov(target_, qword[call_ + offsetof(WinogradCall, target)]);
    mov(tiles_left_, qword[call_ + offsetof(WinogradCall, tiles)]);
    mov(row_bytes_, qword[call_ + offsetof(WinogradCall, row_bytes)]);
    mov(frequency_, qword[call_ + offsetof(WinogradCall, frequency_bytes)]);
    imul(strides_[0], frequency_, form_.size());
    lea(strides_[1], ptr[strides_[0] + strides_[0] * 2]);
    lea(strides_[2], ptr[strides_[0] + strides_[0] * 4]);
    lea(strides_[3], ptr[strides_[1] + strides_[0] * 4]);
  }
  // From a tile's pixels to those that are fetched into L2 meanwhile; `step`: where the call has the bytes between
  // tiles.
  void load_distance(size_t step) { imul(ahead_, qword[call_ + step], kTilesAhead); }
  // Of the row of pixels at `row`, for the tile that comes later.
  void fetch(const Xbyak::RegExp& row, int first_pixel, int last_pixel, int pixel_bytes) {
    for (int at = first_pixel * pixel_bytes; at < last_pixel * pixel_bytes; at += std::max(kLine, pixel_bytes))
      prefetcht1(ptr[row + ahead_ + at]);
  }
  // moving_: the tile's first frequency; later_: that of a tile that comes later. `step`: where the call has the bytes
  // between tiles.
  void enter_frequencies(const Gpr& first, size_t step) {
    mov(moving_, first);
    if (!fetches_tiles_) return;
    mov(later_, qword[call_ + step]);
    lea(later_, ptr[first + later_ * kTilesAheadInL1]);
  }
  void next_column() {
    add(moving_, frequency_);
    if (fetches_tiles_) add(later_, frequency_);
  }
  // Frequencies of one column lie frequency_bytes * size apart; row r of a column that begins at `base`.
  Xbyak::RegExp frequency_at(const Gpr& base, int row) const {
    if (row == 0) return Xbyak::RegExp(base);
    int odd = row, scale = 1;
    for (; odd % 2 == 0; odd /= 2) scale *= 2;
    return base + strides_[static_cast<size_t>(odd / 2)] * scale;
  }

  const WinogradForm form_;
  const bool fetches_tiles_;
  const Gpr call_ = argument(0);
  const Gpr source_ = claim_gpr("source"), target_ = claim_gpr("target"), tiles_left_ = claim_gpr("tiles left");
  const Gpr moving_ = claim_gpr("row or column"), row_bytes_ = claim_gpr("row bytes");
  const Gpr frequency_ = claim_gpr("frequency"), old_stack_ = claim_gpr("old stack"), ahead_ = claim_gpr("ahead");
  const Gpr later_ = claim_gpr("later");
  const std::vector<Gpr> strides_ = {claim_gpr("stride"), claim_gpr("3 strides"), claim_gpr("5 strides"),
                                     claim_gpr("7 strides")};

 private:
  bool is_in_register(int cell) const { return cell < static_cast<int>(in_registers_.size()); }
  Xbyak::RegExp frame_at(int cell) const { return rsp + (cell - static_cast<int>(in_registers_.size())) * vec_bytes(); }

  int columns_ = 0, frame_bytes_ = 0;
  std::vector<Vec> in_registers_;
  std::vector<bool> is_zero_;
};

class InputEmitter : public TransformEmitter {
 public:
  explicit InputEmitter(const WinogradInputPlan& plan)
      : TransformEmitter(plan.isa, plan.form, plan.fetch),
        plan_(plan),
        column_points_(taken_rows(column_matrices(form_, plan.column_phase, plan.part_columns).input,
                                  needed_points(column_matrices(form_, 0, plan.part_columns).output))),
        row_points_(taken_rows(row_matrices(form_, plan.row_phase, plan.part_rows).input,
                               needed_points(row_matrices(form_, 0, plan.part_rows).output))),
        rows_(row_points_.matrix.columns),
        columns_(column_points_.matrix.rows),
        across_(*this, plan.isa, column_points_.matrix),
        down_(*this, plan.isa, row_points_.matrix) {
    claim_grid(rows_, columns_, 0);
  }

  std::shared_ptr<const CodePages> emit(const std::string& name) {
    begin();
    open_frame();
    load_arguments();
    if (plan_.fetches_ahead) load_distance(offsetof(WinogradCall, source_step_bytes));
    loop_down(tiles_left_, [&] {
      transform_rows();
      transform_columns();
      add(source_, qword[call_ + offsetof(WinogradCall, source_step_bytes)]);
      add(target_, qword[call_ + offsetof(WinogradCall, target_step_bytes)]);
    });
    close_frame();
    end();
    across_.emit_constants();
    down_.emit_constants();
    return finish(name);
  }

 private:
  void transform_rows() {
    mov(moving_, source_);
    for (int row = 0; row < rows_; ++row) {
      if (row > 0) add(moving_, row_bytes_);
      if (row < plan_.first_row || row >= plan_.last_row || plan_.first_column >= plan_.last_column) {
        for (int column = 0; column < columns_; ++column) put_zero(row, column);
        continue;
      }
      const int pixels_of_row = column_points_.matrix.columns, pixel_bytes = form_.stride * vec_bytes();
      if (plan_.fetches_ahead)
        fetch(Xbyak::RegExp(moving_), std::max(0, pixels_of_row - form_.outputs), pixels_of_row, pixel_bytes);
      std::vector<Input> pixels(static_cast<size_t>(pixels_of_row));
      for (int column = plan_.first_column; column < plan_.last_column; ++column) {
        const Vec& pixel = line_[static_cast<size_t>(column)];
        load(pixel, moving_ + column * pixel_bytes);
        pixels[static_cast<size_t>(column)] = pixel;
      }
      across_.emit(pixels, temps_, [&](int column, const Vec& value) { put(row, column, value); });
    }
  }

  void transform_columns() {
    enter_frequencies(target_, offsetof(WinogradCall, target_step_bytes));
    int point = 0;
    for (int column = 0; column < columns_; ++column) {
      for (; point < column_points_.points[static_cast<size_t>(column)]; ++point) next_column();
      std::vector<Input> values;
      for (int row = 0; row < rows_; ++row) values.push_back(get(row, column, line_[static_cast<size_t>(row)]));
      down_.emit(values, temps_, [&](int row, const Vec& value) {
        const int point_of_row = row_points_.points[static_cast<size_t>(row)];
        const Xbyak::RegExp frequency = frequency_at(moving_, point_of_row);
        if (plan_.fetch == FrequencyFetch::lines) prefetchw(ptr[frequency + kWriteAhead]);
        if (fetches_tiles_) prefetchw(ptr[frequency_at(later_, point_of_row)]);
        store(frequency, value);
      });
    }
  }

  const WinogradInputPlan plan_;
  const PointRows column_points_, row_points_;
  const int rows_, columns_;  // rows of pixels, and points along them
  LineTransform across_, down_;
  const std::vector<Vec> line_ = claim_vecs("line", form_.size());
  const std::vector<Vec> temps_ = claim_vecs("temp", LineTransform::kTemps);
};

class OutputEmitter : public TransformEmitter {
 public:
  explicit OutputEmitter(const WinogradOutputPlan& plan)
      : TransformEmitter(plan.isa, plan.form, plan.fetch),
        plan_(plan),
        down_matrix_(first_rows(row_matrices(form_, 0, plan.is_part ? plan.rows : 0).output, plan.rows)),
        across_matrix_(first_rows(column_matrices(form_, 0, plan.is_part ? plan.columns : 0).output, plan.columns)),
        reads_row_(needed_points(down_matrix_)),
        reads_column_(needed_points(across_matrix_)),
        down_(*this, plan.isa, down_matrix_),
        across_(*this, plan.isa, across_matrix_),
        epilogue_(*this, plan.isa, plan.epilogue),
        finishes_maxima_(never_decreases(plan.epilogue)) {
    if (epilogue_.temps_needed() > kMostTemps) throw JitError("the epilogue needs too many registers");
    epilogue_temps_ = claim_vecs("epilogue", epilogue_.temps_needed());
    if (plan.has_bias) bias_ = claim_vec("bias");
    if (plan.pool > 1) {
      maxima_ = claim_vecs("maximum", plan.columns / plan.pool);
      seen_.resize(maxima_.size());
    }
    claim_grid(plan.rows, form_.size(), 0);
  }

  std::shared_ptr<const CodePages> emit(const std::string& name) {
    begin();
    open_frame();
    load_arguments();
    if (bias_) {
      mov(scratch_, qword[call_ + offsetof(WinogradCall, bias)]);
      load(*bias_, Xbyak::RegExp(scratch_));
    }
    if (plan_.fetches_ahead) load_distance(offsetof(WinogradCall, target_step_bytes));
    loop_down(tiles_left_, [&] {
      transform_columns();
      transform_rows();
      step();
    });
    close_frame();
    end();
    down_.emit_constants();
    across_.emit_constants();
    epilogue_.emit_constants();
    return finish(name);
  }

 private:
  void transform_columns() {
    enter_frequencies(source_, offsetof(WinogradCall, source_step_bytes));
    for (int column = 0; column < form_.size(); ++column) {
      if (column > 0) next_column();
      if (!reads_column_[static_cast<size_t>(column)]) {
        for (int row = 0; row < plan_.rows; ++row) put_zero(row, column);
        continue;
      }
      std::vector<Input> values(static_cast<size_t>(form_.rows()));
      for (int row = 0; row < form_.rows(); ++row) {
        if (!reads_row_[static_cast<size_t>(row)]) continue;
        const Xbyak::RegExp frequency = frequency_at(moving_, row);
        if (plan_.fetch == FrequencyFetch::lines) prefetcht0(ptr[frequency + kReadAhead]);
        if (fetches_tiles_) prefetcht0(ptr[frequency_at(later_, row)]);
        load(line_[static_cast<size_t>(row)], frequency);
        values[static_cast<size_t>(row)] = line_[static_cast<size_t>(row)];
      }
      down_.emit(values, temps_, [&](int row, const Vec& value) { put(row, column, value); });
    }
  }

  // moving_: bytes from the target to the row.
  void transform_rows() {
    for (int row = 0; row < plan_.rows; ++row) {
      if (row % plan_.pool == 0) enter_row(row);
      std::vector<Input> values;
      for (int column = 0; column < form_.size(); ++column)
        values.push_back(get(row, column, line_[static_cast<size_t>(column)]));
      across_.emit(values, temps_, [&](int column, const Vec& value) {
        plan_.pool > 1 ? pool_pixel(column, value) : finish_pixel(column, value);
      });
    }
  }

  void enter_row(int row) {
    if (row == 0) {
      xor_(moving_.cvt32(), moving_.cvt32());
    } else {
      add(moving_, row_bytes_);
    }
    if (!plan_.fetches_ahead) return;
    lea(scratch_, ptr[target_ + moving_]);
    fetch(Xbyak::RegExp(scratch_), 0, plan_.columns / plan_.pool, vec_bytes());
  }

  void apply_epilogue(const Xbyak::RegExp& at, const Vec& value) {
    if (bias_) vaddps(value, value, *bias_);
    if (!epilogue_.is_empty())
      epilogue_.apply(value, epilogue_temps_, call_ + offsetof(WinogradCall, operands), scratch_, at, 0);
  }

  void finish_pixel(int column, const Vec& value) {
    const Xbyak::RegExp at = moving_ + column * vec_bytes();
    apply_epilogue(at, value);
    store(target_ + at, value);
  }

  // Of a window, whose pixels come in any order, the last one ends it.
  void pool_pixel(int column, const Vec& value) {
    const int window = column / plan_.pool;
    const Vec& maximum = maxima_[static_cast<size_t>(window)];
    const Xbyak::RegExp at = moving_ + window * vec_bytes();
    if (!finishes_maxima_) apply_epilogue(at, value);
    int& seen = seen_[static_cast<size_t>(window)];
    if (seen == 0) {
      vmovaps(maximum, value);
    } else {
      vmaxps(maximum, maximum, value);
    }
    if (++seen < plan_.pool * plan_.pool) return;
    seen = 0;
    if (finishes_maxima_) apply_epilogue(at, maximum);
    store(target_ + at, maximum);
  }

  void step() {
    add(source_, qword[call_ + offsetof(WinogradCall, source_step_bytes)]);
    mov(scratch_, qword[call_ + offsetof(WinogradCall, target_step_bytes)]);
    add(target_, scratch_);
    for (size_t i = 0; i < plan_.epilogue.operands.size(); ++i) {
      if (plan_.epilogue.operands[i] == ConvOperand::full)
        add(qword[call_ + offsetof(WinogradCall, operands) + 8 * i], scratch_);
    }
  }

  const WinogradOutputPlan plan_;
  const Matrix down_matrix_, across_matrix_;
  const std::vector<bool> reads_row_, reads_column_;  // others nobody may have written
  LineTransform down_, across_;
  ConvEpilogueEmitter epilogue_;
  const Gpr scratch_ = claim_gpr("scratch");
  const std::vector<Vec> line_ = claim_vecs("line", form_.size());
  const std::vector<Vec> temps_ = claim_vecs("temp", LineTransform::kTemps);
  std::vector<Vec> epilogue_temps_;
  std::optional<Vec> bias_;
  const bool finishes_maxima_;  // the epilogue of a maximum is the maximum of epilogues
  std::vector<Vec> maxima_;     // of windows in two rows, and how many of their pixels were there
  std::vector<int> seen_;
};

}  // namespace

const WinogradMatrices& column_matrices(const WinogradForm& form, int phase, int part) {
  return form.stride == 1 ? winograd_matrices(form.outputs, form.taps, part)
                          : winograd_phase_matrices(form.outputs, form.taps, phase, part);
}

// Along y.
const WinogradMatrices& row_matrices(const WinogradForm& form, int phase, int part) {
  if (!form.is_line) return column_matrices(form, phase, part);
  static const Matrix kOne{1, 1, {1.0}};
  static const WinogradMatrices kNone{1, 1, kOne, kOne, kOne};
  return kNone;
}

std::vector<bool> needed_points(const Matrix& output) {
  std::vector<bool> needs;
  for (int point = 0; point < output.columns; ++point) {
    bool is_needed = false;
    for (int row = 0; row < output.rows; ++row) is_needed |= output.at(row, point) != 0;
    needs.push_back(is_needed);
  }
  return needs;
}

std::string to_string(const WinogradForm& form) {
  return fmt::format("F({},{}){}{}{}", form.outputs, form.taps, form.stride > 1 ? " stride 2" : "",
                     form.is_line ? " line" : "", form.pieces > 1 ? fmt::format(" x{}", form.pieces) : "");
}

std::string to_string(const WinogradInputPlan& plan) {
  return fmt::format("winograd_input {} {} phase {},{} rows {}-{} columns {}-{} part {}x{}{}{}", name_of(plan.isa),
                     to_string(plan.form), plan.row_phase, plan.column_phase, plan.first_row, plan.last_row,
                     plan.first_column, plan.last_column, plan.part_rows, plan.part_columns,
                     plan.fetches_ahead ? " fetches" : "", to_string(plan.fetch));
}

std::string to_string(const WinogradOutputPlan& plan) {
  return fmt::format("winograd_output {} {} {}x{}{}{}{}{} bias={} then {}", name_of(plan.isa), to_string(plan.form),
                     plan.rows, plan.columns, plan.is_part ? " part" : "", plan.fetches_ahead ? " fetches" : "",
                     to_string(plan.fetch), plan.pool > 1 ? " pool" : "", plan.has_bias ? 1 : 0,
                     to_string(plan.epilogue));
}

WinogradKernel winograd_input(const WinogradInputPlan& plan) {
  const std::string key = to_string(plan);
  return WinogradKernel(cached_code(key, [&] { return InputEmitter(plan).emit(key); }));
}

WinogradKernel winograd_output(const WinogradOutputPlan& plan) {
  const std::string key = to_string(plan);
  return WinogradKernel(cached_code(key, [&] { return OutputEmitter(plan).emit(key); }));
}

}  // namespace lathe
