#include "tuner/candidate.h"

#include <algorithm>
#include <charconv>

#include "lathe/error.h"

namespace lathe {
namespace {

[[noreturn]] void fail(std::string_view text, std::string_view part) {
  throw Error(ErrorCode::invalid_argument,
              "'" + std::string(text) + "' is not a candidate: expected name=number, got '" + std::string(part) + "'");
}

}  // namespace

std::vector<int> with_choice(std::vector<int> choices, int own) {
  if (std::find(choices.begin(), choices.end(), own) == choices.end()) choices.push_back(own);
  return choices;
}

std::vector<int> off_or_on(bool is_possible) {
  if (is_possible) return {0, 1};
  return {0};
}

std::string to_string(const Candidate& candidate) {
  std::string text;
  for (const auto& [name, value] : candidate) {
    if (!text.empty()) text += ' ';
    text += name + '=' + std::to_string(value);
  }
  return text;
}

Candidate parse_candidate(std::string_view text) {
  Candidate candidate;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    const size_t equals = part.find('=');
    if (equals == 0 || equals == std::string_view::npos) fail(text, part);
    int value = 0;
    const char* end = part.data() + part.size();
    const auto [stop, error] = std::from_chars(part.data() + equals + 1, end, value);
    if (error != std::errc() || stop != end) fail(text, part);
    if (!candidate.emplace(part.substr(0, equals), value).second) fail(text, part);
  }
  return candidate;
}

bool is_valid(const SearchSpace& space, const Candidate& candidate) {
  if (candidate.size() != space.knobs.size()) return false;
  for (const Knob& knob : space.knobs) {
    const auto value = candidate.find(knob.name);
    if (value == candidate.end()) return false;
    if (std::find(knob.choices.begin(), knob.choices.end(), value->second) == knob.choices.end()) return false;
  }
  return !space.allowed || space.allowed(candidate);
}

}  // namespace lathe
