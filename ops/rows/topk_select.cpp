#include "ops/rows/topk_select.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

namespace lathe {
namespace {

// ---- Keys: unsigned numbers in the order of the elements

// Sign and magnitude, as floating point has them, in one order. `infinity`: the bits above which a magnitude is NaN.
template <class Bits>
Bits key_of_float(Bits bits, Bits infinity) {
  constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
  const Bits magnitude = bits & static_cast<Bits>(~kSign);
  if (magnitude > infinity) return static_cast<Bits>(~Bits{0});
  if (magnitude == 0) return kSign;
  return (bits & kSign) != 0 ? static_cast<Bits>(~bits) : static_cast<Bits>(bits | kSign);
}

struct Float32 {
  using Bits = uint32_t;
  static Bits key(Bits bits) { return key_of_float<Bits>(bits, 0x7f800000U); }
};
struct Float64 {
  using Bits = uint64_t;
  static Bits key(Bits bits) { return key_of_float<Bits>(bits, 0x7ff0000000000000U); }
};
struct Float16 {
  using Bits = uint16_t;
  static Bits key(Bits bits) { return key_of_float<Bits>(bits, 0x7c00U); }
};
struct BFloat16 {
  using Bits = uint16_t;
  static Bits key(Bits bits) { return key_of_float<Bits>(bits, 0x7f80U); }
};
template <class T>
struct Unsigned {
  using Bits = T;
  static Bits key(Bits bits) { return bits; }
};
template <class T>
struct Signed {
  using Bits = T;
  static Bits key(Bits bits) { return static_cast<Bits>(bits ^ (T{1} << (8 * sizeof(T) - 1))); }
};

// What is chosen first is smallest: its key, inverted where large elements come first, then its place.
struct WideChoice {
  uint64_t key;
  uint64_t place;
  bool operator<(const WideChoice& other) const { return key < other.key || (key == other.key && place < other.place); }
};
template <class Bits>
using ChoiceOf = std::conditional_t<sizeof(Bits) == 8, WideChoice, uint64_t>;

uint64_t place_of(uint64_t choice) { return choice & 0xffffffffU; }
uint64_t place_of(const WideChoice& choice) { return choice.place; }

template <class Bits>
ChoiceOf<Bits> choice_of(Bits key, uint64_t place) {
  if constexpr (sizeof(Bits) == 8) {
    return {key, place};
  } else {
    return static_cast<uint64_t>(key) << 32 | place;
  }
}

// Replaces the last choice of a heap by an earlier one.
template <class Choice>
void replace_top(Choice* heap, int64_t count, const Choice& choice) {
  int64_t at = 0;
  for (int64_t child = 1; child < count; child = 2 * at + 1) {
    if (child + 1 < count && heap[child] < heap[child + 1]) ++child;
    if (!(choice < heap[child])) break;
    heap[at] = heap[child];
    at = child;
  }
  heap[at] = choice;
}

template <bool IsLargest>
[[gnu::target("avx2")]] inline __m256 further(__m256 a, __m256 b) {
  return IsLargest ? _mm256_max_ps(a, b) : _mm256_min_ps(a, b);
}

// The first of the largest (smallest) elements; -1: one is NaN. Requires: extent >= 8.
template <bool IsLargest>
[[gnu::target("avx2")]] int64_t first_extreme(const float* row, int64_t extent) {
  __m256 best = _mm256_loadu_ps(row + extent - 8), is_nan = _mm256_cmp_ps(best, best, _CMP_UNORD_Q);
  for (int64_t i = 0; i + 8 <= extent; i += 8) {
    const __m256 x = _mm256_loadu_ps(row + i);
    best = further<IsLargest>(best, x);
    is_nan = _mm256_or_ps(is_nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  }
  if (_mm256_movemask_ps(is_nan) != 0) return -1;
  best = further<IsLargest>(best, _mm256_permute2f128_ps(best, best, 1));
  best = further<IsLargest>(best, _mm256_permute_ps(best, 0x4e));
  best = further<IsLargest>(best, _mm256_permute_ps(best, 0xb1));
  int64_t i = 0;
  for (; i + 8 <= extent; i += 8) {
    const int equal = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(row + i), best, _CMP_EQ_OQ));
    if (equal != 0) return i + std::countr_zero(static_cast<unsigned>(equal));
  }
  const float value = _mm256_cvtss_f32(best);
  while (row[i] != value) ++i;
  return i;
}

template <class Element>
struct Row {
  using Bits = typename Element::Bits;
  using Choice = ChoiceOf<Bits>;

  const Bits* elements;
  int64_t extent;
  bool is_largest;

  Choice choice(int64_t place) const {
    const Bits key = Element::key(elements[place]);
    return choice_of<Bits>(is_largest ? static_cast<Bits>(~key) : key, static_cast<uint64_t>(place));
  }

  void fill(Choice* choices, int64_t count) const {
    for (int64_t i = 0; i < count; ++i) choices[i] = choice(i);
  }

  void offer(Choice* heap, int64_t count, int64_t begin, int64_t end) const {
    for (int64_t i = begin; i < end; ++i) {
      const Choice candidate = choice(i);
      if (candidate < heap[0]) replace_top(heap, count, candidate);
    }
  }

  // The same of float32, which looks closely only at those that the last choice does not rule out: NaN, on either side,
  // rules out none.
  [[gnu::target("avx2")]] void offer_floats(Choice* heap, int64_t count, int64_t begin, int64_t end) const {
    const auto* floats = reinterpret_cast<const float*>(elements);
    int64_t i = begin;
    for (; i + 8 <= end; i += 8) {
      const __m256 x = _mm256_loadu_ps(floats + i), last = _mm256_set1_ps(floats[place_of(heap[0])]);
      const __m256 may_be = is_largest ? _mm256_cmp_ps(x, last, _CMP_NLE_UQ) : _mm256_cmp_ps(x, last, _CMP_NGE_UQ);
      for (auto left = static_cast<unsigned>(_mm256_movemask_ps(may_be)); left != 0; left &= left - 1) {
        const Choice candidate = choice(i + std::countr_zero(left));
        if (candidate < heap[0]) replace_top(heap, count, candidate);
      }
    }
    offer(heap, count, i, end);
  }

  // A heap of the choices so far, whose last one is the threshold for what follows.
  void select_few(Choice* heap, int64_t count, const Kernel<FindBeyondFn>& find_beyond, int64_t lanes) const {
    fill(heap, count);
    std::make_heap(heap, heap + count);
    int64_t at = count;
    if (find_beyond) {
      if constexpr (std::is_same_v<Element, Float32>) {
        const auto* floats = reinterpret_cast<const float*>(elements);
        while (at < extent) {
          const float threshold = floats[place_of(heap[0])];
          if (is_largest && threshold != threshold) return;  // nothing is larger than NaN
          at += find_beyond.entry()(floats + at, extent - at, &threshold);
          const int64_t end = std::min(extent, at + lanes);
          offer_floats(heap, count, at, end);
          at = end;
        }
      }
    }
    offer(heap, count, at, extent);
  }

  // `choices` has room for all elements; the first `count` are selected.
  void select_many(Choice* choices, int64_t count) const {
    fill(choices, extent);
    if (count < extent) std::nth_element(choices, choices + count, choices + extent);
  }
};

template <class Visit>
bool visit_elements(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::f32:
      visit(Float32{});
      return true;
    case DType::f64:
      visit(Float64{});
      return true;
    case DType::f16:
      visit(Float16{});
      return true;
    case DType::bf16:
      visit(BFloat16{});
      return true;
    case DType::i8:
      visit(Signed<uint8_t>{});
      return true;
    case DType::i16:
      visit(Signed<uint16_t>{});
      return true;
    case DType::i32:
      visit(Signed<uint32_t>{});
      return true;
    case DType::i64:
      visit(Signed<uint64_t>{});
      return true;
    case DType::u8:
      visit(Unsigned<uint8_t>{});
      return true;
    case DType::u16:
      visit(Unsigned<uint16_t>{});
      return true;
    case DType::u32:
      visit(Unsigned<uint32_t>{});
      return true;
    case DType::u64:
      visit(Unsigned<uint64_t>{});
      return true;
    default:
      return false;
  }
}

}  // namespace

std::optional<TopKSelect> TopKSelect::make(Isa isa, const TopKProblem& problem) {
  if (problem.count < 1 || problem.count > problem.split.extent || problem.split.extent > INT32_MAX) return {};
  if (!visit_elements(problem.dtype, [](auto) {})) return {};
  TopKSelect select(problem);
  if (problem.dtype == DType::f32 && select.keeps_few())
    select.find_beyond_ = find_beyond_kernel(isa, problem.is_largest ? Beyond::larger : Beyond::smaller);
  if (bits_of(problem.dtype) == 32 && problem.split.inner > 1) {
    select.turn_ = transpose_kernel(plan_transpose(isa, problem.split.extent, select.turned_columns()));
  }
  return select;
}

// A heap pays where few of the elements enter it: about count * (1 + ln(extent / count)) of them.
bool TopKSelect::keeps_few() const { return problem_.count <= problem_.split.extent / 8; }

size_t TopKSelect::choice_bytes() const {
  const size_t each = bits_of(problem_.dtype) == 64 ? sizeof(WideChoice) : sizeof(uint64_t);
  return each * static_cast<size_t>(keeps_few() ? problem_.count : problem_.split.extent);
}

// Columns are turned into rows several at a time: lines of the input that hold one hold its neighbours. 256 KB: they
// shall stay in L2.
int64_t TopKSelect::turned_columns() const {
  const int64_t column_bytes = problem_.split.extent * bits_of(problem_.dtype) / 8;
  const int64_t line_columns = 512 / bits_of(problem_.dtype);
  return problem_.split.inner == 1
             ? 0
             : std::min({line_columns, problem_.split.inner, std::max<int64_t>(1, (256 << 10) / column_bytes)});
}

size_t TopKSelect::scratch_bytes() const {
  return choice_bytes() + static_cast<size_t>(turned_columns() * problem_.split.extent * bits_of(problem_.dtype) / 8);
}

template <class Element>
void TopKSelect::run_row(const typename Element::Bits* elements, void* scratch, typename Element::Bits* values,
                         int64_t* places, int64_t step) const noexcept {
  constexpr int64_t kLanes = 16;  // looked at closely where one of them may be chosen
  const int64_t extent = problem_.split.extent, count = problem_.count;
  const Row<Element> row{elements, extent, problem_.is_largest};
  if constexpr (std::is_same_v<Element, Float32>) {
    if (count == 1 && extent >= 8) {
      const auto* floats = reinterpret_cast<const float*>(elements);
      const int64_t best =
          problem_.is_largest ? first_extreme<true>(floats, extent) : first_extreme<false>(floats, extent);
      if (best >= 0) {
        if (values != nullptr) *values = elements[best];
        if (places != nullptr) *places = best;
        return;
      }
    }
  }
  auto* choices = static_cast<ChoiceOf<typename Element::Bits>*>(scratch);
  keeps_few() ? row.select_few(choices, count, find_beyond_, kLanes) : row.select_many(choices, count);
  std::sort(choices, choices + count);
  for (int64_t k = 0; k < count; ++k) {
    const auto chosen = static_cast<int64_t>(place_of(choices[k]));
    if (values != nullptr) values[k * step] = elements[chosen];
    if (places != nullptr) places[k * step] = chosen;
  }
}

template <class Element>
void TopKSelect::run_as(const void* from, void* values, int64_t* places, void* scratch, Range rows) const noexcept {
  using Bits = typename Element::Bits;
  const int64_t extent = problem_.split.extent, inner = problem_.split.inner, together = turned_columns();
  auto* turned = reinterpret_cast<Bits*>(static_cast<char*>(scratch) + choice_bytes());
  const auto select = [&](int64_t i, const Bits* elements) {
    const int64_t to = i / inner * problem_.count * inner + i % inner;
    run_row<Element>(elements, scratch, values == nullptr ? nullptr : static_cast<Bits*>(values) + to,
                     places == nullptr ? nullptr : places + to, inner);
  };
  for (int64_t i = rows.begin; i < rows.end;) {
    const Bits* elements = static_cast<const Bits*>(from) + i / inner * extent * inner + i % inner;
    if (inner == 1) {
      select(i++, elements);
      continue;
    }
    const int64_t columns = std::min({together, inner - i % inner, rows.end - i});
    if (turn_ && columns == together) {
      turn_.entry()(elements, turned, inner * 4, extent * 4, extent, columns);
    } else {
      for (int64_t k = 0; k < extent; ++k) {
        for (int64_t column = 0; column < columns; ++column) turned[column * extent + k] = elements[k * inner + column];
      }
    }
    for (int64_t column = 0; column < columns; ++column) select(i + column, turned + column * extent);
    i += columns;
  }
}

void TopKSelect::run(const void* from, void* values, int64_t* places, void* scratch, Range rows) const noexcept {
  visit_elements(problem_.dtype, [&](auto element) { run_as<decltype(element)>(from, values, places, scratch, rows); });
}

}  // namespace lathe
