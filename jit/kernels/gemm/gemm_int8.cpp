#include "jit/kernels/gemm/gemm_int8.h"

#include <fmt/format.h>

#include "jit/kernels/gemm/gemm_int8_emitter.h"

namespace lathe {

bool GemmInt8TilePlan::is_valid() const {
  if (rows < 1 || rows > 4 * kRowsPerBase || vecs < 1 || k_unroll < 1 || k_unroll > 16 || prefetch_lines < 0) {
    return false;
  }
  if (!has_dot(isa, dot) || k_unroll % lanes_of(dot) != 0) return false;
  if (epilogue && epilogue->inputs.size() > static_cast<size_t>(kMaxInt8Inputs)) return false;
  if (requantizes() && epilogue->expression.output != DType::f32) return false;
  if (store.gelu != 0 && !has_avx512(isa)) return false;
  if (row_groups < 0 || (row_groups > 0 && (!has_avx512(isa) || holds_a(*this) || !epilogue))) return false;
  return rows * vecs + work_registers(*this) + dot_needs_temp(isa, dot) <= vector_registers(isa);
}

std::string GemmInt8TilePlan::key() const {
  std::string text =
      fmt::format("gemm_int8_tile {} {} {}x{} k{} p{}{}{}{}", name_of(isa), to_string(dot), rows, vecs, k_unroll,
                  prefetch_lines, prefetches_on ? " on" : "", has_rows ? " rows" : "", masked ? " masked" : "");
  if (row_groups > 0) text += fmt::format(" {} groups a row", row_groups);
  if (epilogue) {
    text += " " + to_string(*epilogue);
    if (requantizes()) text += " " + to_string(store);
  }
  return text;
}

GemmInt8Tile gemm_int8_tile(const GemmInt8TilePlan& plan) {
  if (!plan.is_valid()) throw JitError("out of range or over the register budget: " + plan.key());
  return GemmInt8Tile(cached_code(plan.key(), [&] { return GemmInt8Emitter(plan).emit(); }));
}

}  // namespace lathe
