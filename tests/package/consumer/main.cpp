// A program outside of Lathe's tree: makes the bytes of a one-node model, runs it, and expects a refusal of a broken
// one.
#include <cstdio>
#include <span>
#include <string>

#include "lathe/lathe.h"

namespace {

// Protocol-buffer fields: a length-delimited one and a small number.
std::string field(int number, const std::string& payload) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(payload.size())} + payload;
}
std::string field(int number, int value) {
  return std::string{static_cast<char>(number << 3), static_cast<char>(value)};
}

std::string value_info(const std::string& name) {
  const std::string shape = field(1, field(1, 4));                   // dim { dim_value: 4 }
  const std::string type = field(1, field(1, 1) + field(2, shape));  // tensor_type { elem_type: FLOAT, shape }
  return field(1, name) + field(2, type);
}

std::string relu_model() {
  const std::string node = field(1, "x") + field(2, "y") + field(3, "relu") + field(4, "Relu");
  const std::string graph = field(1, node) + field(2, "g") + field(11, value_info("x")) + field(12, value_info("y"));
  return field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 14));  // ir_version, graph, opset_import
}

}  // namespace

int main() {
  const std::string model = relu_model();
  const lathe::Session session = lathe::Session::load(std::as_bytes(std::span(model)), ".");
  const lathe::Tensor x = lathe::Tensor::from<float>({4}, {-1, 2, -3, 4});
  const std::vector<lathe::Tensor> outputs = session.run(std::span(&x, 1));
  const float expected[] = {0, 2, 0, 4};
  for (int i = 0; i < 4; ++i)
    if (outputs.at(0).elements<float>()[static_cast<size_t>(i)] != expected[i]) return 1;
  try {
    lathe::Session::load(std::as_bytes(std::span(model).first(20)), ".");
    return 2;
  } catch (const lathe::Error& error) {
    std::printf("refused, as it should: %s\n", error.what());
  }
}
