#include "jit/kernels/winograd/winograd_stem.h"

#include <fmt/format.h>

#include <bit>
#include <cstddef>

#include "jit/emitter.h"
#include "jit/kernels/winograd/line_transform.h"

namespace lathe {
namespace {

constexpr int kHalfBytes = kStemHalf * 4, kRowBytes = kStemRow * 4;

// One multiply-add for each pixel of a tile's row: the pixel times a column of the transform.
class AcrossEmitter : public Emitter {
 public:
  AcrossEmitter(Isa isa, const WinogradForm& form) : Emitter(isa), form_(form) {
    for (int pixel = 0; pixel < stem_window(form); ++pixel) labels_.emplace_back();
    if (has_masks()) constants_ = claim_vecs("column", stem_window(form));
  }

  std::shared_ptr<const CodePages> emit(const std::string& name) {
    begin();
    mov(source_, qword[call_ + offsetof(StemAcrossCall, source)]);
    mov(target_, qword[call_ + offsetof(StemAcrossCall, target)]);
    mov(left_, qword[call_ + offsetof(StemAcrossCall, tiles)]);
    for (size_t i = 0; i < constants_.size(); ++i) vmovups(constants_[i], ptr[rip + labels_[i]]);
    while_at_least(left_, kTogether, [&] { emit_tiles(kTogether); });
    while_at_least(left_, 1, [&] { emit_tiles(1); });
    end();
    emit_constants();
    return finish(name);
  }

 private:
  static constexpr int kTogether = 4;

  void emit_tiles(int tiles) {
    const int step_bytes = form_.outputs * form_.stride * 4;
    // Lanes of both phases in one vector, or one vector for each.
    const int halves = has_masks() ? 1 : form_.stride;
    for (int pixel = 0; pixel < stem_window(form_); ++pixel) {
      const int half = pixel % halves;
      const bool is_first = pixel < halves;
      for (int tile = 0; tile < tiles; ++tile) {
        const Vec& sum = sums_[static_cast<size_t>(tile * halves + half)];
        const Xbyak::RegExp at = source_ + tile * step_bytes + pixel * 4;
        if (has_masks()) {
          const Vec& column = constants_[static_cast<size_t>(pixel)];
          is_first ? vmulps(sum, column, ptr_b[at]) : vfmadd231ps(sum, column, ptr_b[at]);
        } else {
          broadcast(pixel_, at);
          const auto column = ptr[rip + labels_[static_cast<size_t>(pixel)]];
          is_first ? vmulps(sum, pixel_, column) : vfmadd231ps(sum, pixel_, column);
        }
      }
    }
    for (int i = 0; i < tiles * halves; ++i) store(target_ + i * vec_bytes(), sums_[static_cast<size_t>(i)]);
    add(source_, tiles * step_bytes);
    add(target_, tiles * kRowBytes);
  }

  void emit_constants() {
    for (int pixel = 0; pixel < stem_window(form_); ++pixel) {
      const int phase = pixel % form_.stride;
      const Matrix matrix = column_matrices(form_, phase).input;
      align(64);
      L(labels_[static_cast<size_t>(pixel)]);
      for (int lane = 0; lane < lanes(); ++lane) {
        const int frequency = has_masks() ? lane - phase * kStemHalf : lane;
        const bool is_own = frequency >= 0 && frequency < matrix.rows;
        dd(std::bit_cast<uint32_t>(is_own ? static_cast<float>(matrix.at(frequency, pixel / form_.stride)) : 0.0f));
      }
    }
  }

  const WinogradForm form_;
  const Gpr call_ = argument(0);
  const Gpr source_ = claim_gpr("source"), target_ = claim_gpr("target"), left_ = claim_gpr("tiles left");
  const std::vector<Vec> sums_ = claim_vecs("sum", has_masks() ? kTogether : 2 * kTogether);
  const Vec pixel_ = claim_vec("pixel");
  std::vector<Vec> constants_;
  std::vector<Xbyak::Label> labels_;
};

class DownEmitter : public Emitter {
 public:
  DownEmitter(Isa isa, const WinogradForm& form) : Emitter(isa), form_(form) {
    for (int phase = 0; phase < form.stride; ++phase)
      transforms_.push_back(LineTransform(*this, isa, row_matrices(form, phase).input));
  }

  std::shared_ptr<const CodePages> emit(const std::string& name) {
    begin();
    mov(target_, qword[call_ + offsetof(StemDownCall, target)]);
    mov(left_, qword[call_ + offsetof(StemDownCall, tiles)]);
    xor_(tile_, tile_);
    loop_down(left_, [&] {
      for (int part = 0; part < kRowBytes; part += vec_bytes()) {
        for (int phase = 0; phase < form_.stride; ++phase) transform(phase, part);
      }
      add(tile_, kRowBytes);
      add(target_, qword[call_ + offsetof(StemDownCall, target_step_bytes)]);
    });
    end();
    for (LineTransform& transform : transforms_) transform.emit_constants();
    return finish(name);
  }

 private:
  void transform(int phase, int part) {
    std::vector<LineTransform::Input> values;
    for (int row = 0; row < form_.rows(phase); ++row) {
      const int pixel = row * form_.stride + phase;
      mov(row_, qword[call_ + offsetof(StemDownCall, rows) + 8 * static_cast<size_t>(pixel)]);
      load(line_[static_cast<size_t>(row)], row_ + tile_ + part);
      values.emplace_back(line_[static_cast<size_t>(row)]);
    }
    const int first = phase == 0 ? 0 : form_.rows(0);
    transforms_[static_cast<size_t>(phase)].emit(
        values, temps_, [&](int row, const Vec& value) { store(target_ + (first + row) * kRowBytes + part, value); });
  }

  const WinogradForm form_;
  const Gpr call_ = argument(0);
  const Gpr target_ = claim_gpr("target"), left_ = claim_gpr("tiles left"), tile_ = claim_gpr("byte of the tile");
  const Gpr row_ = claim_gpr("row");
  const std::vector<Vec> line_ = claim_vecs("line", form_.rows());
  const std::vector<Vec> temps_ = claim_vecs("temp", LineTransform::kTemps);
  std::vector<LineTransform> transforms_;
};

class ProductEmitter : public Emitter {
 public:
  explicit ProductEmitter(const StemProductPlan& plan)
      : Emitter(plan.isa),
        plan_(plan),
        sums_(claim_vecs("sum", plan.rows * plan.vecs)),
        weights_(claim_vecs("weight", plan.vecs)),
        is_embedded_(has_masks() && free_vecs() == 0) {
    if (!is_embedded_) value_ = claim_vec("value");
  }

  std::shared_ptr<const CodePages> emit(const std::string& name) {
    begin();
    mov(tiles_, qword[call_ + offsetof(StemProductCall, tiles)]);
    mov(weight_, qword[call_ + offsetof(StemProductCall, weights)]);
    mov(target_, qword[call_ + offsetof(StemProductCall, target)]);
    mov(left_, qword[call_ + offsetof(StemProductCall, count)]);
    mov(step_, qword[call_ + offsetof(StemProductCall, target_step_bytes)]);
    loop_down(left_, [&] {
      multiply();
      store_sums();
      add(tiles_, plan_.rows * tile_bytes());
    });
    end();
    return finish(name);
  }

 private:
  int tile_bytes() const { return static_cast<int>(stem_tile_floats(plan_.form, plan_.channels)) * 4; }

  // Bytes from the frequency's value of channel 0 and phases 0 to all of its factors, in the order of their weights.
  std::vector<int> factors() const {
    std::vector<int> bytes;
    static constexpr int kPhases[][2] = {{0, 1}, {0, 0}, {1, 0}, {1, 1}};  // by slot
    for (const auto& [row, column] : kPhases) {
      if (row >= plan_.row_phases || column >= plan_.column_phases) continue;
      for (int channel = 0; channel < plan_.channels; ++channel)
        bytes.push_back((channel * stem_rows(plan_.form) + row * plan_.form.rows(0)) * kRowBytes + column * kHalfBytes);
    }
    return bytes;
  }

  void multiply() {
    int step = 0;
    for (const int factor : factors()) {
      for (int v = 0; v < plan_.vecs; ++v)
        load(weights_[static_cast<size_t>(v)], weight_ + (step * plan_.vecs + v) * vec_bytes());
      for (int row = 0; row < plan_.rows; ++row) {
        const Xbyak::RegExp at = tiles_ + row * tile_bytes() + factor;
        if (!is_embedded_) broadcast(*value_, at);
        for (int v = 0; v < plan_.vecs; ++v) {
          const Vec &sum = sums_[static_cast<size_t>(row * plan_.vecs + v)], &weight = weights_[static_cast<size_t>(v)];
          if (is_embedded_) {
            step == 0 ? vmulps(sum, weight, ptr_b[at]) : vfmadd231ps(sum, weight, ptr_b[at]);
          } else {
            step == 0 ? vmulps(sum, weight, *value_) : vfmadd231ps(sum, weight, *value_);
          }
        }
      }
      ++step;
    }
  }

  void store_sums() {
    for (int row = 0; row < plan_.rows; ++row) {
      for (int v = 0; v < plan_.vecs; ++v)
        store(target_ + v * vec_bytes(), sums_[static_cast<size_t>(row * plan_.vecs + v)]);
      add(target_, step_);
    }
  }

  const StemProductPlan plan_;
  const Gpr call_ = argument(0);
  const Gpr tiles_ = claim_gpr("tiles"), weight_ = claim_gpr("weights"), target_ = claim_gpr("target");
  const Gpr left_ = claim_gpr("left"), step_ = claim_gpr("step");
  const std::vector<Vec> sums_, weights_;
  const bool is_embedded_;
  std::optional<Vec> value_;
};

}  // namespace

Kernel<void(StemAcrossCall*)> stem_across(Isa isa, const WinogradForm& form) {
  const std::string key = fmt::format("stem_across {} {}", name_of(isa), to_string(form));
  return Kernel<void(StemAcrossCall*)>(cached_code(key, [&] { return AcrossEmitter(isa, form).emit(key); }));
}

Kernel<void(StemDownCall*)> stem_down(Isa isa, const WinogradForm& form) {
  const std::string key = fmt::format("stem_down {} {}", name_of(isa), to_string(form));
  return Kernel<void(StemDownCall*)>(cached_code(key, [&] { return DownEmitter(isa, form).emit(key); }));
}

std::string to_string(const StemProductPlan& plan) {
  return fmt::format("stem_product {} {} channels={} phases={}x{} {}x{}", name_of(plan.isa), to_string(plan.form),
                     plan.channels, plan.row_phases, plan.column_phases, plan.rows, plan.vecs);
}

Kernel<void(StemProductCall*)> stem_product(const StemProductPlan& plan) {
  const std::string key = to_string(plan);
  return Kernel<void(StemProductCall*)>(cached_code(key, [&] { return ProductEmitter(plan).emit(key); }));
}

}  // namespace lathe
