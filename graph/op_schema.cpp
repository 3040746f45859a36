#include "graph/op_schema.h"

#include "graph/text.h"
#include "lathe/error.h"

namespace lathe {

void InferContext::fail(const std::string& what) const {
  throw Error(ErrorCode::invalid_model, describe(node) + ": " + what);
}

void ReferenceContext::fail(const std::string& what) const {
  throw Error(ErrorCode::invalid_argument, describe(node) + ": " + what);
}

const OpSchema& OpLookup::require(std::string_view domain, std::string_view name, int version) const {
  const OpSchema* schema = find(domain, name, version);
  if (schema == nullptr) {
    throw Error(ErrorCode::internal, "operator " + in_quotes(name) + " of domain " + in_quotes(domain) + ", version " +
                                         std::to_string(version) + ", is not registered");
  }
  return *schema;
}

}  // namespace lathe
