#include "jit/kernels/winograd/winograd_stem.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/isas_here.h"
#include "tests/jit/guarded_floats.h"

namespace lathe {
namespace {

using testing::GuardedFloats;
using testing::isas_here;

constexpr WinogradForm kForms[] = {{4, 7, 2}, {3, 7, 2}, {2, 7, 2}, {4, 6, 2}, {4, 5, 2}};

TEST(WinogradStemKernels, TransformARowOfPixels) {
  std::mt19937 random(1);
  for (const Isa isa : isas_here()) {
    for (const WinogradForm& form : kForms) {
      const int tiles = 7, step = form.outputs * form.stride, window = stem_window(form);
      GuardedFloats source(static_cast<size_t>((tiles - 1) * step + window));
      GuardedFloats target(static_cast<size_t>(tiles * kStemRow));
      source.randomize(random, -1, 1);
      StemAcrossCall call{source.data(), target.data(), tiles};
      stem_across(isa, form)(&call);
      for (int tile = 0; tile < tiles; ++tile) {
        for (int phase = 0; phase < 2; ++phase) {
          const Matrix matrix = column_matrices(form, phase).input;
          for (int f = 0; f < matrix.rows; ++f) {
            double expected = 0;
            for (int i = 0; i < matrix.columns; ++i)
              expected += matrix.at(f, i) * source[static_cast<size_t>(tile * step + 2 * i + phase)];
            ASSERT_NEAR(target[static_cast<size_t>(tile * kStemRow + phase * kStemHalf + f)], expected, 1e-4)
                << to_string(form) << " tile " << tile << " phase " << phase << " frequency " << f;
          }
        }
      }
    }
  }
}

TEST(WinogradStemKernels, TransformTheRowsOfATile) {
  std::mt19937 random(2);
  for (const Isa isa : isas_here()) {
    for (const WinogradForm& form : kForms) {
      const int tiles = 3, window = stem_window(form);
      const auto tile_floats = static_cast<int>(stem_tile_floats(form, 1));
      GuardedFloats source(static_cast<size_t>(window * tiles * kStemRow));
      GuardedFloats target(static_cast<size_t>(tiles * tile_floats));
      source.randomize(random, -1, 1);
      StemDownCall call;
      for (int row = 0; row < window; ++row) call.rows[row] = source.data() + row * tiles * kStemRow;
      call.target = target.data();
      call.tiles = tiles;
      call.target_step_bytes = tile_floats * 4;
      stem_down(isa, form)(&call);
      for (int tile = 0; tile < tiles; ++tile) {
        int at = tile * tile_floats;
        for (int phase = 0; phase < 2; ++phase) {
          const Matrix matrix = row_matrices(form, phase).input;
          for (int f = 0; f < matrix.rows; ++f) {
            for (int lane = 0; lane < kStemRow; ++lane, ++at) {
              double expected = 0;
              for (int i = 0; i < matrix.columns; ++i)
                expected +=
                    matrix.at(f, i) * source[static_cast<size_t>(((2 * i + phase) * tiles + tile) * kStemRow + lane)];
              ASSERT_NEAR(target[static_cast<size_t>(at)], expected, 1e-4) << to_string(form) << " tile " << tile;
            }
          }
        }
      }
    }
  }
}

TEST(WinogradStemKernels, MultiplyTheFactorsOfAFrequency) {
  std::mt19937 random(3);
  constexpr int kPhases[][2] = {{0, 1}, {0, 0}, {1, 0}, {1, 1}};  // by slot
  const WinogradForm form{4, 7, 2};
  for (const Isa isa : isas_here()) {
    const int lanes = vector_lanes(isa);
    for (const auto& [rows, vecs] : {std::pair{6, 2}, {5, 1}, {7, has_avx512(isa) ? 4 : 1}}) {
      for (const auto& [row_phases, column_phases] : {std::pair{2, 2}, {1, 2}, {2, 1}, {1, 1}}) {
        for (int channels = 1; channels <= 4; ++channels) {
          const StemProductPlan plan{isa, form, channels, row_phases, column_phases, rows, vecs};
          SCOPED_TRACE(to_string(plan));
          const int count = 2, factors = channels * row_phases * column_phases;
          const auto tile_floats = static_cast<int>(stem_tile_floats(form, channels));
          GuardedFloats tiles(static_cast<size_t>(count * rows * tile_floats));
          GuardedFloats weights(static_cast<size_t>(factors * vecs * lanes));
          GuardedFloats target(static_cast<size_t>(count * rows * vecs * lanes));
          for (GuardedFloats* floats : {&tiles, &weights}) floats->randomize(random, -1, 1);
          StemProductCall call{tiles.data(), weights.data(), target.data(), count, int64_t{4} * vecs * lanes};
          stem_product(plan)(&call);
          for (int tile = 0; tile < count * rows; ++tile) {
            for (int c = 0; c < vecs * lanes; ++c) {
              double expected = 0;
              int factor = 0;
              for (const auto& [row, column] : kPhases) {
                if (row >= row_phases || column >= column_phases) continue;
                for (int channel = 0; channel < channels; ++channel, ++factor) {
                  const int line = channel * stem_rows(form) + row * form.rows(0);
                  expected +=
                      static_cast<double>(
                          tiles[static_cast<size_t>(tile * tile_floats + line * kStemRow + column * kStemHalf)]) *
                      static_cast<double>(weights[static_cast<size_t>(factor * vecs * lanes + c)]);
                }
              }
              ASSERT_NEAR(target[static_cast<size_t>(tile * vecs * lanes + c)], expected, 1e-5) << tile << " " << c;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lathe
