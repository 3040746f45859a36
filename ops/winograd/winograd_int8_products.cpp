// The products of Winograd's convolution in whole numbers, and the walk over the panels of its weights.
#include <algorithm>
#include <numeric>

#include "ops/winograd/winograd_int8_program.h"
#include "ops/work_split.h"

namespace lathe {
namespace {

constexpr int kSize = WinogradInt8::kSize, kFrequencies = WinogradInt8::kFrequencies;

}  // namespace

std::vector<WinogradInt8Program::FrequencyClass> WinogradInt8Program::frequency_classes() const {
  const int64_t batch = problem_.conv.shape.batch, rows = y_.large(), columns = x_.large();
  const int64_t small_y = batch * (y_.tiles - rows) * columns, large = batch * rows * columns;
  const int64_t small_x = batch * rows * (x_.tiles - columns);
  return {{false, false, 0, tiles_},
          {true, false, small_y, large + small_x},
          {false, true, 0, small_y + large},
          {true, true, small_y, large}};
}

void WinogradInt8Program::make_products() {
  zeros_.assign(static_cast<size_t>(problem_.conv.shape.out_blocks() * problem_.conv.shape.lanes), 0);
  if (!has_classes()) {
    std::vector<int> all(kFrequencies);
    std::iota(all.begin(), all.end(), 0);
    std::copy(all.begin(), all.end(), matrix_of_.begin());
    add_product(group_tiles_, 0, all);
    if (tiles_ != groups_ * group_tiles_ && group_tiles_ > 1) add_product(group_tiles_ - 1, 0, all);
    weights_from_.assign(products_.size(), 0);
    return;
  }
  // Weights in the order of the products.
  int matrix = 0;
  for (const FrequencyClass& tiles : frequency_classes()) {
    std::vector<int> frequencies;
    const int first_matrix = matrix;
    for (int i = 0; i < kFrequencies; ++i) {
      const bool is_large_y = WinogradInt8::is_large_only(i / kSize),
                 is_large_x = WinogradInt8::is_large_only(i % kSize);
      if (is_large_y != tiles.is_large_y || is_large_x != tiles.is_large_x) continue;
      frequencies.push_back(i);
      matrix_of_[static_cast<size_t>(i)] = matrix++;
    }
    if (tiles.count == 0) continue;
    weights_from_.push_back(first_matrix * winograd_int8_matrix_bytes(problem_));
    add_product(tiles.count, tiles.first, frequencies);
    if (makes_weights_) {
      makers_.push_back(winograd_int8_weights({int8_isa(problem_.conv.isa), tiles.is_large_y, tiles.is_large_x}));
    }
  }
}

Int8Problem WinogradInt8Program::product_of(int64_t tiles, int64_t frequencies) const {
  const ConvProblem& shape = problem_.conv.shape;
  Int8Problem product;
  product.batches = frequencies;
  product.m = tiles;
  product.n = shape.out_blocks() * shape.lanes;
  product.k = problem_.in_blocks() * shape.lanes;
  product.dot = is_crossed() ? Int8Dot::crossed : Int8Dot::pairs;
  product.has_rows = is_crossed();
  product.isa = problem_.conv.isa;
  product.a_stride = in_stride_;
  product.is_b_near = makes_weights_;
  product.threads = tile_group_ > 0 ? 1 : threads_;
  return product;
}

// Of `tiles` from `first` on in these frequencies. Of the same panels, so that all share the weights.
void WinogradInt8Program::add_product(int64_t tiles, int64_t first, const std::vector<int>& frequencies) {
  GemmPlan plan = plan_;
  plan.rows = static_cast<int>(std::min<int64_t>(plan.rows, tiles));
  std::vector<Int8Offsets> offsets(frequencies.size());
  for (size_t i = 0; i < frequencies.size(); ++i) {
    offsets[i].a = frequencies[i] * in_frequency_ + first * in_stride_;
    offsets[i].b = makes_weights_
                       ? static_cast<int64_t>(i) * made_frequency()
                       : matrix_of_[static_cast<size_t>(frequencies[i])] * winograd_int8_matrix_bytes(problem_);
    offsets[i].c = frequencies[i] * out_frequency_ + first * out_stride_;
    if (!is_crossed()) continue;
    offsets[i].columns = matrix_of_[static_cast<size_t>(frequencies[i])] * columns();
    offsets[i].rows = frequencies[i] * group_tiles_ + first;
  }
  products_.emplace_back(product_of(tiles, static_cast<int64_t>(frequencies.size())), plan, offsets);
}

Int8Operands WinogradInt8Program::operands_of(const ConvInt8Arguments& arguments, char* scratch) const {
  Int8Operands operands;
  operands.a = scratch;
  operands.b = arguments.weights;
  operands.c = scratch + sums_at();
  operands.columns = zeros_.data();
  if (is_crossed()) {
    operands.columns =
        reinterpret_cast<const int32_t*>(static_cast<const char*>(arguments.weights) + column_terms_at());
    operands.rows = reinterpret_cast<const int32_t*>(scratch + terms_at());
  }
  operands.a_stride = in_stride_;
  operands.c_stride = out_stride_;
  return operands;
}

// Of the panel, or of a share of all of them.
template <class Product>
void WinogradInt8Program::multiply(const ConvInt8Arguments& arguments, char* scratch, const Tiles& tiles, int64_t panel,
                                   const void* next, Product each) const noexcept {
  Int8Operands operands = operands_of(arguments, scratch);
  operands.next_weights = next;
  if (!has_classes()) return each(products_[tiles.end - tiles.begin == group_tiles_ ? 0 : 1], operands);
  for (size_t i = 0; i < products_.size(); ++i) {
    const bool is_last = i + 1 == products_.size();
    operands.next_weights = is_last ? next : weights_at(arguments, panel) + weights_from_[i + 1];
    each(products_[i], operands);
  }
}

// A class at a time, in a place that all share.
void WinogradInt8Program::multiply_by_made(const ConvInt8Arguments& arguments, char* scratch, int64_t panel,
                                           const void* next) const noexcept {
  const ConvProblem& shape = problem_.conv.shape;
  const int64_t blocks = std::min(panel_blocks_, shape.out_blocks() - panel * panel_blocks_);
  Int8Operands operands = operands_of(arguments, scratch);
  operands.next_weights = next;
  char* made = scratch + made_at();
  for (size_t i = 0; i < products_.size(); ++i) {
    WinogradInt8WeightsCall call;
    call.source = weights_at(arguments, panel);
    call.target = made;
    call.units = problem_.in_blocks() * shape.lanes / 2 * blocks;
    call.frequency_bytes = made_frequency();
    makers_[i](&call);
    const void* prefetched = products_[i].run_one_panel(operands, panel, made);
    if (next != nullptr) operands.next_weights = prefetched;
  }
}

// Small tiles have no rows in some frequencies: what is made of those is not read.
void WinogradInt8Program::sum_crossed_rows(char* scratch, int64_t tiles) const noexcept {
  const int64_t groups = groups_of(Int8Dot::crossed, problem_.in_blocks() * problem_.conv.shape.lanes);
  auto* terms = reinterpret_cast<int32_t*>(scratch + terms_at());
  for (int64_t i = 0; i < kFrequencies; ++i) {
    crossed_row_terms(scratch + i * in_frequency_, tiles, groups, in_stride_, terms + i * group_tiles_);
  }
}

// The sums of one panel wait for their transform, in a place that all panels share: it stays in a cache.
void WinogradInt8Program::run_panels(const ConvInt8Arguments& arguments, char* scratch, const Tiles& tiles,
                                     Range panels, const void* next) const noexcept {
  const auto out_blocks = static_cast<long>(problem_.conv.shape.out_blocks());
  transform_input(arguments, scratch, tiles, {0, static_cast<long>(problem_.in_blocks())});
  if (is_crossed()) sum_crossed_rows(scratch, tiles.end - tiles.begin);
  for (long panel = panels.begin; panel < panels.end; ++panel) {
    const void* coming = panel + 1 == panels.end ? next : weights_at(arguments, panel + 1);
    if (makes_weights_) {
      multiply_by_made(arguments, scratch, panel, coming);
    } else {
      multiply(arguments, scratch, tiles, panel, coming, [&](const Int8Product& product, const Int8Operands& operands) {
        product.run_one_panel(operands, panel);
      });
    }
    transform_output(arguments, scratch + sums_at(), tiles,
                     {panel * panel_blocks_, std::min((panel + 1) * panel_blocks_, out_blocks)});
  }
}

void WinogradInt8Program::run_part(int part, const ConvInt8Arguments& arguments, char* scratch,
                                   int share) const noexcept {
  const Tiles all{0, tiles_};
  const Range all_panels{0, static_cast<long>(panels())};
  if (has_own_channels_) {
    const Range mine = split_evenly(all_panels.end, share, threads_);
    return run_panels(arguments, scratch, all, mine, arguments.next_weights);
  }
  if (parts() == 1) {
    const Range mine = split_evenly(static_cast<long>(groups_), share, threads_);
    for (int64_t group = mine.begin; group < mine.end; ++group) {
      // A group that follows begins with the same weights again.
      const void* next = group + 1 < mine.end ? arguments.weights : arguments.next_weights;
      run_panels(arguments, scratch, group_of(group), all_panels, next);
    }
    return;
  }
  if (part == 0) {
    const auto in_blocks = static_cast<long>(problem_.in_blocks());
    return transform_input(arguments, scratch, all, split_evenly(in_blocks, share, threads_));
  }
  if (part == 1) {
    return multiply(
        arguments, scratch, all, 0, arguments.next_weights,
        [&](const Int8Product& product, const Int8Operands& operands) { product.run(operands, share, threads_); });
  }
  const Range mine = split_evenly(static_cast<long>(problem_.conv.shape.out_blocks()), share, threads_);
  transform_output(arguments, scratch + sums_at() + mine.begin * problem_.conv.shape.lanes * 4, all, mine);
}

}  // namespace lathe
