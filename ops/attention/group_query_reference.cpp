// GroupQueryAttention in float64, row by row.
#include "ops/attention/group_query.h"

#include <algorithm>
#include <limits>

#include "ops/copy/copy_elements.h"
#include "ops/numbers.h"
#include "ops/shape_arguments.h"

namespace lathe::group_query {
namespace {

// [batch, heads, length, size]
struct Heads {
  int64_t batch, heads, length, size;
  std::vector<double> values;
  Heads(int64_t b, int64_t h, int64_t t, int64_t i)
      : batch(b), heads(h), length(t), size(i), values(static_cast<size_t>(b * h * t * i)) {}
  double* row(int64_t b, int64_t h, int64_t t) {
    return values.data() + static_cast<size_t>(((b * heads + h) * length + t) * size);
  }
};

class GroupQuery {
 public:
  explicit GroupQuery(const ReferenceContext& context)
      : context_(context), s_(settings_of(context, columns(), !context.has_input(kKey))) {
    const Dims& query = context.inputs[kQuery].dims();
    batch_ = query[0];
    length_ = query[1];
    total_ = integer_scalar(context, context.inputs[kTotal], "total_sequence_length");
    for (const int64_t last : integers_of_any(context.inputs[kLengths])) {
      if (last < 0 || last >= total_) context.fail("the last token of a sequence is at " + std::to_string(last));
      valid_.push_back(last + 1);
    }
    if (static_cast<int64_t>(valid_.size()) != batch_) context.fail("seqlens_k has another batch");
    if (context.has_input(kPastKey) != context.has_input(kPastValue)) {
      context.fail("has one of past_key and past_value");
    }
    past_ = context.has_input(kPastKey) ? cache_extent(kPastKey) : 0;
    if (context.has_input(kPastValue) && cache_extent(kPastValue) != past_) context.fail("the caches differ");
    if (total_ > past_ + length_) context.fail("total_sequence_length is " + std::to_string(total_));
  }

  void run(std::vector<Tensor>& outputs) {
    const Tensor packed = context_.inputs[kQuery];
    const bool is_packed = !context_.has_input(kKey);
    const int64_t own = s_.heads * s_.size, shared = s_.key_heads * s_.size;
    Heads query = heads_of(packed, 0, s_.heads),
          key = heads_of(is_packed ? packed : context_.inputs[kKey], is_packed ? own : 0, s_.key_heads);
    const Heads value =
        heads_of(is_packed ? packed : context_.inputs[kValue], is_packed ? own + shared : 0, s_.key_heads);
    normalize(query, kQueryNorm);
    normalize(key, kKeyNorm);
    if (s_.rotates) {
      rotate(query);
      rotate(key);
    }
    Heads keys = with_past(key, kPastKey), values = with_past(value, kPastValue);
    Heads result = attend(query, keys, values);
    const DType dtype = packed.dtype();
    outputs[0] = make_output(context_, dtype, {batch_, length_, own});
    int64_t to = 0;
    for (IndexWalk at({batch_, length_, s_.heads, s_.size}); !at.done(); at.next(), ++to) {
      const auto& i = at.index();
      store_real(outputs[0], to, result.row(i[0], i[2], i[1])[i[3]]);
    }
    const Dims dims{batch_, s_.key_heads, keys.length, s_.size};
    if (outputs.size() > 1) outputs[1] = tensor_of_reals(context_, dtype, dims, keys.values);
    if (outputs.size() > 2) outputs[2] = tensor_of_reals(context_, dtype, dims, values.values);
  }

 private:
  int64_t columns() const {
    const Tensor& query = context_.inputs[kQuery];
    if (query.rank() != 3) context_.fail("the query has rank " + std::to_string(query.rank()) + ", expected 3");
    return query.dims()[2];
  }

  int64_t cache_extent(Input which) const {
    const Dims& dims = context_.inputs[which].dims();
    if (dims.size() != 4 || dims[0] != batch_ || dims[1] != s_.key_heads || dims[3] != s_.size) {
      context_.fail("a cache is " + to_string(dims));
    }
    return dims[2];
  }

  // How many tokens of sequence `b` are in the cache already.
  int64_t past_of(int64_t b) const {
    return length_ == total_ ? 0 : std::max<int64_t>(0, valid_[static_cast<size_t>(b)] - length_);
  }

  Heads heads_of(const Tensor& tensor, int64_t column, int64_t heads) const {
    const Dims& dims = tensor.dims();
    if (dims.size() != 3 || dims[0] != batch_ || dims[1] != length_ || dims[2] < column + heads * s_.size) {
      context_.fail("an operand is " + to_string(dims));
    }
    const std::vector<double> all = reals_of(tensor);
    Heads result(batch_, heads, length_, s_.size);
    for (int64_t b = 0; b < batch_; ++b) {
      for (int64_t t = 0; t < length_; ++t) {
        for (int64_t h = 0; h < heads; ++h) {
          const auto from = all.begin() + (b * length_ + t) * dims[2] + column + h * s_.size;
          std::copy(from, from + s_.size, result.row(b, h, t));
        }
      }
    }
    return result;
  }

  void normalize(Heads& x, Input which) const {
    if (!context_.has_input(which)) return;
    const std::vector<double> gain = reals_of(context_.inputs[which]);
    if (static_cast<int64_t>(gain.size()) != s_.size) context_.fail("a norm's weights fit not the heads");
    for (int64_t row = 0; row < x.batch * x.heads * x.length; ++row) {
      double* at = x.values.data() + row * s_.size;
      double square = 0;
      for (int64_t i = 0; i < s_.size; ++i) square += at[i] * at[i];
      const double by = 1 / std::sqrt(square / static_cast<double>(s_.size) + s_.norm_epsilon);
      for (int64_t i = 0; i < s_.size; ++i) at[i] *= by * gain[static_cast<size_t>(i)];
    }
  }

  void rotate(Heads& x) const {
    if (!context_.has_input(kCos) || !context_.has_input(kSin)) context_.fail("has no tables of angles");
    const Dims& dims = context_.inputs[kCos].dims();
    if (dims.size() != 2 || dims != context_.inputs[kSin].dims() || 2 * dims[1] > s_.size) {
      context_.fail("the table of angles is " + to_string(dims));
    }
    const std::vector<double> cos = reals_of(context_.inputs[kCos]), sin = reals_of(context_.inputs[kSin]);
    std::vector<int64_t> given;
    if (context_.has_input(kPositions)) given = integers_of_any(context_.inputs[kPositions]);
    if (!given.empty() && static_cast<int64_t>(given.size()) < batch_ * length_)
      context_.fail("position_ids are short");
    const int64_t half = dims[1], step = s_.is_interleaved ? 2 : 1, apart = s_.is_interleaved ? 1 : half;
    for (IndexWalk at({x.batch, x.length, x.heads}); !at.done(); at.next()) {
      const int64_t b = at.index()[0], t = at.index()[1];
      const int64_t position = given.empty() ? past_of(b) + t : given[static_cast<size_t>(b * length_ + t)];
      if (position < 0 || position >= dims[0]) context_.fail("position " + std::to_string(position) + " has no angle");
      double* row = x.row(b, at.index()[2], t);
      for (int64_t i = 0; i < half; ++i) {
        const auto angle = static_cast<size_t>(position * half + i);
        const double first = row[i * step], second = row[i * step + apart];
        row[i * step] = first * cos[angle] - second * sin[angle];
        row[i * step + apart] = second * cos[angle] + first * sin[angle];
      }
    }
  }

  Heads with_past(const Heads& now, Input which) const {
    Heads result(batch_, s_.key_heads, std::max(past_, total_), s_.size);
    Heads fresh = now;
    std::vector<double> before;
    if (context_.has_input(which)) before = reals_of(context_.inputs[which]);
    for (int64_t b = 0; b < batch_; ++b) {
      for (int64_t h = 0; h < s_.key_heads; ++h) {
        const int64_t kept = std::min(past_of(b), past_);
        const auto from = before.begin() + (b * s_.key_heads + h) * past_ * s_.size;
        if (kept > 0) std::copy(from, from + kept * s_.size, result.row(b, h, 0));
        for (int64_t t = 0; t < length_ && kept + t < result.length; ++t) {
          std::copy_n(fresh.row(b, h, t), s_.size, result.row(b, h, kept + t));
        }
      }
    }
    return result;
  }

  double bias_at(const std::vector<double>& bias, int64_t b, int64_t h, int64_t q, int64_t k) const {
    if (bias.empty()) return 0;
    const Dims& dims = context_.inputs[kBias].dims();
    const int64_t index[] = {b, h, q, k};
    int64_t offset = 0;
    for (size_t i = 0; i < 4; ++i) {
      const int64_t own = dims[i] == 1 ? 0 : index[i];
      if (own >= dims[i]) context_.fail("attention_bias is " + to_string(dims));
      offset = offset * dims[i] + own;
    }
    return bias[static_cast<size_t>(offset)];
  }

  Heads attend(Heads& query, Heads& keys, Heads& values) const {
    Heads result(batch_, s_.heads, length_, s_.size);
    std::vector<double> bias, sink;
    if (context_.has_input(kBias)) bias = reals_of(context_.inputs[kBias]);
    if (!bias.empty() && context_.inputs[kBias].rank() != 4) context_.fail("attention_bias must have rank 4");
    if (context_.has_input(kSink)) sink = reals_of(context_.inputs[kSink]);
    if (!sink.empty() && static_cast<int64_t>(sink.size()) != s_.heads) context_.fail("head_sink fits not the heads");
    for (IndexWalk at({batch_, s_.heads, length_}); !at.done(); at.next()) {
      const int64_t b = at.index()[0], h = at.index()[1], t = at.index()[2];
      const int64_t valid = valid_[static_cast<size_t>(b)], position = past_of(b) + t;
      const int64_t end = s_.is_causal ? std::min(position + 1, valid) : valid;
      const int64_t begin = s_.is_causal && s_.window >= 0 ? std::max<int64_t>(0, position + 1 - s_.window) : 0;
      const int64_t group = h / (s_.heads / s_.key_heads);
      std::vector<double> weights;
      double largest = -std::numeric_limits<double>::infinity();
      for (int64_t k = begin; k < end; ++k) {
        double dot = 0;
        for (int64_t i = 0; i < s_.size; ++i) dot += query.row(b, h, t)[i] * keys.row(b, group, k)[i];
        dot *= s_.scale;
        if (s_.softcap > 0) dot = std::tanh(dot / s_.softcap) * s_.softcap;
        weights.push_back(dot + bias_at(bias, b, h, t, k));
        largest = std::max(largest, weights.back());
      }
      const bool has_sink = s_.is_smooth || !sink.empty();
      const double sunk = sink.empty() ? 0 : sink[static_cast<size_t>(h)];
      if (has_sink) largest = std::max(largest, sunk);
      double sum = has_sink ? std::exp(sunk - largest) : 0;
      for (double& weight : weights) sum += weight = std::exp(weight - largest);
      for (int64_t k = begin; k < end; ++k) {
        const double weight = weights[static_cast<size_t>(k - begin)] / sum;
        for (int64_t i = 0; i < s_.size; ++i) result.row(b, h, t)[i] += weight * values.row(b, group, k)[i];
      }
    }
    return result;
  }

  const ReferenceContext& context_;
  const Settings s_;
  int64_t batch_ = 0, length_ = 0, total_ = 0, past_ = 0;
  std::vector<int64_t> valid_;  // tokens of each sequence, the new ones included
};

}  // namespace

void run_reference(ReferenceContext& context) {
  for (const size_t i : {size_t{kLengths}, size_t{kTotal}}) {
    if (!context.has_input(i)) context.fail("required input " + std::to_string(i) + " is absent");
  }
  if (context.outputs.size() > 3 && context.node.outputs[3] != ValueId::none) context.fail("cannot give output 3");
  GroupQuery(context).run(context.outputs);
}

}  // namespace lathe::group_query
