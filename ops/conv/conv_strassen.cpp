#include "ops/conv/conv_strassen.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/core_cycles.h"
#include "ops/work_split.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

int64_t pixels_of(const ConvProblem& problem) { return problem.phases[0].x.out; }

// All pieces have a multiple of it: an odd row of a product is extra work, and not for all schemes.
int64_t pixels_at_once(const ConvProblem& problem) { return pixels_of(problem) % 2 == 0 ? 2 : 1; }

// Into how many pieces an image is cut at least.
int64_t pieces_for(const ConvProblem& problem, int threads) {
  return problem.batch % threads == 0 ? 1 : std::clamp<int64_t>(pixels_of(problem) / 2, 1, threads);
}

// max(x0 + bias, 0) and the like; nullopt: nothing to do, or more inputs than a tile can have.
std::optional<GemmEpilogue> epilogue_of(const ConvProblem& problem) {
  GemmEpilogue result;
  Expression& e = result.expression;
  e.inputs = {DType::f32};
  const int sum = e.add({ExprOp::input, 0});
  if (problem.has_bias) {
    e.inputs.push_back(DType::f32);
    e.add({ExprOp::add, sum, e.add({ExprOp::input, 1})});
  }
  if (problem.epilogue.expression) e = extend_input(*problem.epilogue.expression, 0, e);
  for (const ConvOperand operand : problem.epilogue.operands) {
    result.inputs.push_back(operand == ConvOperand::full          ? GemmInputAccess::alike
                            : operand == ConvOperand::per_channel ? GemmInputAccess::columns
                                                                  : GemmInputAccess::uniform);
  }
  if (problem.has_bias) result.inputs.push_back(GemmInputAccess::columns);
  const bool is_empty = !problem.has_bias && !problem.epilogue.expression;
  if (is_empty || result.inputs.size() > size_t{kMaxGemmInputs}) return std::nullopt;
  return result;
}

StrassenShape shape_by(const BilinearScheme& scheme, const ConvProblem& problem, Isa isa, int64_t pixels,
                       const CoreRates& rates) {
  StrassenShape shape = shape_in_blocks(scheme, isa, pixels, problem.out_channels, problem.in_channels, rates);
  // Channels a multiple of this apart find few sets of L2 when they are read again for each panel.
  constexpr int64_t kFewSets = 16 << 10;
  shape.reads_a = pixels_of(problem) * problem.lanes * 4 % kFewSets != 0;
  shape.epilogue = epilogue_of(problem);
  return shape;
}

// strassen_gain(): where additions take the multipliers' turns, or two of these need less time, sums cost more.
StrassenOverhead overhead_of(Isa isa, const CoreRates& rates) {
  const double each = adds_beside_two(isa, rates) ? 10 : rates.adds_beside ? 7 : 13;
  return {each, each};
}

int64_t pixels_each(const ConvProblem& problem, int threads) {
  return pixels_of(problem) / pieces_for(problem, threads);
}

constexpr int64_t kFewPixels = 256;

bool has_few_pixels(const ConvProblem& problem, int threads) {
  return threads > 1 && pixels_each(problem, threads) < kFewPixels;
}

// Channels of C a multiple of 64 KiB apart find few sets of L2: only after many steps of k the next visit to them may
// wait.
bool finds_few_sets(const ConvProblem& problem) {
  constexpr int64_t kFewSets = 1024;
  return pixels_of(problem) % kFewSets == 0;
}

// Packed sums of the weights are 1.67 times what they are, and threads with few pixels wait for them.
bool can_use_thirds(const StrassenShape& shape, const ConvProblem& problem, int threads) {
  constexpr int64_t kManyChannels = 384;
  if (pixels_at_once(problem) != 2 || !has_quadrants(shape) || parts_of_k(shape) != 1) return false;
  if (finds_few_sets(problem) && shape.k < kManyChannels) return false;
  return !has_few_pixels(problem, threads);
}

// Of `pixels` of an image; for all of its pieces by the same scheme and in the same panels.
StrassenShape shape_of(const ConvProblem& problem, Isa isa, int threads, int64_t pixels,
                       const CoreRates& rates = core_rates()) {
  // Two multipliers wait for sums that are made while B is loaded.
  const bool is_of_two = has_two_wide_products(isa, rates), packs = is_of_two && pixels_at_once(problem) == 2;
  const StrassenShape halves = shape_by(packs ? kPackedStrassen222 : kStrassen222, problem, isa, pixels, rates);
  const StrassenShape thirds = shape_by(kHopcroftKerr233, problem, isa, pixels, rates);
  // Fifteen products for eighteen gain more than seven for eight, unless beside two multipliers in narrower tiles.
  constexpr int kWidest = 4;
  const bool are_as_wide = !is_of_two || thirds.vecs == kWidest || !has_quadrants(halves);
  return can_use_thirds(thirds, problem, threads) && are_as_wide ? thirds : halves;
}

// More, for threads that are held up, where all pieces stay long and even: each reads all weights again.
int64_t worthwhile_pieces(const ConvProblem& problem, int threads) {
  constexpr int64_t kFewestPixels = 128;
  const int64_t pixels = pixels_of(problem), fewest = pieces_for(problem, threads);
  int64_t finer =
      std::min<int64_t>(worthwhile_shares(problem.flop(), threads) / threads, pixels / fewest / kFewestPixels);
  while (finer > 1 && pixels % (2 * fewest * finer) != 0) --finer;
  return fewest * std::max<int64_t>(1, finer);
}

// And so many that the sums of a piece stay near L2 while all panels pass.
int64_t count_pieces(const ConvProblem& problem, Isa isa, int threads) {
  constexpr int64_t kSumsBytes = 1 << 20, kFewestPixels = 256, kMostPixels = 512;
  const int64_t pixels = pixels_of(problem), pieces = worthwhile_pieces(problem, threads);
  const StrassenShape shape = shape_of(problem, isa, threads, pixels);
  const int64_t bytes = std::max<int64_t>(1, shape.scheme->sums_per_row(shape.k) * 4);
  const int64_t most = std::clamp(kSumsBytes / bytes, kFewestPixels, kMostPixels);
  return pieces * divide_up(divide_up(pixels, pieces), most);
}

// The least part of the time that shall be saved by the rule of thumb, strassen_gain().
double least_gain(const ConvProblem& problem, const StrassenShape& shape, int threads, const CoreRates& rates) {
  const int64_t pixels = pixels_of(problem);
  // Threads read all weights each, for fewer pixels. A part of that is in the larger overhead_of() already.
  const bool is_beside_two = adds_beside_two(shape.isa, rates);
  double gain = is_beside_two ? 0.025 : threads == 1 ? 0.02 : rates.adds_beside ? 0.065 : 0.04;
  // C is visited several times: 128 channels to 512 of 28x28 pixels and a residual, 1.6 MB, take no longer directly,
  // unless L3 is fast (Zen 5: 3 to 6 % less).
  const bool leaves_l2 = pixels * shape.n * 4 > static_cast<int64_t>(cpu_facts().l2_bytes);
  if (leaves_l2 && !is_beside_two) gain = std::max(gain, 0.06);
  // Tiles of few rows are not full: 256 channels to 256 of 100 pixels take as long directly.
  constexpr int64_t kFewRows = 128;
  if (is_beside_two && pixels_each(problem, threads) < kFewRows) gain = std::max(gain, 0.07);
  // Large pictures are out of the caches.
  if (pixels > 1024) gain = std::max(gain, pixels < 4096 ? 0.04 : 0.06);
  // 128 channels to 1,024 of 32x32 pixels: 105 GFLOP/s against 115.
  if (finds_few_sets(problem)) gain = std::max(gain, 0.04);
  // Sums that are made while B is loaded: lower tiles of narrower vectors load B more often. 512 channels to 128 of
  // 14x14 or 28x28 pixels take 1 to 4 % longer (Zen 3), 320 to 192 take 5 % less.
  if (!has_avx512(shape.isa) && !shape.scheme->packs_sums) gain = std::max(gain, 0.065);
  return gain;
}

// Below one of these a pointwise convolution takes no longer directly.
struct Fewest {
  int64_t pixels, in_channels, out_channels;  // pixels of each thread
};
Fewest fewest_for(const ConvProblem& problem, const StrassenShape& shape, int threads, const CoreRates& rates) {
  const bool is_wide = has_avx512(shape.isa), is_of_two = has_two_wide_products(shape.isa, rates);
  Fewest fewest{is_of_two ? 96 : is_wide ? 48 : shape.scheme->packs_sums ? 64 : 128, 128, 128};
  if (!has_few_pixels(problem, threads) || adds_beside_two(shape.isa, rates)) return fewest;
  // What threads wait for the weights is little only beside many pixels or channels. 256 channels to 1,024 of 14x14
  // pixels: as long as directly, and a third longer where cores are far apart.
  constexpr int64_t kSomePixels = 96;
  const bool has_some = is_wide && !is_of_two && pixels_each(problem, threads) >= kSomePixels;
  fewest.in_channels = has_some ? 384 : 512;
  fewest.out_channels = has_some ? 192 : 256;
  return fewest;
}

bool is_pointwise(const ConvProblem& problem) {
  if (!has_one_tap(problem)) return false;
  const ConvAxis &y = problem.phases[0].y, &x = problem.phases[0].x;
  return y == ConvAxis() && x.stride == 1 && x.in == x.out;
}

}  // namespace

bool is_strassen(const ConvProblem& problem, Isa isa) {
  return problem.allows_sums_of_blocks() && is_pointwise(problem) && problem.in_lanes() == problem.lanes &&
         problem.lanes == vector_lanes(isa) && problem.in_channels % problem.lanes == 0 &&
         has_quadrants(shape_of(problem, isa, 1, pixels_of(problem)));
}

bool prefers_strassen(const ConvProblem& problem, Isa isa, int threads, const CoreRates& rates) {
  const StrassenShape shape = shape_of(problem, isa, threads, pixels_of(problem), rates);
  if (!pays_strassen(isa, rates) || !is_strassen(problem, isa) || !has_quadrants(shape)) return false;
  // Two multipliers lose 3 to 17 % with sums that are made while B is loaded, and 13 % with tiles of a single vector.
  if (has_two_wide_products(isa, rates) && (!shape.scheme->packs_sums || shape.vecs == 1)) return false;
  const Fewest fewest = fewest_for(problem, shape, threads, rates);
  return pixels_each(problem, threads) >= fewest.pixels && shape.k >= fewest.in_channels &&
         shape.n >= fewest.out_channels &&
         strassen_gain(*shape.scheme, shape.n, shape.k, overhead_of(isa, rates)) >=
             least_gain(problem, shape, threads, rates);
}

StrassenConv::StrassenConv(ConvProblem problem, Isa isa, int threads, std::vector<int64_t> operand_batch_bytes)
    : problem_(std::move(problem)),
      operand_batch_bytes_(std::move(operand_batch_bytes)),
      pieces_(count_pieces(problem_, isa, threads)),
      shares_(
          static_cast<int>(std::min<int64_t>(problem_.batch * pieces_, worthwhile_shares(problem_.flop(), threads)))),
      core_(shape_of(problem_, isa, threads, most_pixels())) {
  if (!is_strassen(problem_, isa)) throw JitError("not a pointwise convolution with even blocks");
  const int64_t unit = pixels_at_once(problem_), fewest = pixels_of(problem_) / unit / pieces_ * unit;
  if (fewest != most_pixels()) low_.emplace(shape_of(problem_, isa, threads, fewest));
  operand_batch_bytes_.resize(problem_.epilogue.operands.size());
  const ConvFinishPlan plan{has_avx512(isa) ? Isa::avx512 : Isa::avx2, problem_.has_bias, problem_.epilogue};
  if (!plan.is_empty()) finish_ = conv_finish(plan);
}

std::string StrassenConv::packing() const {
  return fmt::format("conv {} {}", core_.packing(), problem_.is_transposed ? "transposed" : "");
}

void StrassenConv::pack(const float* weights, float* packed) const {
  MatrixView view{weights, problem_.in_channels, problem_.out_channels, 1, problem_.in_channels};
  if (problem_.is_transposed) {
    view.row_stride = problem_.out_channels;
    view.column_stride = 1;
  }
  core_.pack(view, 1, packed);
}

void StrassenConv::run_part(int /*part*/, const ConvArguments& arguments, const ConvScratch& scratch, int share,
                            int thread) const noexcept {
  const Range mine = split_evenly(static_cast<long>(problem_.batch * pieces_), share, shares_);
  for (long number = mine.begin; number < mine.end; ++number) {
    const void* next = number + 1 < mine.end ? arguments.weights : arguments.next_weights;
    run_piece(arguments, piece_of(number), scratch.of(thread), next);
  }
}

int64_t StrassenConv::most_pixels() const {
  const int64_t unit = pixels_at_once(problem_);
  return divide_up(pixels_of(problem_) / unit, pieces_) * unit;
}

StrassenConv::Piece StrassenConv::piece_of(int64_t number) const {
  const int64_t unit = pixels_at_once(problem_);
  const Range units = split_evenly(static_cast<long>(pixels_of(problem_) / unit), static_cast<int>(number % pieces_),
                                   static_cast<int>(pieces_));
  return {number / pieces_, units.begin * unit, (units.end - units.begin) * unit};
}

void StrassenConv::run_piece(const ConvArguments& arguments, const Piece& piece, float* sums,
                             const void* next) const noexcept {
  const Strassen& core = piece.count == core_.shape().m ? core_ : *low_;
  const int64_t first = piece.begin * problem_.lanes;
  Strassen::Operands operands;
  operands.a_layout = operands.c_layout = {problem_.lanes, pixels_of(problem_) * problem_.lanes};
  operands.a = arguments.source + piece.image * problem_.in_blocks() * problem_.source_block_bytes() / 4 + first;
  operands.b = arguments.weights;
  operands.c = arguments.target + piece.image * problem_.out_blocks() * problem_.target_block_bytes() / 4 + first;
  operands.sums = sums;
  operands.next_weights = next;
  std::array<const float*, kMaxGemmInputs> inputs = {};
  operands.inputs = inputs_of(arguments, piece, inputs);
  core.sum(operands.a, operands.a_layout, sums, 0, 1);
  core.run(operands, 0, 1, [&](int64_t row, int64_t rows, int64_t column, int64_t) {
    if (!finish_) return;
    const int64_t columns = core.shape().scheme->columns;
    for (int64_t i = 0; i < columns; ++i)
      finish(arguments, piece, row, rows, column + i * (problem_.out_channels / columns));
  });
}

// As the core's epilogue has them.
std::span<const float* const> StrassenConv::inputs_of(const ConvArguments& arguments, const Piece& piece,
                                                      std::array<const float*, kMaxGemmInputs>& inputs) const noexcept {
  if (!core_.shape().epilogue) return {};
  const size_t count = problem_.epilogue.operands.size();
  for (size_t i = 0; i < count; ++i) {
    const char* at = static_cast<const char*>(arguments.operands[i]) + piece.image * operand_batch_bytes_[i];
    if (problem_.epilogue.operands[i] == ConvOperand::full) at += piece.begin * problem_.lanes * 4;
    inputs[i] = reinterpret_cast<const float*>(at);
  }
  if (problem_.has_bias) inputs[count] = arguments.bias;
  return {inputs.data(), core_.shape().epilogue->inputs.size()};
}

// The blocks of one panel.
void StrassenConv::finish(const ConvArguments& arguments, const Piece& piece, int64_t row, int64_t rows,
                          int64_t column) const noexcept {
  ConvFinishCall call;
  call.bytes = rows * problem_.lanes * 4;
  for (int64_t c = column; c < column + core_.shape().width(); c += problem_.lanes) {
    const int64_t block = c / problem_.lanes;
    const int64_t plane = block * problem_.target_block_bytes() + (piece.begin + row) * problem_.lanes * 4;
    const int64_t target = piece.image * problem_.out_blocks() * problem_.target_block_bytes() + plane;
    call.target = arguments.target + target / 4;
    call.bias = arguments.bias + c;
    for (size_t i = 0; i < problem_.epilogue.operands.size(); ++i) {
      const char* at = static_cast<const char*>(arguments.operands[i]) + piece.image * operand_batch_bytes_[i];
      if (problem_.epilogue.operands[i] == ConvOperand::full) at += plane;
      if (problem_.epilogue.operands[i] == ConvOperand::per_channel) at += c * 4;
      call.operands[i] = at;
    }
    finish_.entry()(&call);
  }
}

}  // namespace lathe
