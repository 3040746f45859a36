#include "ops/attention/attention_shape.h"

#include <algorithm>

#include "graph/expression_attribute.h"
#include "graph/text.h"
#include "lathe/error.h"
#include "ops/copy/copy_elements.h"
#include "ops/pointwise/broadcast.h"
#include "src/base/axis_order.h"
#include "src/base/checked_size.h"

namespace lathe {
namespace {

constexpr const char* kPerms[] = {"perm_q", "perm_k", "perm_v", "perm_y"};

[[noreturn]] void fail(const Node& node, ErrorCode code, const std::string& what) {
  throw Error(code, "node '" + node.name + "' (" + std::string(node.op->name) + "): " + what);
}

// A list with `count` entries that are not negative, or an empty one.
std::vector<int64_t> optional_list(const Node& node, const char* name, size_t count) {
  std::vector<int64_t> list = node.attributes.get_ints(name);
  const bool is_negative = std::any_of(list.begin(), list.end(), [](int64_t entry) { return entry < 0; });
  if (is_negative || (!list.empty() && list.size() != count)) {
    fail(node, ErrorCode::invalid_model, std::string("attribute '") + name + "' has no meaning");
  }
  return list;
}

Dim known(int64_t extent) { return {extent, ""}; }

int64_t broadcast_extent(const Node& node, std::initializer_list<int64_t> extents) {
  int64_t result = 1;
  for (const int64_t extent : extents) {
    if (extent == 1 || extent == result) continue;
    if (result != 1) fail(node, ErrorCode::invalid_argument, "the extents of Q, K and V do not broadcast");
    result = extent;
  }
  return result;
}

// The stored extents of the result, and its view.
void place_result(const Node& node, AttentionShape& shape) {
  Dims logical = shape.batch;
  logical.insert(logical.end(), {shape.rows, shape.value_size});
  const AttentionForm& form = shape.forms[kAttentionY];
  if (!form.perm.empty() && form.perm.size() != logical.size()) {
    fail(node, ErrorCode::invalid_argument, "attribute 'perm_y' does not fit the rank of the result");
  }
  const Dims stored = permuted(logical, form.perm);
  const std::vector<int64_t> strides = strides_of(stored);
  shape.y.dims = logical;
  shape.y.strides = strides;
  for (size_t i = 0; i < form.perm.size(); ++i) shape.y.strides[static_cast<size_t>(form.perm[i])] = strides[i];
  shape.y_dims = stored;
  if (form.heads == 0) return;
  shape.y_dims.pop_back();
  shape.y_dims.back() *= stored.back();
}

std::optional<AttentionSum> sum_of(const Node& node, const AttentionShape& shape) {
  if (!node.attributes.has("sum_input")) return std::nullopt;
  const int64_t input = node.attributes.get_int("sum_input", 0), run = node.attributes.get_int("sum_run", 0);
  const auto inputs = static_cast<int64_t>(shape.scores ? shape.scores->inputs.size() : 0);
  if (input < 0 || input + 1 >= inputs || run <= 0 || shape.keys % run != 0) {
    fail(node, ErrorCode::invalid_model, "attributes 'sum_input' and 'sum_run' have no meaning");
  }
  AttentionSum sum{static_cast<size_t>(input), shape.score_dims(), shape.score_dims()};
  sum.first_dims.back() = shape.keys / run;
  sum.second_dims.back() = run;
  return sum;
}

}  // namespace

std::array<AttentionForm, 4> attention_forms(const Node& node) {
  std::array<AttentionForm, 4> forms;
  const std::vector<int64_t> heads = optional_list(node, "heads", 4), parts = optional_list(node, "parts", 6);
  for (size_t i = 0; i < 4; ++i) {
    forms[i].perm = node.attributes.get_ints(kPerms[i]);
    if (!is_permutation(forms[i].perm, forms[i].perm.size())) {
      fail(node, ErrorCode::invalid_model, std::string("attribute '") + kPerms[i] + "' is no order");
    }
    if (!heads.empty()) forms[i].heads = heads[i];
    if (!parts.empty() && i < 3) {
      forms[i].part_begin = parts[2 * i];
      forms[i].part_size = parts[2 * i + 1];
    }
  }
  return forms;
}

std::vector<Dim> viewed_dims(const Node& node, const TensorType& stored, const AttentionForm& form) {
  std::vector<Dim> dims = stored.dims;
  if (dims.empty()) fail(node, ErrorCode::invalid_model, "an operand is a scalar");
  if (form.part_size > 0) {
    const int64_t extent = dims.back().extent;
    if (dims.back().known() && (form.part_begin > extent || form.part_size > extent - form.part_begin)) {
      fail(node, ErrorCode::invalid_model, "a part lies outside of its operand");
    }
    dims.back() = known(form.part_size);
  }
  if (form.heads > 0) {
    const Dim all = dims.back();
    if (all.known() && all.extent % form.heads != 0) {
      fail(node, ErrorCode::invalid_model,
           "an operand of " + std::to_string(all.extent) + " columns has no " + std::to_string(form.heads) + " heads");
    }
    dims.back() = known(form.heads);
    dims.push_back(all.known() ? known(all.extent / form.heads) : Dim{});
  }
  if (dims.size() < 2 || (!form.perm.empty() && form.perm.size() != dims.size())) {
    fail(node, ErrorCode::invalid_model, "the rank of an operand does not fit");
  }
  return permuted(dims, form.perm);
}

AttentionView view_of_operand(const Node& node, const Dims& stored, const AttentionForm& form) {
  AttentionView view;
  for (const Dim& dim : viewed_dims(node, TensorType::of(DType::f32, stored), form)) view.dims.push_back(dim.extent);
  view.strides = strides_of(stored);
  view.offset = form.part_begin;
  if (form.heads > 0) {
    const int64_t columns = form.part_size > 0 ? form.part_size : stored.back();
    view.strides.back() = columns / form.heads;
    view.strides.push_back(1);
  }
  view.strides = permuted(view.strides, form.perm);
  return view;
}

int64_t AttentionShape::matrices() const { return checked_elements(batch); }

Dims AttentionShape::score_dims() const {
  Dims dims = batch;
  dims.insert(dims.end(), {rows, keys});
  return dims;
}

AttentionShape attention_shape(const Node& node, const Dims& q, const Dims& k, const Dims& v) {
  AttentionShape shape;
  shape.forms = attention_forms(node);
  shape.scores = get_expression(node.attributes, "scores");
  shape.q = view_of_operand(node, q, shape.forms[kAttentionQ]);
  shape.k = view_of_operand(node, k, shape.forms[kAttentionK]);
  shape.v = view_of_operand(node, v, shape.forms[kAttentionV]);
  const size_t rank = shape.q.dims.size();
  if (shape.k.dims.size() != rank || shape.v.dims.size() != rank) {
    fail(node, ErrorCode::invalid_argument, "Q, K and V have different ranks");
  }
  shape.rows = shape.q.dims[rank - 2];
  shape.size = shape.q.dims[rank - 1];
  shape.keys = shape.k.dims[rank - 1];
  shape.value_size = shape.v.dims[rank - 1];
  if (shape.k.dims[rank - 2] != shape.size || shape.v.dims[rank - 2] != shape.keys) {
    fail(node, ErrorCode::invalid_argument,
         "Q [" + to_string(shape.q.dims) + "], K [" + to_string(shape.k.dims) + "] and V [" + to_string(shape.v.dims) +
             "] do not fit each other");
  }
  for (size_t i = 0; i + 2 < rank; ++i) {
    shape.batch.push_back(broadcast_extent(node, {shape.q.dims[i], shape.k.dims[i], shape.v.dims[i]}));
  }
  shape.sum = sum_of(node, shape);
  place_result(node, shape);
  return shape;
}

}  // namespace lathe
