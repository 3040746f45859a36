#include <algorithm>

#include "jit/kernels/resize/mix_pixels.h"

namespace lathe {
namespace {

constexpr int kMostTermsAlike = 4;

// Registers for sums, what pixels alike are made of, and what else there is.
bool has_room_for_alike(Isa isa, int elements, int terms) {
  constexpr int kOthers = 6;
  const int vectors = (elements + vector_lanes(isa) - 1) / vector_lanes(isa);
  return terms <= kMostTermsAlike && vectors + terms + kOthers <= vector_registers(isa);
}

// How many that share what they are made of are worth making together: most have so many. Else jumps are mispredicted.
int together_alike(const MixTerms& terms) {
  if (terms.places.empty()) return 1;
  const std::vector<int32_t> alike = terms.alike();
  for (int together = 4; together > 1; --together) {
    int64_t covered = 0;
    for (size_t i = 0; i < alike.size();) {
      const int count = alike[i] / together * together;
      covered += count;
      i += static_cast<size_t>(std::max(count, 1));
    }
    if (10 * covered >= 9 * static_cast<int64_t>(alike.size())) return together;
  }
  return 1;
}

}  // namespace

bool MixPixelsPlan::is_valid() const {
  const int lanes = vector_lanes(isa), least = has_avx512(isa) ? 1 : lanes;
  const bool has_length = elements >= least && elements <= kVectorsTogether * lanes && !by_element;
  return terms >= 1 && (!blends || terms == 2) && (elements == 0 || has_length) && alike >= 1 &&
         (alike == 1 || (has_length && has_room_for_alike(isa, elements, terms)));
}

std::string to_string(const MixPixelsPlan& plan) {
  std::string text =
      vector_set(plan.isa) + " mix pixels, " + std::to_string(plan.terms) + (plan.blends ? " blended" : " terms");
  if (plan.elements > 0)
    text += " of " + std::to_string(plan.elements) + " in " + std::to_string(plan.stride) + " bytes";
  if (plan.alike > 1) text += ", " + std::to_string(plan.alike) + " alike";
  if (plan.by_element) text += " by element";
  return text + ", " + name_of(plan.from) + " to " + name_of(plan.to);
}

MixPixelsPlan mix_pixels_plan(Isa isa, const MixTerms& terms, MixElement from, MixElement to, int64_t elements,
                              int64_t stride) {
  const bool fills_vector = elements >= vector_lanes(isa);
  const bool has_code = elements <= kVectorsTogether * vector_lanes(isa) && (has_avx512(isa) || fills_vector);
  const bool has_alike = has_code && has_room_for_alike(isa, static_cast<int>(elements), terms.terms);
  return {.isa = isa,
          .terms = terms.terms,
          .blends = terms.blends,
          .from = from,
          .to = to,
          .elements = has_code ? static_cast<int>(elements) : 0,
          .stride = has_code ? static_cast<int>(stride) : 0,
          .alike = has_alike ? together_alike(terms) : 1,
          .by_element = !fills_vector && !has_code};
}

}  // namespace lathe
