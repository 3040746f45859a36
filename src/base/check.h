#pragma once
#include "lathe/error.h"

namespace lathe {
[[noreturn]] void fail_check(const char* condition, const std::string& what, const char* file, int line);
}  // namespace lathe

// An invariant of Lathe's own; never for user input. On in release builds. Throws Error(internal).
#define LATHE_CHECK(condition, what)                                               \
  do {                                                                             \
    if (!(condition)) ::lathe::fail_check(#condition, (what), __FILE__, __LINE__); \
  } while (false)
