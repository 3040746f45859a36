#include "graph/attributes.h"

#include <array>

#include "graph/text.h"
#include "lathe/error.h"

namespace lathe {
namespace {

// In the order of the variant's alternatives.
constexpr std::array<std::string_view, std::variant_size_v<Attribute>> kKindNames = {
    "an int",           "a float",           "a string",          "a tensor",         "a graph", "a list of ints",
    "a list of floats", "a list of strings", "a list of tensors", "a list of graphs", "a type"};

template <class T>
const T* get(const Attributes& attributes, std::string_view name) {
  const Attribute* attribute = attributes.find(name);
  if (attribute == nullptr) return nullptr;
  if (const T* value = std::get_if<T>(attribute)) return value;
  throw Error(ErrorCode::invalid_model, "attribute " + in_quotes(name) + " is " + std::string(kind_name(*attribute)) +
                                            ", expected " + std::string(kind_name(Attribute(T{}))));
}

template <class T>
T get_or(const Attributes& attributes, std::string_view name, const T& fallback) {
  const T* value = get<T>(attributes, name);
  return value != nullptr ? *value : fallback;
}

}  // namespace

std::string_view kind_name(const Attribute& attribute) { return kKindNames[attribute.index()]; }

Attributes::Attributes() = default;
Attributes::Attributes(const Attributes&) = default;
Attributes::Attributes(Attributes&&) noexcept = default;
Attributes& Attributes::operator=(const Attributes&) = default;
Attributes& Attributes::operator=(Attributes&&) noexcept = default;
Attributes::~Attributes() = default;

const Attribute* Attributes::find(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? nullptr : &found->second;
}

void Attributes::set(std::string name, Attribute value) { values_.insert_or_assign(std::move(name), std::move(value)); }

void Attributes::erase(std::string_view name) {
  const auto found = values_.find(name);
  if (found != values_.end()) values_.erase(found);
}

int64_t Attributes::get_int(std::string_view name, int64_t fallback) const { return get_or(*this, name, fallback); }

float Attributes::get_float(std::string_view name, float fallback) const { return get_or(*this, name, fallback); }

std::string Attributes::get_string(std::string_view name, const std::string& fallback) const {
  return get_or(*this, name, fallback);
}

std::vector<int64_t> Attributes::get_ints(std::string_view name, const std::vector<int64_t>& fallback) const {
  return get_or(*this, name, fallback);
}

std::vector<float> Attributes::get_floats(std::string_view name, const std::vector<float>& fallback) const {
  return get_or(*this, name, fallback);
}

std::vector<std::string> Attributes::get_strings(std::string_view name) const {
  return get_or(*this, name, std::vector<std::string>());
}

Tensor Attributes::get_tensor(std::string_view name) const { return get_or(*this, name, Tensor()); }

std::shared_ptr<const Graph> Attributes::get_graph(std::string_view name) const {
  return get_or(*this, name, std::shared_ptr<const Graph>());
}

}  // namespace lathe
