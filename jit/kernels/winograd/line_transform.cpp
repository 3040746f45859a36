#include "jit/kernels/winograd/line_transform.h"

#include <algorithm>
#include <cmath>

#include "jit/kernel.h"

namespace lathe {
namespace {

bool is_equal(double a, double b) { return std::abs(a - b) < 1e-9; }

// Line `first` and line `second` agree up to signs, and not only trivially. `get(line, i)`.
template <class Get>
bool differ_by_signs(int count, int first, int second, Get get) {
  bool has_equal = false, has_opposite = false;
  for (int i = 0; i < count; ++i) {
    const double a = get(first, i), b = get(second, i);
    if (!is_equal(std::abs(a), std::abs(b))) return false;
    if (a == 0) continue;
    (is_equal(a, b) ? has_equal : has_opposite) = true;
  }
  return has_equal && has_opposite;
}

}  // namespace

LineTransform::LineTransform(Xbyak::CodeGenerator& code, Isa isa, Matrix matrix)
    : code_(code), isa_(isa), matrix_(std::move(matrix)) {
  find_pairs();
}

void LineTransform::find_pairs() {
  std::vector<bool> is_paired(static_cast<size_t>(matrix_.rows));
  const auto by_row = [&](int row, int i) { return matrix_.at(row, i); };
  const auto by_column = [&](int column, int i) { return matrix_.at(i, column); };
  for (int i = 0; i < matrix_.rows; ++i) {
    for (int j = i + 1; j < matrix_.rows && !is_paired[static_cast<size_t>(i)]; ++j) {
      if (is_paired[static_cast<size_t>(j)] || !differ_by_signs(matrix_.columns, i, j, by_row)) continue;
      row_pairs_.push_back({i, j});
      is_paired[static_cast<size_t>(i)] = is_paired[static_cast<size_t>(j)] = true;
    }
    if (!is_paired[static_cast<size_t>(i)]) single_rows_.push_back(i);
  }
  if (!row_pairs_.empty()) return;
  std::vector<bool> is_used(static_cast<size_t>(matrix_.columns));
  for (int i = 0; i < matrix_.columns; ++i) {
    for (int j = i + 1; j < matrix_.columns && !is_used[static_cast<size_t>(i)]; ++j) {
      if (is_used[static_cast<size_t>(j)] || !differ_by_signs(matrix_.rows, i, j, by_column)) continue;
      column_pairs_.push_back({i, j});
      is_used[static_cast<size_t>(i)] = is_used[static_cast<size_t>(j)] = true;
    }
  }
  for (const Pair& pair : column_pairs_) {
    for (int row = 0; row < matrix_.rows; ++row) {
      // From now on the first column stands for the sum and the second for the difference.
      double &sum = matrix_.at(row, pair.first), &difference = matrix_.at(row, pair.second);
      if (is_equal(sum, difference)) {
        difference = 0;
      } else {
        difference = sum;
        sum = 0;
      }
    }
  }
}

void LineTransform::combine_columns(std::vector<Input>& inputs, Vec& spare) {
  for (const Pair& pair : column_pairs_) {
    Input &a = inputs[static_cast<size_t>(pair.first)], &b = inputs[static_cast<size_t>(pair.second)];
    if (!a || !b) throw JitError("a line transform with paired columns takes no zeros");
    code_.vsubps(spare, *a, *b);
    code_.vaddps(*a, *a, *b);
    std::swap(spare, *b);
  }
}

std::vector<LineTransform::Term> LineTransform::terms_of(int row, const std::vector<Input>& inputs) const {
  std::vector<Term> terms;
  for (int column = 0; column < matrix_.columns; ++column) {
    const auto factor = static_cast<float>(matrix_.at(row, column));
    const Input& input = inputs[static_cast<size_t>(column)];
    if (factor != 0 && input) terms.push_back({factor, input});
  }
  return terms;
}

LineTransform::Input LineTransform::sum(std::vector<Term> terms, const Vec& into) {
  if (terms.empty()) return {};
  std::stable_partition(terms.begin(), terms.end(), [](const Term& term) { return term.factor == 1; });
  const Term& first = terms[0];
  if (terms.size() == 1) {
    if (first.factor == 1) return first.input;
    code_.vmulps(into, *first.input, constant(first.factor));
    return into;
  }
  size_t next = 1;
  if (first.factor != 1) {
    code_.vmulps(into, *first.input, constant(first.factor));
  } else {
    const Term& second = terms[next++];
    if (second.factor == 1) {
      code_.vaddps(into, *first.input, *second.input);
    } else if (second.factor == -1) {
      code_.vsubps(into, *first.input, *second.input);
    } else {
      code_.vmovaps(into, *first.input);
      --next;
    }
  }
  for (; next < terms.size(); ++next) {
    const Term& term = terms[next];
    if (term.factor == 1) {
      code_.vaddps(into, into, *term.input);
    } else if (term.factor == -1) {
      code_.vsubps(into, into, *term.input);
    } else {
      code_.vfmadd231ps(into, *term.input, constant(term.factor));
    }
  }
  return into;
}

void LineTransform::emit_pair(const Pair& pair, const std::vector<Input>& inputs, const Vec* temps,
                              const std::function<void(int, const Vec&)>& use) {
  std::vector<Term> same, opposite;
  for (int column = 0; column < matrix_.columns; ++column) {
    const double a = matrix_.at(pair.first, column), b = matrix_.at(pair.second, column);
    const Input& input = inputs[static_cast<size_t>(column)];
    if (a == 0 || !input) continue;
    (is_equal(a, b) ? same : opposite).push_back({static_cast<float>(a), input});
  }
  const Input even = sum(same, temps[0]), odd = sum(opposite, temps[1]);
  const Vec& result = temps[2];
  if (!even && !odd) {
    for (const int row : {pair.first, pair.second}) {
      zero(result);
      use(row, result);
    }
  } else if (!odd) {
    for (const int row : {pair.first, pair.second}) {
      code_.vmovaps(result, *even);
      use(row, result);
    }
  } else if (!even) {
    code_.vmovaps(result, *odd);
    use(pair.first, result);
    zero(result);
    code_.vsubps(result, result, *odd);
    use(pair.second, result);
  } else {
    code_.vaddps(result, *even, *odd);
    use(pair.first, result);
    code_.vsubps(result, *even, *odd);
    use(pair.second, result);
  }
}

void LineTransform::emit(std::vector<Input> inputs, std::span<const Vec> temps,
                         const std::function<void(int, const Vec&)>& use) {
  std::vector<Vec> own(temps.begin(), temps.end());
  combine_columns(inputs, own[0]);
  for (const Pair& pair : row_pairs_) emit_pair(pair, inputs, own.data(), use);
  for (const int row : single_rows_) {
    const Input result = sum(terms_of(row, inputs), own[2]);
    if (!result) {
      zero(own[2]);
    } else if (result->getIdx() != own[2].getIdx()) {
      code_.vmovaps(own[2], *result);
    }
    use(row, own[2]);
  }
}

void LineTransform::zero(const Vec& vec) {
  if (has_avx512(isa_)) {
    code_.vpxord(vec, vec, vec);
  } else {
    code_.vxorps(vec, vec, vec);
  }
}

Xbyak::Address LineTransform::constant(float value) { return code_.ptr[code_.rip + constants_[value]]; }

void LineTransform::emit_constants() {
  for (auto& [value, label] : constants_) {
    code_.align(64);
    code_.L(label);
    uint32_t bits = 0;
    static_assert(sizeof bits == sizeof value);
    std::copy_n(reinterpret_cast<const char*>(&value), sizeof value, reinterpret_cast<char*>(&bits));
    for (int lane = 0; lane < vector_lanes(isa_); ++lane) code_.dd(bits);
  }
}

}  // namespace lathe
