#pragma once
#include <compare>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace lathe {

// A sum of extents of a graph's inputs and a number: "past + 1".
struct ExtentSum {
  struct Extent {
    size_t input, axis;
    auto operator<=>(const Extent&) const = default;
  };
  std::map<Extent, int64_t> factors;  // none is 0
  int64_t number = 0;
  auto operator<=>(const ExtentSum&) const = default;
};

// What extents and elements of shape arithmetic are, for all shapes of the inputs, where these are such sums.
class ExtentSums {
 public:
  // Requires: inferred types; unknown extents of inputs have symbols. The graph stays, and is not changed.
  explicit ExtentSums(const Graph& graph);

  std::optional<ExtentSum> extent(const Dim& dim) const;
  // Of a list of integers, or of one; nullopt: one of them is not known so.
  std::optional<std::vector<ExtentSum>> elements(ValueId id) const;

 private:
  using Element = std::optional<ExtentSum>;
  using Elements = std::vector<Element>;

  void add_node(const Node& node);
  void name_extents(const Node& node, const TensorType& type);
  Element extent_made_by(const Node& node, size_t axis) const;
  Element joined_extent(const Node& concat, size_t axis) const;
  Element wanted_extent(ValueId shape, size_t axis) const;
  std::optional<Elements> elements_made_by(const Node& node) const;
  std::optional<Elements> shape_of(const Node& node) const;
  Elements joined(const Node& node) const;
  std::optional<Elements> picked(const Node& node) const;
  std::optional<Elements> counted(const Node& node) const;
  std::optional<Elements> combined(const Node& node, const std::vector<const Elements*>& operands) const;
  const Elements* known_elements(ValueId id) const;

  const Graph& graph_;
  std::unordered_map<std::string, ExtentSum> of_symbol_;
  std::unordered_map<ValueId, Elements> of_value_;
};

}  // namespace lathe
