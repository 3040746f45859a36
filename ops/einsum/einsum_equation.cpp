#include "ops/einsum/einsum_equation.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "ops/copy/copy_elements.h"

namespace lathe {
namespace {

constexpr int kLetters = 128;  // a letter's number is its code, so that they sort as numpy sorts them
constexpr int kMostEllipsisAxes = 64;

[[noreturn]] void reject(const std::string& what) { throw std::invalid_argument(what); }

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// One term: its letters, and where among them the ellipsis stands (-1: it has none).
struct Term {
  std::vector<int> letters;
  int ellipsis = -1;
};

Term parse_term(const std::string& text) {
  Term term;
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_letter(text[i])) {
      term.letters.push_back(text[i]);
    } else if (text.compare(i, 3, "...") == 0 && term.ellipsis < 0) {
      term.ellipsis = static_cast<int>(term.letters.size());
      i += 2;
    } else {
      reject("the term '" + text + "' of the equation is malformed");
    }
  }
  return term;
}

std::vector<Term> parse_terms(const std::string& text) {
  std::vector<Term> terms;
  for (size_t begin = 0;;) {
    const size_t end = text.find(',', begin);
    terms.push_back(parse_term(text.substr(begin, end - begin)));
    if (end == std::string::npos) return terms;
    begin = end + 1;
  }
}

// The axes of a term whose ellipsis stands for `count` axes. The last axis of any ellipsis has the largest number.
std::vector<int> axes_of(const Term& term, int count) {
  std::vector<int> axes = term.letters;
  if (term.ellipsis < 0) return axes;
  std::vector<int> open;
  for (int i = count; i > 0; --i) open.push_back(kLetters + kMostEllipsisAxes - i);
  axes.insert(axes.begin() + term.ellipsis, open.begin(), open.end());
  return axes;
}

// Without an arrow: the axes of the ellipsis, then the letters that occur once, sorted.
std::vector<int> implied_result(const EinsumEquation& equation, int ellipsis_count) {
  std::map<int, int> uses;
  for (const std::vector<int>& axes : equation.operands) {
    for (const int axis : axes) ++uses[axis];
  }
  std::vector<int> result = axes_of({{}, 0}, ellipsis_count);
  for (const auto& [axis, count] : uses) {
    if (axis < kLetters && count == 1) result.push_back(axis);
  }
  return result;
}

void check_result(const EinsumEquation& equation) {
  for (size_t i = 0; i < equation.result.size(); ++i) {
    const int axis = equation.result[i];
    if (std::count(equation.result.begin(), equation.result.end(), axis) > 1) {
      reject("the equation's result names an axis twice");
    }
    const bool is_there = std::any_of(equation.operands.begin(), equation.operands.end(), [&](const auto& axes) {
      return std::find(axes.begin(), axes.end(), axis) != axes.end();
    });
    if (!is_there) reject("the equation's result names an axis that no operand has");
  }
}

}  // namespace

EinsumEquation parse_einsum(const std::string& text, const std::vector<int>& ranks) {
  std::string equation_text;
  std::copy_if(text.begin(), text.end(), std::back_inserter(equation_text), [](char c) { return c != ' '; });
  const size_t arrow = equation_text.find("->");
  const std::vector<Term> terms = parse_terms(equation_text.substr(0, arrow));
  if (terms.size() != ranks.size()) {
    reject("the equation '" + text + "' has " + std::to_string(terms.size()) + " terms for " +
           std::to_string(ranks.size()) + " inputs");
  }
  EinsumEquation equation;
  int ellipsis_count = 0;
  for (size_t i = 0; i < terms.size(); ++i) {
    const int open = ranks[i] - static_cast<int>(terms[i].letters.size());
    const bool has_ellipsis = terms[i].ellipsis >= 0;
    if (open < 0 || (open > 0 && !has_ellipsis) || open > kMostEllipsisAxes) {
      reject("input " + std::to_string(i) + " has rank " + std::to_string(ranks[i]) + ", its term in '" + text +
             "' names " + std::to_string(terms[i].letters.size()) + " axes");
    }
    if (has_ellipsis) ellipsis_count = std::max(ellipsis_count, open);
    equation.operands.push_back(axes_of(terms[i], open));
  }
  equation.result = arrow == std::string::npos ? implied_result(equation, ellipsis_count)
                                               : axes_of(parse_term(equation_text.substr(arrow + 2)), ellipsis_count);
  check_result(equation);
  return equation;
}

int64_t EinsumView::stride_of(int axis) const {
  const auto found = std::find(axes.begin(), axes.end(), axis);
  return found == axes.end() ? 0 : strides[static_cast<size_t>(found - axes.begin())];
}

bool EinsumView::has(int axis) const { return std::find(axes.begin(), axes.end(), axis) != axes.end(); }

EinsumView einsum_view(const std::vector<int>& axes, const Dims& dims) {
  EinsumView view;
  const std::vector<int64_t> strides = strides_of(dims);
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto found = std::find(view.axes.begin(), view.axes.end(), axes[i]);
    const int64_t stride = dims[i] == 1 ? 0 : strides[i];
    if (found == view.axes.end()) {
      view.axes.push_back(axes[i]);
      view.extents.push_back(dims[i]);
      view.strides.push_back(stride);
      continue;
    }
    const auto at = static_cast<size_t>(found - view.axes.begin());
    if (view.extents[at] != dims[i]) {
      reject("a diagonal has the extents " + std::to_string(view.extents[at]) + " and " + std::to_string(dims[i]));
    }
    view.strides[at] += stride;
  }
  return view;
}

std::vector<int64_t> einsum_extents(const std::vector<EinsumView>& views) {
  std::vector<int64_t> extents(kLetters + kMostEllipsisAxes, -1);
  for (const EinsumView& view : views) {
    for (size_t i = 0; i < view.axes.size(); ++i) {
      int64_t& extent = extents[static_cast<size_t>(view.axes[i])];
      if (extent < 0 || extent == 1) {
        extent = view.extents[i];
      } else if (view.extents[i] != 1 && view.extents[i] != extent) {
        reject("an axis has the extents " + std::to_string(extent) + " and " + std::to_string(view.extents[i]));
      }
    }
  }
  return extents;
}

}  // namespace lathe
