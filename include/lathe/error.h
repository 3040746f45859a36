#pragma once
#include <stdexcept>
#include <string>

namespace lathe {

enum class ErrorCode {
  invalid_model,     // the file is not a model that the ONNX text allows
  unsupported,       // valid, but an operator, type or version that Lathe lacks
  invalid_argument,  // an input, option or name given by the caller
  io,                // a file cannot be read or written
  limit,             // a limit of lathe::Limits or the machine's memory
  internal,          // a bug of Lathe
};

// The only exception that crosses Lathe's border. The message is one line that names the place (file, node, input or
// option), what was expected and what was found.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace lathe
