// What a tile of a matrix product can be, and the name of its code.
#include "jit/kernels/gemm/gemm.h"

#include <fmt/format.h>

#include <algorithm>

namespace lathe {
namespace {

constexpr int kMostRows = 36;  // four registers for A's rows

int vec_registers_needed(const GemmTilePlan& plan) {
  const bool keeps_mask = plan.masked && plan.b_in_place && !has_avx512(plan.isa);
  return plan.rows * plan.vecs + plan.work_registers() + keeps_mask;
}

}  // namespace

bool GemmTilePlan::holds_a() const { return !embed_broadcast && rows < vecs; }

int GemmTilePlan::work_registers() const {
  constexpr int kDecoding = 4;  // and the scales
  if (weights == WeightFormat::bfp20) return vecs + kDecoding;
  const int decoding = weights == WeightFormat::bfp24 ? 1 : 0;
  if (embed_broadcast) return vecs + decoding;
  return (holds_a() ? rows + 1 : vecs + 1) + decoding;
}

int GemmTilePlan::fold_count() const {
  return static_cast<int>(std::find(folds.begin(), folds.end(), GemmFold::none) - folds.begin());
}

// An epilogue belongs to folds that complete a matrix, and the other way round.
bool GemmTilePlan::has_fitting_epilogue() const {
  const bool completes_any =
      std::any_of(completes.begin(), completes.end(), [](bool is_complete) { return is_complete; });
  if (!folds_product()) {
    return !completes_any && !fetches_folds &&
           (!epilogue || std::count(epilogue->inputs.begin(), epilogue->inputs.end(), GemmInputAccess::alike) == 0);
  }
  for (int i = 0; i < kMostFolds; ++i) {
    const GemmFold fold = folds[static_cast<size_t>(i)];
    if (completes[static_cast<size_t>(i)] && (fold == GemmFold::none || fold == GemmFold::take)) return false;
  }
  return completes_any == epilogue.has_value();
}

bool GemmTilePlan::is_valid() const {
  if (rows < 1 || rows > kMostRows || vecs < 1 || k_unroll < 1 || k_unroll > 16) return false;
  if (longest_sum < 0 || longest_sum % k_unroll != 0) return false;
  if (longest_sum > 0 && (bf16 || weights == WeightFormat::bfp20 || b_sign != 0)) return false;
  if (prefetch_lines < 0 || (embed_broadcast && !has_avx512(isa))) return false;
  if (epilogue && epilogue->inputs.size() > static_cast<size_t>(kMaxGemmInputs)) return false;
  if (std::any_of(folds.begin() + fold_count(), folds.end(), [](GemmFold fold) { return fold != GemmFold::none; })) {
    return false;
  }
  if (folds_product() && (masked || accumulate || fetches_ends)) return false;
  if (!has_fitting_epilogue()) return false;
  if (a_in_chunks && (k_unroll != vector_lanes(isa) || bf16 || starts_at_a)) return false;
  if (fetch_rows < 0 || fetch_rows > kMostRows || fetch_matrices < 0 || fetch_matrices > 3) return false;
  if (apart && (!folds_product() || vecs > 4)) return false;
  if (b_sign != 0 && b_in_place) return false;
  if (widens && !bf16) return false;
  if (last_share > 1 && (!has_avx512(isa) || vecs < 2 || embed_broadcast || holds_a() || b_in_place || b_sign != 0 ||
                         bf16 || a_in_chunks || folds_product())) {
    return false;
  }
  if (half_last && (!has_avx512(isa) || last_share > 1 || bf16 || weights == WeightFormat::bfp20 || folds_product())) {
    return false;
  }
  if (bf16 && (isa != Isa::avx512_bf16 || (accumulate && !widens) || starts_at_a || b_in_place || b_sign != 0 ||
               folds_product())) {
    return false;
  }
  if (weights != WeightFormat::f32 && ((prefetch_lines > 0 && weights != WeightFormat::bfp24) || b_in_place ||
                                       b_sign != 0 || last_share > 1 || bf16 || a_in_chunks || folds_product())) {
    return false;
  }
  if (weights == WeightFormat::bfp20 && embed_broadcast) return false;
  if (weights == WeightFormat::bfp24 && k_unroll != Bfp24::kGroupRows) return false;
  if (weights_to_l2 && (prefetch_lines > 0 || b_in_place)) return false;
  return vec_registers_needed(*this) <= vector_registers(isa);
}

std::string to_string(const GemmEpilogue& epilogue) {
  std::string text = to_string(epilogue.expression) + (epilogue.inputs.empty() ? "" : " ");
  for (const GemmInputAccess access : epilogue.inputs) text += "cua"[static_cast<size_t>(access)];
  return text;
}

std::string GemmTilePlan::key() const {
  std::string text = fmt::format("gemm_tile {} {}x{} k{} p{}{}{}{}{}{}", name_of(isa), rows, vecs, k_unroll,
                                 prefetch_lines, embed_broadcast ? " embed" : "", accumulate ? " acc" : "",
                                 starts_at_a ? " from A" : "", masked ? " masked" : "", b_in_place ? " inplace" : "");
  static constexpr std::string_view kFolds[] = {"", " set", " add", " subtract", " take"};
  for (size_t i = 0; i < static_cast<size_t>(fold_count()); ++i) {
    text += kFolds[static_cast<size_t>(folds[i])];
    if (completes[i]) text += '!';
  }
  if (last_share > 1) text += fmt::format(" share{}", last_share);
  if (half_last) text += " half";
  if (fetches_folds) text += " fetched";
  if (fetches_ends) text += " fetches";
  if (apart) text += " apart";
  if (a_in_chunks) text += " chunks";
  if (fetch_rows > 0) text += fmt::format(" fetch{}x{}", fetch_rows, fetch_matrices);
  if (bf16) text += widens ? " bf16 to f32" : " bf16";
  if (weights != WeightFormat::f32) text += fmt::format(" {}", name_of(weights));
  if (weights_to_l2) text += " to L2";
  if (longest_sum > 0) text += fmt::format(" sums{}", longest_sum);
  if (b_sign != 0) text += b_sign > 0 ? " B+" : " B-";
  if (epilogue) text += " " + to_string(*epilogue);
  return text;
}

}  // namespace lathe
