#pragma once
#include <chrono>
#include <string>

namespace lathe::tools {

// One line on stderr that tells how far long work has come, rewritten in place; gone at the end. Writes nothing unless
// stderr is a terminal.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  // At most a few times a second reach the terminal.
  void show(const std::string& text);
  void clear();

 private:
  const bool is_terminal_;
  bool is_shown_ = false;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace lathe::tools
