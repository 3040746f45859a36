#pragma once
// What the operators of pass_ops.h mean: inference and plain references.
#include <functional>
#include <optional>
#include <span>

#include "graph/op_schema.h"

namespace lathe::testing {

// Pointwise operators, one expression each.
std::optional<Expression> express(const Node& node, std::span<const TensorType> inputs,
                                  const std::function<Tensor(int)>& constant);
void infer_pointwise(InferContext& context);
double element(const Tensor& tensor, int64_t i);
void set_element(Tensor& tensor, int64_t i, double value);
void reference_pointwise(ReferenceContext& context);

// Convolution, products, norms and reductions.
void infer_conv(InferContext& context);
void reference_conv(ReferenceContext& context);
bool conv_accepts_blocked(const Node& node, std::span<const TensorType>, int);
void infer_matmul(InferContext& context);
void reference_matmul(ReferenceContext& context);
void infer_same(InferContext& context);
void reference_batch_norm(ReferenceContext& context);
void infer_reduce_mean(InferContext& context);
void reference_reduce_mean(ReferenceContext& context);
void reference_layer_norm(ReferenceContext& context);
void infer_pool(InferContext& context);
void reference_pool(ReferenceContext& context);
bool always_blocked(const Node&, std::span<const TensorType>, int);

// Shapes, moves of elements, bodies.
void infer_shape(InferContext& context);
void infer_gather(InferContext& context);
void reference_gather(ReferenceContext& context);
void infer_concat(InferContext& context);
void reference_concat(ReferenceContext& context);
void infer_reshape(InferContext& context);
void reference_reshape(ReferenceContext& context);
void infer_unsqueeze(InferContext& context);
void infer_squeeze(InferContext& context);
void reference_unsqueeze(ReferenceContext& context);
void reference_squeeze(ReferenceContext& context);
void infer_transpose(InferContext& context);
void reference_transpose(ReferenceContext& context);
void reference_same(ReferenceContext& context);
void infer_if(InferContext& context);
void reference_if(ReferenceContext& context);
void reference_random(ReferenceContext& context);

}  // namespace lathe::testing
