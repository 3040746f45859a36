#pragma once
#include <string>
#include <vector>

namespace lathe {

// While it lives: the keys that this thread asks cached_code() for (jit/kernel.h), each once, in the order of their
// first time. Only the innermost one listens. For `lathe inspect --asm`.
class CodeListener {
 public:
  CodeListener();
  ~CodeListener();
  CodeListener(const CodeListener&) = delete;
  CodeListener& operator=(const CodeListener&) = delete;
  void hear(const std::string& key);
  const std::vector<std::string>& keys() const { return keys_; }

 private:
  std::vector<std::string> keys_;
  CodeListener* outer_;
};

}  // namespace lathe
