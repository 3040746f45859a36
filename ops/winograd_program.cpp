#include "ops/winograd_program.h"

#include <fmt/format.h>

#include <algorithm>

#include "jit/kernels/winograd_matrices.h"
#include "src/base/check.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int kPageFloats = 1024;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows or matrices a multiple of a page apart would share the sets of a cache.
int64_t off_page(int64_t floats, int64_t lanes) { return floats % (kPageFloats / 4) == 0 ? floats + lanes : floats; }

bool has_plain_taps(const ConvAxis& axis) {
  if (axis.stride != 1 || axis.out_step != 1 || axis.out_first != 0 || axis.out_extent != axis.out) return false;
  for (size_t i = 0; i < axis.taps.size(); ++i) {
    if (axis.taps[i].kernel != static_cast<int>(i)) return false;
    if (axis.taps[i].offset != axis.taps[0].offset + static_cast<int64_t>(i)) return false;
  }
  return true;
}

template <class T>
int index_in(std::vector<T>& kinds, const T& kind) {
  const auto found = std::find(kinds.begin(), kinds.end(), kind);
  if (found != kinds.end()) return static_cast<int>(found - kinds.begin());
  kinds.push_back(kind);
  return static_cast<int>(kinds.size()) - 1;
}

}  // namespace

std::string to_string(const WinogradPlan& plan) {
  return fmt::format("{} F({},{}) tiles={}", name_of(plan.isa), plan.form.outputs, plan.form.taps, plan.tile_group);
}

WinogradPlan winograd_plan(const ConvPlan& plan) {
  WinogradPlan made;
  made.isa = plan.isa;
  made.form.outputs = plan.winograd;
  made.tile_group = plan.winograd_group;
  return made;
}

bool is_winograd(const ConvProblem& problem, int outputs) {
  if (problem.phases.size() != 1 || problem.groups != 1 || problem.is_transposed) return false;
  const ConvShape& shape = problem.phases[0];
  const size_t taps = shape.x.taps.size();
  if (shape.lanes != problem.lanes || taps != shape.y.taps.size() || taps < 3 || taps > 5) return false;
  const int size = outputs + static_cast<int>(taps) - 1;
  if (outputs < 2 || size % 2 != 0 || size > 8) return false;
  return has_plain_taps(shape.y) && has_plain_taps(shape.x);
}

WinogradProgram::Axis WinogradProgram::make_axis(const ConvAxis& axis, const WinogradForm& form) {
  Axis made;
  made.outputs = axis.out;
  made.tiles = divide_up(axis.out, form.outputs);
  made.first_input = axis.taps[0].offset;
  std::vector<std::pair<std::pair<int, int>, int>> kinds;
  for (int64_t tile = 0; tile < made.tiles; ++tile) {
    const int64_t corner = tile * form.outputs + made.first_input;
    const auto first = static_cast<int>(std::clamp<int64_t>(-corner, 0, form.size()));
    const auto last = static_cast<int>(std::clamp<int64_t>(axis.in - corner, first, form.size()));
    const auto stored = static_cast<int>(std::min<int64_t>(form.outputs, axis.out - tile * form.outputs));
    made.kind.push_back(index_in(kinds, {{first, last}, stored}));
  }
  for (const auto& [input, stored] : kinds) {
    made.inputs.push_back(input);
    made.stored.push_back(stored);
  }
  return made;
}

WinogradProgram::WinogradProgram(ConvProblem problem, const WinogradPlan& plan, int threads,
                                 std::vector<int64_t> operand_batch_bytes)
    : problem_(std::move(problem)),
      plan_(plan),
      threads_(threads),
      operand_batch_bytes_(std::move(operand_batch_bytes)) {
  if (!is_winograd(problem_, plan_.form.outputs)) throw JitError("not possible here: " + to_string(plan_));
  operand_batch_bytes_.resize(problem_.epilogue.operands.size());
  const ConvShape& shape = problem_.phases[0];
  plan_.form.taps = static_cast<int>(shape.x.taps.size());
  y_ = make_axis(shape.y, plan_.form);
  x_ = make_axis(shape.x, plan_.form);
  tiles_ = problem_.batch * y_.tiles * x_.tiles;
  groups_ = 1;
  if (plan_.tile_group > 0) {
    groups_ = divide_up(tiles_, plan_.tile_group);
    groups_ = std::min(tiles_, divide_up(groups_, threads_) * threads_);
  }
  group_tiles_ = divide_up(tiles_, groups_);
  const int lanes = problem_.lanes;
  in_stride_ = off_page(problem_.in_blocks() * lanes, lanes);
  out_stride_ = off_page(problem_.out_blocks() * lanes, lanes);
  in_frequency_ = off_page(group_tiles_ * in_stride_, lanes);
  out_frequency_ = off_page(group_tiles_ * out_stride_, lanes);
  make_kernels();
  make_products();
}

void WinogradProgram::make_kernels() {
  for (size_t row = 0; row < y_.inputs.size(); ++row) {
    in_.emplace_back();
    out_.emplace_back();
    for (size_t column = 0; column < x_.inputs.size(); ++column) {
      in_.back().push_back(winograd_input({plan_.isa, plan_.form, y_.inputs[row].first, y_.inputs[row].second,
                                           x_.inputs[column].first, x_.inputs[column].second}));
      out_.back().push_back(winograd_output(
          {plan_.isa, plan_.form, y_.stored[row], x_.stored[column], problem_.has_bias, problem_.epilogue}));
    }
  }
}

void WinogradProgram::make_products() {
  GemmProblem product;
  product.batches = plan_.form.frequencies();
  product.n = problem_.out_blocks() * problem_.lanes;
  product.k = problem_.in_channels;
  product.isa = plan_.isa;
  product.a_stride = in_stride_;
  product.threads = parts() == 1 ? 1 : threads_;
  std::vector<GemmOffsets> offsets(static_cast<size_t>(product.batches));
  for (int64_t i = 0; i < product.batches; ++i) {
    GemmOffsets& at = offsets[static_cast<size_t>(i)];
    at.a = i * in_frequency_;
    at.b = i * product.k * product.n;
    at.c = i * out_frequency_;
  }
  product.m = group_tiles_;
  GemmPlan plan = default_gemm_plan(product);
  plan.split = GemmSplit::columns;
  products_.emplace_back(product, plan, offsets);
  if (tiles_ == groups_ * group_tiles_ || group_tiles_ == 1) return;
  // Of the same panels, so that they share the weights.
  product.m = group_tiles_ - 1;
  plan.rows = static_cast<int>(std::min<int64_t>(plan.rows, product.m));
  products_.emplace_back(product, plan, offsets);
}

std::string WinogradProgram::packing() const {
  const PanelFormat format = products_[0].format();
  return fmt::format("winograd.1 F({},{}) c{} panels of {}", plan_.form.outputs, plan_.form.taps, problem_.lanes,
                     format.panel_columns);
}

int64_t WinogradProgram::packed_size() const {
  return plan_.form.frequencies() * problem_.in_channels * problem_.out_blocks() * problem_.lanes;
}

namespace {

constexpr int kMostLanes = 16, kMostTaps = 5;
using WeightWindow = double[kMostTaps][kMostTaps][kMostLanes];

// weights * window * weights^T for a block of output channels at once.
struct WeightTransform {
  const Matrix& matrix;
  double once[8][kMostTaps][kMostLanes];

  void run(const WeightWindow& window, float* out, int64_t frequency_stride) {
    const int taps = matrix.columns;
    for (int row = 0; row < matrix.rows; ++row) {
      for (int x = 0; x < taps; ++x) {
        double sum[kMostLanes] = {};
        for (int y = 0; y < taps; ++y) {
          const double factor = matrix.at(row, y);
          for (int lane = 0; lane < kMostLanes; ++lane) sum[lane] += factor * window[y][x][lane];
        }
        std::copy_n(sum, kMostLanes, once[row][x]);
      }
    }
    for (int row = 0; row < matrix.rows; ++row) {
      for (int column = 0; column < matrix.rows; ++column, out += frequency_stride) {
        double sum[kMostLanes] = {};
        for (int x = 0; x < taps; ++x) {
          const double factor = matrix.at(column, x);
          for (int lane = 0; lane < kMostLanes; ++lane) sum[lane] += factor * once[row][x][lane];
        }
        for (int lane = 0; lane < kMostLanes; ++lane) out[lane] = static_cast<float>(sum[lane]);
      }
    }
  }
};

// The windows of one block of output channels over one input channel.
void load_window(const ConvProblem& problem, const float* weights, int64_t first_out, int64_t in,
                 WeightWindow& window) {
  const auto taps = static_cast<int>(problem.window_x);
  for (int lane = 0; lane < problem.lanes; ++lane) {
    const int64_t out = first_out + lane;
    const float* from = weights + (out * problem.in_channels + in) * taps * taps;
    for (int tap = 0; tap < taps * taps; ++tap)
      window[tap / taps][tap % taps][lane] = out < problem.out_channels ? static_cast<double>(from[tap]) : 0.0;
  }
}

}  // namespace

void WinogradProgram::pack(const float* weights, float* packed) const {
  const WinogradMatrices matrices = winograd_matrices(plan_.form.outputs, plan_.form.taps);
  const PanelFormat format = products_[0].format();
  const int64_t columns = problem_.out_blocks() * problem_.lanes, depth = problem_.in_channels;
  const int64_t frequency = depth * columns;
  WeightTransform transform{matrices.weights, {}};
  WeightWindow window = {};
  // Frequencies lie far apart, often in one set of the caches: several channels go to each at a time.
  constexpr int64_t kDepthBlock = 16;
  std::vector<float> block(static_cast<size_t>(plan_.form.frequencies() * kDepthBlock * kMostLanes));
  for (int64_t first = 0; first < columns; first += problem_.lanes) {
    const int64_t panel = first / format.panel_columns, width = format.width_of(panel, columns);
    float* to = packed + panel * format.panel_columns * depth + first % format.panel_columns;
    for (int64_t begin = 0; begin < depth; begin += kDepthBlock, to += kDepthBlock * width) {
      const int64_t count = std::min(kDepthBlock, depth - begin);
      for (int64_t i = 0; i < count; ++i) {
        load_window(problem_, weights, first, begin + i, window);
        transform.run(window, block.data() + i * kMostLanes, kDepthBlock * kMostLanes);
      }
      for (int64_t f = 0; f < plan_.form.frequencies(); ++f) {
        for (int64_t i = 0; i < count; ++i)
          std::copy_n(block.data() + (f * kDepthBlock + i) * kMostLanes, problem_.lanes,
                      to + f * frequency + i * width);
      }
    }
  }
}

int64_t WinogradProgram::scratch_size() const {
  const int64_t both = plan_.form.frequencies() * (in_frequency_ + out_frequency_);
  return parts() == 1 ? both * threads_ : both;
}

WinogradProgram::Tiles WinogradProgram::group_of(int64_t group) const {
  // Groups of group_tiles_ come first.
  const int64_t large = tiles_ - groups_ * (group_tiles_ - 1);
  const int64_t begin = group * group_tiles_ - std::max<int64_t>(0, group - large);
  return {begin, begin + group_tiles_ - (group < large ? 0 : 1)};
}

template <class Body>
void WinogradProgram::for_runs(const Tiles& tiles, Body body) const {
  for (int64_t tile = tiles.begin; tile < tiles.end;) {
    Run run{};
    run.x = tile % x_.tiles;
    run.y = tile / x_.tiles % y_.tiles;
    run.image = tile / x_.tiles / y_.tiles;
    run.first = tile - tiles.begin;
    const int kind = x_.kind[static_cast<size_t>(run.x)];
    const int64_t most = std::min(tiles.end - tile, x_.tiles - run.x);
    while (run.count < most && x_.kind[static_cast<size_t>(run.x + run.count)] == kind) ++run.count;
    body(run, static_cast<size_t>(y_.kind[static_cast<size_t>(run.y)]), static_cast<size_t>(kind));
    tile += run.count;
  }
}

void WinogradProgram::transform_input(const ConvArguments& arguments, float* frequencies, const Tiles& tiles,
                                      int64_t first_block, int64_t last_block) const noexcept {
  const ConvShape& shape = problem_.phases[0];
  const int lanes = problem_.lanes, step = plan_.form.outputs;
  WinogradCall call;
  call.row_bytes = shape.x.in * lanes * 4;
  call.frequency_bytes = in_frequency_ * 4;
  call.source_step_bytes = int64_t{step} * lanes * 4;
  call.target_step_bytes = in_stride_ * 4;
  for (int64_t block = first_block; block < last_block; ++block) {
    for_runs(tiles, [&](const Run& run, size_t row, size_t column) {
      const int64_t plane = (run.image * problem_.in_blocks() + block) * problem_.source_block_bytes();
      const int64_t pixel = (run.y * step + y_.first_input) * shape.x.in + run.x * step + x_.first_input;
      call.source =
          reinterpret_cast<const float*>(reinterpret_cast<intptr_t>(arguments.source) + plane + pixel * lanes * 4);
      call.target = frequencies + run.first * in_stride_ + block * lanes;
      call.tiles = run.count;
      in_[row][column](&call);
    });
  }
}

void WinogradProgram::multiply(const ConvArguments& arguments, float* scratch, const Tiles& tiles, const void* next,
                               int thread, int threads) const noexcept {
  const int64_t count = tiles.end - tiles.begin;
  GemmOperands operands;
  operands.a = scratch;
  operands.b = arguments.weights;
  operands.c = scratch + plan_.form.frequencies() * in_frequency_;
  operands.a_stride = in_stride_;
  operands.c_stride = out_stride_;
  operands.next_weights = next;
  products_[count == group_tiles_ ? 0 : 1].run(operands, thread, threads);
}

void WinogradProgram::transform_output(const ConvArguments& arguments, const float* frequencies, const Tiles& tiles,
                                       int64_t first_block, int64_t last_block) const noexcept {
  const int lanes = problem_.lanes, step = plan_.form.outputs;
  WinogradCall call;
  call.row_bytes = x_.outputs * lanes * 4;
  call.frequency_bytes = out_frequency_ * 4;
  call.source_step_bytes = out_stride_ * 4;
  call.target_step_bytes = int64_t{step} * lanes * 4;
  for (int64_t block = first_block; block < last_block; ++block) {
    if (problem_.has_bias) call.bias = arguments.bias + block * lanes;
    for_runs(tiles, [&](const Run& run, size_t row, size_t column) {
      const int64_t plane =
          block * problem_.target_block_bytes() + (run.y * step * x_.outputs + run.x * step) * lanes * 4;
      const int64_t image = run.image * problem_.out_blocks() * problem_.target_block_bytes();
      call.source = frequencies + run.first * out_stride_ + block * lanes;
      call.target = reinterpret_cast<float*>(reinterpret_cast<char*>(arguments.target) + image + plane);
      call.tiles = run.count;
      for (size_t i = 0; i < problem_.epilogue.operands.size(); ++i) {
        const char* at = static_cast<const char*>(arguments.operands[i]) + run.image * operand_batch_bytes_[i];
        if (problem_.epilogue.operands[i] == ConvOperand::full) at += plane;
        if (problem_.epilogue.operands[i] == ConvOperand::per_channel) at += block * lanes * 4;
        call.operands[i] = at;
      }
      out_[row][column](&call);
    });
  }
}

void WinogradProgram::run_part(int part, const ConvArguments& arguments, float* scratch, int thread) const noexcept {
  const int64_t in_floats = plan_.form.frequencies() * in_frequency_;
  const int64_t in_blocks = problem_.in_blocks(), out_blocks = problem_.out_blocks();
  if (parts() == 1) {
    float* own = scratch + thread * (scratch_size() / threads_);
    const Range mine = split_evenly(static_cast<long>(groups_), thread, threads_);
    for (int64_t group = mine.begin; group < mine.end; ++group) {
      const Tiles tiles = group_of(group);
      // A group that follows begins with the same weights again.
      const void* next = group + 1 < mine.end ? arguments.weights : arguments.next_weights;
      transform_input(arguments, own, tiles, 0, in_blocks);
      multiply(arguments, own, tiles, next, 0, 1);
      transform_output(arguments, own + in_floats, tiles, 0, out_blocks);
    }
    return;
  }
  const Tiles all{0, tiles_};
  if (part == 0) {
    const Range mine = split_evenly(static_cast<long>(in_blocks), thread, threads_);
    transform_input(arguments, scratch, all, mine.begin, mine.end);
  } else if (part == 1) {
    multiply(arguments, scratch, all, arguments.next_weights, thread, threads_);
  } else {
    const Range mine = split_evenly(static_cast<long>(out_blocks), thread, threads_);
    transform_output(arguments, scratch + in_floats, all, mine.begin, mine.end);
  }
}

}  // namespace lathe
