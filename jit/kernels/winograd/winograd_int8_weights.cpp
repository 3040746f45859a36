#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <vector>

#include "jit/kernels/common/int8_lanes.h"
#include "jit/kernels/winograd/winograd_int8.h"

namespace lathe {
namespace {

// In lanes of 16 bits: two input channels of each output channel. What lies between the passes along the two axes stays
// in registers.
class WeightsEmitter : public Int8Emitter {
 public:
  explicit WeightsEmitter(const WinogradInt8WeightsPlan& plan) : Int8Emitter(plan.isa), plan_(plan) {
    for (int row = 0; row < rows(); ++row) {
      for (Vec& vec : grid_[static_cast<size_t>(row)]) vec = claim_vec("grid");
    }
    for (Vec& vec : line_) vec = claim_vec("line");
  }

  std::shared_ptr<const CodePages> emit(const std::string& name) {
    begin();
    mov(source_, qword[call_ + offsetof(WinogradInt8WeightsCall, source)]);
    mov(target_, qword[call_ + offsetof(WinogradInt8WeightsCall, target)]);
    mov(units_left_, qword[call_ + offsetof(WinogradInt8WeightsCall, units)]);
    mov(frequency_, qword[call_ + offsetof(WinogradInt8WeightsCall, frequency_bytes)]);
    lea(three_frequencies_, ptr[frequency_ + frequency_ * 2]);
    loop_down(units_left_, [&] {
      for (int column = 0; column < kTaps; ++column) transform_column(column);
      mov(moving_, target_);
      for (int row = 0; row < rows(); ++row) transform_row(row);
      add(source_, kTaps * kTaps * half_bytes());
      add(target_, vec_bytes());
    });
    end();
    return finish(name);
  }

 private:
  static constexpr int kTaps = WinogradInt8::kTaps;
  using Window = std::array<Vec, kTaps>;
  using Line = std::array<Vec, WinogradInt8::kSmallSize>;

  int rows() const { return WinogradInt8::class_size(plan_.is_large_y); }
  int columns() const { return WinogradInt8::class_size(plan_.is_large_x); }
  int half_bytes() const { return vec_bytes() / 2; }

  void transform_column(int column) {
    Line results;
    for (int row = 0; row < rows(); ++row) {
      results[static_cast<size_t>(row)] = grid_[static_cast<size_t>(row)][static_cast<size_t>(column)];
    }
    for (int row = 0; row < kTaps; ++row) {
      vpmovsxbw(line_[static_cast<size_t>(row)], ptr[source_ + (row * kTaps + column) * half_bytes()]);
    }
    transform({line_[0], line_[1], line_[2]}, results, plan_.is_large_y);
  }

  void transform_row(int row) {
    if (row > 0) lea(moving_, ptr[moving_ + frequency_ * columns()]);
    transform(grid_[static_cast<size_t>(row)], line_, plan_.is_large_x);
    for (int column = 0; column < columns(); ++column) {
      const Xbyak::RegExp offset = column == 3 ? Xbyak::RegExp(three_frequencies_) : frequency_ * column;
      store(column == 0 ? Xbyak::RegExp(moving_) : moving_ + offset, line_[static_cast<size_t>(column)]);
    }
  }

  // A class of the rows of WinogradInt8::kWeights times `w`, which is clobbered.
  void transform(const Window& w, const Line& results, bool is_large) {
    if (is_large) {
      vpsllw(results[1], w[2], 2);
      vpaddw(results[1], results[1], w[0]);
      vpaddw(w[1], w[1], w[1]);
      vpaddw(results[0], results[1], w[1]);
      vpsubw(results[1], results[1], w[1]);
      return;
    }
    vpaddw(results[0], w[0], w[0]);
    vpaddw(results[0], results[0], w[0]);
    vpaddw(results[2], w[0], w[2]);
    vpaddw(results[1], results[2], w[1]);
    vpsubw(results[2], results[2], w[1]);
    vpaddw(results[3], w[2], w[2]);
    vpaddw(results[3], results[3], w[2]);
  }

  const WinogradInt8WeightsPlan plan_;
  const Gpr call_ = argument(0);
  const Gpr source_ = claim_gpr("source"), target_ = claim_gpr("target"), units_left_ = claim_gpr("units left");
  const Gpr moving_ = claim_gpr("row"), frequency_ = claim_gpr("frequency");
  const Gpr three_frequencies_ = claim_gpr("3 frequencies");
  std::array<Window, WinogradInt8::kSmallSize> grid_;
  Line line_;
};

}  // namespace

std::string to_string(const WinogradInt8WeightsPlan& plan) {
  return fmt::format("winograd_int8_weights {} {}{}", name_of(plan.isa), plan.is_large_y ? "large y " : "",
                     plan.is_large_x ? "large x" : "");
}

WinogradInt8WeightsKernel winograd_int8_weights(const WinogradInt8WeightsPlan& plan) {
  const std::string key = to_string(plan);
  return WinogradInt8WeightsKernel(cached_code(key, [&] { return WeightsEmitter(plan).emit(key); }));
}

}  // namespace lathe
