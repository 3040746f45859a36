#pragma once
#include <memory>
#include <string>

namespace re2 {
class RE2;
}

namespace lathe {

// A regular expression of RE2's syntax, which ONNX asks for: matched in time linear in the text, whatever the pattern.
class Regex {
 public:
  // Throws Error(invalid_model) on a malformed pattern or one that is too large.
  explicit Regex(const std::string& pattern);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;
  bool matches_all_of(const std::string& text) const;

 private:
  std::unique_ptr<re2::RE2> compiled_;
};

}  // namespace lathe
