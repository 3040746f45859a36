#pragma once
// What the files of composite operators share: inference and reference by the expansion itself, and the phrases that
// expansions are made of.
#include <string_view>
#include <vector>

#include "graph/expand.h"
#include "ops/op_def.h"

namespace lathe {

inline constexpr std::string_view kMicrosoft = "com.microsoft";

// The types of the parts' results. Where the node cannot be expanded yet, an output has the element type of input 0.
void infer_by_expansion(InferContext& context);
// Runs the parts by their references.
void reference_by_expansion(ReferenceContext& context);

// An operator of com.microsoft whose meaning is its expansion. More of the schema can be set on the result.
OpDef composite(std::string_view name, int min_inputs, int max_inputs, ExpandFn* expand,
                std::vector<AttributeSpec> attributes = {});

// Fails unless these inputs are there: OpSchema::min_inputs cannot say that one before them may be absent.
void require_inputs(const ExpandContext& context, std::initializer_list<int> inputs);

// A scalar of a floating-point or integer type.
ValueId add_scalar(ExpandContext& context, DType dtype, double value);
Attributes copied_attributes(const Node& node, std::initializer_list<std::string_view> names);

ValueId add_transposed(ExpandContext& context, ValueId x, std::vector<int64_t> permutation);
// [N, spatial..., C] to [N, C, spatial...] and back. Fails for a rank below 2.
ValueId add_channels_first(ExpandContext& context, ValueId x, int rank);
ValueId add_channels_last(ExpandContext& context, ValueId x, int rank);

// A piece of `x` for each of `lengths` along `axis`.
std::vector<ValueId> add_split(ExpandContext& context, ValueId x, int64_t axis, const std::vector<int64_t>& lengths);

// y = f(x) by the name that fused operators carry in an attribute. `parameters` in the order of f's attributes.
ValueId add_activation(ExpandContext& context, ValueId x, const std::string& name,
                       const std::vector<float>& parameters);

// (x - zero_point) * scale, and the nearest element of `dtype` to y / scale + zero_point. The zero point may be absent.
ValueId add_dequantized(ExpandContext& context, ValueId x, ValueId scale, ValueId zero_point);
ValueId add_quantized(ExpandContext& context, ValueId y, ValueId scale, ValueId zero_point, DType dtype);

}  // namespace lathe
