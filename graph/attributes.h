#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "graph/type.h"

namespace lathe {

class Graph;

using Attribute = std::variant<int64_t, float, std::string, Tensor, std::shared_ptr<const Graph>, std::vector<int64_t>,
                               std::vector<float>, std::vector<std::string>, std::vector<Tensor>,
                               std::vector<std::shared_ptr<const Graph>>, TensorType>;

std::string_view kind_name(const Attribute& attribute);  // "an int", "a list of floats", ...

// A node's attributes by name. get_* give the fallback when the attribute is absent and throw Error(invalid_model),
// naming the attribute, when it has another kind.
class Attributes {
 public:
  // All that instantiates the map is in one file, as most files include this one.
  Attributes();
  Attributes(const Attributes&);
  Attributes(Attributes&&) noexcept;
  Attributes& operator=(const Attributes&);
  Attributes& operator=(Attributes&&) noexcept;
  ~Attributes();

  bool has(std::string_view name) const { return find(name) != nullptr; }
  const Attribute* find(std::string_view name) const;
  void set(std::string name, Attribute value);
  void erase(std::string_view name);

  int64_t get_int(std::string_view name, int64_t fallback) const;
  float get_float(std::string_view name, float fallback) const;
  std::string get_string(std::string_view name, const std::string& fallback) const;
  std::vector<int64_t> get_ints(std::string_view name, const std::vector<int64_t>& fallback = {}) const;
  std::vector<float> get_floats(std::string_view name, const std::vector<float>& fallback = {}) const;
  std::vector<std::string> get_strings(std::string_view name) const;
  Tensor get_tensor(std::string_view name) const;                       // undefined when absent
  std::shared_ptr<const Graph> get_graph(std::string_view name) const;  // null when absent

  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

 private:
  std::map<std::string, Attribute, std::less<>> values_;
};

}  // namespace lathe
