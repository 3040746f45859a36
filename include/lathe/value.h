#pragma once
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "lathe/tensor.h"

namespace lathe {

// The pairs of a map, by position: rank 1 both, equally long. Keys are strings or integers.
struct Map {
  Tensor keys, values;
};

// What a model takes and gives: nearly always a Tensor; in few models a sequence, a map, or nothing, which is an
// optional without an element (one that has an element is that element itself). Copies share what they hold.
// Thread-safe to read.
class AnyValue {
 public:
  AnyValue() = default;  // nothing
  // A tensor is a value; an undefined one is nothing.
  AnyValue(Tensor tensor);  // NOLINT(google-explicit-constructor)
  static AnyValue sequence(std::vector<AnyValue> items);
  // Throws Error(invalid_argument) when the two are not of rank 1 and equally long.
  static AnyValue map(Tensor keys, Tensor values);

  bool is_nothing() const { return std::holds_alternative<std::monostate>(held_); }
  bool is_tensor() const { return std::holds_alternative<Tensor>(held_); }
  bool is_sequence() const { return std::holds_alternative<Items>(held_); }
  bool is_map() const { return std::holds_alternative<Pairs>(held_); }

  // Throw Error(invalid_argument) when it is something else.
  const Tensor& tensor() const;
  const std::vector<AnyValue>& items() const;
  const Map& pairs() const;

  std::string kind() const;  // "nothing", "a tensor", "a sequence", "a map": for messages

 private:
  using Items = std::shared_ptr<const std::vector<AnyValue>>;
  using Pairs = std::shared_ptr<const Map>;
  std::variant<std::monostate, Tensor, Items, Pairs> held_;
};

}  // namespace lathe
