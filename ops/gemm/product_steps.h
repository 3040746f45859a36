#pragma once
// The steps of one matrix product C = epilogue(A * B) once its plan is chosen: for MatMul's and Gemm's nodes, and for
// other families whose layers begin with a product by constant weights.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/gemm/gemm_pack.h"
#include "ops/gemm/gemm_product.h"
#include "ops/gemm/gemm_strassen.h"
#include "ops/lower.h"

namespace lathe {

// An operand of the epilogue.
struct ProductInput {
  BufferId buffer = BufferId::none;
  int64_t row_stride = 0, offset = 0;  // in elements
  bool covers_output = false;          // every element once, in C's order
};

// A step's call: buffers in place of addresses.
struct ProductBuffers {
  GemmOperands operands;  // strides of A, B and C; addresses come with each run
  BufferId a = BufferId::none, b = BufferId::none, c = BufferId::none, scratch = BufferId::none;
  std::vector<ProductInput> inputs;

  GemmOperands bind(const StepArgs& args) const;
};

// `weights`: the packed constant that buffers.b holds, to be fetched ahead; undefined: B is none.
void add_product(const LowerContext& context, const GemmProblem& problem, std::shared_ptr<const GemmProduct> product,
                 ProductBuffers buffers, const Tensor& weights);

// B, or a part of a constant that is B.
struct ConstantMatrix {
  ValueId constant = ValueId::none;
  std::string text;   // tells it from other matrices in the same constant
  MatrixView view;    // of the first
  int64_t count = 1;  // matrices, one behind the other
  float scale = 1;
};

// LowerContext::is_true_of() a part of a constant.
bool is_true_of(const LowerContext& context, const ConstantMatrix& b, const std::string& question,
                const std::function<bool()>& find);

// One of both.
struct EmittedProduct {
  std::shared_ptr<const StrassenProduct> blocks;
  std::shared_ptr<const GemmProduct> plain;
};

// By fewer products of blocks where the plan says so and weights are for it. `b`: null where B is no constant. Throws
// JitError.
EmittedProduct emit_product(const LowerContext& context, const GemmProblem& problem, const GemmPlan& plan,
                            const ConstantMatrix* b, const std::vector<GemmOffsets>& offsets = {});

// Packs B: buffers.b is not read.
void add_block_product(const LowerContext& context, const GemmProblem& problem,
                       const std::shared_ptr<const StrassenProduct>& product, const ConstantMatrix& b,
                       ProductBuffers buffers);

}  // namespace lathe
