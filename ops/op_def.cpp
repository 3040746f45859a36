#include "ops/op_def.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace lathe {

OpRegistry::OpRegistry(std::vector<OpDef> defs) : defs_(std::move(defs)), by_name_(defs_.size()) {
  std::iota(by_name_.begin(), by_name_.end(), size_t{0});
  std::sort(by_name_.begin(), by_name_.end(), [&](size_t a, size_t b) {
    const OpSchema &x = defs_[a].schema, &y = defs_[b].schema;
    return std::tie(x.domain, x.name, x.since) < std::tie(y.domain, y.name, y.since);
  });
  for (const OpDef& def : defs_) lowerings_.emplace(&def.schema, def.lower);
}

const OpSchema* OpRegistry::find(std::string_view domain, std::string_view name, int version) const {
  if (domain == "ai.onnx") domain = "";
  auto at = std::lower_bound(by_name_.begin(), by_name_.end(), std::tie(domain, name), [&](size_t i, const auto& key) {
    const OpSchema& schema = defs_[i].schema;
    return std::tie(schema.domain, schema.name) < key;
  });
  for (; at != by_name_.end(); ++at) {
    const OpSchema& schema = defs_[*at].schema;
    if (schema.domain != domain || schema.name != name) break;
    if (schema.since <= version && version <= schema.until) return &schema;
  }
  return nullptr;
}

std::vector<OpVersions> OpRegistry::versions_of(std::string_view domain, std::string_view name) const {
  std::vector<OpVersions> versions;
  for (const size_t i : by_name_) {
    const OpSchema& schema = defs_[i].schema;
    if (schema.domain == domain && schema.name == name) versions.push_back({schema.since, schema.until});
  }
  return versions;
}

LowerFn* OpRegistry::lowering_of(const OpSchema& schema) const {
  auto found = lowerings_.find(&schema);
  return found == lowerings_.end() ? nullptr : found->second;
}

}  // namespace lathe
