#include "ops/winograd/winograd_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ops/gemm/bfp24_pack.h"
#include "ops/work_split.h"
#include "src/base/check.h"
#include "src/base/divide.h"
#include "src/base/index_in.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int kPageFloats = 1024;

// Rows or matrices a multiple of a page apart would share the sets of a cache.
int64_t off_page(int64_t floats, int64_t lanes) { return floats % (kPageFloats / 4) == 0 ? floats + lanes : floats; }

// Rows of pictures that come from beyond L2 are too many for the CPU's own prefetcher: 64 channels of 224x224 pixels
// take 1.12 times as long without, 256 of 56x56 1.04 times. Those of small ones are there already.
bool fetches_ahead(const ConvProblem& problem) {
  constexpr int64_t kNearBytes = 1 << 20;
  return problem.source_bytes() + problem.target_bytes() > problem.batch * kNearBytes;
}

// Frequencies of all tiles are in memory, or in L3, when weights of so many bytes have gone through the caches since
// they were last used. By AVX2, which else meets each line twice, for a half, each is then walked from its first line
// to its last: 512 channels of 28x28 pixels are transformed in 0.7 of the time (Zen 3). Where a vector fills a line,
// tiles are fetched ahead instead: 256 channels of 56x56 pixels in 0.70 of the time, 512 of 28x28 in 0.85, with two
// threads in 0.68 and 0.90 (Zen 5). Groups of tiles did not gain.
FrequencyFetch fetch_of(const WinogradPlan& plan, int64_t packed_size) {
  constexpr int64_t kFarFloats = 1 << 20;
  if (plan.tile_group > 0 || packed_size < kFarFloats) return FrequencyFetch::none;
  return has_avx512(plan.isa) ? FrequencyFetch::tiles : FrequencyFetch::lines;
}

// Pixels of a phase, of which number i is pixel `first` + i * stride, that lie in a picture.
std::pair<int, int> pixels_inside(int64_t first, int64_t stride, int64_t extent, int count) {
  const auto begin = static_cast<int>(std::clamp<int64_t>(divide_up(-std::min<int64_t>(first, 0), stride), 0, count));
  const int64_t end = first >= extent ? 0 : divide_up(extent - first, stride);
  return {begin, static_cast<int>(std::clamp<int64_t>(end, begin, count))};
}

}  // namespace

WinogradProgram::Axis WinogradProgram::make_axis(const ConvAxis& axis, const std::vector<int>& sizes,
                                                 int outputs) const {
  Axis made;
  made.outputs = axis.out;
  made.tiles = divide_up(axis.out, outputs);
  made.tile_outputs = outputs;
  made.first_input = axis.taps[0].offset;
  made.step = outputs * axis.stride;
  std::vector<std::pair<std::vector<std::pair<int, int>>, int>> kinds;
  for (int64_t tile = 0; tile < made.tiles; ++tile) {
    std::vector<std::pair<int, int>> inputs;
    const auto stored = static_cast<int>(std::min<int64_t>(outputs, axis.out - tile * outputs));
    for (size_t phase = 0; phase < sizes.size(); ++phase) {
      const int64_t first =
          tile * made.step + made.first_input + static_cast<int64_t>(phase) * plan_.form.phase_pixels();
      const int count = sizes[phase] - (has_part_tiles() ? outputs - stored : 0);
      inputs.push_back(pixels_inside(first, axis.stride, axis.in, count));
    }
    made.kind.push_back(index_in(kinds, {inputs, stored}));
  }
  for (const auto& [inputs, stored] : kinds) {
    made.inputs.push_back(inputs);
    made.stored.push_back(stored);
  }
  return made;
}

WinogradProgram::WinogradProgram(ConvProblem problem, const WinogradPlan& plan, int threads,
                                 std::vector<int64_t> operand_batch_bytes, int pool)
    : problem_(std::move(problem)),
      plan_(plan),
      threads_(threads),
      pool_(pool),
      operand_batch_bytes_(std::move(operand_batch_bytes)) {
  if (!is_winograd_of_blocks(problem_, plan_.form.outputs)) throw JitError("not possible here: " + to_string(plan_));
  operand_batch_bytes_.resize(problem_.epilogue.operands.size());
  const ConvShape& shape = problem_.phases[0];
  WinogradForm& form = plan_.form;
  form = winograd_form(problem_, form.outputs);
  if (form.outputs % pool_ != 0 || form.out_rows() % pool_ != 0 || shape.y.out % pool_ != 0 || shape.x.out % pool_ != 0)
    throw JitError("pooled windows would lie in several tiles: " + to_string(plan));
  if (pool_ > 1 && problem_.epilogue.has_residual()) throw JitError("pooled outputs take no operand of their own size");
  std::vector<int> rows, columns;
  for (int phase = 0; phase < form.row_phases(); ++phase) rows.push_back(form.rows(phase));
  for (int phase = 0; phase < form.column_phases(); ++phase) columns.push_back(form.size(phase));
  y_ = make_axis(shape.y, rows, form.out_rows());
  x_ = make_axis(shape.x, columns, form.outputs);
  tiles_ = problem_.batch * y_.tiles * x_.tiles;
  groups_ = 1;
  if (plan_.tile_group > 0) {
    groups_ = divide_up(tiles_, plan_.tile_group);
    groups_ = std::min(tiles_, divide_up(groups_, threads_) * threads_);
  }
  group_tiles_ = divide_up(tiles_, groups_);
  shares_ = worthwhile_shares(problem_.flop() / 3, threads_);
  const int lanes = problem_.lanes;
  const int64_t in_blocks = winograd_slots(form) * problem_.in_blocks();
  in_stride_ = plan_.strassen ? lanes : off_page(in_blocks * lanes, lanes);
  out_stride_ = plan_.strassen ? lanes : off_page(problem_.out_blocks() * lanes, lanes);
  in_block_ = out_block_ = plan_.strassen ? round_up(group_tiles_, 2) * lanes : lanes;
  in_frequency_ = off_page(plan_.strassen ? in_blocks * in_block_ : group_tiles_ * in_stride_, lanes);
  out_frequency_ = off_page(plan_.strassen ? problem_.out_blocks() * out_block_ : group_tiles_ * out_stride_, lanes);
  make_areas();
  make_products();
  fetch_ = fetch_of(plan_, packed_size_);
  // What leaves L2 is soonest there again if it was written once: with 512 channels of 28x28 pixels or 128 of 56x56,
  // two threads take 5 to 15 % less (Zen 5).
  const auto bytes = static_cast<size_t>(form.frequencies() * in_frequency_ * 4);
  const bool stays = bytes <= cpu_facts().l2_bytes && fetch_ != FrequencyFetch::lines;
  has_own_inputs_ = parts() > 1 && pays_own_copies(threads_) && stays;
  const CoreRates rates = core_rates();
  shares_near_inputs_ = rates.adds_beside && rates.wide_products > 1;  // Zen 5: lines come in 2 ns, on others in 7
  make_kernels();
}

// In groups, tiles go from row to row. All at once, those that are not whole stand at the ends, so that frequencies
// that they do not need can leave them out.
void WinogradProgram::make_areas() {
  const int64_t whole_rows = has_part_tiles() ? y_.whole_tiles() : y_.tiles;
  const int64_t whole_columns = has_part_tiles() ? x_.whole_tiles() : x_.tiles;
  areas_ = {{whole_rows, y_.tiles, 0, whole_columns},
            {0, whole_rows, 0, whole_columns},
            {0, whole_rows, whole_columns, x_.tiles},
            {whole_rows, y_.tiles, whole_columns, x_.tiles}};
}

// Tiles that a class of frequencies multiplies, of all.
WinogradProgram::Tiles WinogradProgram::tiles_of(const WinogradClass& part) const {
  const auto count = [&](int area) { return areas_[static_cast<size_t>(area)].tiles() * problem_.batch; };
  Tiles tiles{0, tiles_};
  if (part.whole_rows) tiles.begin = count(0);
  if (part.whole_columns) tiles.end -= count(3) + count(2);
  if (part.whole_rows && !part.whole_columns) tiles.end -= count(3);
  return tiles;
}

void WinogradProgram::make_kernels() {
  const WinogradForm& form = plan_.form;
  // All pieces are transformed alike.
  WinogradForm piece = form;
  piece.pieces = 1;
  const auto part_of = [&](const Axis& axis, size_t kind) {
    return has_part_tiles() && axis.stored[kind] < axis.tile_outputs ? axis.stored[kind] : 0;
  };
  for (size_t row = 0; row < y_.inputs.size(); ++row) {
    in_.emplace_back();
    out_.emplace_back();
    for (size_t column = 0; column < x_.inputs.size(); ++column) {
      in_.back().emplace_back();
      for (int y = 0; y < form.row_phases(); ++y) {
        for (int x = 0; x < form.column_phases(); ++x) {
          const auto &rows = y_.inputs[row][static_cast<size_t>(y)],
                     &columns = x_.inputs[column][static_cast<size_t>(x)];
          in_.back().back().push_back(winograd_input(
              {plan_.isa, piece, rows.first, rows.second, columns.first, columns.second, form.pieces > 1 ? 0 : y,
               form.pieces > 1 ? 0 : x, part_of(y_, row), part_of(x_, column), fetches_ahead(problem_), fetch_}));
        }
      }
      out_.back().push_back(
          winograd_output({plan_.isa, piece, y_.stored[row], x_.stored[column], problem_.has_bias, problem_.epilogue,
                           has_part_tiles(), fetches_ahead(problem_), fetch_, pool_}));
    }
  }
}

void WinogradProgram::make_products() {
  WinogradParts parts_of_form;
  if (has_part_tiles()) parts_of_form = {y_.part(), x_.part()};
  parts_of_form.phases_apart = shares_weights(problem_, plan_.form, threads_, has_part_tiles());
  GemmPlan plan;  // of classes with the same matrices
  for (WinogradClass& part : winograd_classes(plan_.form, parts_of_form)) {
    const Tiles tiles = has_part_tiles() ? tiles_of(part) : Tiles{0, group_tiles_};
    GemmProblem product;
    product.batches = static_cast<int64_t>(part.frequencies.size()) * problem_.groups;
    product.m = tiles.end - tiles.begin;
    product.n = columns_of_group(problem_);
    product.k = part.slots * problem_.in_channels_each();
    product.isa = plan_.isa;
    product.a_stride = in_stride_;
    product.threads = parts() == 1 ? 1 : threads_;
    product.accumulates = part.adds;
    product.zero_columns = static_cast<int>(product.n - problem_.out_channels_each());
    product.narrow = weight_format();
    product.longest_sum = longest_sum_of(plan_.form, problem_);
    if (!part.continues) {
      product.m = std::max<int64_t>(1, product.m);
      plan = default_gemm_plan(product);
      plan.weights = product.narrow;
      if (!is_valid(plan, product)) plan = bfp24_plan(product, plan);  // few rows by AVX2
      plan.split = parts_of_form.phases_apart ? GemmSplit::same_columns : GemmSplit::columns;
    }
    part.format = {plan_.strassen ? product.n : int64_t{plan.vecs} * problem_.lanes, problem_.lanes};
    part.weights = part.continues ? classes_.back().weights : packed_size_;
    if (!part.continues) packed_size_ += part.matrix_count * problem_.groups * matrix_words(part);
    classes_.push_back(part);
    if (tiles.begin < tiles.end) add_products(product, plan, tiles);
  }
}

// Of the last class.
void WinogradProgram::add_products(GemmProblem product, GemmPlan plan, const Tiles& tiles) {
  const WinogradClass& part = classes_.back();
  std::vector<GemmOffsets> offsets;
  for (size_t i = 0; i < part.frequencies.size(); ++i) {
    for (int64_t group = 0; group < problem_.groups; ++group) {
      GemmOffsets at;
      at.a = part.frequencies[i] * in_frequency_ + tiles.begin * in_stride_ + part.first_slot * problem_.in_channels +
             group * product.k;
      at.b = (part.matrices[i] * problem_.groups + group) * matrix_words(part);
      at.c = part.frequencies[i] * out_frequency_ + tiles.begin * out_stride_ + group * product.n;
      offsets.push_back(at);
    }
  }
  Products made{classes_.size() - 1, {}, {}};
  const auto add = [&] {
    if (plan_.strassen) {
      const bool has_all = tiles.begin == 0 && tiles.end == group_tiles_;
      if (has_all) product.m = round_up(product.m, 2);  // pad_tiles()
      made.fewer_by_count.emplace_back(product, offsets);
      sums_ = std::max(sums_, made.fewer_by_count.back().sums_elements());
      return;
    }
    plan.rows = static_cast<int>(std::min<int64_t>(plan.rows, product.m));
    made.by_count.emplace_back(product, plan, offsets);
  };
  add();
  if (!has_part_tiles() && tiles_ != groups_ * group_tiles_ && group_tiles_ > 1) {
    product.m = group_tiles_ - 1;
    add();
  }
  products_.push_back(std::move(made));
}

std::string WinogradProgram::packing() const {
  std::string text = fmt::format("winograd.3 {} c{} ", to_string(plan_.form), problem_.lanes);
  if (problem_.groups > 1) text += fmt::format("groups {} ", problem_.groups);
  if (plan_.strassen) return text + fmt::format("strassen {}", products_[0].fewer_by_count[0].panel_columns());
  if (plan_.narrow) text += "bfp24 ";
  text += "panels of";
  for (const WinogradClass& part : classes_) {
    if (!part.continues) text += fmt::format(" {}x{}:{}", part.matrix_count, part.slots, part.format.panel_columns);
  }
  return text;
}

void WinogradProgram::pack(const float* weights, float* packed) const {
  if (!plan_.strassen && !plan_.narrow) return pack_winograd(problem_, plan_.form, classes_, weights, packed);
  // Matrices row by row first.
  const int64_t columns = columns_of_group(problem_);
  std::vector<WinogradClass> by_row = classes_;
  int64_t floats = 0, begin = 0;
  for (WinogradClass& part : by_row) {
    if (!part.continues) begin = std::exchange(floats, floats + part.matrix_count * part.weights_each(problem_));
    part.weights = begin;
    part.format.panel_columns = columns;
  }
  std::vector<float> matrices(static_cast<size_t>(floats));
  pack_winograd(problem_, plan_.form, by_row, weights, matrices.data());
  for (size_t i = 0; i < classes_.size(); ++i) {
    const WinogradClass& part = classes_[i];
    if (part.continues) continue;
    const int64_t depth = part.slots * problem_.in_channels_each();
    MatrixView matrix{matrices.data() + by_row[i].weights, depth, columns, columns, 1};
    float* to = packed + part.weights;
    for (int64_t left = part.matrix_count * problem_.groups; left > 0; --left) {
      plan_.strassen ? products_[0].fewer_by_count[0].pack(matrix, to)
                     : pack_bfp24(matrix, part.format, 0, part.format.panels(columns), 1, to);
      matrix.data += depth * columns;
      to += matrix_words(part);
    }
  }
}

int64_t WinogradProgram::shared_scratch() const {
  if (parts() == 1) return 0;
  return plan_.form.frequencies() * (has_own_inputs_ ? out_frequency_ : in_frequency_ + out_frequency_);
}

int64_t WinogradProgram::own_scratch() const { return own_frequencies() + sums_; }

int64_t WinogradProgram::own_frequencies() const {
  if (parts() == 1) return inputs_of_group() + plan_.form.frequencies() * in_frequency_;
  return has_own_inputs_ ? plan_.form.frequencies() * in_frequency_ : 0;
}

// Products are stored over frequencies that were multiplied, one before the one that they come of, where frequencies
// follow each other: a group takes half of what is near.
int64_t WinogradProgram::inputs_of_group() const {
  const int64_t frequencies = plan_.form.frequencies();
  if (classes_.size() > 1) return frequencies * out_frequency_;
  return std::max(out_frequency_, frequencies * out_frequency_ - (frequencies - 1) * in_frequency_);
}

WinogradProgram::Tiles WinogradProgram::group_of(int64_t group) const {
  // Groups of group_tiles_ come first.
  const int64_t large = tiles_ - groups_ * (group_tiles_ - 1);
  const int64_t begin = group * group_tiles_ - std::max<int64_t>(0, group - large);
  return {begin, begin + group_tiles_ - (group < large ? 0 : 1)};
}

template <class Body>
void WinogradProgram::for_runs(const Tiles& tiles, Body body) const {
  int64_t area_first = 0;
  for (const Area& area : areas_) {
    const int64_t each = area.tiles(), width = area.x_end - area.x_begin, count = each * problem_.batch;
    const int64_t end = std::min(tiles.end - area_first, count);
    for (int64_t tile = std::max<int64_t>(0, tiles.begin - area_first); tile < end;) {
      Run run{};
      run.x = area.x_begin + tile % width;
      run.y = area.y_begin + tile / width % (area.y_end - area.y_begin);
      run.image = tile / each;
      run.first = area_first + tile - tiles.begin;
      const int kind = x_.kind[static_cast<size_t>(run.x)];
      const int64_t most = std::min(end - tile, area.x_end - run.x);
      while (run.count < most && x_.kind[static_cast<size_t>(run.x + run.count)] == kind) ++run.count;
      body(run, static_cast<size_t>(y_.kind[static_cast<size_t>(run.y)]), static_cast<size_t>(kind));
      tile += run.count;
    }
    area_first += count;
  }
}

template <class Body>
void WinogradProgram::for_runs_of_blocks(const Tiles& tiles, int64_t first_block, int64_t last_block, Body body) const {
  const auto for_blocks = [&](const Run& run, size_t row, size_t column) {
    for (int64_t block = first_block; block < last_block; ++block) body(run, row, column, block);
  };
  if (fetch_ != FrequencyFetch::lines) {
    // Rows of a tile's channels often lie a page apart: those of few tiles are filled before the next ones.
    for_runs(tiles, for_blocks);
  } else if (plan_.strassen) {  // tiles of a block lie side by side
    for (int64_t block = first_block; block < last_block; ++block)
      for_runs(tiles, [&](const Run& run, size_t row, size_t column) { body(run, row, column, block); });
  } else {
    for_runs(tiles, [&](const Run& run, size_t row, size_t column) {
      for (int64_t i = 0; i < run.count; ++i) for_blocks({run.image, run.y, run.x + i, 1, run.first + i}, row, column);
    });
  }
}

void WinogradProgram::transform_input(const ConvArguments& arguments, float* frequencies, const Tiles& tiles,
                                      int64_t first_block, int64_t last_block) const noexcept {
  const ConvShape& shape = problem_.phases[0];
  const WinogradForm& form = plan_.form;
  const int lanes = problem_.lanes;
  WinogradCall call;
  call.row_bytes = shape.y.stride * shape.x.in * lanes * 4;
  call.frequency_bytes = in_frequency_ * 4;
  call.source_step_bytes = x_.step * lanes * 4;
  call.target_step_bytes = in_stride_ * 4;
  pad_tiles(frequencies, tiles.end - tiles.begin, first_block, last_block);
  for_runs_of_blocks(tiles, first_block, last_block, [&](const Run& run, size_t row, size_t column, int64_t block) {
    const int64_t plane = problem_.source_image(run.image) + block * problem_.source_block_bytes();
    const std::vector<WinogradKernel>& kernels = in_[row][column];
    for (size_t phase = 0; phase < kernels.size(); ++phase) {
      const auto y = static_cast<int>(phase) / form.column_phases(), x = static_cast<int>(phase) % form.column_phases();
      const int64_t pixel = (run.y * y_.step + y_.first_input + y * form.phase_pixels()) * shape.x.in +
                            run.x * x_.step + x_.first_input + x * form.phase_pixels();
      call.source =
          reinterpret_cast<const float*>(reinterpret_cast<intptr_t>(arguments.source) + plane + pixel * lanes * 4);
      call.target =
          frequencies + run.first * in_stride_ + (winograd_slot(form, y, x) * problem_.in_blocks() + block) * in_block_;
      call.tiles = run.count;
      kernels[phase](&call);
    }
  });
}

// An odd number of tiles is multiplied with one of zeros: halves of rows are added to each other.
void WinogradProgram::pad_tiles(float* frequencies, int64_t tiles, int64_t first_block,
                                int64_t last_block) const noexcept {
  if (!plan_.strassen || tiles % 2 == 0) return;
  for (int frequency = 0; frequency < plan_.form.frequencies(); ++frequency) {
    for (int slot = 0; slot < winograd_slots(plan_.form); ++slot) {
      float* at = frequencies + frequency * in_frequency_ + tiles * in_stride_;
      for (int64_t block = first_block; block < last_block; ++block)
        std::fill_n(at + (slot * problem_.in_blocks() + block) * in_block_, problem_.lanes, 0.0F);
    }
  }
}

void WinogradProgram::multiply(const ConvArguments& arguments, const float* inputs, float* products, float* sums,
                               const Tiles& tiles, const void* next, int share, int shares) const noexcept {
  // `operands` lack B and what comes behind it.
  const auto run = [&](auto by_count, auto operands) {
    const auto weights_of = [&](const Products& of) { return arguments.weights + classes_[of.part].weights; };
    for (size_t i = 0; i < products_.size(); ++i) {
      operands.b = weights_of(products_[i]);
      operands.next_weights = next;
      if (i + 1 < products_.size()) {
        const Products& after = products_[i + 1];
        operands.next_weights = (after.*by_count)[0].first_weights(weights_of(after), share, shares);
      }
      (products_[i].*by_count)[tiles.end - tiles.begin == group_tiles_ ? 0 : 1].run(operands, share, shares);
    }
  };
  if (plan_.strassen) {
    run(&Products::fewer_by_count,
        FewerProducts::Operands{inputs, nullptr, products, sums, in_block_, out_block_, nullptr});
    return;
  }
  GemmOperands operands;
  operands.a = inputs;
  operands.c = products;
  operands.a_stride = in_stride_;
  operands.c_stride = out_stride_;
  run(&Products::by_count, operands);
}

void WinogradProgram::transform_output(const ConvArguments& arguments, const float* frequencies, const Tiles& tiles,
                                       int64_t first_block, int64_t last_block) const noexcept {
  const int lanes = problem_.lanes;
  WinogradCall call;
  const int64_t row_pixels = x_.outputs / pool_, tile_pixels = x_.tile_outputs / pool_, pooled = int64_t{pool_} * pool_;
  call.row_bytes = row_pixels * lanes * 4;
  call.frequency_bytes = out_frequency_ * 4;
  call.source_step_bytes = out_stride_ * 4;
  call.target_step_bytes = tile_pixels * lanes * 4;
  for_runs_of_blocks(tiles, first_block, last_block, [&](const Run& run, size_t row, size_t column, int64_t block) {
    if (problem_.has_bias) call.bias = arguments.bias + block * lanes;
    const int64_t pixel = run.y * y_.tile_outputs / pool_ * row_pixels + run.x * tile_pixels;
    const int64_t frame = block * problem_.target_block_bytes() + problem_.target_frame(run.image);
    const int64_t plane = frame / pooled + pixel * lanes * 4;
    call.source = frequencies + run.first * out_stride_ + block * out_block_;
    call.target = reinterpret_cast<float*>(reinterpret_cast<char*>(arguments.target) +
                                           problem_.target_volume(run.image) / pooled + plane);
    call.tiles = run.count;
    for (size_t i = 0; i < problem_.epilogue.operands.size(); ++i) {
      const char* at =
          static_cast<const char*>(arguments.operands[i]) + problem_.volume(run.image) * operand_batch_bytes_[i];
      if (problem_.epilogue.operands[i] == ConvOperand::full) at += plane;
      if (problem_.epilogue.operands[i] == ConvOperand::per_channel) at += block * lanes * 4;
      call.operands[i] = at;
    }
    out_[row][column](&call);
  });
}

void WinogradProgram::run_part(int part, const ConvArguments& arguments, const ConvScratch& scratch, int share,
                               int thread) const noexcept {
  const int64_t in_blocks = problem_.in_blocks(), out_blocks = problem_.out_blocks();
  if (parts() == 1) {
    float *products = scratch.of(thread), *inputs = products + inputs_of_group();
    const Range mine = split_evenly(static_cast<long>(groups_), share, shares_);
    for (int64_t group = mine.begin; group < mine.end; ++group) {
      const Tiles tiles = group_of(group);
      // A group that follows begins with the same weights again.
      const void* next = group + 1 < mine.end ? arguments.weights : arguments.next_weights;
      transform_input(arguments, inputs, tiles, 0, in_blocks);
      multiply(arguments, inputs, products, products + own_frequencies(), tiles, next, 0, 1);
      transform_output(arguments, products, tiles, 0, out_blocks);
    }
    return;
  }
  const Tiles all{0, tiles_};
  const Range all_blocks{0, static_cast<long>(in_blocks)};
  float* products = scratch.shared + (has_own_inputs_ ? 0 : plan_.form.frequencies() * in_frequency_);
  const bool is_own = has_own_inputs_ && (arguments.are_far || !shares_near_inputs_);
  const auto inputs_of = [&](int owner) { return has_own_inputs_ ? scratch.of(is_own ? owner : 0) : scratch.shared; };
  if (part == 0) {
    const Range mine = is_own ? all_blocks : split_evenly(all_blocks.end, share, threads_);
    transform_input(arguments, inputs_of(share), all, mine.begin, mine.end);
  } else if (part == 1) {
    multiply(arguments, inputs_of(thread), products, scratch.of(thread) + own_frequencies(), all,
             arguments.next_weights, share, shares_);
  } else {
    const Range mine = split_evenly(static_cast<long>(out_blocks), share, threads_);
    transform_output(arguments, products, all, mine.begin, mine.end);
  }
}

}  // namespace lathe
