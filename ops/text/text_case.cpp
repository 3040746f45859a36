#include "ops/text/text_case.h"

#include <clocale>
#include <cstdint>
#include <cwctype>
#include <optional>

namespace lathe {
namespace {

// glibc has this locale built in. Null elsewhere: then only ASCII changes.
locale_t unicode_locale() {
  static const locale_t locale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return locale;
}

struct Character {
  uint32_t code;
  size_t bytes;
};

// The character at `at`; nullopt when its bytes are malformed.
std::optional<Character> character_at(const std::string& text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (lead < 0x80) return Character{lead, 1};
  const size_t bytes = lead >= 0xf0 && lead < 0xf8 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 0;
  if (bytes == 0 || lead >= 0xf8 || at + bytes > text.size()) return std::nullopt;
  uint32_t code = lead & (0x7fU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[at + i]);
    if ((next & 0xc0) != 0x80) return std::nullopt;
    code = code << 6 | (next & 0x3f);
  }
  static constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (code < kSmallest[bytes] || code > 0x10ffff) return std::nullopt;
  return Character{code, bytes};
}

void append(std::string& text, uint32_t code) {
  const auto byte = [&](uint32_t value) { text += static_cast<char>(value); };
  if (code < 0x80) return byte(code);
  if (code < 0x800) {
    byte(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      byte(0xe0 | code >> 12);
    } else {
      byte(0xf0 | code >> 18);
      byte(0x80 | (code >> 12 & 0x3f));
    }
    byte(0x80 | (code >> 6 & 0x3f));
  }
  byte(0x80 | (code & 0x3f));
}

template <class Map>
std::string mapped(const std::string& text, Map map) {
  std::string result;
  result.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const std::optional<Character> character = character_at(text, at);
    if (!character) {
      result += text[at++];
      continue;
    }
    append(result, map(character->code));
    at += character->bytes;
  }
  return result;
}

}  // namespace

std::string upper_case(const std::string& text) {
  return mapped(text, [](uint32_t code) -> uint32_t {
    if (code < 0x80 || unicode_locale() == nullptr) return code >= 'a' && code <= 'z' ? code - 32 : code;
    return static_cast<uint32_t>(towupper_l(static_cast<wint_t>(code), unicode_locale()));
  });
}

std::string lower_case(const std::string& text) {
  return mapped(text, [](uint32_t code) -> uint32_t {
    if (code < 0x80 || unicode_locale() == nullptr) return code >= 'A' && code <= 'Z' ? code + 32 : code;
    return static_cast<uint32_t>(towlower_l(static_cast<wint_t>(code), unicode_locale()));
  });
}

}  // namespace lathe
