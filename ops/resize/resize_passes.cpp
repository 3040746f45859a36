#include "ops/resize/resize_passes.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "ops/resize/resize_picked.h"
#include "ops/work_split.h"
#include "src/base/checked_size.h"
#include "src/base/thread_team.h"

namespace lathe {
namespace {

// ---- One axis as weighted sums

// Eight neighbouring elements of the result that are made of eight of a row, as where it is enlarged: one load, and one
// permutation for each term.
struct NearColumns {
  static constexpr size_t kLanes = 8, kMostTerms = 8;

  size_t terms = 0;            // of each element; 0: there is no such form
  std::vector<int32_t> base;   // of each eight; -1: these are made of more
  std::vector<int32_t> index;  // [eight][term][element], from there
  std::vector<float> weight;
};

struct AxisPass {
  int64_t outer = 1, in = 1, out = 1, inner = 1;
  std::vector<int32_t> first;  // of the terms of an output position; one more at the end
  std::vector<int32_t> index;
  std::vector<float> weight;
  NearColumns near;  // where inner is 1

  int64_t from_size() const { return outer * in * inner; }
  int64_t to_size() const { return outer * out * inner; }
};

NearColumns near_columns(const AxisPass& pass) {
  NearColumns near;
  constexpr size_t kLanes = NearColumns::kLanes;
  for (size_t x = 0; x + 1 < pass.first.size(); ++x)
    near.terms = std::max(near.terms, static_cast<size_t>(pass.first[x + 1] - pass.first[x]));
  if (near.terms > NearColumns::kMostTerms || pass.in < static_cast<int64_t>(kLanes)) return {};
  for (size_t x = 0; x + kLanes < pass.first.size(); x += kLanes) {
    const auto begin = pass.index.begin() + pass.first[x], end = pass.index.begin() + pass.first[x + kLanes];
    const auto [least, most] = std::minmax_element(begin, end);
    const int32_t base = std::min(*least, static_cast<int32_t>(pass.in) - static_cast<int32_t>(kLanes));
    near.base.push_back(*most - base < static_cast<int32_t>(kLanes) ? base : -1);
    for (size_t t = 0; t < near.terms; ++t) {
      for (size_t k = x; k < x + kLanes; ++k) {
        const auto term = static_cast<size_t>(pass.first[k]) + t;
        const bool is_there = term < static_cast<size_t>(pass.first[k + 1]);
        near.index.push_back(pass.index[is_there ? term : static_cast<size_t>(pass.first[k])] - base);
        near.weight.push_back(is_there ? pass.weight[term] : 0.0F);
      }
    }
  }
  return near;
}

AxisPass pass_of(const ResizeMode& mode, const std::vector<ResizeAxis>& axes, size_t axis) {
  AxisPass pass;
  pass.in = axes[axis].in;
  pass.out = axes[axis].out;
  for (size_t i = 0; i < axis; ++i) pass.outer *= axes[i].out;  // those before are done
  for (size_t i = axis + 1; i < axes.size(); ++i) pass.inner *= axes[i].in;
  pass.first.push_back(0);
  for (const ResizeTerms& terms : resize_terms(mode, axes[axis])) {
    for (const ResizeTerm& term : terms) {
      pass.index.push_back(static_cast<int32_t>(term.index));
      pass.weight.push_back(static_cast<float>(term.weight));
    }
    pass.first.push_back(static_cast<int32_t>(pass.index.size()));
  }
  if (pass.inner == 1) pass.near = near_columns(pass);
  return pass;
}

// Bytes take the integer part, modulo 256, as the reference does; sums that are integers may come out just below.
template <class T>
T stored(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    constexpr float kSlack = 1.0F / 8192;
    return static_cast<T>(static_cast<int32_t>(value + (value < 0 ? -kSlack : kSlack)));
  }
}

// `sums`: room for a row; of float32, the row itself.
template <class From, class To>
[[gnu::target("avx2,fma")]] void mix_rows(const AxisPass& pass, const From* plane, int64_t x, float* sums, To* to) {
  const int64_t inner = pass.inner;
  const int32_t begin = pass.first[static_cast<size_t>(x)], end = pass.first[static_cast<size_t>(x) + 1];
  for (int32_t t = begin; t < end;) {
    const auto at = static_cast<size_t>(t);
    const From* a = plane + pass.index[at] * inner;
    const float of_a = pass.weight[at];
    if (t + 1 == end) {
      for (int64_t i = 0; i < inner; ++i) {
        sums[i] = (t == begin ? 0.0F : sums[i]) + of_a * static_cast<float>(a[i]);
      }
      ++t;
      continue;
    }
    const From* b = plane + pass.index[at + 1] * inner;
    const float of_b = pass.weight[at + 1];
    if (t == begin) {
      for (int64_t i = 0; i < inner; ++i) sums[i] = of_a * static_cast<float>(a[i]) + of_b * static_cast<float>(b[i]);
    } else {
      for (int64_t i = 0; i < inner; ++i) sums[i] += of_a * static_cast<float>(a[i]) + of_b * static_cast<float>(b[i]);
    }
    t += 2;
  }
  if constexpr (!std::is_same_v<To, float>) {
    for (int64_t i = 0; i < inner; ++i) to[i] = stored<To>(sums[i]);
  }
}

template <class From>
[[gnu::target("avx2,fma"), gnu::always_inline]] inline __m256 load_eight(const From* row) {
  if constexpr (std::is_same_v<From, float>) {
    return _mm256_loadu_ps(row);
  } else {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(row));
    return _mm256_cvtepi32_ps(std::is_signed_v<From> ? _mm256_cvtepi8_epi32(bytes) : _mm256_cvtepu8_epi32(bytes));
  }
}

template <class From>
[[gnu::target("avx2,fma")]] void mix_eight(const NearColumns& near, size_t group, const From* row, float* to) {
  const size_t first = group * near.terms * NearColumns::kLanes;
  const __m256 all = load_eight(row + near.base[group]);
  __m256 sum = _mm256_setzero_ps();
  for (size_t t = 0; t < near.terms; ++t) {
    const size_t at = first + t * NearColumns::kLanes;
    const __m256i index = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(near.index.data() + at));
    sum = _mm256_fmadd_ps(_mm256_loadu_ps(near.weight.data() + at), _mm256_permutevar8x32_ps(all, index), sum);
  }
  _mm256_storeu_ps(to, sum);
}

template <class From, class To>
[[gnu::target("avx2,fma")]] void mix_columns(const AxisPass& pass, const From* row, To* to) {
  const int32_t *first = pass.first.data(), *index = pass.index.data();
  const float* weight = pass.weight.data();
  const NearColumns& near = pass.near;
  constexpr auto kLanes = static_cast<int64_t>(NearColumns::kLanes);
  for (int64_t x = 0; x < pass.out;) {
    const auto group = static_cast<size_t>(x / kLanes);
    const bool is_near = x % kLanes == 0 && group < near.base.size() && near.base[group] >= 0;
    if (is_near) {
      float sums[kLanes];
      mix_eight(near, group, row, sums);
      for (int64_t k = 0; k < kLanes; ++k) to[x + k] = stored<To>(sums[k]);
      x += kLanes;
      continue;
    }
    float sum = 0;
    for (int32_t t = first[x]; t < first[x + 1]; ++t) sum += weight[t] * static_cast<float>(row[index[t]]);
    to[x++] = stored<To>(sum);
  }
}

template <class From, class To>
void run_pass(const AxisPass& pass, const void* from, void* to, float* sums, Range rows) {
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    if (pass.inner == 1) {
      mix_columns(pass, static_cast<const From*>(from) + i * pass.in, static_cast<To*>(to) + i * pass.out);
      continue;
    }
    const From* plane = static_cast<const From*>(from) + i / pass.out * pass.in * pass.inner;
    To* out = static_cast<To*>(to) + i * pass.inner;
    if constexpr (std::is_same_v<To, float>) {
      mix_rows(pass, plane, i % pass.out, out, out);
    } else {
      mix_rows(pass, plane, i % pass.out, sums, out);
    }
  }
}

using RunPass = void (*)(const AxisPass&, const void*, void*, float*, Range);

template <class T>
RunPass runner(bool reads, bool writes) {
  if (reads && writes) return run_pass<T, T>;
  if (reads) return run_pass<T, float>;
  return writes ? run_pass<float, T> : run_pass<float, float>;
}

RunPass runner(DType dtype, bool is_first, bool is_last) {
  if (dtype == DType::u8) return runner<uint8_t>(is_first, is_last);
  if (dtype == DType::i8) return runner<int8_t>(is_first, is_last);
  return run_pass<float, float>;
}

void add_pass(LowerContext& context, AxisPass pass, RunPass run, BufferId from, BufferId to, const std::string& mode) {
  const BufferId sums = context.thread_scratch(checked_bytes(DType::f32, {pass.inner}));
  Step step{.kernel = "resize " + mode + ", one axis", .reads = {from, sums}, .writes = {to, sums}};
  step.bytes = 4.0 * static_cast<double>(pass.from_size() + pass.to_size());
  step.flop = 2.0 * static_cast<double>(pass.to_size()) * static_cast<double>(pass.index.size()) /
              static_cast<double>(pass.out);
  const int64_t rows = pass.inner == 1 ? pass.outer : pass.outer * pass.out;
  step.threads = static_cast<int>(
      std::min<int64_t>(worthwhile_threads(4 * std::max(step.bytes, step.flop), context.target.threads), rows));
  step.run = [pass = std::make_shared<AxisPass>(std::move(pass)), run, rows, from, to, sums](const StepArgs& args) {
    run(*pass, args.at<const void>(from), args.at<void>(to), args.own<float>(sums),
        split_evenly(rows, args.share, args.shares));
  };
  context.add(std::move(step));
}

}  // namespace

bool add_resize_passes(LowerContext& context, const ResizeMode& mode, const std::vector<ResizeAxis>& axes) {
  const TensorType &type = context.input_type(0), &result = context.output_type(0);
  if (axes.empty() || type.layout != Layout{} || result.layout != Layout{}) return false;
  if (type.dtype == DType::string || type.dtype == DType::object || bits_of(type.dtype) < 8) return false;
  for (const ResizeAxis& axis : axes) {
    if (axis.in > INT32_MAX) return false;
  }
  if (result.storage_bytes() == 0) return true;
  if (mode.mode == "nearest") return add_picked_rows(context, mode, axes);
  if (type.dtype != DType::f32 && type.dtype != DType::u8 && type.dtype != DType::i8) return false;
  std::vector<size_t> resized;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (!is_kept(axes[i])) resized.push_back(i);
  }
  if (resized.empty()) resized.push_back(axes.size() - 1);
  BufferId from = context.buffer(context.input(0));
  for (const size_t axis : resized) {
    AxisPass pass = pass_of(mode, axes, axis);
    const bool is_first = axis == resized.front(), is_last = axis == resized.back();
    const BufferId to =
        is_last ? context.buffer(context.output(0)) : context.scratch(checked_bytes(DType::f32, {pass.to_size()}));
    add_pass(context, std::move(pass), runner(type.dtype, is_first, is_last), from, to, mode.mode);
    from = to;
  }
  return true;
}

}  // namespace lathe
