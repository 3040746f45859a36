// com.microsoft's attention operators, against plain loops.
#include <cmath>
#include <functional>

#include "tests/ops/op_tester.h"

namespace lathe {
namespace {

using testing::microsoft;
using testing::OpTester;
using testing::random_tensor;
using testing::tensor;

void expect_near(const Tensor& got, const std::vector<double>& expected) {
  ASSERT_EQ(static_cast<size_t>(got.size()), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(got.data<float>()[i], expected[i], 2e-6) << "element " << i;
}

// [batch, length, heads * size] read by (b, h, t, i).
struct Packed {
  const Tensor& tensor;
  int64_t size;
  double at(int64_t b, int64_t h, int64_t t, int64_t i) const {
    const Dims& dims = tensor.dims();
    return tensor.data<float>()[(b * dims[1] + t) * dims[2] + h * size + i];
  }
};

// softmax(Q K^T / sqrt(size) + bias) V as [batch, queries, heads * size].
std::vector<double> attention(const Packed& q, const Packed& k, const Packed& v, int64_t heads, int64_t key_heads,
                              const std::function<double(int64_t, int64_t, int64_t, int64_t)>& bias) {
  const int64_t batch = q.tensor.dims()[0], queries = q.tensor.dims()[1], keys = k.tensor.dims()[1];
  std::vector<double> result;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t t = 0; t < queries; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t group = h * key_heads / heads;
        std::vector<double> weights;
        double sum = 0;
        for (int64_t s = 0; s < keys; ++s) {
          double dot = 0;
          for (int64_t i = 0; i < q.size; ++i) dot += q.at(b, h, t, i) * k.at(b, group, s, i);
          weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(q.size)) + bias(b, h, t, s)));
          sum += weights.back();
        }
        for (int64_t i = 0; i < v.size; ++i) {
          double y = 0;
          for (int64_t s = 0; s < keys; ++s) y += weights[static_cast<size_t>(s)] / sum * v.at(b, group, s, i);
          result.push_back(y);
        }
      }
  return result;
}

const auto kNoBias = [](int64_t, int64_t, int64_t, int64_t) { return 0.0; };
const auto kCausal = [](int64_t, int64_t, int64_t t, int64_t s) { return s > t ? -INFINITY : 0.0; };

TEST(MultiHeadAttention, AttendsWithEveryHead) {
  std::mt19937 random(1);
  const Tensor q = random_tensor({2, 3, 8}, random), k = random_tensor({2, 5, 8}, random),
               v = random_tensor({2, 5, 4}, random);
  const Tensor y = microsoft("MultiHeadAttention").input(q).input(k).input(v).with("num_heads", 2).result();
  ASSERT_EQ(y.dims(), (Dims{2, 3, 4}));
  expect_near(y, attention({q, 4}, {k, 4}, {v, 2}, 2, 2, kNoBias));
}

TEST(MultiHeadAttention, MasksKeysByLengthByMaskAndByOrder) {
  std::mt19937 random(2);
  const Tensor q = random_tensor({2, 4, 8}, random), k = random_tensor({2, 4, 8}, random),
               v = random_tensor({2, 4, 8}, random);
  const auto node = [&](const Tensor& mask) {
    return microsoft("MultiHeadAttention").input(q).input(k).input(v).absent().input(mask).with("num_heads", 2);
  };
  const auto short_second = [](int64_t b, int64_t, int64_t, int64_t s) { return b == 1 && s >= 2 ? -10000.0 : 0; };
  expect_near(node(tensor<int32_t>({2}, {4, 2})).result(), attention({q, 4}, {k, 4}, {v, 4}, 2, 2, short_second));
  expect_near(node(tensor<int32_t>({2, 4}, {1, 1, 1, 1, 1, 1, 0, 0})).result(),
              attention({q, 4}, {k, 4}, {v, 4}, 2, 2, short_second));
  const Tensor causal = microsoft("MultiHeadAttention")
                            .input(q)
                            .input(k)
                            .input(v)
                            .with("num_heads", 2)
                            .with("unidirectional", 1)
                            .result();
  expect_near(causal, attention({q, 4}, {k, 4}, {v, 4}, 2, 2, kCausal));
}

TEST(MultiHeadAttention, ReadsPackedOperands) {
  std::mt19937 random(3);
  const Tensor qkv = random_tensor({1, 3, 2, 3, 4}, random);
  Tensor parts[3];
  for (int which = 0; which < 3; ++which) {
    parts[which] = Tensor(DType::f32, {1, 3, 8});
    for (int64_t i = 0; i < 24; ++i) {
      const int64_t t = i / 8, h = i / 4 % 2, e = i % 4;
      parts[which].mutable_data<float>()[i] = qkv.data<float>()[((t * 2 + h) * 3 + which) * 4 + e];
    }
  }
  const Tensor y = microsoft("MultiHeadAttention").input(qkv).with("num_heads", 2).result();
  expect_near(y, attention({parts[0], 4}, {parts[1], 4}, {parts[2], 4}, 2, 2, kNoBias));
}

TEST(MultiHeadAttention, PutsThePastBeforeTheKeys) {
  std::mt19937 random(4);
  const Tensor q = random_tensor({1, 1, 4}, random), k = random_tensor({1, 3, 4}, random),
               v = random_tensor({1, 3, 4}, random);
  const auto piece = [](const Tensor& all, int64_t from, int64_t count, Dims dims) {
    return Tensor::from<float>(std::move(dims),
                               std::span<const float>(all.data<float>() + from * 4, static_cast<size_t>(count * 4)));
  };
  const std::vector<Tensor> got = microsoft("MultiHeadAttention")
                                      .input(q)
                                      .input(piece(k, 2, 1, {1, 1, 4}))
                                      .input(piece(v, 2, 1, {1, 1, 4}))
                                      .absent()
                                      .absent()
                                      .absent()
                                      .input(piece(k, 0, 2, {1, 1, 2, 4}))
                                      .input(piece(v, 0, 2, {1, 1, 2, 4}))
                                      .with("num_heads", 1)
                                      .outputs(3)
                                      .reference();
  expect_near(got[0], attention({q, 4}, {k, 4}, {v, 4}, 1, 1, kNoBias));
  EXPECT_EQ(got[1].dims(), (Dims{1, 1, 3, 4}));
  EXPECT_EQ(testing::list<float>(got[1]), testing::list<float>(k));
  EXPECT_EQ(testing::list<float>(got[2]), testing::list<float>(v));
}

Tensor projected(const Tensor& x, const Tensor& weights, const Tensor& bias, int64_t first, int64_t columns) {
  const int64_t rows = x.dims()[1], inner = x.dims()[2], all = weights.dims()[1];
  Tensor y(DType::f32, {1, rows, columns});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      double sum = bias.data<float>()[first + c];
      for (int64_t i = 0; i < inner; ++i)
        sum += static_cast<double>(x.data<float>()[r * inner + i]) * weights.data<float>()[i * all + first + c];
      y.mutable_data<float>()[r * columns + c] = static_cast<float>(sum);
    }
  return y;
}

TEST(ContribAttention, ProjectsMasksAndGivesKeysAndValues) {
  std::mt19937 random(5);
  const Tensor x = random_tensor({1, 4, 6}, random), w = random_tensor({6, 24}, random),
               bias = random_tensor({24}, random);
  const Tensor q = projected(x, w, bias, 0, 8), k = projected(x, w, bias, 8, 8), v = projected(x, w, bias, 16, 8);
  const auto second_is_masked = [](int64_t, int64_t, int64_t t, int64_t s) {
    return (s == 1 ? -10000.0 : 0) + kCausal(0, 0, t, s);
  };
  for (const bool is_constant : {true, false}) {
    OpTester node = microsoft("Attention");
    node.input(x);
    is_constant ? node.constant(w).constant(bias) : node.input(w).input(bias);
    node.input(tensor<int32_t>({1, 4}, {1, 0, 1, 1})).with("num_heads", 2).with("unidirectional", 1).outputs(2);
    const std::vector<Tensor> got = node.reference();
    expect_near(got[0], attention({q, 4}, {k, 4}, {v, 4}, 2, 2, second_is_masked));
    ASSERT_EQ(got[1].dims(), (Dims{2, 1, 2, 4, 4}));
    EXPECT_NEAR(got[1].data<float>()[4 * 4 + 1], k.data<float>()[5], 1e-6);      // key, head 1, token 0, element 1
    EXPECT_NEAR(got[1].data<float>()[2 * 4 * 4 + 4], v.data<float>()[8], 1e-6);  // value, head 0, token 1, element 0
  }
}

TEST(ContribAttention, RefusesWhatItDoesNotDo) {
  const Tensor x(DType::f32, {1, 4, 6}), w(DType::f32, {6, 24});
  EXPECT_THROW(microsoft("Attention").input(x).input(w).with("num_heads", 2).with("do_rotary", 1).result(), Error);
  EXPECT_THROW(microsoft("Attention").input(x).input(w).with("num_heads", 3).result(), Error);
  EXPECT_THROW(microsoft("Attention").input(x).input(w).with("num_heads", 0).result(), Error);
}

// ---- GroupQueryAttention

struct Group {
  Tensor q, k, v, past_key, past_value;
  OpTester node(int32_t total, const std::vector<int32_t>& lengths) const {
    OpTester tester = microsoft("GroupQueryAttention");
    tester.input(q).input(k).input(v).input(past_key).input(past_value);
    std::vector<int32_t> last;
    for (const int32_t length : lengths) last.push_back(length - 1);
    tester.input(Tensor::from<int32_t>({static_cast<int64_t>(last.size())}, std::span<const int32_t>(last)));
    tester.constant(Tensor::scalar<int32_t>(total)).with("num_heads", 4).with("kv_num_heads", 2).outputs(3);
    return tester;
  }
};

Group random_group(int64_t batch, int64_t length, int64_t past, std::mt19937& random) {
  return {random_tensor({batch, length, 16}, random), random_tensor({batch, length, 8}, random),
          random_tensor({batch, length, 8}, random), random_tensor({batch, 2, past, 4}, random),
          random_tensor({batch, 2, past, 4}, random)};
}

// The first `past` tokens of the cache and then the new ones, as [1, tokens, heads * size].
Tensor joined(const Tensor& cache, const Tensor& now, int64_t b, int64_t past) {
  const int64_t length = now.dims()[1], capacity = cache.dims()[2];
  Tensor all(DType::f32, {1, past + length, 8});
  for (int64_t t = 0; t < past + length; ++t)
    for (int64_t c = 0; c < 8; ++c) {
      all.mutable_data<float>()[t * 8 + c] = t < past
                                                 ? cache.data<float>()[((b * 2 + c / 4) * capacity + t) * 4 + c % 4]
                                                 : now.data<float>()[(b * length + t - past) * 8 + c];
    }
  return all;
}

Tensor batch_of(const Tensor& x, int64_t b) {
  Dims dims = x.dims();
  const auto count = static_cast<size_t>(x.size() / dims[0]);
  dims[0] = 1;
  return Tensor::from<float>(dims, std::span<const float>(x.data<float>() + static_cast<size_t>(b) * count, count));
}

TEST(GroupQueryAttention, SharesKeysAndGrowsItsCache) {
  std::mt19937 random(6);
  for (const int64_t length : {1, 3}) {
    const Group group = random_group(1, length, 5, random);
    const std::vector<Tensor> got =
        group.node(static_cast<int32_t>(5 + length), {static_cast<int32_t>(5 + length)}).reference();
    const Tensor keys = joined(group.past_key, group.k, 0, 5), values = joined(group.past_value, group.v, 0, 5);
    const auto causal = [](int64_t, int64_t, int64_t t, int64_t s) { return s > 5 + t ? -INFINITY : 0.0; };
    expect_near(got[0], attention({group.q, 4}, {keys, 4}, {values, 4}, 4, 2, causal));
    ASSERT_EQ(got[1].dims(), (Dims{1, 2, 5 + length, 4}));
    EXPECT_EQ(got[1].data<float>()[(5 + length) * 4 + 5 * 4], group.k.data<float>()[4]);  // head 1, the first new token
  }
}

TEST(GroupQueryAttention, GivesEachSequenceItsOwnPast) {
  std::mt19937 random(7);
  const Group group = random_group(2, 1, 6, random);
  const std::vector<Tensor> got = group.node(6, {6, 3}).reference();
  const int64_t pasts[] = {5, 2};
  for (int64_t b = 0; b < 2; ++b) {
    const Tensor keys = joined(group.past_key, group.k, b, pasts[b]),
                 values = joined(group.past_value, group.v, b, pasts[b]);
    const Tensor query = batch_of(group.q, b);
    expect_near(batch_of(got[0], b), attention({query, 4}, {keys, 4}, {values, 4}, 4, 2, kNoBias));
  }
  EXPECT_EQ(got[1].dims(), (Dims{2, 2, 6, 4}));
}

TEST(GroupQueryAttention, LooksNoFurtherBackThanItsWindow) {
  std::mt19937 random(8);
  const Group group = random_group(1, 5, 0, random);
  const auto window = [](int64_t, int64_t, int64_t t, int64_t s) { return s > t || t - s >= 2 ? -INFINITY : 0.0; };
  expect_near(group.node(5, {5}).with("local_window_size", 2).reference()[0],
              attention({group.q, 4}, {group.k, 4}, {group.v, 4}, 4, 2, window));
}

TEST(GroupQueryAttention, RefusesLengthsThatDoNotFit) {
  std::mt19937 random(9);
  const Group group = random_group(2, 1, 6, random);
  EXPECT_THROW(group.node(6, {6, 7}).reference(), Error);
  EXPECT_THROW(group.node(6, {0, 3}).reference(), Error);
  EXPECT_THROW(group.node(6, {6}).reference(), Error);
  EXPECT_THROW(group.node(1 << 30, {6, 6}).reference(), Error);
}

TEST(GroupQueryAttention, RefusesHalfACache) {
  std::mt19937 random(10);
  for (const int64_t batch : {1, 2}) {
    Group keys = random_group(batch, 1, 6, random), values = keys;
    keys.past_value = values.past_key = Tensor();
    const std::vector<int32_t> lengths(static_cast<size_t>(batch), 7);
    EXPECT_THROW(keys.node(7, lengths).reference(), Error);
    EXPECT_THROW(values.node(7, lengths).reference(), Error);
  }
}

// ---- RotaryEmbedding

TEST(ContribRotaryEmbedding, TurnsPairsByTheAngleOfTheirPosition) {
  std::mt19937 random(10);
  const Tensor x = random_tensor({1, 2, 8}, random), cos = random_tensor({4, 2}, random),
               sin = random_tensor({4, 2}, random);
  const Tensor each = tensor<int64_t>({1, 2}, {3, 1}), first_one = tensor<int64_t>({1}, {2});
  for (const int interleaved : {0, 1}) {
    for (const bool is_one_start : {false, true}) {
      const Tensor y = microsoft("RotaryEmbedding")
                           .input(x)
                           .input(is_one_start ? first_one : each)
                           .input(cos)
                           .input(sin)
                           .with("interleaved", interleaved)
                           .result();
      std::vector<double> expected(16);
      const int64_t positions[] = {is_one_start ? 2 : 3, is_one_start ? 3 : 1};
      for (int64_t t = 0; t < 2; ++t)
        for (int64_t h = 0; h < 2; ++h)
          for (int64_t i = 0; i < 2; ++i) {
            const int64_t base = t * 8 + h * 4, first = base + (interleaved ? 2 * i : i),
                          second = first + (interleaved ? 1 : 2);
            const double c = cos.data<float>()[positions[t] * 2 + i], s = sin.data<float>()[positions[t] * 2 + i];
            const double a = x.data<float>()[first], b = x.data<float>()[second];
            expected[static_cast<size_t>(first)] = a * c - b * s;
            expected[static_cast<size_t>(second)] = b * c + a * s;
          }
      expect_near(y, expected);
    }
  }
}

}  // namespace
}  // namespace lathe
