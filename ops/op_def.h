#pragma once
#include <span>
#include <unordered_map>
#include <vector>

#include "graph/op_schema.h"

namespace lathe {

class LowerContext;

// True: lowered to steps. False: this instance has no generated code; the reference runs.
using LowerFn = bool(LowerContext&);

// One operator at one range of opset versions. Each file ops/def/<family>.cpp defines
//   std::vector<OpDef> <family>_ops();      (in namespace lathe::ops)
// and CMake collects them into the registry at configure time.
struct OpDef {
  OpSchema schema;
  LowerFn* lower = nullptr;
};

// All operators. Built at first use, immutable afterwards.
class OpRegistry : public OpLookup {
 public:
  static const OpRegistry& builtin();
  explicit OpRegistry(std::vector<OpDef> defs);
  const OpSchema* find(std::string_view domain, std::string_view name, int version) const override;
  std::vector<OpVersions> versions_of(std::string_view domain, std::string_view name) const override;
  LowerFn* lowering_of(const OpSchema& schema) const;
  std::span<const OpDef> all() const { return defs_; }

 private:
  std::vector<OpDef> defs_;
  std::vector<size_t> by_name_;  // indices into defs_, sorted by (domain, name, since)
  std::unordered_map<const OpSchema*, LowerFn*> lowerings_;
};

}  // namespace lathe
