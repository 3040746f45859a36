#pragma once
// How many tiles of which size a convolution is cut into: what the rules for float32 and for bytes count cycles by.
#include <algorithm>
#include <cstdint>

#include "ops/conv/conv_problem.h"
#include "src/base/divide.h"

namespace lathe {

// Parts of at most `most`, as even as can be: visit(size, count) for each of at most two sizes, the larger first.
template <class Visit>
void for_each_size(int64_t total, int64_t most, const Visit& visit) {
  const int64_t parts = std::max<int64_t>(1, divide_up(total, most)), larger = total % parts;
  if (larger > 0) visit(total / parts + 1, larger);
  visit(total / parts, parts - larger);
}
inline int64_t largest_size(int64_t total, int64_t most) {
  return divide_up(total, std::max<int64_t>(1, divide_up(total, most)));
}

// visit(pixels, count) for tiles of rows x cols pixels; no rows: runs of pixels across the ends of rows.
template <class Visit>
void for_each_tile_size(const ConvShape& shape, int rows, int cols, const Visit& visit) {
  if (rows == 0) return for_each_size(shape.y.out * shape.x.out, cols, visit);
  for_each_size(shape.y.out, rows, [&](int64_t height, int64_t row_count) {
    for_each_size(shape.x.out, cols,
                  [&](int64_t width, int64_t col_count) { visit(height * width, row_count * col_count); });
  });
}

// visit(blocks, count) for blocks of output channels that a tile computes, at most `most`, as make_block_groups() does.
template <class Visit>
void for_each_block_group(const ConvProblem& problem, int64_t most, const Visit& visit) {
  const int64_t alike = blocks_alike(problem);
  for_each_size(alike, most,
                [&](int64_t blocks, int64_t count) { visit(blocks, count * (problem.out_blocks() / alike)); });
}

}  // namespace lathe
