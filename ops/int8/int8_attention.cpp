#include "ops/int8/int8_attention.h"

#include <algorithm>

#include "src/base/divide.h"

namespace lathe {
namespace {

constexpr int64_t kLineBytes = 64;

// The operands of a product of rows [row, ...) of one matrix.
Int8Operands moved_to(const Int8Operands& operands, const Int8Problem& problem, const Int8Offsets& at, int64_t row) {
  Int8Operands moved = operands;
  const auto forward = [](const void* from, int64_t bytes) -> const void* {
    return from == nullptr ? nullptr : static_cast<const char*>(from) + bytes;
  };
  moved.a = forward(operands.a, at.a + row * operands.a_stride);
  moved.b = forward(operands.b, at.b);
  if (operands.c != nullptr) moved.c = static_cast<char*>(operands.c) + at.c + row * operands.c_stride;
  moved.columns = operands.columns + at.columns;
  if (operands.rows != nullptr) moved.rows = operands.rows + at.rows + row;
  const size_t inputs = problem.epilogue ? problem.epilogue->inputs.size() : 0;
  for (size_t i = 0; i < inputs; ++i)
    moved.inputs[i] = forward(operands.inputs[i], at.inputs[i] + row * operands.input_strides[i]);
  return moved;
}

}  // namespace

struct Int8Attention::Block {
  size_t matrix;
  int64_t first_row, rows;
  bool is_shorter;
};

struct Int8Attention::Scratch {
  float* scores;
  char* bytes;
  float* exponentials;
  int32_t* row_terms;
  size_t size;
};

int64_t int8_attention_rows(int64_t rows, int64_t keys, int64_t bytes) {
  // Products of fewer rows do not finish one tile beside the next.
  constexpr int64_t kFewest = 32;
  const int64_t row = keys * 4 + Int8Attention::row_bytes(keys);
  return std::min(rows, std::max(kFewest, bytes / row));
}

// Whole groups of four, of which V has zeros behind the last key; rows a multiple of 4 KiB apart would share one set of
// L1.
int64_t Int8Attention::row_bytes(int64_t keys) {
  const int64_t bytes = round_up(keys, 4);
  return bytes % 4096 == 0 ? bytes + kLineBytes : bytes;
}

Int8Problem Int8Attention::block_of(const Int8Problem& problem, int64_t rows) {
  Int8Problem block = problem;
  block.batches = 1;
  block.m = rows;
  block.threads = 1;
  return block;
}

Int8Attention::Int8Attention(Int8AttentionParts parts)
    : parts_(std::move(parts)),
      keys_(parts_.scores.problem.n),
      sum_rows_(parts_.mix.problem.isa, parts_.mix.problem.dot == Int8Dot::s8u8) {
  const int64_t rows = parts_.scores.problem.m;
  blocks_ = RowTiles(rows, divide_up(rows, parts_.block_rows));
  parts_.mix.problem.a_stride = row_bytes(keys_);
  for (int shorter = 0; shorter < blocks_.heights(); ++shorter) {
    const int64_t height = blocks_.height - shorter;
    scores_[shorter] = std::make_unique<const Int8Product>(block_of(parts_.scores.problem, height), parts_.scores.plan);
    mix_[shorter] = std::make_unique<const Int8Product>(block_of(parts_.mix.problem, height), parts_.mix.plan);
  }
  softmax_ = softmax_kernel(parts_.softmax.plan);
}

auto Int8Attention::scratch_at(void* memory) const -> Scratch {
  auto* at = static_cast<char*>(memory);
  const auto take = [&](int64_t bytes) {
    char* taken = at;
    at += round_up(bytes, kLineBytes);
    return taken;
  };
  Scratch scratch;
  scratch.scores = reinterpret_cast<float*>(take(blocks_.height * keys_ * 4));
  scratch.bytes = take(blocks_.height * row_bytes(keys_));
  scratch.exponentials = reinterpret_cast<float*>(take(kSoftmaxRowsTogether * keys_ * 4));
  scratch.row_terms = reinterpret_cast<int32_t*>(take(int64_t{blocks_.height} * 4));
  scratch.size = static_cast<size_t>(at - static_cast<char*>(memory));
  return scratch;
}

size_t Int8Attention::scratch_bytes() const { return scratch_at(nullptr).size; }

double Int8Attention::flop() const {
  constexpr double kSoftmax = 18;  // of one score
  const Int8Problem& scores = parts_.scores.problem;
  const double count = static_cast<double>(scores.batches) * static_cast<double>(scores.m * scores.n);
  return scores.flop() + parts_.mix.problem.flop() + kSoftmax * count;
}

// `next`: what is streamed after this block's V.
void Int8Attention::run_block(const Int8AttentionOperands& operands, const Block& block,
                              const void* next) const noexcept {
  const Scratch scratch = scratch_at(operands.scratch);
  const int64_t stride = row_bytes(keys_);
  Int8Operands mix = moved_to(operands.mix, parts_.mix.problem, parts_.mix.offsets[block.matrix], block.first_row);
  Int8Operands scores =
      moved_to(operands.scores, parts_.scores.problem, parts_.scores.offsets[block.matrix], block.first_row);
  scores.c = scratch.scores;
  scores.c_stride = keys_ * 4;
  scores.next_weights = mix.b;
  scores_[block.is_shorter]->run(scores, 0, 1);
  const SoftmaxArgs softmax{scratch.scores, scratch.bytes,        block.rows,           keys_,
                            stride,         scratch.exponentials, parts_.softmax.factor};
  softmax_(&softmax);
  if (parts_.mix.problem.has_rows) {
    const bool is_signed = parts_.mix.problem.dot == Int8Dot::s8u8;
    sum_rows_({scratch.bytes, is_signed, block.rows, keys_, stride}, parts_.row_factor, scratch.row_terms);
  }
  mix.a = scratch.bytes;
  mix.a_stride = stride;
  mix.rows = scratch.row_terms;
  mix.next_weights = next;
  mix_[block.is_shorter]->run(mix, 0, 1);
}

void Int8Attention::run(const Int8AttentionOperands& operands, int share, int shares) const noexcept {
  const int64_t matrices = parts_.scores.problem.batches;
  const Range mine = split_evenly(matrices * blocks_.count, share, shares);
  for (int64_t item = mine.begin; item < mine.end; ++item) {
    const int64_t number = item % blocks_.count;
    Block block{static_cast<size_t>(item / blocks_.count), blocks_.row_of(number), blocks_.height,
                blocks_.is_shorter(number)};
    if (block.is_shorter) --block.rows;
    const void* next = operands.mix.next_weights;
    if (item + 1 < mine.end) {
      const Int8Offsets& at = parts_.scores.offsets[static_cast<size_t>((item + 1) / blocks_.count)];
      next = static_cast<const char*>(operands.scores.b) + at.b;
    }
    run_block(operands, block, next);
  }
}

}  // namespace lathe
