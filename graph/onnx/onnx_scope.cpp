#include "graph/onnx/onnx_scope.h"

namespace lathe {
namespace {

constexpr size_t kLongestMadeUpName = 256;  // prefixes of nested calls add up

// Inserts wanted, or wanted_N with the smallest N that is free from `next` on.
std::string take_free(std::unordered_set<std::string>& taken, const std::unordered_set<std::string>& reserved,
                      std::unordered_map<std::string, int>& next, const std::string& wanted) {
  if (!reserved.count(wanted) && taken.insert(wanted).second) return wanted;
  int& suffix = next[wanted];
  while (true) {
    std::string name = wanted + "_" + std::to_string(++suffix);
    if (!reserved.count(name) && taken.insert(name).second) return name;
  }
}

std::string shortened(const std::string& name) {
  return name.size() <= kLongestMadeUpName ? name : name.substr(name.size() - kLongestMadeUpName);
}

}  // namespace

void GraphInProgress::mark_defined(ValueId id) {
  if (index_of(id) >= is_defined_.size()) is_defined_.resize(index_of(id) + 1, false);
  is_defined_[index_of(id)] = true;
}

std::string GraphInProgress::unique_node_name(const std::string& wanted, bool is_made_up) {
  if (!is_made_up && node_names_.insert(wanted).second) return wanted;
  return take_free(node_names_, reserved_node_names_, next_suffix_, shortened(wanted));
}

std::string GraphInProgress::unique_value_name(const std::string& wanted) {
  if (value_names_.insert(wanted).second) return wanted;
  return take_free(value_names_, {}, next_suffix_, shortened(wanted));
}

ValueId GraphInProgress::capture(ValueId outer, const Value& outer_value) {
  const auto [entry, is_new] = captured_.try_emplace(static_cast<int32_t>(outer), ValueId::none);
  if (!is_new) return entry->second;
  const std::string name = unique_value_name(outer_value.name);
  if (outer_value.is_constant()) {
    // The elements are shared, so a body may see them without asking its node for them at each run.
    entry->second = graph.add_constant(name, outer_value.constant);
  } else {
    entry->second = graph.add_value(name, outer_value.type);
    captures.push_back({outer, entry->second});
  }
  mark_defined(entry->second);
  return entry->second;
}

std::optional<ValueId> Scope::find_own(const std::string& name) const {
  const auto found = names_.find(name);
  if (found == names_.end()) return std::nullopt;
  return found->second;
}

std::optional<ValueId> Scope::resolve(const std::string& name) {
  if (const std::optional<ValueId> own = find_own(name)) return own;
  if (outer == nullptr) return std::nullopt;
  const std::optional<ValueId> found = outer->resolve(name);
  if (!found || *found == ValueId::none) return found;
  if (!outer->target.is_defined(*found)) return std::nullopt;
  const ValueId inner = target.capture(*found, outer->target.graph.value(*found));
  names_.emplace(name, inner);
  return inner;
}

}  // namespace lathe
