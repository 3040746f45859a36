#include "ops/gemm/plain_product.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ops/copy/copy_step.h"
#include "ops/pointwise/broadcast.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/divide.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

constexpr int kTileRows = 4;

struct Matrices {
  int64_t a, b, c;  // numbers within their operands
};

struct PlainProduct {
  int64_t m, n, k;
  std::array<int64_t, 2> a_stride;  // of a row, of a column
  std::vector<Matrices> batch;
  double alpha = 1, beta = 1;
  std::array<int64_t, 2> bias_stride{};

  int64_t row_tiles() const { return divide_up(m, kTileRows); }
};

// What a register of AVX2 holds.
template <class T>
struct Register {
  typedef T Vector __attribute__((vector_size(32)));
  static constexpr int64_t kLanes = 32 / static_cast<int64_t>(sizeof(T));
};

// One tile of the result, two registers wide.
template <class T, int Rows>
[[gnu::target("avx2,fma")]] void multiply_wide(const PlainProduct& p, const T* a, const T* b, T* c) {
  using Vector = typename Register<T>::Vector;
  constexpr int64_t kLanes = Register<T>::kLanes;
  const int64_t row_step = p.a_stride[0], step = p.a_stride[1], n = p.n, k = p.k;
  Vector left[Rows] = {}, right[Rows] = {};
  for (int64_t i = 0; i < k; ++i, a += step, b += n) {
    Vector low, high;
    std::memcpy(&low, b, sizeof low);
    std::memcpy(&high, b + kLanes, sizeof high);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const T factor = a[r * row_step];
      left[r] += factor * low;
      right[r] += factor * high;
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    std::memcpy(c + r * n, &left[r], sizeof left[r]);
    std::memcpy(c + r * n + kLanes, &right[r], sizeof right[r]);
  }
}

template <class T>
void multiply_element(const PlainProduct& p, const T* a, const T* b, T* c) {
  T sum = 0;
  for (int64_t i = 0; i < p.k; ++i) sum += a[i * p.a_stride[1]] * b[i * p.n];
  *c = sum;
}

template <class T, int Rows>
void multiply_rows(const PlainProduct& p, const T* a, const T* b, T* c) {
  constexpr int64_t kColumns = 2 * Register<T>::kLanes;
  int64_t j = 0;
  for (; j + kColumns <= p.n; j += kColumns) multiply_wide<T, Rows>(p, a, b + j, c + j);
  for (; j < p.n; ++j) {
    for (int r = 0; r < Rows; ++r) multiply_element(p, a + r * p.a_stride[0], b + j, c + r * p.n + j);
  }
}

template <class T>
void scale_and_add(const PlainProduct& p, int64_t first, int64_t rows, const T* bias, T* c) {
  const auto alpha = static_cast<T>(p.alpha), beta = static_cast<T>(p.beta);
  for (int64_t r = 0; r < rows; ++r) {
    T* row = c + r * p.n;
    if (p.alpha != 1) {
      for (int64_t j = 0; j < p.n; ++j) row[j] *= alpha;
    }
    if (bias == nullptr) continue;
    const T* added = bias + (first + r) * p.bias_stride[0];
    for (int64_t j = 0; j < p.n; ++j) row[j] += beta * added[j * p.bias_stride[1]];
  }
}

template <class T>
void run_product(const PlainProduct& p, const T* a, const T* b, const T* bias, T* c, Range tiles) {
  for (int64_t tile = tiles.begin; tile < tiles.end; ++tile) {
    const Matrices& at = p.batch[static_cast<size_t>(tile / p.row_tiles())];
    const int64_t first = tile % p.row_tiles() * kTileRows, rows = std::min<int64_t>(kTileRows, p.m - first);
    const T* from = a + at.a * p.m * p.k + first * p.a_stride[0];
    const T* matrix = b + at.b * p.k * p.n;
    T* to = c + at.c * p.m * p.n + first * p.n;
    if (rows == kTileRows) {
      multiply_rows<T, kTileRows>(p, from, matrix, to);
    } else {
      for (int64_t r = 0; r < rows; ++r) multiply_rows<T, 1>(p, from + r * p.a_stride[0], matrix, to + r * p.n);
    }
    scale_and_add(p, first, rows, bias, to);
  }
}

template <class Visit>
bool visit_type(DType dtype, Visit visit) {
  if (dtype == DType::f64) return visit.template operator()<double>(), true;
  if (dtype == DType::i32 || dtype == DType::u32) return visit.template operator()<uint32_t>(), true;
  if (dtype == DType::i64 || dtype == DType::u64) return visit.template operator()<uint64_t>(), true;
  return false;
}

// B as [k][n].
BufferId turned_matrix(LowerContext& context, const MatMulShape& shape) {
  const TensorType& type = context.input_type(1);
  const BufferId turned = context.scratch(type.storage_bytes());
  add_copy_step(context, type.dtype,
                {{context.buffer(context.input(1)), turned, 0, 0, {{shape.k, 1, shape.n}, {shape.n, shape.k, 1}}}});
  return turned;
}

}  // namespace

bool lower_plain_product(LowerContext& context, const MatMulShape& shape, const ProductForm& form) {
  const DType dtype = context.output_type(0).dtype;
  if (context.node.epilogue || !visit_type(dtype, []<class T>() {})) return false;
  if (context.output_type(0).storage_bytes() == 0) return true;
  PlainProduct p{shape.m, shape.n, shape.k, {shape.k, 1}, {}};
  if (form.transpose_a) p.a_stride = {1, shape.m};
  // Integers are multiplied by the factors' integer parts.
  const auto factor = [&](float value) {
    return is_integer(dtype) ? static_cast<double>(static_cast<int64_t>(value)) : static_cast<double>(value);
  };
  p.alpha = factor(form.alpha);
  p.beta = factor(form.beta);
  if (p.alpha < 0 || p.beta < 0) {
    if (is_integer(dtype)) return false;
  }
  for_each_matrix(shape, [&](int64_t a, int64_t b, int64_t c) { p.batch.push_back({a, b, c}); });
  BufferId bias = BufferId::none;
  if (context.has_input(2)) {
    bias = context.buffer(context.input(2));
    const std::vector<int64_t> strides = broadcast_strides(context.input_type(2).extents(), {shape.m, shape.n});
    p.bias_stride = {strides[0], strides[1]};
  }
  const BufferId a = context.buffer(context.input(0)), to = context.buffer(context.output(0));
  const BufferId b = form.transpose_b ? turned_matrix(context, shape) : context.buffer(context.input(1));
  Step step{.kernel = "product of " + std::string(name_of(dtype)), .reads = {a, b}, .writes = {to}};
  if (bias != BufferId::none) step.reads.push_back(bias);
  const auto tiles = static_cast<int64_t>(p.batch.size()) * p.row_tiles();
  step.flop = 2.0 * static_cast<double>(p.batch.size()) * static_cast<double>(p.m) * static_cast<double>(p.n) *
              static_cast<double>(p.k);
  step.threads = static_cast<int>(std::min<int64_t>(worthwhile_threads(4 * step.flop, context.target.threads), tiles));
  step.run = [=, p = std::move(p)](const StepArgs& args) {
    visit_type(dtype, [&]<class T>() {
      run_product(p, args.at<const T>(a), args.at<const T>(b),
                  bias == BufferId::none ? nullptr : args.at<const T>(bias), args.at<T>(to),
                  split_evenly(tiles, args.share, args.shares));
    });
  };
  context.add(std::move(step));
  return true;
}

}  // namespace lathe
