#include "ops/winograd/winograd_weights.h"

#include <algorithm>

namespace lathe {
namespace {

constexpr int kMostLanes = 16, kMostTaps = 7, kMostSize = 8;
using WeightWindow = double[kMostTaps][kMostTaps][kMostLanes];

// The first tap of a piece.
struct Corner {
  int64_t y = 0, x = 0;
};

// The taps of one pair of phases, and what makes frequencies of them: rows * window * columns^T for a block of output
// channels at once.
struct PhaseTransform {
  int row_phase, column_phase, row_step, column_step;
  Corner corner;  // its taps count from there
  Matrix rows, columns;
  double once[kMostSize][kMostTaps][kMostLanes];

  void run(const WeightWindow& window, float* out, int64_t frequency_stride) {
    const int first_row = row_step == 1 ? 0 : row_phase, first_column = column_step == 1 ? 0 : column_phase;
    for (int row = 0; row < rows.rows; ++row) {
      for (int x = 0; x < columns.columns; ++x) {
        double sum[kMostLanes] = {};
        for (int y = 0; y < rows.columns; ++y) {
          const double factor = rows.at(row, y);
          if (factor == 0) continue;
          const auto& taps = window[first_row + y * row_step][first_column + x * column_step];
          for (int lane = 0; lane < kMostLanes; ++lane) sum[lane] += factor * taps[lane];
        }
        std::copy_n(sum, kMostLanes, once[row][x]);
      }
    }
    for (int row = 0; row < rows.rows; ++row) {
      for (int column = 0; column < columns.rows; ++column, out += frequency_stride) {
        double sum[kMostLanes] = {};
        for (int x = 0; x < columns.columns; ++x) {
          const double factor = columns.at(column, x);
          if (factor == 0) continue;
          for (int lane = 0; lane < kMostLanes; ++lane) sum[lane] += factor * once[row][x][lane];
        }
        for (int lane = 0; lane < kMostLanes; ++lane) out[lane] = static_cast<float>(sum[lane]);
      }
    }
  }
};

// The windows of one block of output channels over one input channel of its group, from a corner on; zeros behind their
// end.
void load_window(const ConvProblem& problem, const float* weights, int64_t first_out, int64_t in, const Corner& corner,
                 WeightWindow& window) {
  const int64_t height = problem.window_y, width = problem.window_x;
  for (int lane = 0; lane < problem.lanes; ++lane) {
    const int64_t out = first_out + lane;
    const bool exists = out < problem.out_channels;
    const float* from = exists ? weights + (out * problem.in_channels_each() + in) * height * width : nullptr;
    for (int64_t y = 0; y < std::min<int64_t>(height, kMostTaps); ++y) {
      for (int64_t x = 0; x < std::min<int64_t>(width, kMostTaps); ++x) {
        const int64_t row = corner.y + y, column = corner.x + x;
        const bool has_tap = exists && row < height && column < width;
        window[y][x][lane] = has_tap ? static_cast<double>(from[row * width + column]) : 0.0;
      }
    }
  }
}

std::vector<PhaseTransform> phase_transforms(const WinogradForm& form) {
  std::vector<PhaseTransform> made;
  for (int row = 0; row < form.row_phases(); ++row) {
    for (int column = 0; column < form.column_phases(); ++column)
      made.push_back({row,
                      column,
                      form.is_line ? 1 : form.stride,
                      form.stride,
                      form.pieces > 1 ? Corner{row * form.taps, column * form.taps} : Corner(),
                      row_matrices(form, row).weights,
                      column_matrices(form, column).weights,
                      {}});
  }
  return made;
}

// Where the first input channel's weights of one frequency go, for a block of output channels.
struct Place {
  int64_t first = 0, width = 0;  // floats; from channel to channel
};
Place place_of(const ConvProblem& problem, const WinogradClass& part, int64_t index, int64_t first_out) {
  const int64_t columns = columns_of_group(problem), depth = part.slots * problem.in_channels_each();
  const int64_t matrix = part.matrices[static_cast<size_t>(index)] * problem.groups + first_out / columns;
  const int64_t column = first_out % columns, panel = column / part.format.panel_columns;
  return {part.weights + matrix * depth * columns + panel * part.format.panel_columns * depth +
              column % part.format.panel_columns,
          part.format.width_of(panel, columns)};
}

}  // namespace

int64_t columns_of_group(const ConvProblem& problem) { return problem.out_blocks() * problem.lanes / problem.groups; }

int winograd_slot(const WinogradForm& form, int row_phase, int column_phase) {
  if (form.stride == 1) return row_phase * form.column_phases() + column_phase;
  static constexpr int kSlots[2][2] = {{1, 0}, {2, 3}};
  return kSlots[row_phase][column_phase];
}

namespace {

// Frequencies along one axis whose products take the same phases.
struct AxisGroup {
  int first = 0, end = 0;  // frequencies
  int phase = 0, phases = 1;
  bool has_one_matrix = false;
  std::vector<bool> needs;  // which of them a tile that is not whole takes
};

using MatricesOf = const WinogradMatrices& (*)(const WinogradForm&, int phase, int part);

// Phases add up along k as far as they share frequencies.
std::vector<AxisGroup> joined_groups(const WinogradForm& form, int phases, int part, MatricesOf matrices) {
  const std::vector<bool> needs = needed_points(matrices(form, 0, part).output);
  const int all = static_cast<int>(needs.size()), shared = matrices(form, phases - 1, 0).size();
  std::vector<AxisGroup> groups = {{0, shared, 0, phases, false, needs}};
  if (shared < all) groups.push_back({shared, all, 0, 1, false, needs});
  return groups;
}

std::vector<AxisGroup> phase_groups(const WinogradForm& form, int phases, int part, MatricesOf matrices) {
  std::vector<AxisGroup> groups;
  for (int phase = 0; phase < phases; ++phase) {
    const std::vector<bool> needs = needed_points(matrices(form, phase, part).output);
    groups.push_back({0, static_cast<int>(needs.size()), phase, 1, matrices(form, phase, 0).taps == 1, needs});
  }
  return groups;
}

// The classes of two groups, whose matrices lie together in one order whatever the tiles take.
void add_classes(const WinogradForm& form, const AxisGroup& y, const AxisGroup& x, WinogradClass made,
                 std::vector<WinogradClass>& classes) {
  const int columns = x.has_one_matrix ? 1 : x.end - x.first, rows = y.has_one_matrix ? 1 : y.end - y.first;
  made.slots = y.phases * x.phases;
  made.matrix_count = rows * columns;
  for (const bool whole_rows : {false, true}) {
    for (const bool whole_columns : {false, true}) {
      std::vector<std::pair<int, int>> products;  // matrix and frequency
      for (int row = y.first; row < y.end; ++row) {
        for (int column = x.first; column < x.end; ++column) {
          if (y.needs[static_cast<size_t>(row)] == whole_rows || x.needs[static_cast<size_t>(column)] == whole_columns)
            continue;
          const int matrix_row = y.has_one_matrix ? 0 : row - y.first;
          const int matrix_column = x.has_one_matrix ? 0 : column - x.first;
          products.emplace_back(matrix_row * columns + matrix_column, row * form.size() + column);
        }
      }
      if (products.empty()) continue;
      std::sort(products.begin(), products.end());
      made.matrices.clear();
      made.frequencies.clear();
      for (const auto& [matrix, frequency] : products) {
        made.matrices.push_back(matrix);
        made.frequencies.push_back(frequency);
      }
      made.whole_rows = whole_rows;
      made.whole_columns = whole_columns;
      classes.push_back(made);
      made.continues = true;
    }
  }
}

}  // namespace

std::vector<WinogradClass> winograd_classes(const WinogradForm& form, const WinogradParts& parts) {
  const auto groups_of = parts.phases_apart ? phase_groups : joined_groups;
  const std::vector<AxisGroup> columns = groups_of(form, form.column_phases(), parts.columns, column_matrices);
  std::vector<WinogradClass> classes;
  for (const AxisGroup& y : groups_of(form, form.row_phases(), parts.rows, row_matrices)) {
    for (const AxisGroup& x : columns) {
      WinogradClass made;
      if (form.stride > 1) made.first_slot = winograd_slot(form, y.phase, parts.phases_apart ? x.phase : x.phases - 1);
      made.adds = y.phase > 0 || x.phase > 0;
      add_classes(form, y, x, made, classes);
    }
  }
  return classes;
}

void pack_winograd(const ConvProblem& problem, const WinogradForm& form, const std::vector<WinogradClass>& classes,
                   const float* weights, float* packed) {
  const int64_t columns = problem.out_blocks() * problem.lanes, depth = problem.in_channels_each();
  std::vector<PhaseTransform> transforms = phase_transforms(form);
  // By slot and frequency.
  const auto frequencies = static_cast<size_t>(form.frequencies());
  std::vector<std::pair<const WinogradClass*, int64_t>> places(static_cast<size_t>(winograd_slots(form)) * frequencies);
  for (const WinogradClass& part : classes) {
    for (size_t i = 0; i < part.frequencies.size(); ++i) {
      for (int slot = part.first_slot; slot < part.first_slot + part.slots; ++slot)
        places[static_cast<size_t>(slot) * frequencies + static_cast<size_t>(part.frequencies[i])] = {
            &part, static_cast<int64_t>(i)};
    }
  }
  // Frequencies lie far apart, often in one set of the caches: several channels go to each at a time.
  constexpr int64_t kDepthBlock = 16;
  WeightWindow windows[kDepthBlock] = {};
  std::vector<float> block(static_cast<size_t>(form.frequencies() * kDepthBlock * kMostLanes));
  for (int64_t first = 0; first < columns; first += problem.lanes) {
    for (int64_t begin = 0; begin < depth; begin += kDepthBlock) {
      const int64_t count = std::min(kDepthBlock, depth - begin);
      for (PhaseTransform& transform : transforms) {
        // Phases take theirs from one window.
        const bool is_other = form.pieces > 1 || &transform == &transforms[0];
        for (int64_t i = 0; is_other && i < count; ++i)
          load_window(problem, weights, first, begin + i, transform.corner, windows[i]);
        for (int64_t i = 0; i < count; ++i)
          transform.run(windows[i], block.data() + i * kMostLanes, kDepthBlock * kMostLanes);
        const int slot = winograd_slot(form, transform.row_phase, transform.column_phase);
        const int width = transform.columns.rows;
        for (int f = 0; f < transform.rows.rows * width; ++f) {
          const auto& [part, index] = places[static_cast<size_t>(slot) * frequencies +
                                             static_cast<size_t>(f / width * form.size() + f % width)];
          if (part == nullptr) continue;
          const Place place = place_of(problem, *part, index, first);
          float* to = packed + place.first + ((slot - part->first_slot) * depth + begin) * place.width;
          for (int64_t i = 0; i < count; ++i)
            std::copy_n(block.data() + (f * kDepthBlock + i) * kMostLanes, problem.lanes, to + i * place.width);
        }
      }
    }
  }
}

}  // namespace lathe
