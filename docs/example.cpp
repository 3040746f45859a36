// Loads a model, fills its inputs with ones, runs it, prints what came out. CI builds and runs this file.
#include <algorithm>
#include <iostream>

#include "lathe/lathe.h"

int main(int argc, char** argv) try {
  if (argc != 2) return std::cerr << "usage: example MODEL.onnx\n", 2;
  lathe::SessionOptions options;
  options.threads = 2;
  const lathe::Session session = lathe::Session::load(argv[1], options);

  std::vector<lathe::Tensor> inputs;
  for (lathe::ValueInfo input : session.inputs()) {
    for (int64_t& extent : input.dims) extent = extent < 0 ? 1 : extent;  // -1: open, any extent will do
    inputs.emplace_back(input.dtype, input.dims);
    if (input.dtype == lathe::DType::f32) std::fill_n(inputs.back().mutable_data<float>(), inputs.back().size(), 1.0F);
  }

  const std::vector<lathe::Tensor> outputs = session.run(inputs);
  for (size_t i = 0; i < outputs.size(); ++i)
    std::cout << session.outputs()[i].name << ": " << name_of(outputs[i].dtype()) << " "
              << lathe::to_string(outputs[i].dims()) << "\n";
} catch (const lathe::Error& error) {
  return std::cerr << error.what() << "\n", 1;
}
