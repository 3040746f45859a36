#include "ops/text/regex.h"

#include <re2/re2.h>

#include "graph/text.h"
#include "lathe/error.h"

namespace lathe {
namespace {

re2::RE2::Options quiet() {
  re2::RE2::Options options;
  options.set_log_errors(false);
  return options;
}

}  // namespace

Regex::Regex(const std::string& pattern) : compiled_(std::make_unique<re2::RE2>(pattern, quiet())) {
  if (!compiled_->ok()) {
    throw Error(ErrorCode::invalid_model, "regular expression " + in_quotes(pattern) + ": " + compiled_->error());
  }
}

Regex::~Regex() = default;

bool Regex::matches_all_of(const std::string& text) const { return re2::RE2::FullMatch(text, *compiled_); }

}  // namespace lathe
