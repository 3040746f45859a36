#include "ops/pointwise/relation.h"

#include "ops/pointwise/elementwise.h"

namespace lathe {

OpDef relation(std::string_view name, int since, ReferenceFn* reference, ExpressFn* express, LowerFn* lower) {
  using Kind = AttributeSpec::Kind;
  return {.schema = {.name = name,
                     .since = since,
                     .min_inputs = 2,
                     .max_inputs = 2,
                     .attributes = {{"axis", Kind::integer}, {"broadcast", Kind::integer}},
                     .infer = infer_broadcast_bool,
                     .reference = reference,
                     .express = express,
                     .layout = LayoutRole::any_same},
          .lower = lower};
}

}  // namespace lathe
