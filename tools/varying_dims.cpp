#include "tools/varying_dims.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "lathe/error.h"

namespace lathe::tools {
namespace {

constexpr std::string_view kDots = "..";
constexpr int64_t kMostRuns = 100'000;
constexpr std::string_view kNoRange = "is no range of extents: SYMBOL=FIRST..LAST or SYMBOL=FIRST..LAST..STEP";

bool is_range(std::string_view dim) {
  const size_t sign = dim.rfind('=');
  return sign != std::string_view::npos && dim.find(kDots, sign) != std::string_view::npos;
}

[[noreturn]] void fail(std::string_view dim, std::string_view why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("option --dim: '{}' {}", dim, why));
}

std::vector<int64_t> numbers_in(std::string_view dim, std::string_view text) {
  std::vector<int64_t> numbers;
  for (;;) {
    const size_t end = std::min(text.find(kDots), text.size());
    const std::string_view word = text.substr(0, end);
    int64_t& number = numbers.emplace_back();
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc{} || stop != word.data() + word.size() || number < 0) fail(dim, kNoRange);
    if (end == text.size()) return numbers;
    text.remove_prefix(end + kDots.size());
  }
}

std::vector<std::string> values_of(std::string_view dim) {
  const size_t sign = dim.rfind('=');
  const std::vector<int64_t> numbers = numbers_in(dim, dim.substr(sign + 1));
  const int64_t step = numbers.size() == 3 ? numbers[2] : 1;
  if (numbers.size() > 3 || step == 0) fail(dim, kNoRange);
  const int64_t first = numbers[0], last = numbers[1], steps = std::abs(last - first) / step;
  if (steps >= kMostRuns) fail(dim, fmt::format("has more than {} values", kMostRuns));
  std::vector<std::string> values;
  for (int64_t i = 0; i <= steps; ++i)
    values.push_back(fmt::format("{}={}", dim.substr(0, sign), first < last ? first + i * step : first - i * step));
  return values;
}

}  // namespace

bool has_range(const std::vector<std::string>& dims) { return std::any_of(dims.begin(), dims.end(), is_range); }

std::vector<std::vector<std::string>> dims_of_runs(const std::vector<std::string>& dims) {
  std::vector<std::vector<std::string>> runs;
  const std::string* first = nullptr;
  for (const std::string& dim : dims) {
    if (!is_range(dim)) continue;
    const std::vector<std::string> values = values_of(dim);
    if (first == nullptr) {
      first = &dim;
      runs.resize(values.size());
    } else if (values.size() != runs.size()) {
      fail(dim, fmt::format("has {} values, '{}' has {}: they advance together", values.size(), *first, runs.size()));
    }
    for (size_t i = 0; i < runs.size(); ++i) runs[i].push_back(values[i]);
  }
  for (const std::string& dim : dims)
    if (!is_range(dim))
      for (std::vector<std::string>& run : runs) run.push_back(dim);
  return runs;
}

}  // namespace lathe::tools
