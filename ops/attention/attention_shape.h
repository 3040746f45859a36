#pragma once
// The extents of attention, softmax(f(Q K)) V, and where its operands lie: each is a view of a tensor.
#include <array>
#include <optional>
#include <vector>

#include "graph/op_schema.h"

namespace lathe {

// How an operand of the node is read (or the result stored): first a range of columns of the last axis, then the last
// axis taken apart into heads and columns, then the axes in another order.
struct AttentionForm {
  int64_t part_begin = 0, part_size = 0;  // size 0: the whole axis
  int64_t heads = 0;                      // 0: the axis stays as it is
  std::vector<int64_t> perm = {};         // empty: as they are
};

// Of a dense tensor with these extents. The order of axes that attention reads:
// Q [batch..., rows, size], K [batch..., size, keys], V [batch..., keys, value_size], result [batch..., rows,
// value_size].
struct AttentionView {
  Dims dims;
  std::vector<int64_t> strides;
  int64_t offset = 0;
};

enum AttentionOperand : size_t { kAttentionQ, kAttentionK, kAttentionV, kAttentionY };

// From the attributes of a lathe::Attention: perm_q ... perm_y, heads and parts.
// Throws Error(invalid_model) when they make no sense.
std::array<AttentionForm, 4> attention_forms(const Node& node);

// The type of an operand as attention reads it. Throws Error(invalid_model) naming the node.
std::vector<Dim> viewed_dims(const Node& node, const TensorType& stored, const AttentionForm& form);
AttentionView view_of_operand(const Node& node, const Dims& stored, const AttentionForm& form);

// An input of the scores that is the sum of two: attributes sum_input, its number, and sum_run, how many keys each
// element of the first one is for; the second one, of `sum_run` elements, repeats. The second one is the last input.
struct AttentionSum {
  size_t input = 0;
  Dims first_dims, second_dims;  // batch..., rows, elements
};

struct AttentionShape {
  Dims batch;  // broadcast over Q, K and V
  int64_t rows = 0, keys = 0, size = 0, value_size = 0;
  std::array<AttentionForm, 4> forms;
  AttentionView q, k, v, y;
  Dims y_dims;  // as stored
  std::optional<Expression> scores;
  std::optional<AttentionSum> sum;

  int64_t matrices() const;
  Dims score_dims() const;  // batch..., rows, keys
};
// Throws Error(invalid_argument) naming the node when extents do not match.
AttentionShape attention_shape(const Node& node, const Dims& q, const Dims& k, const Dims& v);

}  // namespace lathe
