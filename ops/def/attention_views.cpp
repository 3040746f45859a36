// lathe::Attention: softmax(f(Q K), along the keys) V, where f is any pointwise expression of the scores and of further
// inputs (scale, masks), and every operand is a view: what a pass makes of the products, the Softmax and the Reshapes
// and Transposes around them.
#include <cmath>
#include <limits>

#include "graph/expression_attribute.h"
#include "ops/attention/attention_lower.h"
#include "ops/attention/attention_shape.h"
#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/pointwise/broadcast.h"

namespace lathe::ops {
namespace {

void infer_attention_views(InferContext& context) {
  const auto forms = attention_forms(context.node);
  get_expression(context.node.attributes, "scores");  // checks it
  std::vector<std::vector<Dim>> dims;
  for (int i = 0; i < 3; ++i) {
    if (!context.has_input(i)) context.fail("Q, K and V are needed");
    if (!context.input(i).has_rank) return context.set_output(0, TensorType::unranked(context.input(0).dtype));
    dims.push_back(viewed_dims(context.node, context.input(i), forms[static_cast<size_t>(i)]));
  }
  const size_t rank = dims[0].size();
  if (dims[1].size() != rank || dims[2].size() != rank) context.fail("Q, K and V have different ranks");
  std::vector<Dim> logical;
  for (size_t i = 0; i + 2 < rank; ++i) {
    size_t widest = 0;
    while (widest < 2 && dims[widest][i].extent == 1) ++widest;
    logical.push_back(dims[widest][i]);
  }
  logical.push_back(dims[0][rank - 2]);
  logical.push_back(dims[2][rank - 1]);
  const AttentionForm& form = forms[kAttentionY];
  if (!form.perm.empty() && form.perm.size() != rank) context.fail("attribute 'perm_y' does not fit the result's rank");
  TensorType type{context.input(0).dtype, true, logical, {}};
  for (size_t i = 0; i < form.perm.size(); ++i) type.dims[i] = logical[static_cast<size_t>(form.perm[i])];
  if (form.heads > 0) {
    const Dim columns = type.dims.back();
    type.dims.pop_back();
    Dim& heads = type.dims.back();
    heads = heads.known() && columns.known() ? Dim{heads.extent * columns.extent, ""} : Dim{};
  }
  context.set_output(0, std::move(type));
}

// Element [batch..., i, j] of a view.
int64_t at(const AttentionView& view, const std::vector<int64_t>& batch, int64_t i, int64_t j) {
  int64_t offset = view.offset;
  for (size_t axis = 0; axis < batch.size(); ++axis) {
    if (view.dims[axis] != 1) offset += batch[axis] * view.strides[axis];
  }
  return offset + i * view.strides[batch.size()] + j * view.strides[batch.size() + 1];
}

// Further inputs of the scores; of the last two one is a sum where `sum` says so.
struct Scores {
  const Expression* expression = nullptr;
  const AttentionSum* sum = nullptr;
  std::vector<std::vector<double>> inputs;
  std::vector<std::vector<int64_t>> strides;  // along batch..., rows, keys

  double at(size_t input, const std::vector<int64_t>& batch, int64_t row, int64_t key) const {
    int64_t offset = row * strides[input][batch.size()] + key * strides[input][batch.size() + 1];
    for (size_t axis = 0; axis < batch.size(); ++axis) offset += batch[axis] * strides[input][axis];
    return inputs[input][static_cast<size_t>(offset)];
  }

  double operator()(double product, const std::vector<int64_t>& batch, int64_t row, int64_t key) const {
    if (expression == nullptr) return product;
    std::vector<float> values{static_cast<float>(product)};
    for (size_t i = 0; i + 1 < expression->inputs.size(); ++i) {
      if (sum != nullptr && i == sum->input) {
        const int64_t run = sum->second_dims.back();
        values.push_back(
            static_cast<float>(at(i, batch, row, key / run) + at(inputs.size() - 1, batch, row, key % run)));
      } else {
        values.push_back(static_cast<float>(at(i, batch, row, key)));
      }
    }
    return evaluate(*expression, values.data());
  }
};

Scores scores_of(const ReferenceContext& context, const AttentionShape& shape) {
  Scores scores;
  if (!shape.scores) return scores;
  scores.expression = &*shape.scores;
  scores.sum = shape.sum ? &*shape.sum : nullptr;
  if (shape.scores->inputs.size() + 2 + (shape.sum ? 1 : 0) != context.inputs.size()) {
    context.fail("the scores need other inputs");
  }
  for (size_t i = 3; i < context.inputs.size(); ++i) {
    if (!context.has_input(i)) context.fail("an input of the scores is missing");
    scores.inputs.push_back(reals_of(context.inputs[i]));
    Dims dims = shape.score_dims();
    if (shape.sum && i == 3 + shape.sum->input) dims = shape.sum->first_dims;
    if (shape.sum && i + 1 == context.inputs.size()) dims = shape.sum->second_dims;
    scores.strides.push_back(broadcast_strides(context.inputs[i].dims(), dims));
  }
  return scores;
}

std::vector<double> softmax(std::vector<double> row) {
  double top = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const double x : row) top = std::max(top, x);
  for (double& x : row) sum += x = std::exp(x - top);
  for (double& x : row) x /= sum;
  return row;
}

void reference_attention_views(ReferenceContext& context) {
  const AttentionShape shape =
      attention_shape(context.node, context.inputs[0].dims(), context.inputs[1].dims(), context.inputs[2].dims());
  const std::vector<double> q = reals_of(context.inputs[0]), k = reals_of(context.inputs[1]),
                            v = reals_of(context.inputs[2]);
  const Scores scores = scores_of(context, shape);
  const bool zeroes_empty = context.node.attributes.get_int("zeroes_empty", 0) != 0;
  Tensor result = make_output(context, context.inputs[0].dtype(), shape.y_dims);
  std::vector<double> row(static_cast<size_t>(shape.keys));
  for (IndexWalk walk(shape.batch); !walk.done(); walk.next()) {
    const std::vector<int64_t>& batch = walk.index();
    for (int64_t i = 0; i < shape.rows; ++i) {
      for (int64_t key = 0; key < shape.keys; ++key) {
        double product = 0;
        for (int64_t p = 0; p < shape.size; ++p) {
          product +=
              q[static_cast<size_t>(at(shape.q, batch, i, p))] * k[static_cast<size_t>(at(shape.k, batch, p, key))];
        }
        row[static_cast<size_t>(key)] = scores(product, batch, i, key);
      }
      std::vector<double> shares = softmax(row);
      if (zeroes_empty) {
        for (double& share : shares) share = std::isnan(share) ? 0 : share;
      }
      for (int64_t j = 0; j < shape.value_size; ++j) {
        double sum = 0;
        for (int64_t key = 0; key < shape.keys; ++key) {
          sum += shares[static_cast<size_t>(key)] * v[static_cast<size_t>(at(shape.v, batch, key, j))];
        }
        store_real(result, at(shape.y, batch, i, j), sum);
      }
    }
  }
  context.outputs[0] = std::move(result);
}

}  // namespace

std::vector<OpDef> attention_views_ops() {
  using Kind = AttributeSpec::Kind;
  return {{{.name = "Attention",
            .domain = "lathe",
            .min_inputs = 3,
            .max_inputs = -1,
            .attributes = {{"perm_q", Kind::integers},
                           {"perm_k", Kind::integers},
                           {"perm_v", Kind::integers},
                           {"perm_y", Kind::integers},
                           {"heads", Kind::integers},
                           {"parts", Kind::integers},
                           {"zeroes_empty", Kind::integer},
                           {"sum_input", Kind::integer},
                           {"sum_run", Kind::integer},
                           {"scores", Kind::integers},
                           {"scores_constants", Kind::reals}},
            .infer = infer_attention_views,
            .reference = reference_attention_views},
           lower_attention_views}};
}

}  // namespace lathe::ops
