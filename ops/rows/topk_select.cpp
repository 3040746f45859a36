#include "ops/rows/topk_select.h"

#include <algorithm>
#include <type_traits>

#include "src/base/divide.h"

namespace lathe {
namespace {

constexpr int64_t kLongestTurned = 256;  // of rows that are turned to lie side by side: longer ones soon rule most out

size_t whole_lines(size_t bytes) { return static_cast<size_t>(round_up(static_cast<int64_t>(bytes), 64)); }

}  // namespace

std::optional<TopKSelect> TopKSelect::make(Isa isa, const TopKProblem& problem) {
  if (problem.count < 1 || problem.count > problem.split.extent || problem.split.extent > INT32_MAX) return {};
  if (!visit_elements(problem.dtype, [](auto) {})) return {};
  TopKSelect select(isa, problem);
  select.add_kernels();
  select.capacity_ = topk_pool_capacity(problem.count, problem.split.extent);
  visit_elements(problem.dtype, [&](auto element) {
    using Key = typename decltype(element)::Key;
    select.turned_offset_ = whole_lines(TopKPool<Key>::bytes(problem.count, select.capacity_));
  });
  const int64_t turned = select.turned_columns() * problem.split.extent * bits_of(problem.dtype) / 8;
  select.list_offset_ = select.turned_offset_ + whole_lines(static_cast<size_t>(turned));
  return select;
}

void TopKSelect::add_kernels() {
  const AxisSplit& split = problem_.split;
  const int64_t lanes = vector_lanes(isa_);
  if (bits_of(problem_.dtype) < 64) keep_keys_ = keep_beyond_kernel(isa_, KeepSource::keys);
  if (problem_.dtype == DType::f32) {
    scan_ = FloatScan::make(isa_, order());
    const bool are_columns = split.inner >= lanes;
    const bool are_short_rows = split.inner == 1 && split.outer >= lanes && split.extent <= kLongestTurned;
    const ColumnPlacesPlan plan{isa_, static_cast<int>(std::min<int64_t>(problem_.count, lanes)), order()};
    if ((are_columns || are_short_rows) && problem_.count <= lanes && plan.is_valid()) {
      column_places_ = column_places_kernel(plan);
      if (are_short_rows) turn_ = transpose_kernel(plan_transpose(isa_, lanes, split.extent));
    }
  }
  if (bits_of(problem_.dtype) == 32 && split.inner > 1) {
    turn_ = transpose_kernel(plan_transpose(isa_, split.extent, turned_columns()));
  }
}

// Columns are turned into rows several at a time: lines of the input that hold one hold its neighbours. 256 KB: they
// shall stay in L2. Short rows are turned into columns of a vector.
int64_t TopKSelect::turned_columns() const {
  if (problem_.split.inner == 1) return column_places_ ? vector_lanes(isa_) : 0;
  const int64_t column_bytes = problem_.split.extent * bits_of(problem_.dtype) / 8;
  const int64_t line_columns = 512 / bits_of(problem_.dtype);
  return std::min({line_columns, problem_.split.inner, std::max<int64_t>(1, (256 << 10) / column_bytes)});
}

template <class Element>
void TopKSelect::run_row(const typename Element::Bits* elements, void* scratch, typename Element::Bits* values,
                         int64_t* places, int64_t step) const noexcept {
  using Key = typename Element::Key;
  const int64_t extent = problem_.split.extent, count = problem_.count;
  const auto put = [&](int64_t k, int64_t place) {
    if (values != nullptr) values[k * step] = elements[place];
    if (places != nullptr) places[k * step] = place;
  };
  auto* list = reinterpret_cast<int32_t*>(static_cast<char*>(scratch) + list_offset_);
  if constexpr (std::is_same_v<Element, Float32Element>) {
    const auto* floats = reinterpret_cast<const float*>(elements);
    const int64_t first = count == 1 && extent >= 8 ? scan_.first(floats, extent) : -1;
    if (first >= 0) return put(0, first);
    if (FloatScan::are_few(count, extent)) {
      int32_t chosen[FloatScan::kMostFew];
      scan_.run_few(floats, extent, count, chosen);
      for (int64_t k = 0; k < count; ++k) put(k, chosen[k]);
      return;
    }
  }
  TopKPool<Key> pool(scratch, count, capacity_, keep_keys_ ? keep_keys_.entry() : nullptr, vector_lanes(isa_));
  const TopKRow<Element> row{elements, extent, static_cast<Key>(problem_.is_largest ? 0 : -1), pool};
  if (extent <= pool.room()) {
    row.fill();
  } else if constexpr (std::is_same_v<Element, Float32Element>) {
    scan_.run(row, count, list);
  } else {
    const int64_t at = row.fill();
    pool.shrink();
    row.offer(at);
  }
  int64_t k = 0;
  for (const int32_t chosen : pool.sorted()) put(k++, chosen);
}

// As many rows as a vector has lanes, but those beyond `rows`: how many they are. 0: not such rows, or one has a NaN.
int64_t TopKSelect::run_side_by_side(const uint32_t* from, uint32_t* values, int64_t* places, void* scratch,
                                     Range rows) const noexcept {
  const int64_t lanes = vector_lanes(isa_), inner = problem_.split.inner, extent = problem_.split.extent;
  const bool turns = inner == 1;
  if (!column_places_ || (turns && rows.end - rows.begin < lanes)) return 0;
  const int64_t outer = rows.begin / inner, at = rows.begin % inner, count = problem_.count;
  auto* turned = reinterpret_cast<uint32_t*>(static_cast<char*>(scratch) + turned_offset_);
  auto* chosen = reinterpret_cast<int32_t*>(static_cast<char*>(scratch) + list_offset_);
  // The last columns of a row come with some before them.
  const int64_t first = turns ? 0 : std::min(at, inner - lanes);
  const uint32_t* columns = from + outer * extent * inner + first;
  if (turns) turn_.entry()(columns, turned, extent * 4, lanes * 4, lanes, extent);
  const ColumnPlacesArgs args{reinterpret_cast<const float*>(turns ? turned : columns), 4 * (turns ? lanes : inner),
                              extent, chosen};
  if (column_places_.entry()(&args) == 0) return 0;
  const int64_t lane_stride = turns ? extent : 1, result_stride = turns ? count : 1;
  const int64_t done = std::min<int64_t>(lanes - (at - first), rows.end - rows.begin);
  for (int64_t k = 0; k < count; ++k) {
    for (int64_t lane = at - first; lane < at - first + done; ++lane) {
      const int64_t place = chosen[k * lanes + lane], to = (outer * count + k) * inner + first + lane * result_stride;
      if (values != nullptr) values[to] = columns[place * inner + lane * lane_stride];
      if (places != nullptr) places[to] = place;
    }
  }
  return done;
}

template <class Element>
void TopKSelect::run_as(const void* from, void* values, int64_t* places, void* scratch, Range rows) const noexcept {
  using Bits = typename Element::Bits;
  const int64_t extent = problem_.split.extent, inner = problem_.split.inner, together = turned_columns();
  auto* turned = reinterpret_cast<Bits*>(static_cast<char*>(scratch) + turned_offset_);
  const auto select = [&](int64_t i, const Bits* elements) {
    const int64_t to = i / inner * problem_.count * inner + i % inner;
    run_row<Element>(elements, scratch, values == nullptr ? nullptr : static_cast<Bits*>(values) + to,
                     places == nullptr ? nullptr : places + to, inner);
  };
  for (int64_t i = rows.begin; i < rows.end;) {
    if constexpr (std::is_same_v<Element, Float32Element>) {
      const int64_t done = run_side_by_side(static_cast<const Bits*>(from), static_cast<Bits*>(values), places, scratch,
                                            {static_cast<long>(i), rows.end});
      i += done;
      if (done > 0) continue;
    }
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
