#pragma once
#include <string>

#include "lathe/session.h"

namespace CLI {
class App;
}

namespace lathe::tools {

// Exit codes of every verb.
enum ExitCode { kGood = 0, kUsage = 2, kCannotLoad = 3, kMismatch = 4, kCannotRun = 5 };

// The options that every verb with a MODEL shares.
struct ModelOptions {
  std::string model;
  SessionOptions session;
  void add_to(CLI::App& verb);
};

}  // namespace lathe::tools
