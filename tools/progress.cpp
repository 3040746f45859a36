#include "tools/progress.h"

#include <unistd.h>

#include <cstdio>

namespace lathe::tools {

Progress::Progress() : is_terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() { clear(); }

void Progress::show(const std::string& text) {
  constexpr std::chrono::milliseconds kBetween{200};
  if (!is_terminal_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + kBetween;
  is_shown_ = true;
  std::fprintf(stderr, "\r%s\x1b[K", text.c_str());
}

void Progress::clear() {
  if (is_shown_) std::fputs("\r\x1b[K", stderr);
  is_shown_ = false;
}

}  // namespace lathe::tools
