#pragma once
// Names while a model is imported: which value a name means here, and which names are free.
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "graph/onnx/onnx_functions.h"

namespace lathe {

// A Graph that is being built. Functions are expanded into the Graph of their call, so several scopes may fill one.
class GraphInProgress {
 public:
  struct Capture {
    ValueId outer;
    ValueId inner;
  };

  explicit GraphInProgress(Graph& built) : graph(built) {}

  Graph& graph;
  std::vector<Capture> captures;  // in order of first use

  void mark_defined(ValueId id);
  bool is_defined(ValueId id) const { return index_of(id) < is_defined_.size() && is_defined_[index_of(id)]; }

  // Keeps a name of the model itself free of made-up ones.
  void reserve_node_name(const std::string& name) { reserved_node_names_.insert(name); }
  // `wanted`, or wanted_1, wanted_2, ... The model's own name wins over a made-up one.
  std::string unique_node_name(const std::string& wanted, bool is_made_up);
  std::string unique_value_name(const std::string& wanted);

  // The value in this graph that stands for an outer one; made at first use.
  ValueId capture(ValueId outer, const Value& outer_value);

 private:
  std::vector<bool> is_defined_;
  std::unordered_set<std::string> value_names_, node_names_, reserved_node_names_;
  std::unordered_map<std::string, int> next_suffix_;
  std::unordered_map<int32_t, ValueId> captured_;
};

// Names of one graph, body or function call.
class Scope {
 public:
  explicit Scope(GraphInProgress& filled) : target(filled) {}

  GraphInProgress& target;
  Scope* outer = nullptr;  // where a body finds names that it does not define; null for the main graph and functions
  const Opsets* opsets = nullptr;
  const Function* function = nullptr;                          // whose nodes these are
  const std::map<std::string, Attribute>* bindings = nullptr;  // the call's attributes, defaults included
  std::string place;                                           // "" or "function 'F': ", for messages
  std::string prefix;                                          // of made-up names: "call/"
  int function_depth = 0;                                      // calls around this scope
  int body_depth = 0;

  // False when the scope has that name already.
  bool declare(const std::string& name, ValueId id) { return names_.emplace(name, id).second; }
  bool declares(const std::string& name) const { return names_.count(name) != 0; }
  // The value that `name` means here, captured from outside if need be; nullopt: nobody defines it. Outer values must
  // be defined by nodes that come before. ValueId::none: a function's optional input that the call left out.
  std::optional<ValueId> resolve(const std::string& name);
  std::optional<ValueId> find_own(const std::string& name) const;

 private:
  std::unordered_map<std::string, ValueId> names_;
};

}  // namespace lathe
