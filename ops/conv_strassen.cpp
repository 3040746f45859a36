#include "ops/conv_strassen.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/work_split.h"
#include "src/base/divide.h"

namespace lathe {
namespace {

int64_t pixels_of(const ConvProblem& problem) { return problem.phases[0].x.out; }

StrassenShape shape_of(const ConvProblem& problem, Isa isa, int64_t pixels) {
  StrassenShape shape;
  shape.isa = isa;
  shape.m = pixels;
  shape.n = problem.out_channels;
  shape.k = problem.in_channels;
  shape.row_block = 256;  // their sums stay near L2 while all panels pass
  shape.vecs = 2;
  shape.rows = has_avx512(isa) ? 14 : 6;
  // Fewer broadcasts, where the panels come out even.
  if (has_avx512(isa) && shape.n % 96 == 0) {
    shape.vecs = 3;
    shape.rows = 8;
  } else if (has_avx512(isa) && shape.n % 128 == 0) {
    shape.vecs = 4;
    shape.rows = 6;
  }
  shape.in_blocks = true;
  return shape;
}

// Into how many pieces an image is cut at least.
int64_t pieces_for(const ConvProblem& problem, int threads) {
  return problem.batch % threads == 0 ? 1 : std::clamp<int64_t>(pixels_of(problem) / 2, 1, threads);
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

bool is_pointwise(const ConvProblem& problem) {
  if (problem.phases.size() != 1 || problem.groups != 1 || problem.window_y != 1 || problem.window_x != 1 ||
      problem.frames != ConvFrames()) {
    return false;
  }
  const ConvAxis &y = problem.phases[0].y, &x = problem.phases[0].x;
  return y == ConvAxis() && x.taps == ConvAxis().taps && x.stride == 1 && x.in == x.out && x.out_step == 1 &&
         x.out_first == 0 && x.out_extent == x.out;
}

}  // namespace

bool is_strassen(const ConvProblem& problem, Isa isa) {
  constexpr int kExact = 2;  // the largest Winograd form where the accuracy level asks for plain sums
  return problem.most_winograd > kExact && is_pointwise(problem) && problem.in_lanes() == problem.lanes &&
         problem.lanes == vector_lanes(isa) && problem.in_channels % problem.lanes == 0 &&
         has_quadrants(shape_of(problem, isa, pixels_of(problem)));
}

bool prefers_strassen(const ConvProblem& problem, Isa isa, int threads) {
  // Each visit to C costs some steps of k, each sum of A some columns, and for large pictures they leave the cache.
  constexpr int64_t kFewestChannels = 256;
  // Threads read all weights each, for fewer pixels.
  const int64_t fewest_inputs = threads > 1 ? 512 : kFewestChannels;
  // Lower tiles of narrower vectors load B's quadrants more often.
  const int64_t fewest_pixels = has_avx512(isa) ? 48 : 128, most_pixels = has_avx512(isa) ? 1024 : 512;
  const int64_t pixels = pixels_of(problem) / pieces_for(problem, threads);
  return pays_strassen() && is_strassen(problem, isa) && pixels >= fewest_pixels && pixels <= most_pixels &&
         problem.in_channels >= fewest_inputs && problem.out_channels >= kFewestChannels;
}

std::optional<ConvProblem> taken_for_strassen(const ConvProblem& problem, Isa isa, int threads) {
  if (problem.phases.size() != 1 || problem.window_y != 1 || problem.window_x != 1 || problem.frames != ConvFrames())
    return std::nullopt;
  ConvProblem taken = problem;
  ConvAxis &y = taken.phases[0].y, &x = taken.phases[0].x;
  if (y.stride * x.stride == 1) return std::nullopt;
  for (const ConvAxis* axis : {&y, &x}) {
    if (axis->taps != ConvAxis().taps || (axis->out - 1) * axis->stride >= axis->in) return std::nullopt;
    if (axis->out_step != 1 || axis->out_first != 0 || axis->out_extent != axis->out) return std::nullopt;
  }
  x.stride = 1;
  x.in = x.out = x.out_extent = y.out * x.out;
  y = ConvAxis();
  // Threads would wait longer for each other's pixels than the products save.
  if (threads > 1 || !prefers_strassen(taken, isa, threads)) return std::nullopt;
  return taken;
}

StrassenConv::StrassenConv(ConvProblem problem, Isa isa, int threads, std::vector<int64_t> operand_batch_bytes)
    : problem_(std::move(problem)),
      operand_batch_bytes_(std::move(operand_batch_bytes)),
      pieces_(worthwhile_pieces(problem_, threads)),
      shares_(
          static_cast<int>(std::min<int64_t>(problem_.batch * pieces_, worthwhile_shares(problem_.flop(), threads)))),
      core_(shape_of(problem_, isa, divide_up(pixels_of(problem_), pieces_))) {
  if (!is_strassen(problem_, isa)) throw JitError("not a pointwise convolution with even halves");
  if (pixels_of(problem_) % pieces_ != 0) low_.emplace(shape_of(problem_, isa, pixels_of(problem_) / pieces_));
  operand_batch_bytes_.resize(problem_.epilogue.operands.size());
  const ConvFinishPlan plan{has_avx512(isa) ? Isa::avx512 : Isa::avx2, problem_.has_bias, problem_.epilogue};
  if (!plan.is_empty()) finish_ = conv_finish(plan);
}

std::string StrassenConv::packing() const {
  return fmt::format("conv strassen.1 {} {}", core_.shape().width(), problem_.is_transposed ? "transposed" : "");
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

StrassenConv::Piece StrassenConv::piece_of(int64_t number) const {
  const Range pixels = split_evenly(static_cast<long>(pixels_of(problem_)), static_cast<int>(number % pieces_),
                                    static_cast<int>(pieces_));
  return {number / pieces_, pixels.begin, pixels.end - pixels.begin};
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
  core.sum(operands.a, operands.a_layout, sums, 0, 1);
  core.run(operands, 0, 1, [&](int64_t row, int64_t rows, int64_t column, int64_t) {
    if (!finish_) return;
    finish(arguments, piece, row, rows, column);
    finish(arguments, piece, row, rows, column + problem_.out_channels / 2);
  });
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
