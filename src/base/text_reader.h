#pragma once
// Reads the text forms of plain data (expressions, tasks) from left to right.
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "lathe/error.h"

namespace lathe {

class TextReader {
 public:
  explicit TextReader(std::string_view text) : text_(text) {}

  bool done() const { return at_ == text_.size(); }
  std::string_view rest() const { return text_.substr(at_); }
  bool starts_with(std::string_view word) const { return rest().starts_with(word); }
  // Skips `word` if it comes next.
  bool accept(std::string_view word) {
    if (!starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void expect(std::string_view word) {
    if (!accept(word)) fail("expected '" + std::string(word) + "'");
  }
  int64_t integer() { return number<int64_t>(); }
  float real() { return number<float>(); }
  double real64() { return number<double>(); }
  // Up to and without the next of `ends`, or the rest.
  std::string_view until(std::string_view ends) {
    const std::string_view found = rest().substr(0, rest().find_first_of(ends));
    at_ += found.size();
    return found;
  }
  // Throws Error(invalid_argument).
  [[noreturn]] void fail(const std::string& why) const {
    throw Error(ErrorCode::invalid_argument,
                "'" + std::string(text_) + "' at character " + std::to_string(at_) + ": " + why);
  }

 private:
  template <class T>
  T number() {
    T value{};
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc()) fail("expected a number");
    at_ = static_cast<size_t>(end - text_.data());
    return value;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace lathe
