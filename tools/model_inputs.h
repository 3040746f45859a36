#pragma once
#include <string>
#include <vector>

#include "lathe/session.h"

namespace CLI {
class App;
}

namespace lathe::tools {

// Where a verb takes the model's inputs from: files, a folder, or made-up elements.
struct InputOptions {
  std::vector<std::string> files;  // name=file.npy, name=file.npz:array, name=file.pb
  std::string directory;           // INDEX.npy, INDEX.pb or [test_data_set_0/]input_INDEX.pb, one per input
  std::string fill = "random";     // random, zeros, ones
  uint64_t seed = 0;
  std::vector<std::string> shapes;  // name:1x3x224x224
  std::vector<std::string> dims;    // symbol=8
  void add_to(CLI::App& verb);
};

// One value per input of the session; what is no tensor is boxed (src/base/box.h). An open extent takes its value from
// --dim, or from the --shape or file of an input that has it too; otherwise it becomes 1. Throws
// Error(invalid_argument) naming the option or input.
std::vector<Tensor> make_inputs(const Session& session, const InputOptions& options);

}  // namespace lathe::tools
