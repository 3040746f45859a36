#include "ops/winograd/winograd_int8_program.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/winograd/winograd_form.h"
#include "ops/work_split.h"
#include "src/base/divide.h"
#include "src/base/index_in.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int kOutputs = WinogradInt8::kOutputs, kSize = WinogradInt8::kSize, kTaps = WinogradInt8::kTaps;
constexpr int kFrequencies = WinogradInt8::kFrequencies;
constexpr int64_t kLine = 64;  // cache line

// Rows a multiple of a page apart would share the sets of a cache.
int64_t off_page(int64_t bytes) {
  const int64_t rounded = round_up(bytes, kLine);
  return rounded % 1024 == 0 ? rounded + kLine : rounded;
}
// Of as many matrices as there are frequencies, one line each is in use at a time: in sets of their own.
int64_t odd_lines(int64_t bytes) { return (divide_up(bytes, kLine) | 1) * kLine; }

bool is_plain_window(const ConvAxis& axis) {
  return axis.stride == 1 && axis.taps.size() == kTaps && has_plain_taps(axis);
}

}  // namespace

bool is_winograd_int8(const ConvProblem& shape) {
  return shape.phases.size() == 1 && is_plain_window(shape.phases[0].y) && is_plain_window(shape.phases[0].x);
}

WinogradInt8Program::Axis WinogradInt8Program::make_axis(const ConvAxis& axis, bool takes_small) {
  Axis made;
  made.has_small = takes_small && ends_small(axis.out);
  made.outputs = axis.out;
  made.inputs = axis.in;
  made.tiles = divide_up(axis.out, kOutputs);
  made.first_input = axis.taps[0].offset;
  std::vector<std::array<int, 3>> in_kinds;
  std::vector<std::array<int, 2>> out_kinds;
  for (int64_t tile = 0; tile < made.tiles; ++tile) {
    const int64_t corner = tile * kOutputs + made.first_input;
    const int size = made.has_small && tile + 1 == made.tiles ? WinogradInt8::kSmallSize : kSize;
    const auto first = static_cast<int>(std::clamp<int64_t>(-corner, 0, size));
    const auto last = static_cast<int>(std::clamp<int64_t>(axis.in - corner, first, size));
    const auto stored = static_cast<int>(std::min<int64_t>(kOutputs, axis.out - tile * kOutputs));
    made.in_kind.push_back(index_in(in_kinds, {first, last, size}));
    made.out_kind.push_back(index_in(out_kinds, {stored, size}));
  }
  for (const auto& [first, last, size] : in_kinds) {
    made.pixels.emplace_back(first, last);
    made.in_size.push_back(size);
  }
  for (const auto& [stored, size] : out_kinds) {
    made.stored.push_back(stored);
    made.out_size.push_back(size);
  }
  return made;
}

WinogradInt8Program::WinogradInt8Program(WinogradInt8Problem problem, WinogradInt8Plan plan, int threads,
                                         std::vector<int64_t> operand_batch_bytes)
    : problem_(std::move(problem)),
      tile_group_(plan.tile_group),
      makes_weights_(plan.makes_weights),
      threads_(threads),
      operand_batch_bytes_(std::move(operand_batch_bytes)) {
  const ConvProblem& shape = problem_.conv.shape;
  operand_batch_bytes_.resize(problem_.conv.epilogue.operands.size());
  const ConvAxis &rows = shape.phases[0].y, &columns = shape.phases[0].x;
  tiles_ = shape.batch * divide_up(rows.out, kOutputs) * divide_up(columns.out, kOutputs);
  groups_ = 1;
  if (tile_group_ > 0) {
    groups_ = divide_up(tiles_, tile_group_);
    groups_ = std::min(tiles_, divide_up(groups_, threads_) * threads_);
  }
  y_ = make_axis(rows, groups_ == 1);
  x_ = make_axis(columns, groups_ == 1);
  group_tiles_ = divide_up(tiles_, groups_);
  in_stride_ = off_page(problem_.in_blocks() * shape.lanes * 2);
  in_frequency_ = odd_lines(group_tiles_ * in_stride_);
  plan_ = default_int8_plan(product_of(group_tiles_, kFrequencies));
  plan_.split = GemmSplit::columns;
  panel_blocks_ = plan_.vecs;
  has_own_channels_ = tile_group_ == 0 && pays_own_copies(threads_) && panels() % threads_ == 0;
  out_stride_ = off_page((parts() == 1 ? panel_blocks_ : shape.out_blocks()) * shape.lanes * 4);
  out_frequency_ = odd_lines(group_tiles_ * out_stride_);
  makes_weights_ = makes_weights_ && problem_.fits_bytes && groups_ == 1 && parts() == 1 && !is_crossed();
  make_kernels();
  make_products();
}

void WinogradInt8Program::make_kernels() {
  const ConvInt8Problem& conv = problem_.conv;
  for (size_t row = 0; row < y_.pixels.size(); ++row) {
    in_.emplace_back();
    for (size_t column = 0; column < x_.pixels.size(); ++column) {
      WinogradInt8InputPlan plan{int8_isa(conv.isa),       problem_.is_signed,    problem_.zero,
                                 y_.pixels[row].first,     y_.pixels[row].second, x_.pixels[column].first,
                                 x_.pixels[column].second, y_.in_size[row],       x_.in_size[column]};
      InputKernels kernels;
      kernels.single = winograd_int8_input(plan);
      plan.is_pair = true;
      if (problem_.in_blocks() > 1) kernels.pairs = winograd_int8_input(plan);
      in_.back().push_back(std::move(kernels));
    }
  }
  for (size_t row = 0; row < y_.stored.size(); ++row) {
    out_.emplace_back();
    for (size_t column = 0; column < x_.stored.size(); ++column) {
      out_.back().push_back(winograd_int8_output({int8_isa(conv.isa), y_.stored[row], x_.stored[column], conv.epilogue,
                                                  conv.store, y_.out_size[row], x_.out_size[column]}));
    }
  }
}

// Small and large tiles of an image lie apart, so that every class has its tiles behind each other: small along y only,
// large, small along x only, small along both.
int64_t WinogradInt8Program::place_of(int64_t image, int64_t y, int64_t x) const {
  const int64_t batch = problem_.conv.shape.batch, rows = y_.large(), columns = x_.large();
  const int64_t small_rows = y_.tiles - rows, small_columns = x_.tiles - columns;
  const bool is_small_y = y >= rows, is_small_x = x >= columns;
  const int64_t large_at = batch * small_rows * columns, small_x_at = large_at + batch * rows * columns;
  if (is_small_y && !is_small_x) return image * columns + x;
  if (!is_small_y && !is_small_x) return large_at + (image * rows + y) * columns + x;
  if (!is_small_y) return small_x_at + image * rows + y;
  return small_x_at + batch * rows * small_columns + image;
}

std::string WinogradInt8Program::plan_text() const {
  return fmt::format("conv int8 winograd F(4,3){} tiles={}{}", has_small() ? " and F(2,3)" : "",
                     tile_group_ > 0 ? group_tiles_ : 0, makes_weights_ ? " weights made in the run" : "");
}

std::string WinogradInt8Program::packing() const {
  if (makes_weights_) {
    return fmt::format("winograd_int8.1 windows c{} panels of {}", problem_.conv.shape.lanes,
                       panel_blocks_ * problem_.conv.shape.lanes);
  }
  return fmt::format("winograd_int8.1 c{} panels of {}{}{}", problem_.conv.shape.lanes,
                     panel_blocks_ * problem_.conv.shape.lanes, has_small() ? " by class" : "",
                     is_crossed() ? " crossed" : "");
}

int64_t WinogradInt8Program::packed_bytes() const {
  if (makes_weights_) return winograd_int8_window_bytes(problem_, columns());
  return column_terms_at() + (is_crossed() ? kFrequencies * columns() * 4 : 0);
}

void WinogradInt8Program::pack(const ByteMatrix& weights, const ByteZeros& zeros, void* packed) const {
  const int lanes = problem_.conv.shape.lanes;
  if (makes_weights_) {
    return pack_winograd_int8_windows(problem_, panel_blocks_ * lanes, weights, zeros, packed);
  }
  pack_winograd_int8(problem_, {panel_blocks_ * lanes, matrix_of_}, weights, zeros, packed);
  if (!is_crossed()) return;
  const Int8PanelFormat format{Int8Dot::crossed, problem_.conv.isa, panel_blocks_ * lanes};
  auto* terms = reinterpret_cast<int32_t*>(static_cast<char*>(packed) + column_terms_at());
  for (int64_t i = 0; i < kFrequencies; ++i) {
    crossed_column_sums(static_cast<char*>(packed) + i * winograd_int8_matrix_bytes(problem_), format,
                        problem_.in_blocks() * lanes, columns(), terms + i * columns());
  }
  for (int64_t i = 0; i < kFrequencies * columns(); ++i) terms[i] = -terms[i];
}

WinogradInt8Program::Tiles WinogradInt8Program::group_of(int64_t group) const {
  // Groups of group_tiles_ come first.
  const int64_t large = tiles_ - groups_ * (group_tiles_ - 1);
  const int64_t begin = group * group_tiles_ - std::max<int64_t>(0, group - large);
  return {begin, begin + group_tiles_ - (group < large ? 0 : 1)};
}

template <class Body>
void WinogradInt8Program::for_runs(const Tiles& tiles, Kinds kinds, Body body) const {
  const std::vector<int>&row_kinds = y_.*kinds, &column_kinds = x_.*kinds;
  for (int64_t tile = tiles.begin; tile < tiles.end;) {
    Run run{};
    run.x = tile % x_.tiles;
    run.y = tile / x_.tiles % y_.tiles;
    run.image = tile / x_.tiles / y_.tiles;
    run.first = has_small() ? place_of(run.image, run.y, run.x) : tile - tiles.begin;
    const int kind = column_kinds[static_cast<size_t>(run.x)];
    const int64_t most = std::min(tiles.end - tile, x_.tiles - run.x);
    while (run.count < most && column_kinds[static_cast<size_t>(run.x + run.count)] == kind) ++run.count;
    body(run, static_cast<size_t>(row_kinds[static_cast<size_t>(run.y)]), static_cast<size_t>(kind));
    tile += run.count;
  }
}

void WinogradInt8Program::transform_input(const ConvInt8Arguments& arguments, char* frequencies, const Tiles& tiles,
                                          Range blocks) const noexcept {
  if (blocks.begin == blocks.end) return;
  const int64_t lanes = problem_.conv.shape.lanes, plane = y_.inputs * x_.inputs * lanes;
  WinogradInt8Call call;
  call.row = x_.inputs * lanes;
  call.frequency_bytes = in_frequency_;
  call.source_step_bytes = kOutputs * lanes;
  call.target_step = in_stride_;
  call.source_block_bytes = plane;
  call.target_block_bytes = lanes * 2;
  for_runs(tiles, &Axis::in_kind, [&](const Run& run, size_t row, size_t column) {
    const int64_t pixel = (run.y * kOutputs + y_.first_input) * x_.inputs + run.x * kOutputs + x_.first_input;
    const int64_t at = (run.image * problem_.in_blocks() + blocks.begin) * plane + pixel * lanes;
    call.source = reinterpret_cast<const void*>(reinterpret_cast<intptr_t>(arguments.source) + at);
    call.target = frequencies + run.first * in_stride_ + blocks.begin * lanes * 2;
    call.tiles = run.count;
    // The call moves on to what is left.
    const InputKernels& kernels = in_[row][column];
    const int64_t count = blocks.end - blocks.begin;
    call.blocks = count / 2 * 2;
    if (call.blocks > 0) kernels.pairs(&call);
    call.blocks = count % 2;
    if (call.blocks > 0) kernels.single(&call);
  });
}

int64_t WinogradInt8Program::made_frequency() const {
  return odd_lines(panel_blocks_ * winograd_int8_matrix_bytes(problem_) / problem_.conv.shape.out_blocks());
}
int64_t WinogradInt8Program::made_bytes() const {
  constexpr int64_t kMostOfClass = int64_t{WinogradInt8::kSmallSize} * WinogradInt8::kSmallSize;
  return makes_weights_ ? kMostOfClass * made_frequency() : 0;
}

void WinogradInt8Program::transform_output(const ConvInt8Arguments& arguments, const char* frequencies,
                                           const Tiles& tiles, Range blocks) const noexcept {
  const ConvInt8Problem& conv = problem_.conv;
  const int64_t lanes = conv.shape.lanes;
  WinogradInt8Call call;
  call.row = x_.outputs * lanes;
  call.frequency_bytes = out_frequency_;
  call.source_step_bytes = out_stride_;
  call.target_step = kOutputs * lanes;
  for_runs(tiles, &Axis::out_kind, [&](const Run& run, size_t row, size_t column) {
    const int64_t pixel = run.y * kOutputs * x_.outputs + run.x * kOutputs;
    call.tiles = run.count;
    for (int64_t block = blocks.begin; block < blocks.end; ++block) {
      const int64_t element = (block * y_.outputs * x_.outputs + pixel) * lanes;
      call.init = arguments.init + block * lanes;
      call.source = frequencies + run.first * out_stride_ + (block - blocks.begin) * lanes * 4;
      call.target = static_cast<char*>(arguments.target) +
                    run.image * conv.shape.out_blocks() * conv.target_block_bytes() + element * conv.out_bytes();
      for (size_t i = 0; i < conv.epilogue.operands.size(); ++i) {
        const int64_t bytes = bits_of(conv.epilogue.expression->inputs[i + 1]) / 8;
        const char* at = static_cast<const char*>(arguments.operands[i]) + run.image * operand_batch_bytes_[i];
        if (conv.epilogue.operands[i] == ConvOperand::full) at += element * bytes;
        if (conv.epilogue.operands[i] == ConvOperand::per_channel) at += block * lanes * bytes;
        call.operands[i] = at;
      }
      out_[row][column](&call);
    }
  });
}

}  // namespace lathe
