// TfIdfVectorizer: how often each n-gram of a pool occurs in a sequence of integers or strings, with skips.
#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/op_def.h"
#include "ops/shape_arguments.h"

namespace lathe::ops {
namespace {

constexpr int64_t kMostIndex = int64_t{1} << 40;

template <class Context>
int64_t vector_size(const Context& context) {
  int64_t size = 0;
  for (const int64_t index : context.node.attributes.get_ints("ngram_indexes")) {
    if (index < 0 || index > kMostIndex) context.fail("attribute 'ngram_indexes' has " + std::to_string(index));
    size = std::max(size, index + 1);
  }
  return size;
}

void infer_tfidf(InferContext& context) {
  const TensorType& input = context.input(0);
  const Dim size = known_dim(vector_size(context));
  if (!input.has_rank) return context.set_output(0, TensorType::unranked(DType::f32));
  if (input.rank() > 2) context.fail("input 0 has rank " + std::to_string(input.rank()) + ", expected 1 or 2");
  TensorType result{DType::f32, true, {size}, {}};
  if (input.rank() == 2) result.dims.insert(result.dims.begin(), input.dims[0]);
  context.set_output(0, std::move(result));
}

// The n-grams of the pool as a tree: one level for each item.
template <class Item>
struct Grams {
  std::map<Item, Grams> next;
  int64_t number = -1;  // in the pool, -1: no n-gram ends here
};

struct GramLengths {
  int64_t least, most, most_skips;
};

GramLengths lengths_of(const ReferenceContext& context) {
  const Attributes& attributes = context.node.attributes;
  const GramLengths lengths{attributes.get_int("min_gram_length", 1), attributes.get_int("max_gram_length", 1),
                            attributes.get_int("max_skip_count", 0)};
  if (lengths.least < 1 || lengths.most < lengths.least || lengths.most_skips < 0) {
    context.fail("its lengths of n-grams and skips are no ranges");
  }
  return lengths;
}

template <class Item>
Grams<Item> grams_of(const ReferenceContext& context, const std::vector<Item>& pool, const GramLengths& lengths) {
  const std::vector<int64_t> begins = context.node.attributes.get_ints("ngram_counts");
  Grams<Item> root;
  int64_t number = 0;
  for (size_t i = 0; i < begins.size(); ++i) {
    const auto size = static_cast<int64_t>(i) + 1, items = static_cast<int64_t>(pool.size());
    const int64_t begin = begins[i], end = i + 1 < begins.size() ? begins[i + 1] : items;
    if (begin < 0 || end < begin || end > items || (end - begin) % size != 0) {
      context.fail("attribute 'ngram_counts' does not cut the pool of " + std::to_string(items) + " items");
    }
    for (int64_t first = begin; first < end; first += size, ++number) {
      if (size < lengths.least || size > lengths.most) continue;
      Grams<Item>* at = &root;
      for (int64_t item = 0; item < size; ++item) at = &at->next[pool[static_cast<size_t>(first + item)]];
      at->number = number;
    }
  }
  const std::vector<int64_t> indexes = context.node.attributes.get_ints("ngram_indexes");
  if (static_cast<int64_t>(indexes.size()) < number) {
    context.fail("attribute 'ngram_indexes' has " + std::to_string(indexes.size()) + " values for " +
                 std::to_string(number) + " n-grams");
  }
  return root;
}

// Calls found(number) for each occurrence in `row`.
template <class Item, class Found>
void count_grams(std::span<const Item> row, const Grams<Item>& root, const GramLengths& lengths, Found found) {
  const auto items = static_cast<int64_t>(row.size());
  int64_t least = lengths.least;
  // Distances beyond the row pair nothing with nothing.
  for (int64_t distance = 1; distance <= std::min(lengths.most_skips + 1, std::max<int64_t>(items, 1)); ++distance) {
    for (int64_t first = 0; first < items; ++first) {
      const Grams<Item>* at = &root;
      for (int64_t item = first, size = 1; item < items && size <= lengths.most; item += distance, ++size) {
        const auto next = at->next.find(row[static_cast<size_t>(item)]);
        if (next == at->next.end()) break;
        at = &next->second;
        if (size >= least && at->number >= 0) found(at->number);
      }
    }
    // Single items know no distance: they count once.
    if (least == 1 && ++least > lengths.most) break;
  }
}

template <class Item>
void vectorize(ReferenceContext& context, const std::vector<Item>& items, const std::vector<Item>& pool) {
  const Attributes& attributes = context.node.attributes;
  const Dims& dims = context.inputs[0].dims();
  const bool is_batch = dims.size() == 2;
  const int64_t rows = is_batch ? dims[0] : 1, size = vector_size(context);
  Tensor result = make_output(context, DType::f32, is_batch ? Dims{rows, size} : Dims{size});
  const GramLengths lengths = lengths_of(context);
  const Grams<Item> root = grams_of(context, pool, lengths);
  const std::vector<int64_t> indexes = attributes.get_ints("ngram_indexes");
  const std::vector<float> weights = attributes.get_floats("weights");
  const std::string mode = attributes.get_string("mode", "");
  if (mode != "TF" && mode != "IDF" && mode != "TFIDF") context.fail("attribute 'mode' is '" + mode + "'");
  if (!weights.empty() && weights.size() != indexes.size()) {
    context.fail("attribute 'weights' has " + std::to_string(weights.size()) + " values, expected " +
                 std::to_string(indexes.size()));
  }
  std::vector<float> weight_at(static_cast<size_t>(size), 1);
  if (mode != "TF") {
    for (size_t i = 0; i < weights.size(); ++i) weight_at[static_cast<size_t>(indexes[i])] = weights[i];
  }
  const size_t length = rows == 0 ? 0 : items.size() / static_cast<size_t>(rows);
  auto* out = result.mutable_data<float>();
  for (int64_t row = 0; row < rows; ++row, out += size) {
    const std::span<const Item> row_items(items.data() + static_cast<size_t>(row) * length, length);
    count_grams(row_items, root, lengths, [&](int64_t number) { out[indexes[static_cast<size_t>(number)]] += 1; });
    for (int64_t i = 0; i < size; ++i) {
      const float count = mode == "IDF" ? std::min(out[i], 1.0F) : out[i];
      out[i] = count * weight_at[static_cast<size_t>(i)];
    }
  }
  context.outputs[0] = std::move(result);
}

void run_tfidf(ReferenceContext& context) {
  const Tensor& input = context.inputs[0];
  const Attributes& attributes = context.node.attributes;
  if (input.rank() > 2) context.fail("input 0 has rank " + std::to_string(input.rank()) + ", expected 1 or 2");
  if (input.dtype() == DType::string) {
    const std::span<const std::string> items = input.elements<std::string>();
    vectorize<std::string>(context, {items.begin(), items.end()}, attributes.get_strings("pool_strings"));
  } else {
    vectorize<int64_t>(context, integers_of_any(input), attributes.get_ints("pool_int64s"));
  }
}

}  // namespace

std::vector<OpDef> tfidf_ops() {
  using Kind = AttributeSpec::Kind;
  return {{.schema = {.name = "TfIdfVectorizer",
                      .since = 9,
                      .attributes = {{"max_gram_length", Kind::integer, true},
                                     {"max_skip_count", Kind::integer, true},
                                     {"min_gram_length", Kind::integer, true},
                                     {"mode", Kind::string, true},
                                     {"ngram_counts", Kind::integers, true},
                                     {"ngram_indexes", Kind::integers, true},
                                     {"pool_int64s", Kind::integers},
                                     {"pool_strings", Kind::strings},
                                     {"weights", Kind::reals}},
                      .infer = infer_tfidf,
                      .reference = run_tfidf}}};
}

}  // namespace lathe::ops
