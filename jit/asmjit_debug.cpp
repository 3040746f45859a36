// Debian's libasmjit.a is built without -fPIC, and one object of it (globals.cpp.o, which names stderr) cannot be
// linked into a shared library. What the other objects need of that one is defined here, so that the linker leaves it
// out.
#include <asmjit/core.h>

#include <cstdio>
#include <cstdlib>

ASMJIT_BEGIN_NAMESPACE

const char* DebugUtils::errorAsString(Error error) noexcept {
  switch (error) {
    case kErrorOk:
      return "no error";
    case kErrorOutOfMemory:
      return "out of memory";
    case kErrorInvalidInstruction:
      return "invalid instruction";
    case kErrorInvalidPhysId:
      return "invalid register";
    case kErrorNoMorePhysRegs:
      return "no more registers";
    default:
      return "an error of asmjit";
  }
}

void DebugUtils::debugOutput(const char* text) noexcept { std::fputs(text, stderr); }

void DebugUtils::assertionFailed(const char* file, int line, const char* message) noexcept {
  std::fprintf(stderr, "lathe: internal error: asmjit: %s (%s:%d)\n", message, file, line);
  std::abort();
}

ASMJIT_END_NAMESPACE
